package report

import (
	"fmt"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
)

// Reference is a stored position of a partition, or of something in one, and what becomes of it.
type Reference struct {
	Kind      string `json:"kind"`
	Partition int    `json:"partition,omitempty"` // in which it is stored
	File      string `json:"file,omitempty"`
	Off       int64  `json:"offset_bytes"` // in the file, the partition or the disk
	Points    int64  `json:"points_to_bytes"`
	Target    int    `json:"target,omitempty"` // the partition that it points into
	To        int64  `json:"becomes_bytes"`
	Stays     string `json:"stays,omitempty"` // why it stays as found
}

// NewReferences describes the references of a layout under a plan.
func NewReferences(p *plan.Plan, l *layout.Layout) []Reference {
	out := []Reference{}
	for _, r := range p.References(l) {
		out = append(out, Reference{r.Kind, r.Partition, r.File, r.Off, r.Points, r.Target, r.To, r.Stays})
	}
	return out
}

// maxReferences is how many references the text lists; JSON has all.
const maxReferences = 100

// references prints the table of stored positions.
func (t *Text) references(refs []Reference) {
	if len(refs) == 0 {
		return
	}
	t.printf("\nStored positions, and what becomes of them:\n\n")
	w := newTable()
	w.AppendHeader(table.Row{"position", "stored in", "points to byte", "becomes"})
	for _, r := range refs[:min(len(refs), maxReferences)] {
		w.AppendRow(table.Row{r.Kind, r.storedIn(), r.pointsTo(), r.becomes()})
	}
	t.table(w)
	if n := len(refs) - maxReferences; n > 0 {
		t.printf(" … and %d more, which --json lists\n", n)
	}
}

func (r Reference) storedIn() string {
	switch {
	case r.File != "":
		return fmt.Sprintf("partition %d, %s, byte %d", r.Partition, Safe(r.File), r.Off)
	case r.Partition > 0:
		return fmt.Sprintf("partition %d, byte %d", r.Partition, r.Off)
	}
	return fmt.Sprintf("the disk, byte %d", r.Off)
}

func (r Reference) pointsTo() string {
	if r.Target == 0 {
		return strconv.FormatInt(r.Points, 10)
	}
	return fmt.Sprintf("%d (partition %d)", r.Points, r.Target)
}

func (r Reference) becomes() string {
	switch {
	case r.To != r.Points:
		return strconv.FormatInt(r.To, 10)
	case r.Stays != "":
		return "stays: " + SafeMessage(r.Stays)
	}
	return "stays: nothing moves there"
}
