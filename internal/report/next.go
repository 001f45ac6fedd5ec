package report

import (
	"cmp"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/units"
)

// next prints a command to be pasted, on a line of its own where it does not fit behind the words. It is never broken.
func (t *Text) next(words, command string) {
	if t.Width > 0 && text.StringWidthWithoutEscSequences(words+command) > t.Width {
		words = strings.TrimRight(words, " ") + "\n  "
	}
	t.printf("%s%s\n", words, command)
}

// align returns the command line that makes an aligned copy of the image.
func (i Image) align(flags []string) string {
	if i.Unpacked != nil {
		return alignUnpackedCommand(i.Path, *i.Unpacked, i.Format, flags)
	}
	return AlignCommand(i.Path, i.Format, flags)
}

// command names the next step. A copy that would be refused is not proposed.
func (t *Text) command(r *Inspect) {
	next := slices.Clone(r.Flags)
	if b := cmp.Or(r.Advice.Boundary, r.Boundary); b != align.DefaultBoundary {
		next = append(next, "--boundary", units.Short(b))
	}
	if len(r.Refusals) > 0 {
		f := r.Refusals[0]
		t.para(2, "An aligned copy would be refused: %s: %s.", f.Subject, SafeMessage(f.Text))
		t.next("To see all of it:           ", commandLine("plan", next, r.Image.Path))
		return
	}
	t.next("To see what would change:   ", commandLine("plan", next, r.Image.Path))
	t.next("To write an aligned copy:   ", r.Image.align(next))
}
