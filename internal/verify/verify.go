// Package verify proves a copy: two disks are equal byte for byte, and a layout keeps the promises of a plan.
package verify

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// ErrDifferent marks a copy that differs from the expected result.
var ErrDifferent = errors.New("the copy differs")

// maxDifferences limits the listed ranges. More are useless, and the list for two unrelated disks would exhaust memory.
const maxDifferences = 100

// Difference is a range with different bytes on two disks.
type Difference struct {
	disk.Range
	Text string
}

// Options configure Same.
type Options struct {
	Jobs     int
	Progress func(bytes int64) // receives compared bytes as counted by diskcopy.Size, from any goroutine; may be nil
	// Except lists the parts of the disks, in order, that may differ. Excepted receives the bytes of the sectors that
	// do.
	Except   []disk.Range
	Excepted func(bytes int64)
}

// Same compares every byte of two disks and returns the differences, in order.
func Same(ctx context.Context, want, got disk.Disk, o Options) ([]Difference, error) {
	if want.Size() != got.Size() {
		return []Difference{{
			Range: disk.Range{
				Off: min(want.Size(), got.Size()),
				Len: max(want.Size(), got.Size()) - min(want.Size(), got.Size()),
			},
			Text: fmt.Sprintf("the disk has %d bytes, want %d", got.Size(), want.Size()),
		}}, nil
	}
	tell := o.Progress
	if tell == nil {
		tell = func(int64) {}
	}
	var found []Difference
	d := &diskcopy.Data{Disks: []disk.Disk{want, got}}
	err := diskcopy.Each(ctx, o.Jobs, d, func(ctx context.Context, c diskcopy.Chunk, bufs [][]byte) error {
		a, b := bufs[0][:c.Len], bufs[1][:c.Len]
		if err := ondisk.ReadFull(want, a, c.Off); err != nil {
			return err
		}
		if err := ondisk.ReadFull(got, b, c.Off); err != nil {
			return err
		}
		excepted := except(a, b, c.Off, o.Except)
		differ := differences(a, b, c.Off)
		// Chunks add their differences in turn, so that the list is sorted and can be limited as it grows.
		if err := c.Wait(ctx); err != nil {
			return err
		}
		found = join(found, differ)
		if excepted > 0 {
			o.Excepted(excepted)
		}
		c.Pass()
		tell(c.Len)
		return nil
	})
	return found, err
}

// except makes the excepted parts of a chunk equal. It returns the bytes of their unequal sectors.
func except(a, b []byte, off int64, parts []disk.Range) (differ int64) {
	chunk := disk.Range{Off: off, Len: int64(len(a))}
	for _, r := range disk.Overlapping(parts, chunk) {
		from, to := max(r.Off, off)-off, min(r.End(), chunk.End())-off
		for _, d := range differences(a[from:to], b[from:to], off+from) {
			differ += d.Len
		}
		copy(a[from:to], b[from:to])
	}
	return differ
}

// differences returns the ranges of unequal sectors in a chunk.
func differences(a, b []byte, off int64) []Difference {
	const sector = 512
	var out []Difference
	if bytes.Equal(a, b) {
		return nil
	}
	for i := 0; i < len(a); i += sector {
		end := min(i+sector, len(a))
		if bytes.Equal(a[i:end], b[i:end]) {
			continue
		}
		j := i
		for a[j] == b[j] {
			j++
		}
		r := disk.Range{Off: off + int64(i), Len: int64(end - i)}
		if n := len(out); n > 0 && out[n-1].End() == r.Off {
			out[n-1].Len += r.Len
			continue
		}
		out = append(out, Difference{r, fmt.Sprintf("byte %d is %#02x, want %#02x", off+int64(j), b[j], a[j])})
	}
	return out
}

// join appends the differences of the next chunk. A full list only extends its last range.
func join(list, next []Difference) []Difference {
	for _, f := range next {
		if n := len(list); n > 0 && list[n-1].End() == f.Off {
			list[n-1].Len += f.Len
		} else if n < maxDifferences {
			list = append(list, f)
		}
	}
	return list
}

// Promise checks the layout of a result against the plan: every partition is in its place with its size, type and
// flags, moved partitions are on the boundary, volumes are unchanged, and references point to their targets.
func Promise(p *plan.Plan, before, after *layout.Layout) error {
	if len(before.Partitions) != len(after.Partitions) {
		return fmt.Errorf("%w: %d partitions, want %d", ErrDifferent, len(after.Partitions), len(before.Partitions))
	}
	moved := map[int]bool{}
	for _, m := range p.Moves {
		moved[m.Partition] = true
	}
	must := cmp.Or(p.Goal.Must, align.SmallestBoundary) // a repeated plan has no goal
	for i, was := range before.Partitions {
		is := after.Partitions[i]
		want, ok := p.Places.Parts[was.Number]
		if !ok {
			want = was.Range
		}
		if err := samePartition(was, is, want); err != nil {
			return err
		}
		shift := is.Off - was.Off // a multiple of the boundary if the data keep their alignment
		if moved[was.Number] && !must.On(is.Off) && (shift == 0 || !must.On(shift)) {
			return fmt.Errorf("%w: partition %d was moved to byte %d, off the boundary of %s (are SOURCE and DEST "+
				"swapped?)", ErrDifferent, is.Number, is.Off, must)
		}
	}
	return sameRefs(p, before, after)
}

// InSectors checks the layout of a disk whose table counts sectors of n bytes instead of others: each partition has its
// place, flags and volume, and ends with a whole sector. Extended partitions begin with their boot records. patches are
// the changes, which must leave all partitions unchanged, except for the reserved sectors of a FAT that counts other
// sectors too.
func InSectors(before, after *layout.Layout, patches []disk.Patch, n int64) error {
	if len(before.Partitions) != len(after.Partitions) {
		return fmt.Errorf("%w: %d partitions, want %d", ErrDifferent, len(after.Partitions), len(before.Partitions))
	}
	for i, was := range before.Partitions {
		is, want := after.Partitions[i], was.Range
		want.Len = units.AlignUp(want.End(), n) - want.Off
		if was.Kind == table.Extended && is.Off > was.Off-n && is.Off < was.Off+n {
			want = disk.Range{Off: is.Off, Len: want.End() - is.Off}
		}
		old, now := was.Volume.Boot, is.Volume.Boot
		fat := old != nil && now != nil && old.SectorSize != now.SectorSize
		if is.Len != was.Len || fat {
			volume := *is.Volume // its size may be the partition's
			volume.Size, is.Volume = was.Volume.Size, &volume
		}
		if err := samePartition(was, is, want); err != nil {
			return err
		}
		kept := was.Range
		if fat { // its reserved sectors change
			kept.Off, kept.Len = kept.Off+was.Volume.DataStart, kept.Len-was.Volume.DataStart
		}
		for _, x := range patches {
			if was.Kind != table.Extended && x.Range().Overlaps(kept) {
				return fmt.Errorf("%w: the new table would change bytes %d to %d of partition %d", ErrDifferent,
					x.Off, x.Range().End()-1, was.Number)
			}
		}
	}
	return nil
}

func samePartition(was, is boot.Partition, want disk.Range) error {
	same := is.Number == was.Number && is.Kind == was.Kind && is.Active == was.Active && is.TypeID() == was.TypeID() &&
		is.GUID == was.GUID && is.Name == was.Name && is.Slot == was.Slot && is.Type == was.Type
	switch {
	case !same || is.Range != want:
		return fmt.Errorf("%w: partition %d is %s %s at byte %d with %d bytes, want %d: %s %s at %d with %d",
			ErrDifferent, is.Number, is.Kind, is.TypeID(), is.Off, is.Len, was.Number, was.Kind, was.TypeID(), want.Off,
			want.Len)
	case is.Volume.Kind != was.Volume.Kind || is.Volume.UUID != was.Volume.UUID || is.Volume.Size != was.Volume.Size:
		return fmt.Errorf("%w: partition %d holds %s %s, want %s %s", ErrDifferent, is.Number, is.Volume.Kind,
			is.Volume.UUID, was.Volume.Kind, was.Volume.UUID)
	}
	return nil
}

// sameRefs checks that each reference to a moved partition still points to the same place in it, and that all others
// are unchanged.
func sameRefs(p *plan.Plan, before, after *layout.Layout) error {
	refs := p.References(before)
	if len(refs) != len(after.Boot.Refs) {
		return fmt.Errorf("%w: %d references, want %d", ErrDifferent, len(after.Boot.Refs), len(refs))
	}
	for i, was := range refs {
		is := after.Boot.Refs[i]
		if is.Kind != was.Kind || is.Disk != was.Disk || is.Partition != was.Partition || is.File != was.File ||
			is.Off != was.Off {
			return fmt.Errorf("%w: %s (%s), want %s (%s)", ErrDifferent, is.Name(), is.Place(), was.Name(), was.Place())
		}
		if is.Points != was.To || was.Follows() && (is.Target != was.Target || is.FromRecord != was.FromRecord) {
			return fmt.Errorf("%w: %s point to byte %d, want %d", ErrDifferent, is.Name(), is.Points, was.To)
		}
	}
	return nil
}

// Starts returns the partition starts of a copy. It returns an error if the disk cannot be a copy at all.
func Starts(before, after *layout.Layout) (map[int]int64, error) {
	switch {
	case (before.Table == nil) != (after.Table == nil):
		return nil, fmt.Errorf("%w: one disk has a partition table, the other has none", ErrDifferent)
	case before.Table != nil && before.Table.Scheme != after.Table.Scheme:
		return nil, fmt.Errorf("%w: partition table %s, want %s", ErrDifferent, after.Table.Scheme, before.Table.Scheme)
	}
	starts := map[int]int64{}
	for _, p := range after.Partitions {
		starts[p.Number] = p.Off
	}
	for _, p := range before.Partitions {
		if _, ok := starts[p.Number]; !ok {
			return nil, fmt.Errorf("%w: partition %d is missing", ErrDifferent, p.Number)
		}
	}
	return starts, nil
}

// Stable checks that aligning the result again would change nothing.
func Stable(after *layout.Layout, goal align.Goal) error {
	again, err := plan.New(after, goal)
	if err != nil {
		return err
	}
	if len(again.Moves) > 0 {
		return fmt.Errorf("%w: partition %d would move again", ErrDifferent, again.Moves[0].Partition)
	}
	if len(again.Patches) > 0 {
		return fmt.Errorf("%w: %s would change again", ErrDifferent, again.Patches[0].Reason)
	}
	return nil
}

// Elsewhere derives the moves of other disks of the machine from the references of a copy, for disks that are not
// available. A reference may have a new target if a partition can have moved there. All references to one place must
// have the same new target.
func Elsewhere(before, after *layout.Layout) (*layout.Machine, error) {
	m := &layout.Machine{}
	if len(before.Boot.Refs) != len(after.Boot.Refs) {
		return m, nil // a difference, which Promise reports
	}
	to, from := map[boot.Place]int64{}, map[boot.Place]int64{}
	for i, was := range before.Boot.Refs {
		is := after.Boot.Refs[i]
		if was.Disk == 0 || was.Encode == nil || is.Disk != was.Disk {
			continue
		}
		other, seen := to[was.Names()]
		if seen && other != is.Points {
			return nil, fmt.Errorf("%w: %s points to byte %d of disk 0x%08x, and another reference of the same "+
				"place to byte %d",
				ErrDifferent, was.Name(), is.Points, was.Disk, other)
		}
		to[was.Names()] = is.Points
		m.Follow(was.Names(), is.Points)
		if is.Points == was.Points {
			continue
		}
		origin, taken := from[is.Names()]
		off := !align.SmallestBoundary.On(is.Points) && !align.SmallestBoundary.On(is.Points-was.Points)
		if taken && origin != was.Points || is.Points <= 0 || off {
			return nil, fmt.Errorf("%w: %s points to byte %d of disk 0x%08x instead of %d, and no partition "+
				"was moved there",
				ErrDifferent, was.Name(), is.Points, was.Disk, was.Points)
		}
		from[is.Names()] = was.Points
	}
	return m, nil
}
