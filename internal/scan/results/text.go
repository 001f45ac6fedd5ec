package results

import (
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

// Limits of a text; JSON has all.
const (
	leastColumns   = 40 // a narrower terminal breaks lines itself
	maxUneventful  = 20 // images of a kind that needs no action; more of them are only counted
	maxPartitions  = 32 // of an image
	maxUnreadable  = 10
	indent         = "    "
	maxPathsToName = 4 // in a command
)

// printer writes a table of images.
type printer struct {
	t     *report.Text // its Width is that of text
	s     *Summary
	width int // of rows, 0 for no limit
}

var textFormat = Format{
	Name: "text", Terminal: true,
	Write: func(w io.Writer, r *Report) error {
		return r.Text.Buffered(w, func() { writeTable(r.Text, r.Summary, r.Images) })
	},
}

// writeTable prints the ranked images of a run, the sums, and the commands that come next. Rows are as wide as the
// terminal (t.Columns); without a terminal, no path is cut. Texts of images are escaped.
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
	if s.Title != "" {
		p.para("", safe(s.Title))
		p.line("")
	}
	if v.failed > 0 && v.worst != nil {
		p.para("", failedText(v.failed)+" They stand behind the images with a rank.")
		p.line("")
	}
	p.rows(images, cols, v)
	for k, kind := range uneventful {
		if !v.shows(k) {
			p.para("", fmt.Sprintf("%s %s images are not shown (-v shows them).", thousands(int64(v.counts[k])),
				kind.name))
		}
	}
	if v.all > 0 {
		p.line("")
	}
	p.summary(v.partly)
	p.next(v.worst, v.fixable)
}

// view holds the facts about all images that a table needs beforehand.
type view struct {
	verbose        bool
	all, partly    int
	failed         int
	counts         []int         // of the kinds of uneventful
	widths         map[int][]int // of columns and path in rows of one kind, in cells
	worst, fixable *Image        // of those to be realigned: the first, and the first that can be; nil: none
}

// shows reports whether the table has the images of a kind. Images that need no action are left out if they are many.
func (v *view) shows(kind int) bool { return v.verbose || kind < 0 || v.counts[kind] <= maxUneventful }

func overview(images iter.Seq[*Image], cols []column, verbose bool) view {
	v := view{verbose: verbose, counts: make([]int, len(uneventful)), widths: map[int][]int{}}
	for i := range images {
		v.all++
		if i.partly() {
			v.partly++
		}
		if i.State == Failed && i.Accepted == nil {
			v.failed++
		}
		kind := i.uneventfulKind()
		if kind >= 0 {
			v.counts[kind]++
		}
		if v.shows(kind) {
			v.measure(i, kind, cols)
		}
		if i.toDo() && v.worst == nil {
			v.worst = i
		}
		if i.toDo() && v.fixable == nil && fixCell(i) == "yes" {
			v.fixable = i
		}
	}
	return v
}

// measure widens the columns of a kind of images for one of them.
func (v *view) measure(i *Image, kind int, cols []column) {
	if v.widths[kind] == nil {
		v.widths[kind] = make([]int, len(cols)+1)
	}
	w := v.widths[kind]
	for n, c := range cols {
		w[n] = max(w[n], cells(report.SafeMessage(c.cell(i))))
	}
	w[len(cols)] = max(w[len(cols)], cells(report.SafeMessage(i.Path)))
}

// uneventful are the kinds of images that need no action. No image is of two.
var uneventful = []struct {
	name string
	has  func(i *Image) bool
}{
	{"aligned", (*Image).uneventful},
	{"blank", func(i *Image) bool { return i.Content == align.Blank && i.Accepted == nil }},
	{"accepted", func(i *Image) bool { return i.Accepted != nil }},
	{"removed", func(i *Image) bool { return i.State == Gone }},
}

// uneventfulKind returns the place of the image's kind in uneventful, below 0 if it has none.
func (i *Image) uneventfulKind() int {
	for k, kind := range uneventful {
		if kind.has(i) {
			return k
		}
	}
	return -1
}

// uneventful reports whether there is nothing to report about an image.
func (i *Image) uneventful() bool {
	return i.State == Judged && i.Verdict == align.Aligned && i.Accepted == nil && !i.partly()
}

// partly reports whether a disk of a package could not be judged, and the others were.
func (i *Image) partly() bool {
	return i.State == Judged && i.Verdict != align.NothingToJudge &&
		slices.ContainsFunc(i.Disks, func(d Disk) bool { return d.Error != nil || d.Content == align.UnknownContent })
}

func (p *printer) line(s string) { fmt.Fprintln(p.t.W, strings.TrimRight(s, " ")) }

// para prints a text within the width; all of its lines are indented.
func (p *printer) para(indent, s string) { p.fold(p.t.Width, indent, s) }

// note prints lines below a row. They have remedies at their end, so that no line is cut.
func (p *printer) note(s string) { p.fold(p.width, indent, s) }

// more says how many things of a list are left out.
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
		b.WriteString(pad(c.head, c.width, c.right) + between)
	}
	p.line(b.String() + "path")
	for i := range images {
		if !v.shows(i.uneventfulKind()) {
			continue
		}
		b.Reset()
		for _, c := range cols {
			cell := pad(report.SafeMessage(c.cell(i)), c.width, c.right)
			if c.head == verdictColumn {
				cell = p.t.Paint(i.color(), cell)
			}
			b.WriteString(cell + between)
		}
		p.line(b.String() + shorten(report.SafeMessage(i.Path), room))
		p.notes(i)
	}
}

// notes are the lines below an image: why there is no verdict, why it does not count, and at length all of it.
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
	for _, d := range i.Disks {
		p.partitions(d, len(i.Disks) > 1)
	}
}

// partitions prints those of a disk, one in a line.
func (p *printer) partitions(d Disk, several bool) {
	if several && d.Error == nil {
		p.note(d.Member)
	}
	var lines [][4]string
	var widths [4]int
	for n, part := range d.Partitions {
		if n == maxPartitions {
			break
		}
		l := [4]string{
			strconv.Itoa(part.Number), lookOf(part.Verdict, d.Boundary).word,
			"LBA " + number(part.StartLBA), units.Format(part.Size),
		}
		for k, s := range l {
			widths[k] = max(widths[k], cells(s))
		}
		lines = append(lines, l)
	}
	for n, l := range lines {
		s := pad(l[0], widths[0], true) + between + pad(l[1], widths[1], false) + between + pad(l[2], widths[2],
			false) +
			between + pad(l[3], widths[3], true) +
			between + contentText(d.Partitions[n])
		p.note(strings.TrimRight(s, " "))
	}
	p.more(len(d.Partitions) - len(lines))
}

func contentText(part report.Partition) string {
	if part.Volume == nil {
		return part.TypeName
	}
	return report.VolumeText(part.Volume)
}
