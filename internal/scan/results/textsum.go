package results

import (
	"cmp"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
)

// summary prints the number of images, their verdicts and the work of realigning them. partly counts those judged
// without one of their disks.
func (p *printer) summary(partly int) {
	s := p.s
	if !s.Complete {
		p.t.Lead(text.FgRed, "Interrupted", interruptedText(s))
	}
	if s.Shard != "" {
		p.t.Lead(text.FgCyan, "Shard "+report.SafeMessage(s.Shard)+":", s.othersText())
	}
	switch bad := s.Images - s.Aligned; {
	case s.Images == 0 && !s.Complete: // nothing can be said
	case s.Images == 0 && s.Others > 0:
		p.para("", "No image is in this shard.")
	case s.Images == 0:
		p.para("", "No image was found.")
	case bad+partly == 0:
		p.t.Lead(text.FgGreen, "Aligned:", alignedText(s))
		p.heads()
	default:
		p.counts()
	}
	if partly > 0 {
		p.t.Lead(text.FgRed, "Not all judged:", "in "+images(partly)+
			" a disk could not be; the verdict is about the others.")
	}
	if s.Fix.Images+s.Fix.Refused+s.Fix.Stays > 0 {
		p.para("", p.fixText(s.Fix))
	}
	if s.Copied > 0 {
		p.para("", copiedText(s.Copied))
	}
	if s.Changes != nil {
		p.para("", changesText(s.Changes))
		if s.ChangedOnly {
			p.para("", "Rows and exit code are those of what is new, changed or removed alone.")
		}
	}
	if s.Merged != nil {
		p.merged(s.Merged)
	}
	p.unreadable()
	for _, n := range s.IgnoreNotes {
		p.para("", n)
	}
	if i := s.Isolation; i.Achieved != "" && (p.t.Verbose || i.Achieved != i.Wanted || i.Note != "") {
		p.para("", "Isolation: "+strings.TrimSuffix(isolationWords(i), ".")+".")
	}
	p.passedOver()
	if s.Images > 0 && s.Merged == nil {
		p.para("", workText(s))
	}
}

// passedOver prints the files and links that were not looked at.
func (p *printer) passedOver() {
	s := p.s
	if s.Temporary > 0 {
		p.para("", "Passed over "+counted(s.Temporary, "file", "files")+" that runs of trueup have not completed "+
			"(such as "+report.SafeMessage(cmp.Or(s.Leftover, ".NAME.partial"))+"): the next run to the same name "+
			"goes on with them or removes them.")
	}
	if s.Links > 0 {
		p.para("", linksText(s.Links))
	}
}

// linksText names the links behind which nothing was looked for.
func linksText(n int) string {
	if n == 1 {
		return "1 symbolic link was not followed: an image behind it is judged only where its own folder is scanned."
	}
	return thousands(int64(n)) + " symbolic links were not followed: images behind them are judged only where their " +
		"own folders are scanned."
}

// heads says what a verdict by the head of a packed image leaves open, where counts do not.
func (p *printer) heads() {
	if p.s.Heads > 0 {
		p.para("", "By head: "+images(p.s.Heads)+", packed, of which only the first bytes were unpacked. The rest may "+
			"be damaged.")
	}
}

func interruptedText(s *Summary) string {
	if s.Found > s.Images {
		return fmt.Sprintf("after %s of %s: this is incomplete.", thousands(int64(s.Images)), images(s.Found))
	}
	return fmt.Sprintf("after %s: this is incomplete.", images(s.Images))
}

// othersText returns what a report leaves out that is one of a shard.
func (s *Summary) othersText() string {
	return "the other shards have " + images(s.Others) + " more."
}

func alignedText(s *Summary) string {
	if s.Images == 1 {
		return fmt.Sprintf("every judged partition of the image is aligned to %s.", units.Format(s.Boundary))
	}
	all := "all " + images(s.Images)
	if !s.Complete {
		all = images(s.Images) + " so far"
	}
	return fmt.Sprintf("every judged partition of %s is aligned to %s.", all, units.Format(s.Boundary))
}

// counts prints a line for each kind of result.
func (p *printer) counts() {
	lines := p.outcomes()
	p.para("", images(p.s.Images)+":")
	digits, word := 0, 0
	for _, l := range lines {
		if l.n > 0 {
			digits, word = max(digits, cells(thousands(int64(l.n)))), max(word, cells(l.word))
		}
	}
	for _, l := range lines {
		if l.n == 0 {
			continue
		}
		begin := between + pad(thousands(int64(l.n)), digits, true) + between
		width := cells(begin) + word + len(between)
		begin += p.t.Paint(l.c, pad(l.word, word, false)) + between
		for _, rest := range report.Fold(l.what, max(p.t.Width-width, 0)) {
			p.line(begin + rest)
			begin = strings.Repeat(" ", width)
		}
	}
}

// outcome is a line of counts: how many images, and what they are.
type outcome struct {
	n    int
	word string
	c    text.Color
	what string
}

func (p *printer) outcomes() []outcome {
	s := p.s
	boundary := units.Format(s.Boundary)
	return []outcome{
		{
			s.Misaligned, lookOf(align.Misaligned, s.Boundary).word, text.FgRed,
			"a partition starts off a 4 KiB boundary",
		},
		{s.Below, lookOf(align.BelowBoundary, s.Boundary).word, text.FgYellow, "all start on 4 KiB, and one is off " +
			boundary},
		{s.Failed, "error", text.FgRed, "could not be judged"},
		{
			s.Contents[string(align.UnknownContent)], "unknown", text.FgYellow,
			"nothing to judge: neither a partition table nor a volume that is known",
		},
		{
			s.Packed, "packed", text.FgYellow,
			"a compressed file with the name of an image: its first bytes do not show enough",
		},
		{s.Orphans, "orphan", text.FgCyan, "belongs to a disk; has no verdict of its own"},
		{s.Originals, "original", text.Faint, "of an exchanged disk, kept: nothing is to be done"},
		{s.Aligned, lookOf(align.Aligned, s.Boundary).word, text.FgGreen, "every judged partition is aligned to " +
			boundary},
		{
			s.Contents[string(align.NoPartitions)], "no partitions", text.FgCyan,
			"nothing to judge: a partition table without a partition in it",
		},
		{s.Contents[string(align.NoDisks)], "no disks", text.FgCyan, "nothing to judge: a package without a disk"},
		{
			s.Contents[string(align.Blank)], "blank", text.FgCyan,
			"nothing to judge: zeros where partition tables and file systems begin",
		},
		{
			s.Heads, "by head", text.Faint,
			"of all these, packed images, by the first bytes of each: no rank; trueup inspect --spool DIR reads all",
		},
		{
			s.Accepted, "accepted", text.Faint,
			"of all these, by the ignore file: they have no rank and do not count for the exit code",
		},
	}
}

func (p *printer) fixText(f FixSum) string {
	var out []string
	if f.Images > 0 {
		grow := "no disk grows"
		if f.Grows > 0 {
			grow = "disks grow by " + units.Format(f.Grows) + " in all"
		}
		out = append(out, fmt.Sprintf("%s can be realigned: %s to read and to write, and %s.", images(f.Images),
			units.Format(f.Copies), grow))
	}
	if f.Refused > 0 {
		why := " (-v says why)"
		if p.t.Verbose {
			why = ""
		}
		out = append(out, images(f.Refused)+" cannot be realigned now"+why+".")
	}
	if f.Stays > 0 {
		out = append(out, staysText(f.Stays))
	}
	return strings.Join(out, " ")
}

func staysText(n int) string {
	return counted(n, "image is off the boundary and stays: a move would put its data worse.",
		"images are off the boundary and stay: a move would put their data worse.")
}

// moment prints a time for people, or a text as it is.
func moment(s string) string {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return safe(s)
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}

func changesText(c *Changes) string {
	since := "the earlier scan"
	switch {
	case c.Since != "":
		since = moment(c.Since)
	case c.Changed+c.Same+c.Removed == 0:
		return "There is no earlier scan: the next one says what has changed."
	}
	return fmt.Sprintf("Since %s: %s new, %s changed, %s as before, %s removed.", since,
		thousands(int64(c.New)), thousands(int64(c.Changed)), thousands(int64(c.Same)), thousands(int64(c.Removed)))
}

func failedText(n int) string { return units.Counted(n, "image") + " could not be judged." }

func copiedText(n int) string {
	return counted(n, "image seems to have its aligned copy beside it: prove it",
		"images seem to have their aligned copies beside them: prove each") +
		" with trueup verify, then exchange the two."
}

func (p *printer) unreadable() {
	all := p.s.unreadable()
	for n, u := range p.s.Unreadable {
		if n == 0 {
			p.t.Lead(text.FgRed, "Could not be looked at:", counted(all, "file or folder", "files and folders")+
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

// isolationWords returns how far images were kept away, and why not farther.
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
	return out
}

// workText returns the effort of the run.
func workText(s *Summary) string {
	out := "Read " + units.Format(s.Read) + " in " + report.Seconds(s.Took)
	if s.Skipped > 0 {
		out += "; passed over " + counted(s.Skipped, "file that is no image", "files that are no images")
	}
	return out + "."
}

// next names the commands that come next. They are for pasting, so they are never cut or broken.
func (p *printer) next(worst, fixable *Image) {
	if worst == nil {
		return
	}
	p.line("")
	if fixable == nil {
		p.command("To see why a copy of the worst is refused:", "trueup plan "+shell.Quote(worst.Path))
	} else {
		p.command("To realign the worst that can be:", fixable.Priority.Command)
	}
	again := p.s.again()
	if p.s.Fix.Images > 1 && p.s.Merged == nil && shell.ForBash(runtime.GOOS) {
		p.command("To get a script that realigns all that can be:", again("--script fix.sh"))
	}
	p.command("To get a page to look at and to share:", again("-o html --out report.html"))
}

func (p *printer) command(what, line string) {
	p.para("", what)
	p.line(between + report.SafeMessage(line))
}

// again returns the command line of the run with more flags.
func (s *Summary) again() func(flags string) string {
	paths := "PATH…"
	if n := len(s.Paths); n > 0 && n <= maxPathsToName {
		var quoted []string
		for _, path := range s.Paths {
			quoted = append(quoted, shell.Quote(path))
		}
		paths = strings.Join(quoted, " ")
	}
	if s.Merged != nil {
		return func(flags string) string { return "trueup report " + flags + " " + paths }
	}
	criterion := strings.TrimRight(" "+s.Again, " ")
	if s.Boundary != align.DefaultBoundary {
		criterion += " --boundary " + units.Short(s.Boundary)
	}
	if s.Storage != "" && s.Storage != align.Generic().Name {
		criterion += " --storage " + s.Storage
	}
	return func(flags string) string { return "trueup scan" + criterion + " " + flags + " " + paths }
}
