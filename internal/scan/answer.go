package scan

import (
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/scan/results"
)

// check refuses an answer that no sound worker gives. A worker that was taken over by an image can lie about that image
// and all later ones, but must not stop the run. It knows no rows of other workers.
func (a Answer) check(r Request) error {
	err := a.wrong(r)
	if err != nil {
		return fmt.Errorf("internal error, please report it: answer of a worker: %w", err)
	}
	return nil
}

func (a Answer) wrong(r Request) error {
	if !r.Judge {
		return errors.Join(checkIdentity(a.Identity), results.CheckError(a.Error))
	}
	i := a.Image
	switch {
	case i == nil && !r.Doubt:
		return errors.New("no row")
	case i == nil:
		return nil
	case i.State == results.Orphan, i.State == results.Packed:
		return fmt.Errorf("a row that is %s, which a worker cannot know", i.State)
	}
	i.Change, i.Accepted, i.Priority, i.Reuse = "", nil, nil, nil // a worker does not know these
	return i.Check()
}

// Limits of the names in a file; maxNames is beyond the 4096 extents that a VMDK may have.
const (
	maxNames  = 1 << 16
	maxFormat = 256 // bytes
)

// checkIdentity refuses an identity that no file has.
func checkIdentity(id image.Identity) error {
	kinds := []image.Kind{
		image.Other, image.Disk, image.Extent, image.Bare, image.Pack, image.Unsupported, image.Medium,
		image.Packed, image.Companion,
	}
	switch {
	case !slices.Contains(kinds, id.Kind):
		return fmt.Errorf("a file of the kind %.32q", id.Kind)
	case len(id.Format)+len(id.Remedy)+len(id.Lineage) > maxFormat:
		return fmt.Errorf("a format, its remedy and the identity of a parent of %d bytes, want at most %d",
			len(id.Format)+len(id.Remedy)+len(id.Lineage), maxFormat)
	case len(id.Claims) > len(id.Extents):
		return fmt.Errorf("a file that claims %d extents and names %d", len(id.Claims), len(id.Extents))
	case max(len(id.Extents), len(id.Parents), len(id.Views)) > maxNames:
		return fmt.Errorf("a file that names %d extents, %d of them of a view, and %d parents, want at most %d",
			len(id.Extents), len(id.Views), len(id.Parents), maxNames)
	}
	return nil
}
