package report

import (
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/opinion"
)

// Judge is the result of judge.
type Judge struct {
	Head
	Source   string        `json:"source"`
	Dest     string        `json:"dest"`
	Agree    bool          `json:"agree"` // no judge found a difference
	Answers  opinion.Table `json:"answers"`
	ExitCode int           `json:"exit_code"`
}

// NewJudge reports the answers of the judges.
func NewJudge(h Head, source, dest string, t opinion.Table) *Judge {
	r := &Judge{Head: h, Source: source, Dest: dest, Agree: !t.Differs(), Answers: t}
	if !r.Agree {
		r.ExitCode = ExitDiffers
	}
	return r
}

// verdictText are the verdicts of judges as text, of one width.
var verdictText = map[opinion.Verdict]string{
	opinion.Agrees: "agrees       ", opinion.Differs: "differs      ", opinion.NotLooked: "not looked at",
	opinion.Failed: "failed       ",
}

// Judge prints the answers, and whether all agree.
func (t *Text) Judge(r *Judge) {
	for _, x := range r.Answers {
		verdict := verdictText[x.Verdict]
		switch x.Verdict {
		case opinion.Differs, opinion.Failed:
			verdict = t.Paint(text.FgRed, verdict)
		case opinion.Agrees:
			verdict = t.Paint(text.FgGreen, verdict)
		case opinion.NotLooked:
		}
		t.printf("  %s  ", verdict)
		t.para(17, "%s, %s: %s", SafeMessage(x.Judge), SafeMessage(x.Asked), SafeMessage(x.Said))
	}
	if r.Agree {
		t.printf("%s: no judge found a difference\n", Safe(r.Dest))
		return
	}
	t.printf("%s: %s\n", Safe(r.Dest), t.Paint(text.FgRed, "a judge found a difference"))
}
