package realign

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/inplace"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/unfinished"
	"github.com/trueup/trueup/internal/verify"
)

// MoveInPlace moves the partitions inside of the disk. After that it is as planned, or as it was, or in the middle of
// the move; Middle tells that error from others.
func (j *Job) MoveInPlace(ctx context.Context, s *Source, p *plan.Plan) (w Written, err error) {
	if _, err := s.View(p); err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	start := time.Now()
	j.begun()
	j.watch()
	m := inplace.Move{
		Image: s.Image, Plan: p, Path: s.Path(), Options: j.inPlace(), Moves: j.Moves,
		Look: func(d disk.Disk) error {
			after, err := layout.Read(d, s.geometry())
			if err != nil {
				return err
			}
			return verify.Promise(p, s.Layout, after)
		},
	}
	if err := m.Run(ctx); err != nil {
		return w, fmt.Errorf("%s: %w", s.Path(), err)
	}
	w = Written{Format: s.Image.Format, Subformat: s.Image.Subformat, Took: Since(start)}
	for _, f := range s.Image.Files() {
		w.Files = append(w.Files, f.Name)
	}
	for _, x := range p.Moves {
		w.Copied += x.Len
	}
	return w, nil
}

func (j *Job) inPlace() inplace.Options {
	o := inplace.Options{Jobs: j.Jobs, Progress: j.add}
	o.Begin = func(phase string, total int64) { j.phase(phase)(total) }
	return o
}

// GoOnInPlace completes a move that was interrupted, or takes it back.
func (j *Job) GoOnInPlace(ctx context.Context, h *unfinished.Held, undo bool) (unfinished.Done, error) {
	j.begun()
	j.watch()
	if undo {
		return inplace.Undo(ctx, h, j.inPlace())
	}
	return inplace.Resume(ctx, h, sound, j.inPlace())
}

// sound reads a disk that was moved by another run.
func sound(d disk.Disk) error {
	after, err := layout.Read(d, table.Geometry{})
	if err != nil {
		return err
	}
	for _, i := range after.Issues {
		if i.Effect == ondisk.Broken {
			return fmt.Errorf("the moved disk: %w", i.Err)
		}
	}
	return nil
}

// Middle reports whether an error leaves a disk in the middle of a move.
func Middle(err error) bool { return errors.Is(err, inplace.ErrMiddle) }

// midMove refuses a disk that begins with the mark of a move, whatever name it has.
func (s *Source) midMove() error {
	b := make([]byte, len(inplace.MarkText))
	if s.Image.Disk.Size() < int64(len(b)) {
		return nil
	}
	if _, err := s.Image.Disk.ReadAt(b, 0); err != nil || string(b) != inplace.MarkText {
		return nil //nolint:nilerr // reading the table reports it
	}
	return &ondisk.Refusal{
		Code: "unfinished", Reason: "the disk is in the middle of a move in place",
		Remedy: "its journal has .trueup behind the name of the disk: give trueup resume or trueup undo with that name",
	}
}
