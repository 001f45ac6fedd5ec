// This part of the package measures how an image stores a disk: how much of it, in how many pieces, and where in the
// file the blocks of its partitions lie. A guest sees none of this, and all of it costs time.

package align

import (
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/units"
)

// Part is a stretch of the disk whose place in the file matters: a partition.
type Part struct {
	Number int // of the partition, 0 for the whole disk
	disk.Range
}

// Usage is how an image stores a disk. Sizes are bytes of the disk.
type Usage struct {
	Size      int64
	Stored    int64 // as they are, in files of the image; holes of these files do not count
	Packed    int64 // compressed, or in another form that has no place of its own
	Inherited int64 // of parents, in any form
	// Pieces is the number of stretches of the files in which what is stored lies, in the order of the disk, and
	// Unordered that of the pieces which begin in front of the end of the last one.
	Pieces, Unordered int64
	// Complete reports whether all of the map was read. If not, the numbers above cover its front part.
	Complete bool
	Whole    Place   // of the whole disk
	Places   []Place // of the given parts, in the order of the disk

	steps int
}

// maxSteps bounds the walk: looks into the map, and questions to the file system. A grain of 64 KiB at a place of its
// own takes two at most, so that 16 GiB of the worst fragmentation are looked at completely, and half a second is
// enough for all of it.
const maxSteps = 1 << 19

// Look walks over the map of d. child reports whether data that d takes from other disks belong to parents.
func Look(d disk.Disk, child bool, parts []Part) (*Usage, error) {
	w := walk{disk: d, child: child, limit: maxSteps}
	w.Size = d.Size()
	w.Whole.Len = w.Size
	for _, p := range parts {
		w.Places = append(w.Places, Place{Part: p})
	}
	slices.SortStableFunc(w.Places, func(a, b Place) int { return int(min(max(a.Off-b.Off, -1), 1)) })
	w.open = w.Places
	return &w.Usage, w.run()
}

// autoSteps and autoData bound the cost of reading all data without --data.
const (
	autoSteps = 1 << 17
	autoData  = 128 * units.MiB
)

// Data returns what is stored in any form, here or in parents, in bytes of the disk.
func (u *Usage) Data() int64 { return u.Stored + u.Packed + u.Inherited }

// Small reports whether all data can be read within the time of an inspection.
func (u *Usage) Small() bool { return u.Complete && u.steps <= autoSteps && u.Data() <= autoData }

// walk goes over a disk once, in ascending order.
type walk struct {
	Usage
	disk  disk.Disk
	child bool
	limit int
	open  []Place // those that the walk has not passed

	last  driver.File // that the last piece lies in
	end   int64       // of the last piece
	asked driver.File // of the last question to the file system
	state disk.Extent // its answer
}

func (w *walk) run() error {
	for off := int64(0); off < w.Size; {
		if w.steps >= w.limit {
			return nil
		}
		run, depth, err := disk.Leaf(w.disk, off)
		if err != nil {
			return err
		}
		w.steps += depth
		inherited := w.child && depth > 1
		f, plain := run.Src.(driver.File)
		switch {
		case run.Src == nil:
		case plain:
			if run.Len, err = w.plain(off, run, f, inherited); err != nil {
				return err
			}
		case inherited:
			w.Inherited += run.Len
		default:
			w.Packed += run.Len
		}
		off += run.Len
	}
	w.Complete = true
	return nil
}

// plain takes note of the first stretch of a run that lies in a file as it is, and returns its length.
func (w *walk) plain(off int64, run disk.Run, f driver.File, inherited bool) (int64, error) {
	n, hole, err := w.held(f, run)
	if err != nil {
		return 0, err
	}
	switch {
	case inherited && !hole:
		w.Inherited += n
	case inherited:
	case hole:
		// The hole of a file has its place: what comes behind it continues the piece.
		if f == w.last && run.Off == w.end {
			w.end += n
		}
	default:
		w.Stored += n
		w.piece(f, run.Off, n)
		w.place(disk.Range{Off: off, Len: n}, run.Off)
	}
	return n, nil
}

// held returns how much from the start of a run on the file holds, or does not hold because it has a hole there.
func (w *walk) held(f driver.File, run disk.Run) (n int64, hole bool, err error) {
	if f != w.asked || run.Off < w.state.Off || run.Off >= w.state.End() {
		w.steps++
		if w.state, err = f.Extent(run.Off, max(run.Len, f.Size()-run.Off)); err != nil {
			return 0, false, err
		}
		w.asked = f
	}
	return min(run.Len, w.state.End()-run.Off), w.state.Zero, nil
}

// piece adds n bytes at a place of a file to the last piece, or begins a new one.
func (w *walk) piece(f driver.File, at, n int64) {
	if f != w.last || at != w.end {
		w.Pieces++
		if f == w.last && at < w.end {
			w.Unordered++
		}
	}
	w.last, w.end = f, at+n
}
