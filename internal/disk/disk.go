// Package disk is the one abstraction of trueup: the disk a guest sees. An image format, a partition and the aligned
// result are all a Disk.
package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
)

// Extent is a stretch of a disk in one state.
type Extent struct {
	Range
	Zero bool // reads as zero; the image file is not touched
}

// Disk is the disk a guest sees. Safe for concurrent use. All offsets are bytes.
type Disk interface {
	io.ReaderAt
	Size() int64
	SectorSize() int64                     // logical: 512 or 4096
	Extent(off, max int64) (Extent, error) // 1 to max bytes from off that share one state
}

// SectorSizes lists the sector sizes that a table or a volume can count in, in bytes. Images and devices have the first
// or the last.
var SectorSizes = []int64{512, 1024, 2048, 4096}

// Map is all that an image format supplies. New makes a Disk of it, so the read loop exists once.
type Map func(off int64) (Run, error)

// Run says where the bytes from one offset on are stored.
type Run struct {
	Len int64
	Src io.ReaderAt // nil: zero
	Off int64
}

// Mapped is a Disk that knows where its bytes are stored. Every disk that New makes is one.
type Mapped interface {
	Disk
	// Run is the map at off, which must be on the disk: cut at its end, never empty.
	Run(off int64) (Run, error)
}

// Sparse is implemented by sources that know their own holes: files, and disks.
type Sparse interface {
	Extent(off, max int64) (Extent, error)
}

var errOutside = fmt.Errorf("%w: outside the disk", fs.ErrInvalid)

// New makes a Disk of a map. The map is asked only for offsets in [0, size).
func New(size, sectorSize int64, m Map) Mapped {
	return &mapped{size: size, sector: sectorSize, at: m}
}

type mapped struct {
	size, sector int64
	at           Map
}

func (d *mapped) Size() int64       { return d.size }
func (d *mapped) SectorSize() int64 { return d.sector }

// ReadAt follows the contract of io.ReaderAt.
func (d *mapped) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %#x: %w", off, errOutside)
	}
	done := 0
	for done < len(p) {
		if off >= d.size {
			return done, io.EOF
		}
		run, err := d.Run(off)
		if err != nil {
			return done, err
		}
		part := p[done : done+int(min(run.Len, int64(len(p)-done)))]
		if err := fill(part, run); err != nil {
			return done, err
		}
		done += len(part)
		off += int64(len(part))
	}
	return done, nil
}

// Run asks the map and holds it to its contract.
func (d *mapped) Run(off int64) (Run, error) {
	run, err := d.at(off)
	if err != nil {
		return run, err
	}
	if run.Len <= 0 {
		panic(fmt.Sprintf("disk: map gave %d bytes at %#x", run.Len, off))
	}
	run.Len = min(run.Len, d.size-off)
	return run, nil
}

func fill(p []byte, run Run) error {
	if run.Src == nil {
		clear(p)
		return nil
	}
	n, err := run.Src.ReadAt(p, run.Off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		// A map never points past the end of its file, so the file is shorter than it was when it was opened.
		err = fmt.Errorf("read %d bytes at %#x of the image file: %w", len(p), run.Off, io.ErrUnexpectedEOF)
	}
	return err // names file and place already
}

func (d *mapped) Extent(off, limit int64) (Extent, error) {
	if off < 0 || off >= d.size || limit <= 0 {
		return Extent{}, fmt.Errorf("extent of %d bytes at %#x: %w", limit, off, errOutside)
	}
	limit = min(limit, d.size-off)
	var e Extent
	for e.Len < limit {
		part, ends, err := d.part(off+e.Len, limit-e.Len)
		if err != nil {
			return Extent{}, err
		}
		if e.Len > 0 && part.Zero != e.Zero {
			break
		}
		e = Extent{Range{off, e.Len + part.Len}, part.Zero}
		if ends || e.Len >= extentEnough {
			break
		}
	}
	return e, nil
}

// extentEnough bounds the work of one Extent call: a stretch this long is worth returning as it is.
const extentEnough = 64 << 20

// Extents walks through the states of r, in order. It ends with the first error.
func Extents(d Sparse, r Range) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		for off := r.Off; off < r.End(); {
			e, err := d.Extent(off, r.End()-off)
			if !yield(e, err) || err != nil {
				return
			}
			off = e.End()
		}
	}
}

// Stored counts the bytes of d that are not known to be zero.
func Stored(d Disk) (n int64, err error) {
	for e, err := range Extents(d, Range{Len: d.Size()}) {
		if err != nil {
			return 0, err
		}
		if !e.Zero {
			n += e.Len
		}
	}
	return n, nil
}

// part returns the state of the run at off, refined by what its source knows of its own holes. ends reports that the
// source told a border within the run. What lies behind that has the other state as a rule: to ask for it, only to
// leave it out, would double the questions at each disk below.
func (d *mapped) part(off, limit int64) (e Extent, ends bool, err error) {
	run, err := d.Run(off)
	if err != nil {
		return Extent{}, false, err
	}
	e = Extent{Range{off, min(run.Len, limit)}, run.Src == nil}
	if s, ok := run.Src.(Sparse); ok && !e.Zero {
		inner, err := s.Extent(run.Off, e.Len)
		if err != nil {
			return Extent{}, false, err
		}
		ends = inner.Len < e.Len
		e.Len, e.Zero = inner.Len, inner.Zero
	}
	return e, ends, nil
}
