package report

import (
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/trueup/trueup/internal/units"
)

// maxParts is how many parts of a volume the text lists; JSON has all that are known.
const maxParts = 64

// insides prints the details of volumes, and how they divide their space.
func (t *Text) insides(d Disk) {
	if d.Volume != nil {
		t.inside("the disk", d.Volume, d)
	}
	for _, p := range d.Partitions {
		if p.Volume != nil {
			t.inside(fmt.Sprintf("partition %d", p.Number), p.Volume, d)
		}
	}
}

func (t *Text) inside(where string, v *Volume, d Disk) {
	// The details of a file system, beyond its line in the table, are printed with -v only.
	fileSystem := v.Cluster > 0 && !t.Verbose
	if len(v.Parts) == 0 && (len(v.order) == 0 || fileSystem) {
		return
	}
	says := []string{VolumeText(v)}
	for _, name := range v.order {
		if v.Details[name] != v.Label {
			says = append(says, Safe(name)+" "+Safe(v.Details[name]))
		}
	}
	if v.DataStart > 0 {
		says = append(says, "data from "+units.Format(v.DataStart)+" on")
	}
	t.printf("\n  ")
	t.para(4, "Inside %s: %s", where, strings.Join(says, ", "))
	t.parts(v, d)
}

// parts lists the slices of a volume with their places on the disk. A slice that lies elsewhere, or in several pieces,
// has no place.
func (t *Text) parts(v *Volume, d Disk) {
	if len(v.Parts) == 0 {
		return
	}
	w := newTable()
	w.AppendHeader(table.Row{"   ", "name", "kind", "start LBA", "size", "on " + units.Short(d.Boundary)})
	for _, p := range v.Parts[:min(len(v.Parts), maxParts)] {
		row := table.Row{"", Safe(p.Name), Safe(p.Kind), "-", units.Format(p.Size), "-"}
		if p.Start != nil {
			row[3], row[5] = *p.Start/d.Sector(), t.yes(Partition{Verdict: d.Verdict}, *p.Start%d.Boundary == 0)
		}
		w.AppendRow(row)
	}
	t.printf("\n")
	t.table(w)
	if more := len(v.Parts) - maxParts; more > 0 {
		t.printf("    ... and %d more\n", more)
	}
}
