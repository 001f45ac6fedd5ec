package results

import (
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
)

// MostItems bounds the partitions, moves, findings and steps of a boot in a row, of each on all disks together: a GPT
// may have 16,384 partitions, of which the worst are enough.
const MostItems = 1024

// leftOut is the code of the finding about it.
const leftOut = "details-left-out"

// Items returns how many parts a row has that Trim can leave out, at about a kilobyte of memory each.
func (i *Image) Items() (n int) {
	n = len(i.Findings)
	for _, d := range i.Disks {
		n += len(d.Partitions) + len(d.Findings) + len(d.Chain)
		if d.Guest != nil {
			n += len(d.Guest.Signs)
		}
		if d.Fix != nil {
			n += len(d.Fix.Moves) + len(d.Fix.Refusals)
		}
	}
	return n
}

// Trim leaves out the parts of a row beyond so many of each kind, the best partitions first, with a finding. Verdicts,
// costs and the fix stay.
func (i *Image) Trim(most int) {
	before := i.Items()
	left := [5]int{most, most, most, most, most}
	cut := func(kind, n int) int {
		n = min(n, left[kind])
		left[kind] -= n
		return n
	}
	i.Findings = slices.DeleteFunc(slices.Clone(i.Findings), func(f align.Finding) bool { return f.Code == leftOut })
	i.Findings = slices.Clone(i.Findings[:cut(0, len(i.Findings))])
	for k := range i.Disks {
		d := &i.Disks[k]
		d.Partitions = worst(d.Partitions, cut(1, len(d.Partitions)))
		d.Findings = slices.Clone(d.Findings[:cut(0, len(d.Findings))])
		d.Chain = slices.Clone(d.Chain[:cut(2, len(d.Chain))])
		if g := d.Guest; g != nil {
			slices.SortStableFunc(g.Signs, func(a, b report.Sign) int { return b.State.Gravity() - a.State.Gravity() })
			g.Signs = slices.Clone(g.Signs[:cut(4, len(g.Signs))])
		}
		if d.Fix != nil {
			d.Fix.Moves = slices.Clone(d.Fix.Moves[:cut(3, len(d.Fix.Moves))])
			// at least one stays: none would mean that it can be made
			d.Fix.Refusals = slices.Clone(d.Fix.Refusals[:max(cut(0, len(d.Fix.Refusals)),
				min(1, len(d.Fix.Refusals)))])
		}
	}
	if after := i.Items(); after < before {
		i.Findings = append(i.Findings, align.Finding{
			Code: leftOut, Severity: align.Info, Text: "the row has not all partitions and findings: " +
				"there are too many",
			Remedy: "see them with trueup inspect",
		})
	}
}

// worst returns n partitions, in their order: those off the boundary before the others.
func worst(all []report.Partition, n int) []report.Partition {
	out := slices.Clone(all)
	if n == len(all) {
		return out
	}
	slices.SortStableFunc(out, func(a, b report.Partition) int { return badness(b.Verdict) - badness(a.Verdict) })
	out = slices.Clone(out[:n])
	slices.SortFunc(out, func(a, b report.Partition) int { return a.Number - b.Number })
	return out
}

func badness(v align.Verdict) int {
	return slices.Index([]align.Verdict{align.NothingToJudge, align.Aligned, align.BelowBoundary, align.Misaligned}, v)
}
