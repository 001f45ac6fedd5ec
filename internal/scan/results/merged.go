package results

import (
	"fmt"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// ReportCommand is the name of the command that makes a report of the results of several runs.
const ReportCommand = "report"

// Joined is why rows of several runs are one.
type Joined struct {
	By   string `json:"by"` // datastore or file_system
	Rows int    `json:"rows"`
}

// Merged are the sums of a report that only one of several runs has.
type Merged struct {
	Scans     int        `json:"scans"`        // that ended
	Rows      int        `json:"rows"`         // before those of one image were joined
	Joined    int        `json:"joined"`       // images with several rows
	Unknown   int        `json:"unidentified"` // rows that nothing identifies, which are joined with no other
	Labels    []LabelSum `json:"labels"`
	LabelsCut int        `json:"labels_left_out,omitempty"` // labels beyond the first thousand
}

// LabelSum has the sums of the images with a label. An image that two hosts have seen counts for both.
type LabelSum struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	Images  int    `json:"images"`
	Aligned int    `json:"aligned"`
	Below   int    `json:"below_boundary"`
	Off     int    `json:"misaligned"`
	Failed  int    `json:"failed"`
	Copies  int64  `json:"copies_bytes"`
}

// Add counts an image.
func (l *LabelSum) Add(i *Image) {
	one := NewSummary()
	one.Add(i)
	l.Images, l.Aligned, l.Below = l.Images+one.Images, l.Aligned+one.Aligned, l.Below+one.Below
	l.Off, l.Failed, l.Copies = l.Off+one.Misaligned, l.Failed+one.Failed, plus(l.Copies, one.Fix.Copies)
}

// text returns the sums in words.
func (l *LabelSum) text() string {
	return fmt.Sprintf("%s, %s misaligned, %s below the boundary, %s failed, %s to copy", images(l.Images),
		thousands(int64(l.Off)), thousands(int64(l.Below)), thousands(int64(l.Failed)), units.Format(l.Copies))
}

// text returns where the rows come from.
func (m *Merged) text() string {
	out := "Made of " + units.Counted(m.Scans, "scan") + "."
	if m.Joined > 0 {
		out += " Several rows were one image: " + images(m.Joined) + "."
	}
	if m.Unknown > 0 && m.Scans > 1 {
		out += " Nothing identifies " + counted(m.Unknown, "row", "rows") +
			", so an image that several hosts have seen may count for each."
	}
	return out
}

// merged prints where rows come from, and the sums of their labels.
func (p *printer) merged(m *Merged) {
	p.para("", m.text())
	for _, l := range m.Labels {
		p.para(indent, report.SafeMessage(l.Key+"="+l.Value)+": "+l.text()+".")
	}
	p.more(m.LabelsCut)
}
