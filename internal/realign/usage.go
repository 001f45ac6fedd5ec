package realign

import (
	"context"
	"errors"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/ondisk"
)

// Usage describes how an image stores its disk, for inspect.
type Usage struct {
	Map     *align.Usage // nil when the tables of the image are broken
	NonZero *int64       // bytes of data that are not zero; nil when they were not counted
	Issues  []ondisk.Issue
}

// readJobs is how many chunks are read at once.
const readJobs = 4

// Use walks over the map of the image, and reads its data where that is wanted or little. watch is called when data are
// read.
func (s *Source) Use(ctx context.Context, data bool, watch func() Progress) (*Usage, error) {
	return s.use(ctx, data, readJobs, watch)
}

func (s *Source) use(ctx context.Context, data bool, jobs int, watch func() Progress) (*Usage, error) {
	out := &Usage{}
	if err := Broken(align.Relevant(s.Damage, nil)); err != nil {
		return out, nil //nolint:nilerr // said already
	}
	u, err := align.Look(s.Image.Disk, s.Image.Child, s.parts())
	if err != nil {
		out.Issues = unreadable("unreadable-map", err)
		return out, nil
	}
	out.Map, out.Issues = u, u.Issues()
	if !data && !u.Small() {
		return out, nil
	}
	j := Job{Watch: watch}
	j.watch()
	if j.progress != nil {
		j.progress.Begin("read", u.Data())
	}
	n, err := align.NonZero(ctx, s.Image.Disk, jobs, j.add)
	switch {
	case errors.Is(err, context.Canceled):
		return nil, err
	case err != nil:
		out.Issues = append(out.Issues, unreadable("unreadable-data", err)...)
	default:
		out.NonZero = &n
	}
	return out, nil
}

// parts returns the partitions whose place in the file matters.
func (s *Source) parts() []align.Part {
	var out []align.Part
	for _, p := range s.Layout.Partitions {
		if align.HoldsVolume(p) {
			out = append(out, align.Part{Number: p.Number, Range: p.Range})
		}
	}
	return out
}

// checkMap finds what only a reader of all of a disk meets: the map of the image, and the data where they are little.
func (s *Source) checkMap(ctx context.Context) error {
	u, err := s.use(ctx, false, 1, nil) // one job, so that what is read does not depend on chance
	if err != nil {
		return err
	}
	for _, i := range u.Issues {
		if i.Effect == ondisk.Broken {
			s.Damage = append(s.Damage, i)
		}
	}
	return nil
}

// unreadable returns the issue of an image that only a reader of all of it finds broken.
func unreadable(code string, err error) []ondisk.Issue {
	return []ondisk.Issue{{
		Code: code, Effect: ondisk.Broken, Text: err.Error(),
		Remedy: "restore the image from a good copy", Err: err,
	}}
}

// Fragments counts the files of the volumes of the disk, and in how many pieces they lie.
func (s *Source) Fragments() ([]freespace.FragmentsOf, error) {
	if err := Broken(align.Relevant(s.Damage, nil)); err != nil {
		return nil, nil //nolint:nilerr // said already
	}
	var parts []freespace.Part
	if v := s.Layout.Volume; v != nil {
		parts = freespace.PartsOf(0, disk.Range{Len: s.Layout.Size}, v)
	}
	for _, p := range s.Layout.Partitions {
		if p.Volume != nil && align.HoldsVolume(p) {
			parts = append(parts, freespace.PartsOf(p.Number, p.Range, p.Volume)...)
		}
	}
	return freespace.Count(s.Image.Disk, parts)
}
