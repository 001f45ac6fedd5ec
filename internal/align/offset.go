package align

import (
	"cmp"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
)

// Placing is the place of a partition in a file: now, and if the disk begins at an offset.
type Placing struct {
	Partition int     `json:"partition"` // 0 is the volume over the whole disk, or a slice of it
	Start     int64   `json:"start_bytes"`
	Size      int64   `json:"size_bytes"`
	From      int64   `json:"from_bytes"`
	To        int64   `json:"to_bytes"`
	Was       Verdict `json:"from_verdict"`
	Is        Verdict `json:"to_verdict"`
}

// OffsetFor returns the offset in a file that puts most data of a disk on blocks of 4 KiB, and of such offsets the one
// with most data on multiples of 64 KiB. It is the smallest one, a multiple of the sector size below 64 KiB.
func OffsetFor(l *layout.Layout, sector int64) (best int64) {
	most := [2]int64{-1, -1}
	for off := int64(0); off < DefaultBoundary.bytes; off += sector {
		on := [2]int64{onBlocks(l, off, SmallestBoundary), onBlocks(l, off, DefaultBoundary)}
		if cmp.Or(cmp.Compare(on[0], most[0]), cmp.Compare(on[1], most[1])) > 0 {
			best, most = off, on
		}
	}
	return best
}

// placed returns the partitions to place: those of a table, the slices of a table over the whole disk, or its volume.
func placed(l *layout.Layout) (out []boot.Partition) {
	for _, x := range l.FixedParts() {
		p := boot.Partition{Volume: x.Content, InFile: x.Start + l.Shift, Shift: l.Shift}
		p.Off, p.Len = x.Start, x.Size
		out = append(out, p)
	}
	if len(out) == 0 {
		return wholes(l)
	}
	return out
}

// onBlocks returns the size of the judged partitions whose data begin on a boundary of the file. The slices of a
// partition count alike.
func onBlocks(l *layout.Layout, offset int64, boundary Boundary) (n int64) {
	for _, p := range placed(l) {
		if !Judged(p) {
			continue
		}
		all := origins(p)
		for _, o := range all {
			if boundary.On(offset + p.Off + o.inside) {
				n += p.Len / int64(len(all))
			}
		}
	}
	return n
}

// Placings returns the places of the judged partitions, with the disk at an offset. l has the present starts in files.
func Placings(l *layout.Layout, offset int64) []Placing {
	out := []Placing{}
	if ContentOf(l) != "" {
		return out
	}
	for _, p := range placed(l) {
		if !Judged(p) {
			continue
		}
		is := p
		is.Shift = offset
		out = append(out, Placing{
			Partition: p.Number, Start: p.Off, Size: p.Len, From: start(p), To: start(is),
			Was: Judge(p, DefaultBoundary).Verdict, Is: Judge(is, DefaultBoundary).Verdict,
		})
	}
	return out
}
