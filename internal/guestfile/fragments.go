// This part of the package counts in how many pieces the files of a guest and its free space lie. A walk over one file
// system fills a Census; what a piece is has one definition for all of them.

package guestfile

import (
	"errors"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of a census. A volume of a million files costs some seconds and some MiB.
const (
	MaxRecords     = 1 << 19 // inodes, records or folder entries of a volume; beyond, a sample is taken
	fragmentBudget = 4 << 30 // bytes of structures of all volumes of a disk, weighed by what parsing them costs
)

// NewFragmentBudget returns the budget of a disk whose files are counted.
func NewFragmentBudget() *Budget {
	b := NewBudget()
	b.Work.Limit = fragmentBudget
	return b
}

// Group counts the files, or the folders, that were looked at.
type Group struct {
	Number     int64 `json:"count"`
	Placed     int64 `json:"with_blocks"` // with blocks of their own: the rest is empty, or lies within its record
	Fragmented int64 `json:"fragmented"`  // in two pieces or more
	Pieces     int64 `json:"pieces"`
	Bytes      int64 `json:"bytes"`            // in blocks or clusters that they take
	Apart      int64 `json:"fragmented_bytes"` // of Bytes, those of fragmented ones
}

// With returns the sums of two groups.
func (g Group) With(o Group) Group {
	return Group{
		g.Number + o.Number, g.Placed + o.Placed, g.Fragmented + o.Fragmented, g.Pieces + o.Pieces,
		g.Bytes + o.Bytes, g.Apart + o.Apart,
	}
}

// Share returns the share of the data that lies in fragmented files, in percent.
func (g Group) Share() float64 { return 100 * float64(g.Apart) / float64(max(g.Bytes, 1)) }

// PiecesEach returns the pieces of a file that has blocks.
func (g Group) PiecesEach() float64 { return float64(g.Pieces) / float64(max(g.Placed, 1)) }

// Free is the free space of a volume.
type Free struct {
	Pieces  int64 `json:"pieces"`
	Bytes   int64 `json:"bytes"`
	Largest int64 `json:"largest_bytes"`
}

// Census is what a walk over a file system found.
type Census struct {
	Budget *Budget

	Files, Folders Group
	MFT            int64 // pieces of the MFT of NTFS; 0 in other file systems
	Free           *Free // nil when it is not known
	Unread         int64 // files and folders with structures that are broken or not supported
	Looked, Of     int64 // records: the numbers are those of a sample where Looked is less than Of
	Ended          bool  // the walk ended before all records of the volume, or of the sample

	cut bool
}

// Stride returns n for a walk that looks at one in n of its records, or of stretches of them.
func (c *Census) Stride(records int64) int64 {
	c.Of = records
	return max(1, (records+MaxRecords-1)/MaxRecords)
}

// CountFree counts the free space that find finds. It is not known where the structures that show it are broken.
func (c *Census) CountFree(find func(*FreeRuns) error) error {
	var free FreeRuns
	err := find(&free)
	if err == nil {
		c.Free = &free.Free
	} else if !c.Broken(err) {
		return err
	}
	return nil
}

// Skip reports whether a walk goes on after the error of one file, which it counts. It does not where the budget has
// ended, or where reading failed.
func (c *Census) Skip(err error) bool {
	if c.spent() || !c.Broken(err) {
		return false
	}
	c.Unread++
	return true
}

// Broken reports whether an error is of the structures of the volume, or of their limits.
func (c *Census) Broken(err error) bool {
	return errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported) || errors.Is(err, ondisk.ErrLimit)
}

// End returns the error with which a walk ends: nil where the budget of the disk has ended.
func (c *Census) End(err error) error {
	c.Ended = c.spent()
	if c.Ended && c.Broken(err) {
		return nil
	}
	return err
}

// Cut ends a walk that has met more than it may look at.
func (c *Census) Cut() { c.cut = true }

func (c *Census) spent() bool { return c.cut || c.Budget.Work.Spent() > c.Budget.Work.Limit }

// Tally counts the pieces of one file while its runs come in.
type Tally struct {
	census *Census
	pieces int64
	bytes  int64
	next   Run  // that would continue the last one
	open   bool // a run of this stream has come
}

// Begin starts the count of a file.
func (c *Census) Begin() *Tally { return &Tally{census: c} }

// Stream begins another stream of the file. Two streams apart from each other are no fragments.
func (t *Tally) Stream() { t.open = false }

// Add adds the next run of the stream. It continues a piece where it follows the last run in the volume, or leaves just
// the room that a hole of the file would take. Spec: e2fsprogs, misc/filefrag.c, filefrag_fiemap.
func (t *Tally) Add(r Run) {
	dense := t.open && r.At == t.next.At
	if !dense {
		_ = t.census.Budget.Work.Spend(RunCost) // the next read ends the walk
	}
	switch {
	case t.pieces == 0:
		t.pieces = 1
	case t.open && !dense && r.At-t.next.At != r.Off-t.next.Off:
		t.pieces++
	}
	t.bytes += r.Len
	t.open, t.next = true, Run{Off: r.End(), At: r.At + r.Len}
}

// Pieces returns the number of pieces so far.
func (t *Tally) Pieces() int64 { return t.pieces }

// End counts the file or folder.
func (t *Tally) End(folder bool) {
	g := &t.census.Files
	if folder {
		g = &t.census.Folders
	}
	g.Number++
	g.Pieces += t.pieces
	g.Bytes += t.bytes
	if t.pieces > 0 {
		g.Placed++
	}
	if t.pieces > 1 {
		g.Fragmented++
		g.Apart += t.bytes
	}
}

// FreeRuns joins free blocks to pieces. They come in the order of the volume.
type FreeRuns struct {
	Free
	Each func(disk.Range) // gets each piece; nil: they are counted alone

	last disk.Range
}

// Add adds a run of free bytes.
func (f *FreeRuns) Add(r disk.Range) {
	if r.Len <= 0 {
		return
	}
	if f.Pieces == 0 || f.last.End() != r.Off {
		f.End()
		f.Pieces++
		f.last = disk.Range{Off: r.Off}
	}
	f.last.Len += r.Len
	f.Bytes += r.Len
	f.Largest = max(f.Largest, f.last.Len)
}

// End hands out the last piece.
func (f *FreeRuns) End() {
	if f.Each != nil && f.last.Len > 0 {
		f.Each(f.last)
	}
}

// Bitmap adds the bits of a bitmap that are clear, the lowest bit of a byte first: a run of them begins at byte base of
// the volume and each is for unit bytes. Bits from n on do not count.
func (f *FreeRuns) Bitmap(raw []byte, n, base, unit int64) {
	for i := int64(0); i < n; {
		full := raw[i/8]
		if i%8 == 0 && i+8 <= n && (full == 0 || full == 0xff) {
			if full == 0 {
				f.Add(disk.Range{Off: base + i*unit, Len: 8 * unit})
			}
			i += 8
			continue
		}
		if full>>(i%8)&1 == 0 {
			f.Add(disk.Range{Off: base + i*unit, Len: unit})
		}
		i++
	}
}
