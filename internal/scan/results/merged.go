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
	Scans     int        `json:"scans"`            // that ended
	Rows      int        `json:"rows"`             // before those of one image were joined
	Joined    int        `json:"joined"`           // images with several rows
	Unknown   int        `json:"unidentified"`     // rows that nothing identifies, which are joined with no other
	Before    *Sums      `json:"before,omitempty"` // of the images that were known at the time of --since
	Labels    []LabelSum `json:"labels"`
	LabelsCut int        `json:"labels_left_out,omitempty"` // labels beyond the first thousand
}

// LabelSum has the sums of the images with a label. An image that two hosts have seen counts for both.
type LabelSum struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	Sums
	Before *Sums `json:"before,omitempty"` // at the time of --since
}

// Sums are those of some images.
type Sums struct {
	Images  int   `json:"images"`
	Aligned int   `json:"aligned"`
	Below   int   `json:"below_boundary"`
	Off     int   `json:"misaligned"`
	Failed  int   `json:"failed"`
	Copies  int64 `json:"copies_bytes"`
}

// Add counts an image.
func (s *Sums) Add(i *Image) {
	one := NewSummary()
	one.Add(i)
	s.Plus(Sums{one.Images, one.Aligned, one.Below, one.Misaligned, one.Failed, one.Fix.Copies})
}

// Plus adds other images.
func (s *Sums) Plus(o Sums) {
	s.Images, s.Aligned, s.Below = s.Images+o.Images, s.Aligned+o.Aligned, s.Below+o.Below
	s.Off, s.Failed, s.Copies = s.Off+o.Off, s.Failed+o.Failed, plus(s.Copies, o.Copies)
}

// text returns sums in words.
func (s *Sums) text() string {
	return fmt.Sprintf("%s, %s misaligned, %s below the boundary, %s failed, %s to copy", images(s.Images),
		thousands(int64(s.Off)), thousands(int64(s.Below)), thousands(int64(s.Failed)), units.Format(s.Copies))
}

// text returns the sums of a label in words.
func (l *LabelSum) text() string {
	if l.Before == nil {
		return l.Sums.text()
	}
	return l.Sums.text() + "; before: " + l.Before.text()
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
	if m.Before != nil {
		out += " Before: " + m.Before.text() + "."
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
