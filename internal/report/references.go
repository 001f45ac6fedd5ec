package report

import (
	"fmt"

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
	Disk      string `json:"disk,omitempty"`   // the signature of the disk that it names, when that is another one
	To        int64  `json:"becomes_bytes"`
	Stays     string `json:"stays,omitempty"` // why it stays as found
}

// newReferences describes the references of a layout under a plan.
func newReferences(p *plan.Plan, l *layout.Layout) []Reference {
	out := []Reference{}
	for _, r := range p.References(l) {
		x := Reference{
			Kind: r.Kind, Partition: r.Partition, File: r.File, Off: r.Off, Points: r.Points, Target: r.Target,
			To: r.To, Stays: r.Stays,
		}
		if r.Disk != 0 {
			x.Disk = fmt.Sprintf("0x%08x", r.Disk)
		}
		out = append(out, x)
	}
	return out
}

// maxReferences is how many references the text lists; JSON has all.
const maxReferences = 100

// references prints the stored positions, below the place that holds them.
func (t *Text) references(refs []Reference) {
	if len(refs) == 0 {
		return
	}
	t.printf("\nStored positions, and what becomes of them:\n\n")
	shown := refs[:min(len(refs), maxReferences)]
	w := t.referenceWidths(shown)
	t.printf(" %-*s  %*s  %-*s  %s\n", w.kind+2, "position", w.off, "at byte", w.points, "points to byte", "becomes")
	for i, r := range shown {
		if i == 0 || r.home() != shown[i-1].home() {
			t.printf(" ")
			t.Para(3, "%s:", r.home())
		}
		t.reference(r, w)
		// The reason that several positions in a row stay is printed once, below the last.
		if r.reason() != "" && (i+1 == len(shown) || shown[i+1].home() != r.home() ||
			shown[i+1].reason() != r.reason()) {
			t.printf("     ")
			t.Para(7, "stays: %s", r.reason())
		}
	}
	if n := len(refs) - maxReferences; n > 0 {
		t.printf(" … and %d more, which --json lists\n", n)
	}
}

// referenceWidths are the widths of columns, in characters.
type referenceWidths struct{ kind, off, points int }

// leastKind is how narrow the names of positions become on a narrow terminal.
const leastKind = 16

// referenceWidths makes the columns as wide as their content; the first one is wrapped if there is no room.
func (t *Text) referenceWidths(refs []Reference) referenceWidths {
	w, becomes := referenceWidths{len("position"), len("at byte"), len("points to byte")}, len("the same")
	for _, r := range refs {
		w.kind = max(w.kind, len(Safe(r.Kind)))
		w.off = max(w.off, len(decimal(r.Off)))
		w.points = max(w.points, len(r.pointsTo()))
		becomes = max(becomes, len(r.becomes()))
	}
	const blanks = 3 + 3*2
	if t.Width > 0 {
		w.kind = max(leastKind, min(w.kind, t.Width-blanks-w.off-w.points-becomes))
	}
	return w
}

func (t *Text) reference(r Reference, w referenceWidths) {
	for i, line := range Fold(Safe(r.Kind), w.kind) {
		if i > 0 {
			t.printf("   %s\n", line)
			continue
		}
		t.printf("   %-*s  %*d  %-*s  %s\n", w.kind, line, w.off, r.Off, w.points, r.pointsTo(), r.becomes())
	}
}

// home names the place that holds a position.
func (r Reference) home() string {
	switch {
	case r.File != "":
		return fmt.Sprintf("partition %d, %s", r.Partition, Safe(r.File))
	case r.Partition > 0:
		return fmt.Sprintf("partition %d", r.Partition)
	}
	return "the disk"
}

func (r Reference) pointsTo() string {
	if r.Disk != "" {
		return fmt.Sprintf("%d (disk %s)", r.Points, r.Disk)
	}
	if r.Target == 0 {
		return decimal(r.Points)
	}
	return fmt.Sprintf("%d (partition %d)", r.Points, r.Target)
}

func (r Reference) becomes() string {
	switch {
	case r.To != r.Points:
		return decimal(r.To)
	case r.Stays != "":
		return "stays"
	}
	return "the same"
}

// reason returns why a position stays that should perhaps change.
func (r Reference) reason() string {
	if r.To != r.Points {
		return ""
	}
	return SafeMessage(r.Stays)
}
