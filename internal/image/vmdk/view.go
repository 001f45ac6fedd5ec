package vmdk

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// A view is a flat disk that takes stretches from the inside of files, which are the data of another disk. Sectors that
// differ from those lie in a further file, the head.

// viewed returns the files of which extents take stretches other than one behind the other from byte 0 on.
func viewed(extents []*extent) (names []string) {
	next, seen := map[string]int64{}, map[string]bool{}
	for _, e := range extents {
		if !e.flat() {
			continue
		}
		if e.off != next[e.name] && !seen[e.name] {
			seen[e.name] = true
			names = append(names, e.name)
		}
		next[e.name] = e.off + e.size
	}
	return names
}

// CodeView is the code of the issue of a disk that is a view.
const CodeView = "view"

// viewIssue warns of a view: the storage below sees another disk.
func (d *descriptor) viewIssue() []ondisk.Issue {
	names := viewed(d.extents)
	if len(names) == 0 {
		return nil
	}
	var lent, size int64
	for _, e := range d.extents {
		if size += e.size; slices.Contains(names, e.name) {
			lent += e.size
		}
	}
	in := fmt.Sprintf("%.256q", names[0])
	if n := len(names) - 1; n > 0 {
		in += fmt.Sprintf(" and %d more of its files", n)
	}
	return []ondisk.Issue{{
		Code: CodeView, Effect: ondisk.Warn,
		Text: fmt.Sprintf("it is a view, not a complete disk: %d of its %d bytes lie in %s, at the offsets of "+
			"another disk. The storage sees those offsets. What is written to the view goes to these files, and then "+
			"the other disk is no longer usable by itself", lent, size, in),
		Remedy: "trueup convert --to vmdk:monolithicFlat makes a complete disk of it; keep all files " +
			"until that is done",
	}}
}

// viewTarget writes the head of a view, and the descriptor when that is complete.
type viewTarget struct {
	flatTarget
	own []disk.Piece // what lies in the head
}

// newViewTarget creates a disk of the files of o.Over, and of a head for what they leave. QEMU takes the type of split
// disks and not "custom", FLAT extents at an offset and not VMFS ones, and it skips ZERO extents.
func newViewTarget(f driver.WriteFile, size int64, from *descriptor, o driver.Options) (*viewTarget, error) {
	head, name, err := o.Beside("-head")
	if err != nil {
		return nil, err
	}
	t := &viewTarget{}
	var end int64
	for _, r := range disk.Gaps(disk.Range{Len: size}, o.Over) {
		t.own = append(t.own, disk.Piece{Range: r, At: end})
		end += r.Len
	}
	all := slices.Concat(t.own, o.Over)
	slices.SortFunc(all, func(a, b disk.Piece) int { return int(min(max(a.Off-b.Off, -1), 1)) })
	lines := make([]string, 0, len(all))
	for _, p := range all {
		at := name
		if lent, ok := p.Src.(driver.File); ok {
			at = lent.Name()
		}
		lines = append(lines, fmt.Sprintf("RW %d FLAT \"%s\" %d", p.Len/units.SectorSize, at, p.At/units.SectorSize))
	}
	flat, err := driver.NewFlat(head, end)
	t.flatTarget = flatTarget{flat, f, from.copyFor(splitFlat, size, lines, o.Seed, o.BIOS)}
	return t, err
}

// Unit returns the unit of extents: a stretch of a file begins and ends at any sector.
func (t *viewTarget) Unit() int64 { return units.SectorSize }

// WriteAt writes a range that lies in the head.
func (t *viewTarget) WriteAt(b []byte, off int64) (int, error) {
	p := t.own[disk.Behind(t.own, off)]
	if !p.Contains(disk.Range{Off: off, Len: int64(len(b))}) {
		panic(fmt.Sprintf("vmdk: write of %d bytes at %#x, which lie in the files of another disk", len(b), off))
	}
	return t.flatTarget.WriteAt(b, p.At+off-p.Off)
}
