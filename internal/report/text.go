package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
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
	Unicode bool // the terminal has block characters
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

// Inspect prints an image: the verdict first, then its faults and the next step.
func (t *Text) Inspect(r *Inspect) {
	if t.List {
		t.list(r.Image, r.Disk)
		return
	}
	t.image(r.Image)
	t.verdict(r.Disk)
	t.printf("\n")
	t.details(r.Image)
	t.disk(r.Disk)
	if r.Content == "" {
		t.guest(r.Guest)
	}
	t.picture([]Disk{r.Disk}, "")
	t.partitions(r.Disk)
	t.insides(r.Disk)
	t.cost(r.Costs, r.Findings)
	t.impacts(r.Partitions)
	t.fragmentation(r)
	t.measured(r.Measured)
	t.findings(r.Findings)
	t.advice(r.Advice)
	if r.Verdict.Off() && r.Advice.Action != align.Repair && r.Advice.Gainful() {
		t.printf("\n")
		t.command(r)
	}
}

// FormatName returns the name of a format in its official spelling.
func FormatName(format string) string { return image.Title(format) }

func (t *Text) image(i Image) {
	name := FormatName(i.Format)
	if i.Subformat != "" {
		name += " " + i.Subformat
	}
	t.Para(2, "%s: %s, %s (%d bytes), %d-byte sectors", Safe(i.Path), name, units.Format(i.Size), i.Size, i.SectorSize)
}

// verdict prints the verdict in one line.
func (t *Text) verdict(d Disk) {
	which, start := worst(d)
	boundary, every := d.Boundary.Text(), "every partition"
	if d.Table.Scheme == "none" {
		which = "the volume in its file"
	}
	if slices.ContainsFunc(d.Partitions, func(p Partition) bool { return p.Unjudged != "" && p.Stays != "" }) {
		every = "every partition that is judged"
	}
	if d.Volume != nil && identify.Sliced(volume.Kind(d.Volume.Kind)) {
		table := identify.Traits(volume.Kind(d.Volume.Kind)).Title
		which, start, every = "a slice of the "+table, "starts", "every slice of the "+table
	}
	switch {
	case d.Verdict == "":
		t.printf("%s the image is malformed; see below.\n", t.Paint(Red, "No verdict:"))
	case d.Verdict == align.NothingToJudge:
		t.Para(2, "%s %s.", t.Paint(Cyan, "Nothing to judge:"), contentText(d))
	case d.ByOffset():
		t.Para(2, "%s the file of the disk puts every partition on a multiple of %s.",
			t.Paint(Green, "Aligned by offset:"), boundary)
	case d.Verdict == align.Aligned && d.Volume != nil && d.Volume.shift != 0 && every == "every partition":
		t.printf("%s no partition table, and the file puts the data of the volume on blocks.\n",
			t.Paint(Green, "Aligned:"))
	case d.Verdict == align.Aligned && d.Table.Scheme == "none" && every == "every partition":
		t.printf("%s no partition table, and the volume starts at byte 0.\n",
			t.Paint(Green, "Aligned:"))
	case d.Verdict == align.Aligned && len(alignedByData(d)) > 0:
		t.Para(2, "%s the data of %s are on blocks of the storage, although the start is not; any other start is on "+
			"a multiple of %s.", t.Paint(Green, "Aligned:"), partitions(alignedByData(d)), boundary)
	case d.Verdict == align.Aligned:
		t.printf("%s %s starts on a multiple of %s.\n", t.Paint(Green, "Aligned:"), every, boundary)
	case d.Verdict == align.BelowBoundary:
		if byData(d) {
			which, start = "the data of "+which, "lie"
		}
		t.Para(2, "%s %s %s on a multiple of 4 KiB, but not on one of %s.", t.Paint(Yellow, "Below boundary:"),
			which, start, boundary)
	default:
		t.Para(2, "%s %s %s off a 4 KiB boundary.", t.Paint(Red, "Misaligned:"), which, start)
	}
}

// ByOffset reports whether a disk is aligned only by the place of its partitions in a file.
func (d *Disk) ByOffset() bool {
	return d.Verdict == align.Aligned &&
		slices.ContainsFunc(d.Findings, func(f align.Finding) bool { return f.Code == align.CodeByOffset })
}

// alignedByData returns the numbers of partitions with aligned data but an unaligned start.
func alignedByData(d Disk) (numbers []string) {
	for _, p := range d.Partitions {
		if p.Verdict == align.Aligned && p.Stays != "" {
			numbers = append(numbers, strconv.Itoa(p.Number))
		}
	}
	return numbers
}

// byData reports whether the data of a partition decide the verdict of the disk, because its start has another verdict.
func byData(d Disk) bool {
	return slices.ContainsFunc(d.Partitions, func(p Partition) bool {
		return p.Verdict == d.Verdict && d.Boundary.Verdict(p.Start+p.shift) != p.Verdict
	})
}

// worst names the partitions with the verdict of the disk, and returns the verb in the matching number.
func worst(d Disk) (which, start string) {
	var bad []string
	for _, p := range d.Partitions {
		if p.Verdict == d.Verdict {
			bad = append(bad, strconv.Itoa(p.Number))
		}
	}
	if len(bad) > 1 {
		return partitions(bad), "start"
	}
	return partitions(bad), "starts"
}

// contentText returns the reason why there is nothing to judge.
func contentText(d Disk) string {
	switch {
	case d.Content == align.Blank:
		return "the disk is blank: zeros where partition tables and file systems begin"
	case d.Content == align.UnknownContent &&
		slices.ContainsFunc(d.Findings, func(f align.Finding) bool { return f.Code == image.CodeHidden }):
		return "the image has data that read as zeros, and no known content"
	case d.Content == align.UnknownContent && d.Table.Scheme == "none" && !d.Unknown():
		return "the partitions of its table are not read"
	case d.Content == align.UnknownContent && d.Table.Scheme == "none":
		return "no partition table, and no known volume"
	case d.Content == align.UnknownContent &&
		slices.ContainsFunc(d.Findings, func(f align.Finding) bool { return f.Code == layout.CodeUnknownContent }):
		return "the partition table has no data partition, and the disk holds other data"
	case d.Content == align.UnknownContent:
		return "the partition table has only an entry of type 0x00, which Linux uses as a partition"
	case slices.ContainsFunc(d.Partitions, func(p Partition) bool { return p.Volume != nil }):
		return "no partition is read or written by a running guest"
	case len(d.Partitions) > 0:
		return "no partition inside the extended one"
	}
	return "the partition table has no partition in it"
}

// fact prints a property of an image. Further lines are indented below its text.
func (t *Text) fact(name, s string) {
	t.printf("  %-9s  ", name)
	t.Para(13, "%s", s)
}

func (t *Text) details(i Image) {
	var details []string
	for _, k := range i.order {
		details = append(details, k+" "+Safe(i.Details[k]))
	}
	if len(details) > 0 {
		t.fact("Container", strings.Join(details, ", "))
	}
	for _, f := range i.Files {
		t.fact("File", Safe(f.Name)+", "+units.Format(f.Size))
	}
	if u := i.Unpacked; u != nil {
		t.fact("Packed", unpackedText(*u))
	}
	t.container(i)
}

func (t *Text) disk(d Disk) {
	switch d.Table.Scheme {
	case "mbr":
		t.fact("Table", fmt.Sprintf("MBR, disk signature %s, %d heads, %d sectors per track", d.Table.Signature,
			d.Table.Heads, d.Table.Sectors))
	case "gpt":
		t.fact("Table", fmt.Sprintf("GPT, disk GUID %s, %d-byte sectors", d.Table.GUID, d.Table.SectorSize))
	default:
		t.fact("Table", "none")
	}
	if d.Table.Scheme != "none" { // the code of a volume without a table belongs to the volume
		t.fact("Boot code", bootText(d))
	}
	t.chain(d)
	if d.Volume != nil {
		t.fact("Content", VolumeText(d.Volume))
	}
}

// maxLinks bounds the boot steps in text. JSON has all.
const maxLinks = 32

// maxUnseen bounds the unsearched places in text. JSON has all.
const maxUnseen = 4

// under prints lines below each other, the first one after a name. It prints the first lines, limited by most, then the
// number of the remaining ones and hint.
func (t *Text) under(name string, lines []string, most int, hint string) {
	for i, l := range lines {
		if i == most {
			t.printf("%13s... and %d more%s\n", "", len(lines)-i, hint)
			return
		}
		t.printf("  %-9s  ", name)
		t.Para(15, "%s", SafeMessage(l)) // indented deeper than the next item
		name = ""
	}
}

// chain prints the steps of a boot, and the places that the search for boot components could not read.
func (t *Text) chain(d Disk) {
	var steps, unseen []string
	for _, l := range d.Chain {
		steps = append(steps, l.Text)
	}
	for _, u := range d.Unseen {
		unseen = append(unseen, u.What+": "+u.Why)
	}
	most := maxUnseen
	if t.Verbose {
		most = len(unseen)
	}
	t.under("Boot path", steps, maxLinks, "")
	t.under("Not seen", unseen, most, " (-v lists them)")
}

// guest prints the state in which a machine was left, and the evidence unless it was shut down.
func (t *Text) guest(g *Guest) {
	switch {
	case g == nil:
		return
	case len(g.Signs) == 0:
		t.fact("Guest", "not known: nothing on the disk shows how it was left")
		return
	}
	t.fact("Guest", string(g.State))
	var signs []string
	for _, s := range g.Signs {
		if s.State != g.State || s.State == boot.ShutDown && !t.Verbose {
			continue
		}
		text := s.Text
		if s.OnMove != "" {
			text += ": " + s.OnMove
		}
		signs = append(signs, text)
	}
	t.under("", signs, maxLinks, "")
}

func bootText(d Disk) string {
	switch {
	case d.Boot.Name == "empty":
		return "none: a BIOS does not boot from this disk"
	case d.Boot.ReadsCHS:
		return d.Boot.Text + ": finds its partition by cylinder, head and sector"
	}
	return d.Boot.Text
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
	t.findingLines(fs)
}

func (t *Text) findingLines(fs []align.Finding) {
	colors := map[align.Severity]Color{
		align.Info: Cyan, align.Warning: Yellow,
		align.Error: Red,
	}
	for _, f := range fs {
		if f.Cost != "" { // printed once for all
			continue
		}
		t.Para(4, "%s %s: %s", t.Paint(colors[f.Severity], string(f.Severity)+":"), f.Subject, SafeMessage(f.Text))
		t.remedy(f)
	}
}

// notes prints findings before a result, and an empty line after them.
func (t *Text) notes(fs []align.Finding) {
	t.findingLines(fs)
	if len(fs) > 0 {
		t.printf("\n")
	}
}

func (t *Text) remedy(f align.Finding) {
	if f.Remedy != "" {
		t.printf("    ")
		t.Para(4, "%s", SafeMessage(f.Remedy))
	}
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

// container prints the parents of the image, and how much of the disk it stores.
func (t *Text) container(i Image) {
	for _, l := range i.Chain {
		kind := strings.TrimSpace(FormatName(l.Format) + " " + l.Subformat)
		if l.ContentID != "" {
			kind += ", content id " + Safe(l.ContentID)
		}
		t.fact("Parent", Safe(l.Name)+" ("+kind+")")
	}
	if i.Usage != nil {
		t.fact("Data", usageText(i.Usage, i.Size, i.place()))
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

// usageText describes in one line how a disk of size bytes is stored.
func usageText(u *Usage, size int64, place string) string {
	s := "nothing"
	switch {
	case u.Stored > 0:
		s = units.Format(u.Stored)
	case u.Compressed > 0:
		s = units.Format(u.Compressed)
	}
	s += " of " + units.Format(size) + " stored " + place
	switch {
	case u.Stored > 0 && u.Compressed > 0:
		s += fmt.Sprintf(", in %s, %s more compressed", pieces(u), units.Format(u.Compressed))
	case u.Stored > 0:
		s += ", in " + pieces(u)
	case u.Compressed > 0:
		s += ", compressed"
	}
	if u.Inherited > 0 {
		s += fmt.Sprintf(", %s in parents", units.Format(u.Inherited))
	}
	if u.NonZero != nil && u.Stored+u.Compressed+u.Inherited > 0 {
		s += fmt.Sprintf(", %s not zero", units.Format(*u.NonZero))
	}
	if !u.Complete {
		s += ": its map is too long to look at all of it"
		if u.Stored+u.Compressed > 0 {
			s = "at least " + s
		}
	}
	return s
}

func pieces(u *Usage) string {
	s := units.Counted(u.Pieces, "piece")
	if u.Unordered > 0 {
		s += fmt.Sprintf(" (%d out of order)", u.Unordered)
	}
	return s
}

// unpackedText describes the packed source of an image.
func unpackedText(u image.Unpacked) string {
	text := u.Kind
	if u.Member != "" {
		text += ", member " + Safe(u.Member)
	}
	return fmt.Sprintf("%s, %s (%d bytes) unpacked", text, units.Format(u.Size), u.Size)
}
