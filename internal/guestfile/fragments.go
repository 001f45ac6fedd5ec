// This part of the package counts the fragments of guest files and of free space. The walk over a file system fills a
// Census; all file systems share one definition of a fragment.

package guestfile

import (
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Limits of a census. A volume with a million files costs some seconds and some MiB.
const (
	MaxRecords     = 1 << 19 // inodes, records or folder entries of a volume; beyond that, a sample is taken
	fragmentBudget = 4 << 30 // bytes of structures of all volumes of a disk, weighted by parsing cost
)

// NewFragmentBudget returns the budget for counting the files of a disk.
func NewFragmentBudget() *Budget {
	b := NewBudget()
	b.Work.Limit = fragmentBudget
	return b
}

// Group counts the examined files, or the examined folders.
type Group struct {
	Number     int64 `json:"count"`
	Placed     int64 `json:"with_blocks"` // with data blocks: other files are empty, or lie within their record
	Fragmented int64 `json:"fragmented"`  // in two pieces or more
	Pieces     int64 `json:"pieces"`
	Bytes      int64 `json:"bytes"`            // in allocated blocks or clusters
	Apart      int64 `json:"fragmented_bytes"` // of Bytes, in fragmented files
}

// With returns the sum of two groups.
func (g Group) With(o Group) Group {
	return Group{
		g.Number + o.Number, g.Placed + o.Placed, g.Fragmented + o.Fragmented, g.Pieces + o.Pieces,
		g.Bytes + o.Bytes, g.Apart + o.Apart,
	}
}

// Share returns the percentage of the data in fragmented files.
func (g Group) Share() float64 { return 100 * float64(g.Apart) / float64(max(g.Bytes, 1)) }

// PiecesEach returns the average number of pieces of a file with data blocks.
func (g Group) PiecesEach() float64 { return float64(g.Pieces) / float64(max(g.Placed, 1)) }

// Free is the free space of a volume.
type Free struct {
	Pieces  int64 `json:"pieces"`
	Bytes   int64 `json:"bytes"`
	Largest int64 `json:"largest_bytes"`
}

// Census is the result of a walk over a file system.
type Census struct {
	Budget *Budget

	Files, Folders Group
	MFT            int64 // pieces of the MFT of NTFS; 0 in other file systems
	Free           *Free // nil if it is unknown
	Unread         int64 // files and folders with broken or unsupported structures
	Looked, Of     int64 // records: the counts come from a sample if Looked is less than Of
	Ended          bool  // the walk ended before all records of the volume, or of the sample

	cut bool
}

// Stride returns n for a walk that examines one in n records, or groups of records.
func (c *Census) Stride(records int64) int64 {
	c.Of = records
	return max(1, (records+MaxRecords-1)/MaxRecords)
}

// CountFree counts the free space that find reports. Free stays nil if its structures are broken.
func (c *Census) CountFree(find func(*FreeRuns) error) error {
	var free FreeRuns
	err := find(&free)
	if err == nil {
		c.Free = &free.Free
	} else if !ondisk.Understood(err) {
		return err
	}
	return nil
}

// Skip counts a file with an error, and reports whether the walk can continue. It cannot after the end of the budget,
// or after a read error.
func (c *Census) Skip(err error) bool {
	if c.spent() || !ondisk.Understood(err) {
		return false
	}
	c.Unread++
	return true
}

// End returns the final error of a walk, or nil if the budget of the disk ended it.
func (c *Census) End(err error) error {
	c.Ended = c.spent()
	if c.Ended && ondisk.Understood(err) {
		return nil
	}
	return err
}

// Cut ends a walk that has reached its limit.
func (c *Census) Cut() { c.cut = true }

func (c *Census) spent() bool { return c.cut || c.Budget.Work.Spent() > c.Budget.Work.Limit }

// Tally counts the pieces of one file, run by run.
type Tally struct {
	census *Census
	pieces int64
	bytes  int64
	next   Run  // expected position of the next run
	open   bool // the current stream already has a run
}

// Begin starts the count of a file.
func (c *Census) Begin() *Tally { return &Tally{census: c} }

// Stream starts another stream of the file. A gap between two streams is no fragmentation.
func (t *Tally) Stream() { t.open = false }

// Add adds the next run of the stream. It continues a piece if it follows the last run in the volume, or leaves exactly
// the space of a hole in the file. Spec: e2fsprogs, misc/filefrag.c, filefrag_fiemap.
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

// End adds the file or folder to the census.
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

// FreeRuns joins free blocks to pieces. Runs must come in volume order.
type FreeRuns struct {
	Free
	Each func(disk.Range) // called for each piece; nil only counts

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

// End passes the last piece to Each.
func (f *FreeRuns) End() {
	if f.Each != nil && f.last.Len > 0 {
		f.Each(f.last)
	}
}

// Bitmap adds the clear bits of a bitmap, lowest bit of a byte first. Bit 0 stands for byte base of the volume, and
// each bit for unit bytes. It ignores bits from n on.
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
