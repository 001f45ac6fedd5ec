package realign

import (
	"context"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
)

// Served is a planned disk that others read, without a copy of it.
type Served struct {
	Disk disk.Disk

	source  *Source
	release func()
}

// Serve checks the planned disk as Job.Write does before it writes, and holds the source until Close. s has no layout
// after that.
func (s *Source) Serve(ctx context.Context, p *Plan) (*Served, error) {
	view, err := s.View(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	s.Layout = nil // what it takes is needed by clients
	release, err := s.Image.Hold()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	v := &Served{view, s, release}
	if err := s.Image.CheckDigests(ctx); err != nil {
		v.Close()
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	return v, nil
}

// Fit returns the error of a source that is not what it was when it was opened: what was read since may be of both.
func (v *Served) Fit() error {
	if err := v.source.unchanged(); err != nil {
		return fmt.Errorf("%w; what clients have read since then is not sound", err)
	}
	return nil
}

// Close ends the hold on the source.
func (v *Served) Close() { v.release() }
