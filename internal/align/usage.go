// This file measures the storage of a disk in its image: size, fragmentation, and the alignment of its partitions
// within the file. All of these are invisible to the guest, and all affect speed.

package align

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Part is a range of the disk whose place in the file matters: a partition.
type Part struct {
	Number int // of the partition; 0 for the whole disk
	disk.Range
	Shifted bool // the verdict of the disk covers its place
}

// Usage describes the storage of a disk in its image. Sizes are bytes of the disk.
type Usage struct {
	Size      int64
	Stored    int64 // uncompressed in files of the image, without holes of these files
	Packed    int64 // compressed, or in another form without a fixed place
	Inherited int64 // of parents, in any form
	// Pieces counts the contiguous ranges of the files that store data, in disk order. Unordered counts the pieces that
	// begin before the end of the previous piece.
	Pieces, Unordered int64
	// Complete reports whether the whole map was read. If not, the numbers above cover only its beginning.
	Complete bool
	Whole    Place   // of the whole disk
	Places   []Place // of the given parts, in the order of the disk

	steps int
}

// maxSteps bounds the walk: map lookups and calls of the file system. A scattered 64 KiB grain costs at most two steps,
// so 16 GiB of the worst fragmentation are covered completely. All steps together need half a second.
const maxSteps = 1 << 19

// Look walks the map of d. child reports whether data in other disks belong to parents.
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

// autoSteps and autoData limit reading all data without --data.
const (
	autoSteps = 1 << 17
	autoData  = 128 * units.MiB
)

// Data returns the stored bytes of the disk in any form, here or in parents.
func (u *Usage) Data() int64 { return u.Stored + u.Packed + u.Inherited }

// Small reports whether the time of an inspection suffices to read all data.
func (u *Usage) Small() bool { return u.Complete && u.steps <= autoSteps && u.Data() <= autoData }

// walk walks a disk once, in ascending order.
type walk struct {
	Usage
	disk  disk.Disk
	child bool
	limit int
	open  []Place // not yet passed

	last  driver.File // of the last piece
	end   int64       // of the last piece
	asked driver.File // of the last call of Extent
	state disk.Extent // its result
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

// plain counts the first part of a run that is stored uncompressed in a file, and returns its length.
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
		// A hole in a file keeps its offset: data after it continue the piece.
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

// held returns the number of bytes from the start of a run that are all stored, or all a hole, in the file.
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

// piece extends the last piece by n bytes at offset at of a file, or begins a new one.
func (w *walk) piece(f driver.File, at, n int64) {
	if f != w.last || at != w.end {
		w.Pieces++
		if f == w.last && at < w.end {
			w.Unordered++
		}
	}
	w.last, w.end = f, at+n
}

// Place describes the alignment of a part within the files. Blocks are counted from the start of the part, as in a file
// system. Compressed data have no place.
type Place struct {
	Part
	stored bool
	shifts int64 // OR of all differences between the offset in a file and the offset in the part
	past   int64 // distance of the blocks from a boundary of align.Block, unless mixed
	mixed  bool
}

// Alignment returns the largest power of two that is kept in the file: its multiples within the part are multiples in
// the file. The limit is 1 TiB. 0 means that no data of the part have a place.
func (p *Place) Alignment() int64 {
	if !p.stored {
		return 0
	}
	return units.Alignment(p.shifts)
}

// add records that r of the disk is stored in a file from at on. r overlaps the part.
func (p *Place) add(r disk.Range, at int64) {
	shift := at - (r.Off - p.Off)
	past := (shift%Block + Block) % Block
	p.mixed = p.mixed || (p.stored && past != p.past)
	p.stored, p.past = true, past
	p.shifts |= shift
}

// place records the place of a range of the disk.
func (w *walk) place(r disk.Range, at int64) {
	w.Whole.add(r, at)
	for len(w.open) > 0 && w.open[0].End() <= r.Off {
		w.open = w.open[1:]
	}
	for i := range w.open {
		if w.open[i].Off >= r.End() {
			break
		}
		if w.open[i].Overlaps(r) {
			w.open[i].add(r, at)
		}
	}
}

// Issues reports parts that are aligned on the disk but not in the file. Without parts it judges the disk as one.
func (u *Usage) Issues() []ondisk.Issue {
	places := u.Places
	if len(places) == 0 {
		places = []Place{u.Whole}
	}
	var bad []Place
	for _, p := range places {
		if p.stored && !p.Shifted && p.Off%Block == 0 && p.shifts%Block != 0 {
			bad = append(bad, p)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return []ondisk.Issue{misaligned(bad)}
}

// misaligned returns one issue for all parts, because they share the cause: the container.
func misaligned(bad []Place) ondisk.Issue {
	i := ondisk.Issue{
		Code: "container-misaligned", Effect: ondisk.Warn,
		Remedy: "copy it with trueup convert --to raw, vhdx or vhd:dynamic, whose blocks start on multiples of 4 KiB " +
			"in the file",
	}
	whose, they := "its blocks of 4 KiB", "it starts"
	if len(bad) == 1 {
		i.Partition = bad[0].Number
	} else {
		var numbers []string
		for _, p := range bad {
			numbers = append(numbers, strconv.Itoa(p.Number))
		}
		last := len(numbers) - 1
		whose, they = fmt.Sprintf("the 4 KiB blocks of partitions %s and %s", strings.Join(numbers[:last], ", "),
			numbers[last]), "they start"
	}
	where, how := fmt.Sprintf("%d bytes past a 4 KiB boundary of the file", bad[0].past), "each touches"
	for _, p := range bad {
		if p.mixed || p.past != bad[0].past { // a VHD shifts every block by one more sector
			where, how = "off the 4 KiB boundaries of the file", "most touch"
		}
	}
	i.Text = fmt.Sprintf("%s lie %s, although %s on one of the disk: %s two blocks of the storage instead of one",
		whose, where, they, how)
	return i
}

// NonZero reads all data of a disk and counts the bytes in 4 KiB blocks that are not all zero. progress receives the
// number of bytes read, from any goroutine.
func NonZero(ctx context.Context, d disk.Disk, jobs int, progress func(n int64)) (int64, error) {
	var total atomic.Int64
	count := func(ctx context.Context, c diskcopy.Chunk, bufs [][]byte) error {
		for off := c.Off; off < c.End() && ctx.Err() == nil; {
			e, err := d.Extent(off, c.End()-off)
			if err != nil {
				return err
			}
			if e.Zero {
				off = e.End()
				continue
			}
			// Whole blocks, regardless of the container: the count is a property of the disk.
			off = units.AlignDown(off, Block)
			b := bufs[0][:min(units.AlignUp(e.End(), Block), c.End())-off]
			if err := ondisk.ReadFull(d, b, off); err != nil {
				return err
			}
			total.Add(nonZero(b))
			progress(e.Len)
			off += int64(len(b))
		}
		return nil
	}
	err := diskcopy.Each(ctx, jobs, &diskcopy.Data{Disks: []disk.Disk{d}}, count)
	return total.Load(), err
}

// Decode reads the compressed data of a disk, because the map alone does not show whether they are intact.
func Decode(ctx context.Context, d disk.Disk, jobs int, progress diskcopy.Progress) error {
	packed := func(off int64) (disk.Run, error) {
		run, _, err := disk.Leaf(d, off)
		if _, plain := run.Src.(driver.File); plain {
			run.Src = nil
		}
		return run, err
	}
	only := disk.New(d.Size(), d.SectorSize(), packed)
	total, err := diskcopy.Size(ctx, 0, only)
	if err != nil || total == 0 {
		return err
	}
	progress.Begin(diskcopy.PhaseProve, total)
	_, err = NonZero(ctx, only, jobs, progress.Add)
	return err
}

// nonZero counts the bytes of the blocks of b that are not zero.
func nonZero(b []byte) int64 {
	var n int64
	for len(b) > 0 {
		block := b[:min(Block, int64(len(b)))]
		if !ondisk.IsZero(block) {
			n += int64(len(block))
		}
		b = b[len(block):]
	}
	return n
}

// stretch is a range of the disk with one distance to its place in a file, modulo Kept unless it is the whole disk.
type stretch struct {
	disk.Range
	shift int64
}

// InFiles returns the layout with the starts that the storage sees, for an image that a hypervisor runs in place. even
// reports that the format stores all blocks on multiples of Kept. Such multiples do not count, since no storage gains
// from them. The start on the disk decides for a partition whose parts are shifted differently.
func InFiles(d disk.Disk, l *layout.Layout, even bool) (*layout.Layout, error) {
	var all []stretch
	for off := int64(0); off < d.Size() && !even; {
		run, _, err := disk.Leaf(d, off)
		if err != nil {
			return nil, err
		}
		all = appendRun(all, off, run)
		off += run.Len
	}
	if len(all) == 1 && all[0].Len == d.Size() { // one distance, also beyond Kept
		run, _, err := disk.Leaf(d, 0)
		if err != nil {
			return nil, err
		}
		all[0].shift = run.Off
	}
	out := *l
	out.Shift = shiftOf(all, disk.Range{Len: d.Size()})
	out.Partitions = slices.Clone(l.Partitions)
	for i := range out.Partitions {
		p := &out.Partitions[i]
		if p.Off >= d.Size() {
			continue
		}
		run, _, err := disk.Leaf(d, p.Off)
		if err != nil {
			return nil, err
		}
		p.InFile, p.Shift = run.Off, shiftOf(all, p.Range)
	}
	return &out, nil
}

// appendRun adds a run of the disk that a file stores.
func appendRun(all []stretch, off int64, run disk.Run) []stretch {
	if _, stored := run.Src.(driver.File); !stored {
		return all
	}
	shift := Kept.Past(Kept.Past(run.Off-off) + Kept.bytes)
	if n := len(all) - 1; n >= 0 && all[n].shift == shift && all[n].End() == off {
		all[n].Len += run.Len
		return all
	}
	return append(all, stretch{disk.Range{Off: off, Len: run.Len}, shift})
}

// shiftOf returns the common shift of the stretches in a range, or 0.
func shiftOf(all []stretch, r disk.Range) (shift int64) {
	for i, s := range disk.Overlapping(all, r) {
		if i > 0 && s.shift != shift {
			return 0
		}
		shift = s.shift
	}
	return shift
}
