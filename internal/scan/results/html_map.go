package results

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// percent is a length in a picture.
type percent float64

// String is exact enough for a screen of 100,000 points.
func (p percent) String() string {
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(float64(p), 'f', 3, 64), "0"), ".") + "%"
}

// share returns n of total; both are at least 0.
func share(n, total int64) percent {
	if total <= 0 {
		return 0
	}
	return percent(100 * float64(n) / float64(total))
}

// htmlDisk is a disk with its map. All texts in it but those of Parts are safe.
type htmlDisk struct {
	Title, Facts string
	Guest        string
	Half, Size   string // of the disk, for the scale
	Boxes        []box
	Lenses       []lens
	Parts        []report.Partition // their texts are not safe
	Boundary     int64
	More         string // about partitions that are not shown
	Advice, Fix  string
	Refusals     htmlFindings
	Findings     htmlFindings
	HasMap       bool
}

// box is a partition on the map.
type box struct {
	Class, Label string
	At, Share    percent
}

// lens shows a start so large that the boundary is seen: four blocks of the unit of the storage, the first with the
// start in it, and where blocks of that size of the partition begin.
type lens struct {
	Class, Unit, Text string
	Blocks            [4]percent
}

// Limits of the picture of a disk.
const (
	maxParts  = 64
	maxLenses = 4
	// labelShare is the least part of a disk in which a number is drawn: two digits on a map of a phone.
	labelShare = 5
)

func newHTMLDisks(all []Disk) (out []htmlDisk) {
	for _, d := range all[:min(len(all), maxDisks)] {
		out = append(out, newHTMLDisk(d))
	}
	return out
}

func newHTMLDisk(d Disk) htmlDisk {
	h := htmlDisk{
		Title: safe(d.Member), Facts: diskFacts(d), Half: units.Format(d.Size / 2), Size: units.Format(d.Size),
		Fix: fixText(d), Guest: guestText(d.Guest), HasMap: d.Size > 0,
	}
	parts := worst(d.Partitions, min(len(d.Partitions), maxParts))
	if n := len(d.Partitions) - len(parts); n > 0 {
		h.More = fmt.Sprintf("Of %d partitions %d are shown, those off the boundary first; trueup inspect lists all.",
			len(d.Partitions), len(parts))
	}
	h.Parts, h.Boundary = parts, d.Boundary
	h.Boxes = boxes(d, parts)
	rest := slices.Clone(d.Findings)
	h.Lenses, rest = lenses(d, parts, rest)
	h.Findings = newFindings(rest)
	h.Findings.All = append(fromError("error", d.Error), h.Findings.All...)
	if d.Advice != nil {
		h.Advice = safe(d.Advice.Text)
	}
	if d.Fix != nil {
		h.Refusals.All = newFindings(d.Fix.Refusals).All
	}
	for n := range h.Refusals.All {
		h.Refusals.All[n].Severity = "refused"
	}
	h.Refusals.All = append(h.Refusals.All, fromError("no plan", d.Unplanned)...)
	return h
}

func diskFacts(d Disk) string {
	var out []string
	switch d.Table.Scheme {
	case "", "none":
		if d.Volume != nil {
			out = append(out, "no table: "+safe(d.Volume.Kind)+" on the whole disk")
		} else if d.Error == nil {
			out = append(out, "no partition table")
		}
	default:
		out = append(out, strings.ToUpper(safe(d.Table.Scheme)))
	}
	if n := len(d.Partitions); n > 0 {
		out = append(out, units.Counted(n, "partition"))
	}
	if d.Boot.Text != "" {
		out = append(out, "boot code: "+safe(d.Boot.Text))
	}
	if d.Boundary > 0 {
		out = append(out, "judged by "+units.Format(d.Boundary))
	}
	return strings.Join(out, " · ")
}

// partLabels returns the names of a partition and its volume.
func partLabels(p report.Partition) (out []string) {
	if p.Name != "" {
		out = append(out, p.Name)
	}
	if v := p.Volume; v != nil && v.Label != "" && v.Label != p.Name {
		out = append(out, v.Label)
	}
	return out
}

// boxes are the partitions to scale, extended ones below the others. Partitions of a broken table are cut at the end of
// the disk.
func boxes(d Disk, parts []report.Partition) []box {
	var under, over []box
	for _, p := range parts {
		start := min(max(p.Start, 0), d.Size)
		b := box{
			Class: lookOf(p.Verdict, d.Boundary).class, At: share(start, d.Size),
			Share: share(min(max(p.Size, 0), d.Size-start), d.Size),
		}
		if b.Class == "unjudged" {
			under = append(under, b)
			continue
		}
		if b.Share >= labelShare {
			b.Label = strconv.Itoa(p.Number)
		}
		over = append(over, b)
	}
	return append(under, over...)
}

// lenses shows the starts that are off, one for each way to be off, and removes these from the findings.
func lenses(d Disk, parts []report.Partition, fs []align.Finding) ([]lens, []align.Finding) {
	var out []lens
	seen := map[[2]int64]bool{}
	for _, p := range parts {
		unit := map[align.Verdict]int64{align.Misaligned: align.Block, align.BelowBoundary: d.Boundary}[p.Verdict]
		if unit <= 0 || p.Start < 0 {
			continue
		}
		past := p.Start % unit
		way := [2]int64{unit, past}
		if seen[way] || len(out) == maxLenses {
			continue
		}
		seen[way] = true
		l := lens{Class: lookOf(p.Verdict, d.Boundary).class, Unit: units.Format(unit)}
		for n := range l.Blocks {
			l.Blocks[n] = 25 * (percent(n) + share(past, unit)/100)
		}
		if at := startOf(fs, p.Number); at >= 0 {
			l.Text = safe("Partition " + strconv.Itoa(p.Number) + " " + fs[at].Text + ".")
			fs = slices.Delete(fs, at, at+1)
		} else {
			l.Text = fmt.Sprintf("Partition %d starts %s past a multiple of %s.", p.Number, units.Format(past), l.Unit)
		}
		out = append(out, l)
	}
	return out, fs
}
