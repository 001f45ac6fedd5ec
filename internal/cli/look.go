package cli

import (
	"context"
	"errors"
	"io"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/container"
	"github.com/trueup/trueup/internal/ondisk"
)

// usage is what inspect finds out of the way in which an image stores its disk.
type usage struct {
	usage   *container.Usage // nil when the tables of the image are broken
	nonZero *int64           // nil when nobody has counted
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
	bar := f.silentUnless(f.data, errOut, u.Data())
	n, err := container.NonZero(ctx, s.img.Disk, readJobs, bar.add)
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
func (c *common) silentUnless(asked bool, w io.Writer, total int64) progress {
	if !asked {
		return silent{}
	}
	return c.newProgress(w, "auto", "inspect", total)
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

// unreadable is the issue of an image that only a reader of all of it finds broken.
func unreadable(code string, err error) []ondisk.Issue {
	return []ondisk.Issue{{Code: code, Effect: ondisk.Broken, Text: err.Error(), Remedy: "restore the image from a good copy", Err: err}}
}
