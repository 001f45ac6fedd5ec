package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/container"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
)

// usage is what inspect finds out of the way in which an image stores its disk.
type usage struct {
	usage   *container.Usage // nil when the tables of the image are broken
	nonZero *int64           // nil when it was not counted
	issues  []ondisk.Issue
}

// readJobs is how many chunks are read at once.
const readJobs = 4

// look walks over the map of the image, and reads its data where that is wanted or little.
func (f inspectFlags) look(ctx context.Context, errOut io.Writer, s *source) (*usage, error) {
	out := &usage{}
	if err := broken(align.Relevant(s.damage, nil)); err != nil {
		return out, nil //nolint:nilerr // said already
	}
	u, err := container.Look(s.img.Disk, s.img.Child, s.parts())
	if err != nil {
		out.issues = unreadable("unreadable-map", err)
		return out, nil
	}
	out.usage, out.issues = u, u.Issues()
	if !f.data && !u.Small() {
		return out, nil
	}
	f.ending.hold("")
	bar := f.silentUnless(f.data, errOut)
	bar.Begin("read", u.Data())
	n, err := container.NonZero(ctx, s.img.Disk, readJobs, bar.Add)
	bar.stop()
	switch {
	case errors.Is(err, context.Canceled):
		return nil, err
	case err != nil:
		out.issues = append(out.issues, unreadable("unreadable-data", err)...)
	default:
		out.nonZero = &n
	}
	return out, nil
}

// silentUnless shows progress of reading that a user has asked for.
func (c *common) silentUnless(asked bool, w io.Writer) progress {
	if !asked {
		return silent{}
	}
	return c.newProgress(w, "auto", "inspect")
}

// parts are the partitions whose place in the file matters.
func (s *source) parts() []container.Part {
	var out []container.Part
	for _, p := range s.layout.Partitions {
		if align.Judged(p) {
			out = append(out, container.Part{Number: p.Number, Range: p.Range})
		}
	}
	return out
}

// checkMap finds what only a reader of all of a disk meets: inspect reads the map of every image, and the data where they are little.
func (s *source) checkMap() {
	if broken(align.Relevant(s.damage, nil)) != nil {
		return // said already
	}
	u, err := container.Look(s.img.Disk, s.img.Child, s.parts())
	switch {
	case err != nil:
		s.damage = append(s.damage, unreadable("unreadable-map", err)...)
	case u.Small():
		if _, err := container.NonZero(context.Background(), s.img.Disk, 1, func(int64) {}); err != nil {
			s.damage = append(s.damage, unreadable("unreadable-data", err)...)
		}
	}
}

// unreadable is the issue of an image that only a reader of all of it finds broken.
func unreadable(code string, err error) []ondisk.Issue {
	return []ondisk.Issue{{Code: code, Effect: ondisk.Broken, Text: err.Error(), Remedy: "restore the image from a good copy", Err: err}}
}

// unchecked is the issue of an image whose tables are too large for a scan to check.
func unchecked(err error, path string) ondisk.Issue {
	return ondisk.Issue{
		Code: "unchecked", Effect: ondisk.Warn, Text: fmt.Sprintf("the tables were not checked as a whole: %v", err),
		Remedy: "look at it alone with trueup inspect " + report.ShellQuote(path),
	}
}
