package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/units"
)

// Text writes results for people.
type Text struct {
	W       io.Writer
	Color   bool
	Verbose bool
	err     error
}

// Err is the first error of writing.
func (t *Text) Err() error { return t.err }

func (t *Text) printf(format string, args ...any) {
	if t.err == nil {
		_, t.err = fmt.Fprintf(t.W, format, args...)
	}
}

func (t *Text) paint(c text.Color, s string) string {
	if !t.Color {
		return s
	}
	return text.Colors{c}.EscapeSeq() + s + text.EscapeReset
}

// Version prints the program's version.
func (t *Text) Version(v string) { t.printf("trueup %s\n", v) }

// Inspect prints what an image is, what is wrong with it, and what to do.
func (t *Text) Inspect(r *Inspect) {
	t.image(r.Image)
	t.disk(r.Disk)
	t.findings(r.Findings)
	t.advice(r)
}

func (t *Text) image(i Image) {
	name := strings.ToUpper(i.Format)
	if i.Subformat != "" {
		name += " " + i.Subformat
	}
	t.printf("%s: %s, %s (%d bytes), %d-byte sectors\n", Safe(i.Path), name, units.Format(i.Size), i.Size, i.SectorSize)
	var details []string
	for _, k := range i.order {
		details = append(details, k+" "+Safe(i.Details[k]))
	}
	if len(details) > 0 {
		t.printf("  Container  %s\n", strings.Join(details, ", "))
	}
	for _, f := range i.Files {
		t.printf("  File       %s, %s\n", Safe(f.Name), units.Format(f.Size))
	}
}

func (t *Text) disk(d Disk) {
	switch d.Table.Scheme {
	case "mbr":
		t.printf("  Table      MBR, disk signature %s, %d heads, %d sectors per track\n", d.Table.Signature, d.Table.Heads, d.Table.Sectors)
	case "gpt":
		t.printf("  Table      GPT, disk GUID %s, %d-byte sectors\n", d.Table.GUID, d.Table.SectorSize)
	default:
		t.printf("  Table      none\n")
	}
	chs := ""
	if d.Boot.ReadsCHS {
		chs = " (finds its partition by cylinder, head and sector)"
	}
	t.printf("  Boot code  %s%s\n", d.Boot.Text, chs)
	if d.Volume != nil {
		t.printf("  Content    %s\n", volumeText(d.Volume))
	}
	if len(d.Partitions) > 0 {
		t.partitions(d)
	}
}

func (t *Text) partitions(d Disk) {
	w := newTable()
	boundary := units.Short(d.Boundary)
	head := table.Row{"#", "boot", "type", "start LBA", "start byte", "size", "4K", "64K", "1M"}
	extra := boundary != "4K" && boundary != "64K" && boundary != "1M"
	if extra {
		head = append(head, boundary)
	}
	w.AppendHeader(append(head, "content"))
	for _, p := range d.Partitions {
		active := ""
		if p.Active {
			active = "*"
		}
		row := table.Row{
			p.Number, active, typeText(p), p.StartLBA, p.Start, units.Format(p.Size),
			t.yes(p, p.Aligned.To4K), t.yes(p, p.Aligned.To64K), t.yes(p, p.Aligned.To1M),
		}
		if extra {
			row = append(row, t.yes(p, p.Aligned.Boundary))
		}
		w.AppendRow(append(row, content(p)))
	}
	t.printf("\n%s", render(w))
}

// newTable is a table without lines, as the tools of this field print it.
func newTable() table.Writer {
	w := table.NewWriter()
	w.SetStyle(table.StyleDefault)
	w.Style().Options = table.OptionsNoBordersAndSeparators
	w.Style().Format.Header = text.FormatDefault
	var right []table.ColumnConfig
	for _, name := range []string{"start LBA", "start byte", "size", "partition", "from byte", "to byte", "shift", "offset"} {
		right = append(right, table.ColumnConfig{Name: name, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	w.SetColumnConfigs(right)
	return w
}

// render gives the lines of a table without the blanks that fill the last column.
func render(w table.Writer) string {
	var b strings.Builder
	for l := range strings.Lines(w.Render() + "\n") {
		b.WriteString(strings.TrimRight(l, " \n") + "\n")
	}
	return b.String()
}

func (t *Text) yes(p Partition, ok bool) string {
	switch {
	case p.Verdict == "":
		return "-"
	case ok:
		return t.paint(text.FgGreen, "yes")
	}
	return t.paint(text.FgRed, "no")
}

func typeText(p Partition) string {
	if p.Kind == "gpt" {
		if p.TypeName != "" {
			return p.TypeName
		}
		return p.Type
	}
	return strings.TrimSpace(strings.TrimPrefix(p.Type, "0x") + " " + p.TypeName)
}

func content(p Partition) string {
	if p.Volume == nil {
		return p.Kind
	}
	s := volumeText(p.Volume)
	if p.Name != "" {
		s += fmt.Sprintf(" (%s)", Safe(p.Name))
	}
	if p.Kind == "logical" {
		s += " (logical)"
	}
	return s
}

var volumeNames = map[string]string{"ntfs": "NTFS", "fat12": "FAT12", "fat16": "FAT16", "fat32": "FAT32", "luks": "LUKS", "bitlocker": "BitLocker"}

func volumeText(v *Volume) string {
	name := v.Kind
	if n, ok := volumeNames[v.Kind]; ok {
		name = n
	}
	if v.Label != "" {
		name += fmt.Sprintf(` "%s"`, Safe(v.Label))
	}
	unit := "clusters"
	if strings.HasPrefix(v.Kind, "ext") {
		unit = "blocks"
	}
	if v.Cluster > 0 {
		name += fmt.Sprintf(", %s %s", units.Format(v.Cluster), unit)
	}
	if v.Hidden != nil {
		name += fmt.Sprintf(", hidden sectors %d", *v.Hidden)
	}
	return name
}

func (t *Text) findings(fs []align.Finding) {
	if len(fs) > 0 {
		t.printf("\n")
	}
	colors := map[align.Severity]text.Color{align.Info: text.FgCyan, align.Warning: text.FgYellow, align.Error: text.FgRed}
	for _, f := range fs {
		t.printf("%s %s: %s\n", t.paint(colors[f.Severity], string(f.Severity)+":"), f.Subject, SafeMessage(f.Text))
		if f.Remedy != "" {
			t.printf("    %s\n", SafeMessage(f.Remedy))
		}
	}
}

// advice ends an inspection with the verdict in plain words and the command that fixes it.
func (t *Text) advice(r *Inspect) {
	t.printf("\n")
	switch {
	case r.Table.Scheme == "none":
		t.printf("There is no partition table, so there is nothing to align.\n")
	case len(r.Partitions) == 0:
		t.printf("There is no partition, so there is nothing to align.\n")
	case r.Verdict == align.Aligned:
		t.printf("%s Every partition starts on a multiple of %s.\n", t.paint(text.FgGreen, "Aligned."), units.Short(r.Boundary))
	case r.Verdict == align.BelowBoundary:
		t.printf("%s Every partition starts on a multiple of 4 KiB, but not all on one of %s.\n", t.paint(text.FgYellow, "Partly aligned."), units.Short(r.Boundary))
		t.command(r)
	default:
		t.printf("%s The guest's clusters lie across the borders of the storage's 4 KiB blocks, so that most reads and writes\n"+
			"touch one block more than they need to, and small writes turn into read-modify-write.\n", t.paint(text.FgRed, "Misaligned."))
		t.command(r)
	}
}

// command names the next step. A copy that would be refused is not proposed.
func (t *Text) command(r *Inspect) {
	flag := ""
	if r.Boundary != align.DefaultBoundary {
		flag = " --boundary " + units.Short(r.Boundary)
	}
	if len(r.Refusals) > 0 {
		f := r.Refusals[0]
		t.printf("An aligned copy would be refused: %s: %s\n", f.Subject, SafeMessage(f.Text))
		t.printf("To see all of it:   trueup plan%s %s\n", flag, shellQuote(r.Image.Path))
		return
	}
	t.printf("To see what would change:   trueup plan%s %s\n", flag, shellQuote(r.Image.Path))
	t.printf("To write an aligned copy:   trueup align%s %s %s\n", flag, shellQuote(r.Image.Path), shellQuote(alignedName(r.Image.Path)))
}

// alignedName suggests a name for the copy.
func alignedName(path string) string {
	dot := strings.LastIndexByte(path, '.')
	if dot <= strings.LastIndexByte(path, '/') {
		return path + "-aligned"
	}
	return path[:dot] + "-aligned" + path[dot:]
}

// shellQuote makes a path that can be pasted into a shell.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./+=:,@%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 && s[0] != '-' {
		return s
	}
	if s != "" && s[0] == '-' {
		s = "./" + s
	}
	return "'" + strings.ReplaceAll(Safe(s), "'", `'\''`) + "'"
}
