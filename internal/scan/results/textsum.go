package results

import (
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/shell"
)

// sentences holds the data of the template.
type sentences struct {
	*Summary
	Verbose, AllAligned bool
	Partly              int // images judged without one of their disks
}

// textTemplate lays out the sentences about a run.
var textTemplate = parsed("scan.text.tmpl")

// summary prints the number of images, their verdicts and the work of realigning them. partly is the number of images
// judged without one of their disks.
func (p *printer) summary(partly int) {
	s := sentences{p.s, p.t.Verbose, p.s.Images > 0 && p.s.Images == p.s.Aligned && partly == 0, partly}
	p.sentences("result", s)
	if s.Images > 0 && !s.AllAligned {
		p.counts(s)
	}
	p.sentences("work", s)
	p.unreadable()
	p.sentences("notes", s)
}

// colors holds the names of colors in the template.
var colors = map[string]report.Color{
	"red": report.Red, "yellow": report.Yellow, "green": report.Green, "cyan": report.Cyan, "faint": report.Faint,
}

// lines returns the lines of a part of the template, split at tabs.
func (s sentences) lines(part string) (out [][]string) {
	var b strings.Builder
	if err := textTemplate().ExecuteTemplate(&b, part, s); err != nil {
		panic(err) // the template is ours
	}
	for l := range strings.Lines(b.String()) {
		if l = strings.TrimRight(l, "\n"); l != "" {
			out = append(out, strings.Split(l, "\t"))
		}
	}
	return out
}

// sentences prints a part of the template.
func (p *printer) sentences(part string, s sentences) {
	for _, l := range s.lines(part) {
		if len(l) == 3 {
			p.t.Lead(colors[l[0]], l[1], l[2])
		} else if rest, indented := strings.CutPrefix(l[0], indent); indented {
			p.para(indent, rest)
		} else {
			p.para("", l[0])
		}
	}
}

// counts prints a line for each kind of result with at least one image.
func (p *printer) counts(s sentences) {
	p.para("", images(s.Images)+":")
	lines := slices.DeleteFunc(s.lines("counts"), func(l []string) bool { return l[0] == "0" })
	digits, word := 0, 0
	for _, l := range lines {
		digits, word = max(digits, cells(l[0])), max(word, cells(l[1]))
	}
	for _, l := range lines {
		begin := between + pad(l[0], digits, true) + between
		width := cells(begin) + word + len(between)
		begin += p.t.Paint(colors[l[2]], pad(l[1], word, false)) + between
		for _, rest := range report.Fold(l[3], max(p.t.Width-width, 0)) {
			p.line(begin + rest)
			begin = strings.Repeat(" ", width)
		}
	}
}

// linksText returns a sentence about links that were not followed.
func linksText(n int) string {
	return counted(n,
		"symbolic link was not followed: an image behind it is judged only where its own folder is scanned.",
		"symbolic links were not followed: images behind them are judged only where their own folders are scanned.")
}

// othersText returns a note on the images that the report of a shard omits.
func (s *Summary) othersText() string {
	return "the other shards have " + images(s.Others) + " more."
}

// moment prints a time for people. It returns a text that is not a time unchanged, but escaped.
func moment(s string) string {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return safe(s)
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}

func copiedText(n int) string {
	return counted(n, "image seems to have its aligned copy beside it: prove it",
		"images seem to have their aligned copies beside them: prove each") +
		" with trueup verify, then exchange the two."
}

func (p *printer) unreadable() {
	all := p.s.unreadable()
	for n, u := range p.s.Unreadable {
		if n == 0 {
			p.t.Lead(report.Red, "Could not be looked at:", counted(all, "file or folder", "files and folders")+
				", so images may be missing here.")
		}
		if n == maxUnreadable && !p.t.Verbose {
			p.more(all - n)
			return
		}
		room := 0
		if p.width > 0 {
			room = p.width - len(indent)
		}
		p.line(indent + shorten(report.SafeMessage(u.Path), room))
		p.note(between + strings.TrimPrefix(u.Error.Message, u.Path+": "))
	}
	p.more(all - len(p.s.Unreadable))
}

// isolationWords returns the achieved isolation, and the reason if it is less than wanted.
func isolationWords(i Isolation) string {
	out := i.Achieved
	if i.Wanted != "" && i.Wanted != i.Achieved {
		out += ", not " + i.Wanted
	}
	if len(i.Layers) > 0 {
		out += " (" + strings.Join(i.Layers, ", ") + ")"
	}
	if i.Note != "" {
		out += "; " + i.Note
	}
	return strings.TrimSuffix(out, ".")
}

// next prints the next command and flags for further reports. The command is never cut or wrapped, so that users can
// paste it.
func (p *printer) next(worst, fixable *Image) {
	if worst == nil {
		return
	}
	p.line("")
	if fixable == nil {
		p.command("To see why a copy of the worst is refused:", shell.Command("plan", nil, worst.Path))
	} else {
		p.command("To realign the worst that can be:", fixable.Priority.Command)
	}
	if p.s.Fix.Images > 1 && p.s.Merged == nil && shell.ForBash(runtime.GOOS) {
		p.para("", "To get a script that realigns all that can be: the same scan with --script fix.sh.")
	}
	p.para("", "To get a page to look at and to share: the same with -o html --out report.html.")
}

func (p *printer) command(what, line string) {
	p.para("", what)
	p.line(between + report.SafeMessage(line))
}
