package report

import (
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/opinion"
)

// verdictText are the verdicts of judges as text, of one width.
var verdictText = map[opinion.Verdict]string{
	opinion.Agrees: "agrees       ", opinion.Differs: "differs      ", opinion.NotLooked: "not looked at",
	opinion.Absent: "not installed", opinion.Failed: "failed       ",
}

// opinions prints which judge looked at what, and what it said.
func (t *Text) opinions(rows opinion.Table) {
	if len(rows) == 0 {
		return
	}
	t.printf("Second opinion:\n")
	for _, r := range rows {
		verdict := verdictText[r.Verdict]
		switch r.Verdict {
		case opinion.Differs, opinion.Failed:
			verdict = t.Paint(text.FgRed, verdict)
		case opinion.Agrees:
			verdict = t.Paint(text.FgGreen, verdict)
		case opinion.NotLooked, opinion.Absent:
		}
		t.printf("  %s  ", verdict)
		t.para(17, "%s, %s: %s", SafeMessage(r.Judge), SafeMessage(r.Asked), SafeMessage(r.Said))
	}
}
