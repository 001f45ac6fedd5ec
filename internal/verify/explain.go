package verify

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
)

// Result is a disk before and after a move. Its differences are derived from the two disks and their layouts,
// independently of the plan, which may be wrong.
type Result struct {
	Base          disk.Disk // common source of both views
	Source, Dest  disk.Disk // views of Base, or other disks with the same bytes
	Before, After *layout.Layout

	buf *buffers
}

// step is the size of one comparison, in bytes.
const step = 64 << 10

// buffers are shared by all comparisons of a result, because a large table has tens of thousands.
type buffers struct{ was, is [step]byte }

func (r *Result) buffers() *buffers {
	if r.buf == nil {
		r.buf = new(buffers)
	}
	return r.buf
}

// pair is a range of the source and its place in the result.
type pair struct {
	from, to disk.Range
	what     string
	empty    bool // no range of the source belongs there, so the result must be zero
}

// vacant returns the pair of a range of the result that must be zero.
func vacant(off, end int64) pair {
	r := disk.Range{Off: off, Len: end - off}
	return pair{r, r, "nothing was to be there", true}
}

// Unexplained returns the differences between the moved source and the result that no rule explains. Rules explain:
// table fields of a moved partition, a GPT copy repaired over zeros or its own remains, a reference to a moved place,
// and the checksum over such a reference. The places of these fields come from the two layouts.
func (r *Result) Unexplained() ([]Difference, error) {
	pairs, err := r.pairs()
	if err != nil {
		return nil, err
	}
	rules, err := r.rules()
	if err != nil {
		return nil, err
	}
	var out []Difference
	var what string
	add := func(off int64, was, is []byte) {
		for i := 0; i < len(is); {
			if was[i] == is[i] || rules.has(off+int64(i)) {
				i++
				continue
			}
			j := i + 1
			for j < len(is) && was[j] != is[j] && !rules.has(off+int64(j)) {
				j++
			}
			out = append(out, Difference{
				disk.Range{Off: off + int64(i), Len: int64(j - i)},
				fmt.Sprintf("byte %d is %#02x and was %#02x, which is unexplained (%s)", off+int64(i), is[i], was[i],
					what),
			})
			i = j
		}
	}
	for _, p := range pairs {
		what = p.what
		if err := r.compare(p, add); err != nil || len(out) > maxDifferences {
			return out, err
		}
	}
	return out, nil
}

// pairs matches the ranges of the two disks: partitions, boot records, gaps, and the range after the space for
// partitions. All other ranges of the result follow as empty pairs.
func (r *Result) pairs() ([]pair, error) {
	var pairs, empty []pair
	b, a := r.Before, r.After
	usable, now := b.Usable(b.Size), b.Usable(a.Size) // the range after it keeps its distance from the end
	end := min(b.Size-usable, a.Size-now)             // without a trailing partial sector
	was, is := b.Items(), a.Items()
	if len(was) != len(is) {
		return nil, fmt.Errorf("%w: %d partitions and boot records, want %d", ErrDifferent, len(is), len(was))
	}
	behind := pair{
		disk.Range{Off: usable, Len: end}, disk.Range{Off: now, Len: end}, "behind the space for partitions", false,
	}
	if slices.EqualFunc(was, is, func(x, y layout.Item) bool { return x.Range == y.Range }) {
		all := disk.Range{Len: usable}
		return []pair{{all, all, "nothing moves", false}, behind, vacant(usable, now)}, nil
	}
	gaps := b.Gaps
	if gaps == nil {
		read := *b
		if err := read.ReadGaps(r.Source); err != nil {
			return nil, err
		}
		gaps = read.Gaps
	}
	for i := range is {
		if i == 0 {
			n := was[0].Off
			if is[0].Off < n {
				return nil, fmt.Errorf("%w: partition %d starts at byte %d, over data before byte %d",
					ErrDifferent, is[0].Number, is[0].Off, n)
			}
			pairs = append(pairs, pair{disk.Range{Len: n}, disk.Range{Len: n}, "in front of all partitions", false})
			empty = append(empty, vacant(n, is[0].Off))
		}
		if was[i].Kind != is[i].Kind || was[i].Number != is[i].Number || was[i].Len != is[i].Len {
			return nil, fmt.Errorf("%w: partition %d is at byte %d, the planned place of partition %d",
				ErrDifferent,
				is[i].Number, is[i].Off, was[i].Number)
		}
		pairs = append(pairs, pair{was[i].Range, is[i].Range, fmt.Sprintf("partition %d", is[i].Number), false})
		gap := disk.Range{Off: is[i].End(), Len: now - is[i].End()}
		if i+1 < len(is) {
			gap.Len = is[i+1].Off - gap.Off
		}
		kept, err := r.inGap(gaps[i], gap, is[i].Off-was[i].Off)
		if err != nil {
			return nil, err
		}
		at := gap.Off
		for _, p := range kept {
			empty = append(empty, vacant(at, p.to.Off))
			at = p.to.End()
		}
		pairs, empty = append(pairs, kept...), append(empty, vacant(at, gap.End()))
	}
	return slices.Concat(pairs, []pair{behind}, empty), nil
}

// inGap finds the data of a source gap in a gap of the result: at their old place, shifted like the partition before
// them, or anywhere as one piece.
func (r *Result) inGap(was layout.Gap, gap disk.Range, shift int64) (out []pair, err error) {
	if n := was.Data.Len; n > 0 {
		tries := []int64{was.Data.Off, was.Data.Off + shift, gap.Off}
		if at, ok, err := r.shown(was.Data.Off, gap); err != nil {
			return nil, err
		} else if ok {
			tries = append([]int64{at}, tries...)
		}
		last := pair{was.Data, disk.Range{Off: gap.Off, Len: min(n, gap.Len)}, "between partitions", false}
		for _, off := range tries {
			p := pair{was.Data, disk.Range{Off: off, Len: n}, last.what, false}
			if !gap.Contains(p.to) {
				continue
			}
			equal := true
			if err := r.compare(p, func(int64, []byte, []byte) { equal = false }); err != nil {
				return nil, err
			}
			if last = p; equal {
				break
			}
		}
		out = append(out, last)
	}
	return out, nil
}

// shown returns the place in a gap of the result at which a byte of the base appears.
func (r *Result) shown(off int64, gap disk.Range) (int64, bool, error) {
	for at := gap.Off; at < gap.End(); {
		run, based, err := r.run(r.Dest, at)
		if err != nil {
			return 0, false, err
		}
		if n := off - run.Off; based && n >= 0 && n < run.Len {
			return at + n, true, nil
		}
		at += run.Len
	}
	return 0, false, nil
}

// run follows the maps of a view from a byte down to the base. based is false for bytes from another source.
func (r *Result) run(d disk.Disk, off int64) (run disk.Run, based bool, err error) {
	for run = (disk.Run{Len: d.Size() - off, Src: d, Off: off}); ; {
		if on, ok := run.Src.(disk.Disk); ok && on == r.Base {
			return run, true, nil
		}
		m, ok := run.Src.(disk.Mapped)
		if !ok {
			return run, false, nil
		}
		below, err := m.Run(run.Off)
		if err != nil {
			return run, false, err
		}
		below.Len = min(below.Len, run.Len)
		run = below
	}
}

// compare calls differs for unequal ranges of a pair. Ranges that both views map to the same place of the base are
// equal.
func (r *Result) compare(p pair, differs func(off int64, was, is []byte)) error {
	source, a, b := r.Source, r.buffers().was[:], r.buffers().is[:]
	if p.empty {
		source = disk.New(p.from.End(), r.Dest.SectorSize(), disk.Pieces(p.from.End(), nil, nil))
	}
	for at := int64(0); at < p.to.Len; {
		was, based1, err1 := r.run(source, p.from.Off+at)
		is, based2, err2 := r.run(r.Dest, p.to.Off+at)
		if err1 != nil || err2 != nil {
			return cmp.Or(err1, err2)
		}
		n := min(was.Len, is.Len, p.to.Len-at)
		same := based1 && based2 && was.Off == is.Off || was.Src == nil && is.Src == nil
		if !same {
			n = min(n, step)
			if err := cmp.Or(ondisk.ReadFull(source, a[:n], p.from.Off+at),
				ondisk.ReadFull(r.Dest, b[:n], p.to.Off+at)); err != nil {
				return err
			}
			if !bytes.Equal(a[:n], b[:n]) {
				differs(p.to.Off+at, a[:n], b[:n])
			}
		}
		at += n
	}
	return nil
}
