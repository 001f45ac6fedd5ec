package realign

import (
	"fmt"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Where SOURCE and a flat DEST lie on one file system that can share blocks, DEST takes over whole blocks of SOURCE
// instead of a copy of them. docs/decisions/proof.md has what is proved of them.

// leastShared is the shortest stretch that is shared, in bytes: a shorter one is copied faster than it is looked up.
// maxLooked bounds the stretches that are looked at.
const (
	leastShared = 64 * units.KiB
	maxLooked   = 1 << 14
)

// share has DEST take over what a disk shows of files in whole blocks, and returns what is left to copy.
func (j *Job) share(d disk.Disk, o target) (rest disk.Disk, err error) {
	j.shared = nil
	to, ok := o.(driver.Sharer)
	if !ok || j.View {
		return d, nil
	}
	var p disk.Piece // as far as it is known
	for off, looked := int64(0), 0; off < d.Size() && looked < maxLooked; looked++ {
		run, _, err := disk.Leaf(d, off)
		if err != nil {
			return nil, err
		}
		next := disk.Piece{Range: disk.Range{Off: off, Len: run.Len}, At: run.Off}
		if f, ok := run.Src.(driver.File); ok {
			next.Src = f
		}
		off = next.End()
		if p.Src != nil && next.Src == p.Src && next.At == p.At+p.Len {
			p.Len += next.Len
			continue
		}
		if !j.take(to, p) {
			return j.rest(d), nil
		}
		p = next
	}
	j.take(to, p)
	return j.rest(d), nil
}

// take shares the whole blocks of a stretch, and reports whether it is of use to try another one.
func (j *Job) take(to driver.Sharer, p disk.Piece) bool {
	lead := units.AlignUp(p.Off, align.Block) - p.Off
	p.Off, p.At, p.Len = p.Off+lead, p.At+lead, units.AlignDown(p.Len-lead, align.Block)
	from, ok := p.Src.(driver.File)
	if !ok || p.Len < leastShared || p.At%align.Block != 0 {
		return true
	}
	if to.Share(from, p.At, p.Len, p.Off) != nil {
		return false
	}
	j.shared = append(j.shared, p)
	return true
}

// rest returns a disk with zeros where DEST shares the blocks of SOURCE.
func (j *Job) rest(d disk.Disk) disk.Disk {
	if len(j.shared) == 0 {
		return d
	}
	return only(d, disk.Gaps(disk.Range{Len: d.Size()}, j.shared))
}

// only returns a disk that has the bytes of d in ranges, and zeros elsewhere.
func only(d disk.Disk, ranges []disk.Range) disk.Disk {
	own := make([]disk.Piece, 0, len(ranges))
	for _, r := range ranges {
		own = append(own, disk.Piece{Range: r, Src: d, At: r.Off})
	}
	return disk.New(d.Size(), d.SectorSize(), disk.Pieces(d.Size(), own, nil))
}

// unproved returns the shared stretches whose blocks in a result are not known to be those of SOURCE.
func (j *Job) unproved(got disk.Disk) (out []disk.Range) {
	for _, p := range j.shared {
		if !inBlocksOf(got, p) {
			out = append(out, p.Range)
		}
	}
	return out
}

// inBlocksOf reports whether a disk has a stretch in the very blocks of the file that it was taken from.
func inBlocksOf(got disk.Disk, p disk.Piece) bool {
	for p.Len > 0 {
		run, _, err := disk.Leaf(got, p.Off)
		if err != nil {
			return false // who reads it will say so
		}
		n := min(run.Len, p.Len)
		if !image.SharesBlocks(run.Src, p.Src, run.Off, p.At, n) {
			return false
		}
		p.Off, p.At, p.Len = p.Off+n, p.At+n, p.Len-n
	}
	return true
}

// sharedNotes returns what the user should know of a DEST that shares blocks with SOURCE.
func (j *Job) sharedNotes() []ondisk.Issue {
	n := int64(0)
	for _, p := range j.shared {
		n += p.Len
	}
	if n == 0 {
		return nil
	}
	return []ondisk.Issue{{
		Code: "shared", Effect: ondisk.Note,
		Text: fmt.Sprintf("%s (%d bytes) of the disk lie in the blocks of SOURCE itself, which the file system "+
			"shares until either file is written to: they were neither copied nor read", units.Format(n), n),
		Remedy: "for a copy of its own, write DEST on another file system",
	}}
}
