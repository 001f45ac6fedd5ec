package report

import (
	"bufio"
	"cmp"
	_ "embed" // sentences
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Text writes results for people.
type Text struct {
	W       io.Writer
	Color   bool
	Verbose bool
	Width   int  // characters of a line of text; 0 is unlimited
	Columns int  // of the terminal, for pictures; 0 for 80
	List    bool // print only the list of partitions of an inspection
}

// Buffered calls show and writes its output to w.
func (t *Text) Buffered(w io.Writer, show func()) error {
	b := bufio.NewWriter(w)
	t.W = b
	show()
	return b.Flush()
}

func (t *Text) printf(format string, args ...any) {
	fmt.Fprintf(t.W, format, args...) // into memory; the caller flushes it
}

// Para prints a paragraph within the width; lines after the first are indented.
func (t *Text) Para(indent int, format string, args ...any) {
	for i, l := range Fold(fmt.Sprintf(format, args...), max(t.Width-indent, 0)) {
		if i > 0 {
			t.printf("%*s", indent, "")
		}
		t.printf("%s\n", l)
	}
}

// Fold splits a text into lines of n columns, between words if possible; 0 is unlimited. It does not split painted
// words.
func Fold(s string, n int) []string {
	if n <= 0 || Cells(s) <= n {
		return []string{strings.TrimRight(s, " ")}
	}
	n = max(n, 2) // no character is wider
	var out []string
	line, used := "", 0
	for word := range strings.FieldsSeq(s) {
		width := Cells(word)
		if line != "" && used+1+width <= n {
			line, used = line+" "+word, used+1+width
			continue
		}
		if line != "" {
			out = append(out, line)
		}
		line, used = word, width
		for used > n && !strings.ContainsRune(line, escape) {
			piece := Trim(line, n)
			out, line = append(out, piece), line[len(piece):]
			used = Cells(line)
		}
	}
	return append(out, line)
}

// Lead prints a paragraph that begins with painted words.
func (t *Text) Lead(c Color, words, s string) {
	lines := Fold(words+" "+s, t.Width)
	if rest, ok := strings.CutPrefix(lines[0], words); ok {
		lines[0] = t.Paint(c, words) + rest
	}
	t.printf("%s\n", strings.Join(lines, "\n"))
}

//go:embed text.tmpl
var sentences string

// texts parses the sentences on first use.
var texts = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("text").Funcs(functions).Parse(sentences))
})

// functions holds the functions of the sentences.
var functions = template.FuncMap{
	"red": Painted(Red), "yellow": Painted(Yellow), "green": Painted(Green), "cyan": Painted(Cyan),
	"bold": Painted(Bold),
	"severity": func(s align.Severity) string {
		return Painted(map[align.Severity]Color{
			align.Info: Cyan, align.Warning: Yellow, align.Error: Red,
		}[s])(string(s) + ":")
	},
	"safe": Safe, "message": SafeMessage, "capital": Capital, "upper": strings.ToUpper, "join": strings.Join,
	"quote": shell.Quote, "quoteWindows": shell.QuoteWindows, "base": filepath.Base, "virtXML": virtXML,
	"command": func(name, path string) string { return shell.Command(name, nil, path) },
	"bytes":   units.Format, "acting": acting,
	"counted": func(n any, noun string) string { return units.Counted(reflect.ValueOf(n).Int(), noun) },
	"add":     func(a, b int) int { return a + b }, "minus": func(a, b int) int { return a - b },
	"divide": func(a, b int64) int64 { return a / b },
	"last":   func(off, n int64) int64 { return off + n - 1 },

	"title": FormatName, "volume": volumeName, "volumeText": VolumeText, "partitions": partitions, "worst": worst,
	"order":  func(v *Volume) []string { return v.order },
	"sliced": sliced, "alignedByData": alignedByData, "byData": byData, "place": Image.place, "details": details,
	"shifted":     func(d Disk) bool { return d.Volume != nil && d.Volume.shift != 0 },
	"holdsVolume": func(d Disk) bool { return slices.ContainsFunc(d.Partitions, holdsVolume) },
	"fragmented":  volumeOf, "share": shareOfFragments, "list": listed,
	"said": (*Measured).said, "unlike": func(m *Measured) []string { return m.unlike },
	"unmeasured": func(m *Measured) []string { return m.other },

	"finds": finds, "fails": fails, "same": Changes.same, "moved": Changes.movedText, "leavesOut": Changes.leavesOut,
	"grown": func(c Changes) string { return units.Format(c.NewSize - c.OldSize) }, "work": workText,
	"leaves":    leaves,
	"guestfish": func(uri string) string { return strings.Replace(uri, "nbd+unix:///", "nbd://", 1) },
	"sectors":   func(o *Offset) int64 { return o.sector },
}

// Painted returns a function that colors words for a terminal.
func Painted(c Color) func(string) string {
	return func(words string) string { return (&Text{Color: true}).Paint(c, words) }
}

// paint matches the colors of the sentences.
var paint = ondisk.LazyPattern("\x1b\\[[0-9]+m")

// Say prints a part of the sentences about a value.
func (t *Text) Say(part string, about any) { t.SayFrom(texts(), part, about) }

// SayFrom prints a template of sentences about a value. Each line is a paragraph, whose further lines are indented by
// two more than the first, or up to its tab; each plus before the tab adds two. A line with two tabs ends with a
// command, see next; ¶ is an empty line.
func (t *Text) SayFrom(sentences *template.Template, part string, about any) {
	var b strings.Builder
	if err := sentences.ExecuteTemplate(&b, part, about); err != nil {
		panic(err) // the template is ours
	}
	said := b.String()
	if !t.Color {
		said = paint().ReplaceAllString(said, "")
	}
	for l := range strings.Lines(said) {
		l = strings.TrimRight(l, "\n")
		before, text, tab := strings.Cut(l, "\t")
		command, pasted := strings.CutPrefix(text, "\t")
		switch {
		case strings.TrimSpace(l) == "":
		case l == "¶":
			t.printf("\n")
		case pasted:
			t.next(before, command)
		default:
			if !tab {
				text = strings.TrimLeft(l, " ")
				before = l[:len(l)-len(text)] + "+"
			}
			begin := strings.TrimRight(before, "+")
			t.printf("%s", begin)
			t.Para(Cells(begin)+2*(len(before)-len(begin)), "%s", text)
		}
	}
}

// Inspect prints an image: the verdict first, then its faults and the next step.
func (t *Text) Inspect(r *Inspect) {
	if t.List {
		t.list(r)
		return
	}
	t.Say("image", r.Image)
	t.Say("verdict", &r.Disk)
	t.printf("\n")
	t.Say("details", r.Image)
	t.disk(&r.Disk)
	if r.Content == "" && r.Guest != nil {
		t.Say("guest", struct {
			*Guest
			Verbose bool
		}{r.Guest, t.Verbose})
	}
	t.picture([]Disk{r.Disk}, "")
	t.partitions(r.Disk)
	t.insides(r.Disk)
	t.cost(r.Costs, r.Findings)
	t.impacts(r.Partitions)
	if r.Fragmentation != nil {
		t.Say("fragments", r)
	}
	t.Say("measured", r.Measured)
	t.findings(r.Findings)
	t.advice(r.Advice)
	if r.Verdict.Off() && r.Advice.Action != align.Repair && r.Advice.Gainful() {
		t.printf("\n")
		t.command(r)
	}
}

// FormatName returns the name of a format in its official spelling.
func FormatName(format string) string { return image.Title(format) }

// ByOffset reports whether a disk is aligned only by the place of its partitions in a file.
func (d *Disk) ByOffset() bool {
	return d.Verdict == align.Aligned &&
		slices.ContainsFunc(d.Findings, func(f align.Finding) bool { return f.Code == align.CodeByOffset })
}

// alignedByData returns the numbers of partitions with aligned data but an unaligned start.
func alignedByData(d Disk) []string {
	return numbered(d, func(p Partition) bool { return p.Verdict == align.Aligned && p.Stays != "" })
}

// byData reports whether the data of a partition decide the verdict of the disk, because its start has another verdict.
func byData(d Disk) bool {
	return len(numbered(d, func(p Partition) bool {
		return p.Verdict == d.Verdict && d.Boundary.Verdict(p.Start+p.shift) != p.Verdict
	})) > 0
}

// worst returns the numbers of the partitions with the verdict of the disk.
func worst(d Disk) []string {
	return numbered(d, func(p Partition) bool { return p.Verdict == d.Verdict })
}

// numbered returns the numbers of some partitions.
func numbered(d Disk, is func(Partition) bool) (out []string) {
	for _, p := range d.Partitions {
		if is(p) {
			out = append(out, strconv.Itoa(p.Number))
		}
	}
	return out
}

// sliced names the table of slices that covers a disk without partitions.
func sliced(d Disk) string {
	if d.Volume == nil || !identify.Sliced(volume.Kind(d.Volume.Kind)) {
		return ""
	}
	return identify.Traits(volume.Kind(d.Volume.Kind)).Title
}

func holdsVolume(p Partition) bool { return p.Volume != nil }

// finds reports whether one of the findings has one of the codes.
func finds(all []align.Finding, codes ...string) bool {
	return slices.ContainsFunc(all, func(f align.Finding) bool { return slices.Contains(codes, f.Code) })
}

// fails reports whether one of the findings is an error.
func fails(all []align.Finding) bool {
	return slices.ContainsFunc(all, func(f align.Finding) bool { return f.Severity == align.Error })
}

// details lists the properties of a container.
func details(i Image) string {
	var out []string
	for _, k := range i.order {
		out = append(out, k+" "+Safe(i.Details[k]))
	}
	return strings.Join(out, ", ")
}

// maxUnseen bounds the unsearched places in text. JSON has all.
const maxUnseen = 4

func (t *Text) disk(d *Disk) {
	most := maxUnseen
	if t.Verbose {
		most = len(d.Unseen)
	}
	t.Say("disk", struct {
		*Disk
		Most int
	}{d, most})
}

func (t *Text) partitions(d Disk) {
	if len(d.Partitions) == 0 {
		return
	}
	boundary := d.Boundary.String()
	names := []string{">#", "boot", "type", ">start LBA", ">size", "on 4K", "on 64K", "on 1M"}
	extra := !slices.Contains([]string{"4K", "64K", "1M"}, boundary)
	if extra {
		names = append(names, "on "+boundary)
	}
	var rows [][]string
	for _, p := range d.Partitions {
		active := ""
		if p.Active {
			active = "*"
		}
		row := []string{
			strconv.Itoa(p.Number), active, typeText(p), decimal(p.StartLBA), units.Format(p.Size),
			t.yes(p, p.Aligned.To4K), t.yes(p, p.Aligned.To64K), t.yes(p, p.Aligned.To1M),
		}
		if extra {
			row = append(row, t.yes(p, p.Aligned.Boundary))
		}
		rows = append(rows, append(row, t.content(p)))
	}
	t.printf("\n")
	t.Table(slices.Values(rows), append(names, "content")...)
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

func (t *Text) yes(p Partition, ok bool) string {
	switch {
	case p.Verdict == "" && p.Volume == nil:
		return "-"
	case ok:
		return t.Paint(Green, "yes")
	case !p.Verdict.Off(): // not a fault
		return "no"
	}
	return t.Paint(Red, "no")
}

// typeText returns the type in the form of sfdisk.
func typeText(p Partition) string {
	if p.Kind != "gpt" {
		return strings.TrimPrefix(p.Type, "0x")
	}
	if p.TypeName != "" {
		return p.TypeName
	}
	return p.Type
}

// content returns the content of a partition. If verbose, it includes the ID and the hidden sectors.
func (t *Text) content(p Partition) string {
	if p.Volume == nil {
		return p.TypeName
	}
	s := VolumeText(p.Volume)
	if p.Volume.Kind == "unknown" && p.Kind != "gpt" && p.TypeName != "" {
		s = fmt.Sprintf("unknown (type of %s)", p.TypeName)
	}
	if t.Verbose && p.Volume.UUID != "" {
		s += ", id " + Safe(p.Volume.UUID)
	}
	if t.Verbose && p.Volume.Hidden != nil {
		s += fmt.Sprintf(", hidden sectors %d", *p.Volume.Hidden)
	}
	if p.Name != "" {
		s += fmt.Sprintf(" (%s)", Safe(p.Name))
	}
	if p.Kind == "logical" {
		s += " (logical)"
	}
	return s
}

// volumeName returns a kind and a label: NTFS "SYSTEM".
func volumeName(kind, label string) string {
	name := identify.Traits(volume.Kind(kind)).Title
	if label != "" {
		name += fmt.Sprintf(` "%s"`, Safe(label))
	}
	return name
}

// VolumeText names a file system, its label and its clusters.
func VolumeText(v *Volume) string {
	name := volumeName(v.Kind, v.Label)
	if v.Cluster > 0 {
		name += fmt.Sprintf(", %s %ss", units.Format(v.Cluster), identify.Traits(volume.Kind(v.Kind)).Unit)
	}
	return name
}

func (t *Text) findings(fs []align.Finding) {
	if slices.ContainsFunc(fs, func(f align.Finding) bool { return f.Cost == "" }) {
		t.printf("\n")
	}
	t.Say("findings", fs)
}

// Usage describes the storage of a disk in its image.
type Usage struct {
	Stored     int64  `json:"stored_bytes"`
	Compressed int64  `json:"compressed_bytes"`
	Inherited  int64  `json:"inherited_bytes"`
	NonZero    *int64 `json:"nonzero_bytes,omitempty"`
	Pieces     int64  `json:"pieces"`
	Unordered  int64  `json:"pieces_out_of_order"`
	InFile     int64  `json:"file_alignment_bytes,omitempty"`
	Complete   bool   `json:"complete"`
}

// stored adds the Usage of the image. u is nil if it is unknown. nonZero is nil if it was not counted.
func (r *Inspect) stored(u *align.Usage, nonZero *int64) {
	if u == nil {
		return
	}
	r.Image.Usage = &Usage{
		Stored: u.Stored, Compressed: u.Packed, Inherited: u.Inherited, NonZero: nonZero,
		Pieces: u.Pieces, Unordered: u.Unordered, InFile: u.Whole.Alignment(), Complete: u.Complete,
	}
	for _, place := range u.Places {
		i, _ := slices.BinarySearchFunc(r.Partitions, place.Number,
			func(p Partition, n int) int { return cmp.Compare(p.Number, n) })
		r.Partitions[i].InFile = place.Alignment()
	}
}

// place returns the words for the place of the stored bytes: "on this disk" if a file has holes, otherwise "in the
// container".
func (i Image) place() string {
	if slices.ContainsFunc(i.Files, func(f image.FileInfo) bool { return f.Allocated < f.Size }) {
		return "on this disk"
	}
	return "in the container"
}
