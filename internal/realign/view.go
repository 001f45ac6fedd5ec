package realign

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
)

// A view of SOURCE (Job.View) is a VMDK that shows the planned disk: its extents are stretches of the files of SOURCE,
// and of a further file that holds what differs.

// maxLent bounds the stretches of a view: QEMU opens a file for each extent, and a process has 1024 files by default.
// maxShown bounds those that are looked at, of which some are too short.
const (
	maxLent  = 256
	maxShown = 16 * maxLent
)

// flatKinds are the kinds of VMDK whose files can hold a disk byte for byte.
var flatKinds = []string{"monolithicFlat", "twoGbMaxExtentFlat", "vmfs"}

// lent returns the stretches of the files of SOURCE that the planned disk shows, and the disk that holds what they
// leave, zero elsewhere.
func (s *Source) lent(p *plan.Plan, view disk.Disk) ([]disk.Piece, disk.Disk, error) {
	refuse := func(reason string) error {
		return &ondisk.Refusal{
			Code: "unsupported", Reason: s.Path() + ": " + reason,
			Remedy: "make a copy of it (trueup align)",
		}
	}
	switch {
	case s.Original:
		return nil, nil, refuse("it is the kept original of an exchanged disk, and a guest of the view would write " +
			"to it")
	case s.Image.Packaged():
		return nil, nil, refuse("it is a disk of a package, and a view names plain files only")
	case s.Image.MapsDevice:
		return nil, nil, refuse("it maps a device, and what is read as its file can be that device")
	case !s.Image.Flat && slices.Contains(flatKinds, s.Image.Subformat):
		return nil, nil, refuse("its descriptor shows stretches of files, as a view does, or files that may not be " +
			"written, and a view needs whole files that may be")
	case !s.Image.Flat && s.Image.Format == "raw":
		return nil, nil, refuse("its file ends within a sector, and a view shows whole ones")
	case !s.Image.Flat:
		return nil, nil, refuse(fmt.Sprintf("a view needs files that hold the disk byte for byte (raw, or a VMDK "+
			"that is %s), and this is %s %s", strings.Join(flatKinds, " or "), s.Image.Format, s.Image.Subformat))
	case len(p.Patches) == 0 && len(p.Moves) == 0:
		return nil, nil, ondisk.In(ondisk.ErrUsage, "%s: nothing moves, so that a view would be the disk itself; "+
			"use it as it is (with --skip-aligned this is no error)", s.Path())
	}
	lent, err := stretches(view)
	if err != nil {
		return nil, nil, err
	}
	many := len(lent)
	switch lent = trim(lent, view.Size()); {
	case many > maxShown || len(lent) > maxLent:
		return nil, nil, refuse(fmt.Sprintf("a view of it would have more than %d stretches of its files", maxLent))
	case len(lent) == 0:
		return nil, nil, refuse("no block of its files would be shown as it is")
	}
	return lent, only(view, disk.Gaps(disk.Range{Len: view.Size()}, lent)), nil
}

// lender is a file of SOURCE.
type lender interface {
	io.ReaderAt
	Name() string
}

// stretches returns what a disk shows of files as they are, in its order, up to maxShown of them. No byte of a file is
// shown twice: a write to one place would change the other.
func stretches(d disk.Disk) (out []disk.Piece, err error) {
	for off := int64(0); off < d.Size() && len(out) <= maxShown; {
		run, _, err := disk.Leaf(d, off)
		if err != nil {
			return nil, err
		}
		p := disk.Piece{Range: disk.Range{Off: off, Len: run.Len}, Src: run.Src, At: run.Off}
		if _, ok := run.Src.(lender); ok && !shown(out, p) {
			out = append(out, p)
		}
		off += run.Len
	}
	return out, nil
}

// shown reports whether pieces show a byte that p shows.
func shown(pieces []disk.Piece, p disk.Piece) bool {
	for _, x := range pieces {
		if x.Src == p.Src && (disk.Range{Off: x.At, Len: x.Len}).Overlaps(disk.Range{Off: p.At, Len: p.Len}) {
			return true
		}
	}
	return false
}

// trim makes stretches begin and end on blocks where they meet what the view itself holds: a cluster then lies in one
// file, and that on a block of the storage. There they leave out byte 0 of a file, since a disk that takes its files
// from the start is no view.
func trim(lent []disk.Piece, size int64) (out []disk.Piece) {
	for i := 0; i < len(lent); {
		j := i + 1
		for j < len(lent) && lent[j].Off == lent[j-1].End() {
			j++
		}
		from, end := units.AlignUp(lent[i].Off, align.Block), lent[j-1].End()
		if end < size {
			end = units.AlignDown(end, align.Block)
		}
		for _, p := range lent[i:j] {
			if p.At == 0 && p.Off == from {
				from += align.Block
			}
			off := max(p.Off, from)
			if n := min(p.End(), end) - off; n > 0 {
				out = append(out, disk.Piece{Range: disk.Range{Off: off, Len: n}, Src: p.Src, At: p.At + off - p.Off})
			}
		}
		i = j
	}
	return out
}

// viewNotes returns the warnings on how a view differs from a copy and from a snapshot.
func viewNotes(dest string, lent []disk.Piece, files []string) []ondisk.Issue {
	names := map[string]bool{}
	for _, p := range lent {
		names[p.Src.(lender).Name()] = true
	}
	data := fmt.Sprintf("%q", lent[0].Src.(lender).Name())
	if n := len(names) - 1; n > 0 {
		data += fmt.Sprintf(" and %d more of the files of SOURCE", n)
	}
	return []ondisk.Issue{{
		Code: "view", Effect: ondisk.Warn,
		Text: fmt.Sprintf("%s is a view, not a copy: the data stay in %s, which must stay in this folder and be "+
			"changed by nothing else. The storage still sees the old offsets, until a hypervisor or trueup convert "+
			"has copied the view",
			dest, data),
	}, {
		Code: "view-writes", Effect: ondisk.Warn,
		Text: "a view is not a snapshot: a guest that writes to it writes to SOURCE. Until then, removing " +
			fmt.Sprintf("%q and %q", files[0], files[1]) +
			" undoes all. After that, they belong to the disk: SOURCE alone has " +
			"lost what was written to places that the view holds itself",
		Remedy: "to try the guest, start it from a snapshot or an overlay of the view; to keep it, make a complete " +
			"disk (trueup convert) and go on with that",
	}}
}

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
