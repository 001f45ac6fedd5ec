package disk

import (
	"cmp"
	"slices"
	"sort"
)

// Range is half-open: [Off, Off+Len). Bytes.
type Range struct{ Off, Len int64 }

// End returns the first byte behind the range.
func (r Range) End() int64 { return r.Off + r.Len }

// Contains reports whether o lies in r completely.
func (r Range) Contains(o Range) bool { return o.Off >= r.Off && o.End() <= r.End() }

// Overlaps reports whether r and o share a byte.
func (r Range) Overlaps(o Range) bool {
	return r.Off < o.End() && o.Off < r.End() && r.Len > 0 && o.Len > 0
}

func (r Range) span() Range { return r }

// spanned is a Range, or a struct that embeds one.
type spanned interface {
	End() int64
	span() Range
}

// Merge sorts ranges and joins those that meet. It reuses their memory.
func Merge(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.Off, b.Off) })
	joined := ranges[:0]
	for _, r := range ranges {
		if k := len(joined) - 1; k >= 0 && r.Off <= joined[k].End() {
			joined[k].Len = max(joined[k].End(), r.End()) - joined[k].Off
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// Append appends r to ranges, or extends the last of them if r begins where that ends.
func Append(ranges []Range, r Range) []Range {
	if k := len(ranges) - 1; k >= 0 && ranges[k].End() == r.Off {
		ranges[k].Len += r.Len
		return ranges
	}
	return append(ranges, r)
}

// Behind returns the index of the first of sorted, disjoint ranges that ends behind off: the one that covers off, or
// the next one.
func Behind[R interface{ End() int64 }](ranges []R, off int64) int {
	return sort.Search(len(ranges), func(i int) bool { return ranges[i].End() > off })
}

// Overlapping returns the part of sorted, disjoint ranges that shares bytes with r. None of them may be empty.
func Overlapping[R spanned](ranges []R, r Range) []R {
	if r.Len <= 0 {
		return nil
	}
	ranges = ranges[Behind(ranges, r.Off):]
	return ranges[:sort.Search(len(ranges), func(i int) bool { return ranges[i].span().Off >= r.End() })]
}

// Gaps returns r minus ranges, which are sorted and disjoint.
func Gaps[R spanned](r Range, ranges []R) (gaps []Range) {
	from := r.Off
	for _, x := range Overlapping(ranges, r) {
		if off := x.span().Off; off > from {
			gaps = append(gaps, Range{from, off - from})
		}
		from = x.End()
	}
	if from < r.End() {
		gaps = append(gaps, Range{from, r.End() - from})
	}
	return gaps
}

// Intersect returns the bytes that two lists of sorted, disjoint ranges share.
func Intersect(a, b []Range) (common []Range) {
	for _, r := range a {
		for _, x := range Overlapping(b, r) {
			from := max(r.Off, x.Off)
			common = append(common, Range{from, min(r.End(), x.End()) - from})
		}
	}
	return common
}
