package results

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// Limits of a text. JSON has no such limits.
const (
	leastColumns  = 40 // a narrower terminal breaks lines itself
	maxUneventful = 20 // images that need no action; more are only counted
	maxUnreadable = 10
	indent        = "    "
)

// printer writes a table of images.
type printer struct {
	t     *report.Text // its Width is the width of text
	s     *Summary
	width int // of rows; 0 is unlimited
}

var textFormat = Format{
	Name: "text", Terminal: true,
	Write: func(w io.Writer, r *Report) error {
		return r.Text.Buffered(w, func() { writeTable(r.Text, r.Summary, r.Images) })
	},
}

// writeTable prints the ranked images of a run, the sums, and the next commands. Rows are as wide as the terminal
// (t.Columns); without a terminal, no path is cut. Texts of images are escaped.
func writeTable(t *report.Text, s *Summary, images iter.Seq[*Image]) {
	own := *t
	p := &printer{t: &own, s: s}
	if t.Columns > 0 {
		p.width = max(t.Columns, leastColumns)
		if own.Width == 0 || own.Width > p.width {
			own.Width = p.width
		}
	}
	cols := columns(s)
	v := overview(images, cols, t.Verbose)
	p.rows(images, cols, v)
	if v.hides() {
		p.para("", thousands(int64(v.quiet))+" images that need no action are not shown (-v shows them).")
	}
	if v.all > 0 {
		p.line("")
	}
	p.summary(v)
}

// view holds the properties of all images that are needed before printing a table.
type view struct {
	verbose        bool
	all, partly    int
	quiet          int    // images that need no action
	widths         []int  // of columns and path, in cells
	worst, fixable *Image // of the images to realign: the first, and the first that can be realigned
}

// hides reports whether the table omits the images that need no action, since there are many.
func (v *view) hides() bool { return !v.verbose && v.quiet > maxUneventful }

func overview(images iter.Seq[*Image], cols []column, verbose bool) view {
	v := view{verbose: verbose, widths: make([]int, len(cols)+1)}
	for i := range images {
		v.all++
		if i.partly() {
			v.partly++
		}
		if i.uneventful() {
			v.quiet++
		}
		for n, c := range cols {
			v.widths[n] = max(v.widths[n], report.Cells(report.SafeMessage(c.cell(i))))
		}
		v.widths[len(cols)] = max(v.widths[len(cols)], report.Cells(report.SafeMessage(i.Path)))
		if i.toDo() && v.worst == nil {
			v.worst = i
		}
		if i.toDo() && v.fixable == nil && !i.hindered() {
			v.fixable = i
		}
	}
	return v
}

// uneventful reports whether an image needs no action.
func (i *Image) uneventful() bool {
	return i.Accepted != nil || i.State == Gone || i.Content == align.Blank ||
		i.State == Judged && i.Verdict == align.Aligned && !i.partly()
}

// partly reports whether a disk of a package could not be judged while others were.
func (i *Image) partly() bool {
	return i.State == Judged && i.Verdict != align.NothingToJudge &&
		slices.ContainsFunc(i.Disks, func(d Disk) bool { return d.Error != nil || d.Content == align.UnknownContent })
}

func (p *printer) line(s string) { fmt.Fprintln(p.t.W, strings.TrimRight(s, " ")) }

// para prints a text within the width; all of its lines are indented.
func (p *printer) para(indent, s string) { p.fold(p.t.Width, indent, s) }

// note prints lines below a row. It does not cut them, since they end with remedies.
func (p *printer) note(s string) { p.fold(p.width, indent, s) }

// more prints the number of omitted items of a list.
func (p *printer) more(n int) {
	if n > 0 {
		p.note(fmt.Sprintf("... and %s more", thousands(int64(n))))
	}
}

func (p *printer) fold(width int, indent, s string) {
	for _, l := range report.Fold(report.SafeMessage(s), max(width-len(indent), 0)) {
		p.line(indent + l)
	}
}

func (p *printer) rows(images iter.Seq[*Image], all []column, v view) {
	cols, room := v.fit(all, p.width)
	if cols == nil {
		return
	}
	var b strings.Builder
	for _, c := range cols {
		b.WriteString(report.Pad(c.head, c.width, c.right) + between)
	}
	p.line(b.String() + "path")
	for i := range images {
		if v.hides() && i.uneventful() {
			continue
		}
		b.Reset()
		for _, c := range cols {
			cell := report.Pad(report.SafeMessage(c.cell(i)), c.width, c.right)
			if c.head == verdictColumn {
				cell = p.t.Paint(i.color(), cell)
			}
			b.WriteString(cell + between)
		}
		p.line(b.String() + shorten(report.SafeMessage(i.Path), room))
		p.notes(i)
	}
}

// notes prints the lines below an image: the reason why it has no verdict or why the verdict does not count, and
// details if verbose.
func (p *printer) notes(i *Image) {
	if i.Error != nil {
		p.note(strings.TrimPrefix(i.Error.Message, i.Path+": "))
	}
	if i.unknown() && i.Accepted == nil && !i.Tolerated {
		p.para(indent, i.unknownText())
	}
	if text := i.originalText(); text != "" {
		p.note(text)
	}
	if a := i.Accepted; a != nil {
		p.note(a.text())
	}
	if i.Copied != "" {
		p.note(i.copiedText())
	}
	for _, d := range i.Disks {
		if d.Error != nil && (i.Error == nil || !strings.HasSuffix(i.Error.Message, d.Error.Message)) {
			p.note(strings.TrimPrefix(d.Member+": ", ": ") + d.Error.Message)
		}
	}
	if !p.t.Verbose {
		return
	}
	if len(i.Labels) > 0 {
		p.para(indent, i.Labels.String())
	}
	if i.Priority != nil {
		p.para(indent, i.Priority.Reason)
	}
	for _, f := range i.Findings {
		p.para(indent, string(f.Severity)+": "+f.Text)
	}
}

// column is a column of the table, left of the path.
type column struct {
	head  string
	right bool
	keep  int // columns with the lowest value are dropped first on a narrow terminal
	cell  func(i *Image) string
	width int
}

const verdictColumn = "verdict"

// columns returns all columns of the table. Rank and verdict stay longest.
func columns(s *Summary) []column {
	out := []column{
		{head: "#", right: true, keep: 11, cell: ranked(rankCell)},
		{head: verdictColumn, keep: 10, cell: func(i *Image) string { return i.look().word }},
		{head: "off", right: true, keep: 9, cell: offCell},
		{head: "start LBA", right: true, keep: 3, cell: startCell},
		{head: "format", keep: 2, cell: formatCell},
		{head: "disk", right: true, keep: 4, cell: func(i *Image) string { return sizeCell(i.Size) }},
		{head: "to copy", right: true, keep: 6, cell: func(i *Image) string { return sizeCell(i.copies()) }},
		{head: "role", keep: 5, cell: ranked(roleCell)},
		{head: "guest", keep: 7, cell: ranked(func(i *Image) string { return string(i.guest()) })},
		{head: "fix", keep: 8, cell: ranked(fixCell)},
	}
	if s.Changes != nil {
		out = append(out, column{
			head: "change", keep: 1,
			cell: func(i *Image) string { return cmp.Or(string(i.Change), "-") },
		})
	}
	return out
}

const (
	between  = "  " // separates two columns
	leastFor = 16   // least cells of a path; with less, its folder is useless
)

// fit chooses the columns that leave room for the paths, and returns that room; 0 is unlimited. It chooses no columns
// if there are no rows.
func (v *view) fit(all []column, width int) (chosen []column, path int) {
	if v.all == 0 || v.hides() && v.quiet == v.all {
		return nil, 0
	}
	for n := range all {
		all[n].width = max(v.widths[n], report.Cells(all[n].head))
	}
	if width == 0 {
		return all, 0
	}
	want := min(max(v.widths[len(all)], report.Cells("path")), max(leastFor, width/3))
	for {
		left := width
		for _, c := range all {
			left -= c.width + len(between)
		}
		if left >= want || len(all) == 0 {
			return all, left
		}
		least := slices.MinFunc(all, func(a, b column) int { return cmp.Compare(a.keep, b.keep) })
		all = slices.DeleteFunc(all, func(c column) bool { return c.keep == least.keep })
	}
}

// look is the appearance of a result: one or two words, a class of the page, and a color.
type look struct {
	word, class string
	color       report.Color
}

// stateLooks maps the states without a verdict to their appearance.
var stateLooks = map[State]look{
	Failed:   {"error", "failed", report.Red},
	Orphan:   {"orphan", "orphan", report.Cyan},
	Packed:   {"compressed", "unknown", report.Yellow},
	Original: {"original", "original", report.Faint},
	Gone:     {"removed", "removed", report.Faint},
}

// contentLooks maps the reason why there is nothing to judge to its appearance.
var contentLooks = map[align.Content]look{
	align.Blank: {"blank", "nothing", report.Plain}, align.NoPartitions: {"no partitions", "nothing", report.Plain},
	align.NoDisks: {"no disks", "nothing", report.Plain}, align.UnknownContent: {"unknown", "unknown", report.Yellow},
}

// verdictLooks maps the verdicts to their appearance.
var verdictLooks = map[align.Verdict]look{
	align.Misaligned:     {"misaligned", "misaligned", report.Red},
	align.BelowBoundary:  {"below boundary", "below", report.Yellow},
	align.Aligned:        {"aligned", "aligned", report.Green},
	align.NothingToJudge: {"-", "unjudged", report.Plain},
	"":                   {"-", "unjudged", report.Plain}, // not judged
}

func (i *Image) look() look {
	l, ok := stateLooks[i.State]
	if !ok && i.Verdict == align.NothingToJudge {
		l, ok = contentLooks[i.Content]
	}
	if !ok {
		l = verdictLooks[i.Verdict]
	}
	if i.byOffset() {
		l.word += " by offset"
	}
	return l
}

// byOffset reports whether a disk of an aligned image is aligned only by its place in a file.
func (i *Image) byOffset() bool {
	return i.Verdict == align.Aligned && slices.ContainsFunc(i.Disks, func(d Disk) bool { return d.ByOffset() })
}

// color returns the color of the verdict in a row.
func (i *Image) color() report.Color {
	switch {
	case i.Accepted != nil:
		return report.Faint
	case i.unknown():
		return report.Yellow
	}
	return i.look().color
}

// ranked returns a cell function that prints a dash for images without a priority.
func ranked(cell func(i *Image) string) func(i *Image) string {
	return func(i *Image) string {
		if i.Priority == nil {
			return "-"
		}
		return cmp.Or(cell(i), "-")
	}
}

func rankCell(i *Image) string {
	if i.Priority.Rank == 0 {
		return ""
	}
	return strconv.Itoa(i.Priority.Rank)
}

// judged returns the partitions with a verdict, of all disks.
func (i *Image) judged() (out []report.Partition) {
	for _, d := range i.Disks {
		for _, p := range d.Partitions {
			if p.Verdict != "" {
				out = append(out, p)
			}
		}
	}
	return out
}

func offCell(i *Image) string {
	off, all := 0, i.judged()
	if len(all) == 0 || i.State == Original {
		return "-"
	}
	for _, p := range all {
		if p.Verdict.Off() {
			off++
		}
	}
	return fmt.Sprintf("%d/%d", off, len(all))
}

// startCell returns the start of the partition with the least alignment.
func startCell(i *Image) string {
	all := i.judged()
	if len(all) == 0 {
		return "-"
	}
	worst := slices.MinFunc(all, func(a, b report.Partition) int { return cmp.Compare(a.Alignment, b.Alignment) })
	return strconv.FormatInt(worst.StartLBA, 10)
}

func formatCell(i *Image) string {
	if i.Format == "" {
		return "-"
	}
	if i.view() {
		return report.FormatName(i.Format) + " view"
	}
	return report.FormatName(i.Format)
}

// view reports whether the storage sees different offsets than the guest, because the files belong to another disk.
func (i *Image) view() bool {
	finds := func(f align.Finding) bool { return f.Code == "view" }
	return slices.ContainsFunc(i.Disks, func(d Disk) bool { return slices.ContainsFunc(d.Findings, finds) })
}

func sizeCell(n int64) string {
	if n <= 0 {
		return "-"
	}
	return units.Format(n)
}

func roleCell(i *Image) string {
	switch i.role() {
	case align.BootDisk:
		return "boot"
	case align.DataDisk:
		return "data"
	default:
		return "?"
	}
}

func fixCell(i *Image) string {
	switch {
	case i.Priority.Class == classStays:
		return "stays"
	case i.Copied != "":
		return "copied"
	case len(i.Refusals()) > 0:
		return "refused"
	case i.hindered():
		return "no plan"
	}
	return "yes"
}

// Widths are in cells of a terminal: most characters occupy one, Chinese ones two, combining ones none.

const ellipsis = "…"

// shorten fits a path into n cells; 0 is unlimited. It drops the beginning.
func shorten(path string, n int) string {
	if n <= 0 || report.Cells(path) <= n {
		return path
	}
	return ellipsis + report.TrimLeft(path, max(n-report.Cells(ellipsis), 0))
}

// thousands prints a number with a comma between groups of three digits.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plus adds two numbers that are not negative. It saturates at the largest number, since sparse files can be huge.
func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// counted prints a number with its noun.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(int64(n)) + " " + many
}

func images(n int) string { return counted(n, "image", "images") }

// sentences holds the data of the template.
type sentences struct {
	*Summary
	Verbose, AllAligned bool
	Partly              int    // images judged without one of their disks
	Worst, Fixable      *Image // see view
}

// textTemplate lays out the sentences about a run.
var textTemplate = parsed("scan.text.tmpl")

// summary prints the number of images, their verdicts, the work of realigning them, and the next commands.
func (p *printer) summary(v view) {
	s := sentences{
		p.s, p.t.Verbose, p.s.Images > 0 && p.s.Images == p.s.Aligned && v.partly == 0, v.partly, v.worst, v.fixable,
	}
	p.t.SayFrom(textTemplate(), "result", s)
	if s.Images > 0 && !s.AllAligned {
		p.counts(s)
	}
	p.t.SayFrom(textTemplate(), "work", s)
	p.unreadable()
	p.t.SayFrom(textTemplate(), "notes", s)
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

// counts prints a line for each kind of result with at least one image.
func (p *printer) counts(s sentences) {
	p.para("", images(s.Images)+":")
	lines := slices.DeleteFunc(s.lines("counts"), func(l []string) bool { return l[0] == "0" })
	digits, word := 0, 0
	for _, l := range lines {
		digits, word = max(digits, report.Cells(l[0])), max(word, report.Cells(l[1]))
	}
	for _, l := range lines {
		begin := between + report.Pad(l[0], digits, true) + between
		width := report.Cells(begin) + word + len(between)
		begin += p.t.Paint(colors[l[2]], report.Pad(l[1], word, false)) + between
		for _, rest := range report.Fold(l[3], max(p.t.Width-width, 0)) {
			p.line(begin + rest)
			begin = strings.Repeat(" ", width)
		}
	}
}

// moment formats a time for people. It returns any other text as it is, but escaped.
func moment(s string) string {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return safe(s)
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
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
