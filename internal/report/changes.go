package report

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/freespace"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/units"
)

// Plan prints a dry run: moves, changed bytes, growth, and the inspection of the result; or the reasons of a refusal.
func (t *Text) Plan(r *Plan) {
	t.Say("image", r.Image)
	t.printf("\n")
	if len(r.Refusals) > 0 {
		t.Say("refusals", r.Refusals)
		t.references(r.References)
		t.findings(r.Findings)
		return
	}
	t.changes(r.Changes)
	if len(r.FreeSpace) > 0 {
		t.printf("\nFree space (--skip-free), which becomes zeros:\n")
		t.Say("free space", r.FreeSpace)
	}
	t.Say("measured", r.Measured)
	t.references(r.References)
	t.findings(r.Findings)
	if r.same() && !finds(r.Findings, align.CodeUnshifted) {
		if r.leavesOut() {
			t.Say("cost of a copy", r)
		}
		return
	}
	if r.Result != nil {
		t.printf("\nThe result, read from the planned bytes:\n")
		t.disk(r.Result)
		if r.Before != nil {
			t.picture([]Disk{*r.Before, *r.Result}, "before  ", "after   ")
		}
		t.partitions(*r.Result)
		t.insides(*r.Result)
	}
	t.Say("cost of a copy", r)
	t.printf("\nThis was a dry run, nothing was written.\n")
	t.next("To do it:   ", r.Image.align(r.Flags))
}

func (t *Text) changes(c Changes) {
	t.Say("changes", c)
	if c.Moved > 0 {
		t.moves(c)
	}
	if !c.same() {
		t.Say("gaps", c.GapMoves)
		t.patches(c.Patches)
		t.Say("sectors", c)
	}
}

// same reports whether the result equals the disk.
func (c Changes) same() bool { return c.Moved == 0 && len(c.Patches) == 0 && c.ToSectors == 0 }

func (t *Text) moves(c Changes) {
	var rows [][]string
	for _, m := range c.Moves {
		rows = append(rows, []string{
			strconv.Itoa(m.Partition), decimal(m.From / c.sector), decimal(m.To / c.sector), units.Format(m.Delta),
			units.Format(m.Size),
		})
	}
	t.printf("\n")
	t.Table(slices.Values(rows), ">partition", ">from LBA", ">to LBA", ">shift", ">size")
}

func (t *Text) patches(ps []Patch) {
	if len(ps) == 0 {
		return
	}
	t.printf("\nChanged fields, by position in the result:\n\n")
	digits := manyDigits
	if t.Width > 0 {
		digits = fewDigits
	}
	t.Table(func(yield func([]string) bool) {
		for _, p := range ps {
			offset := "0x" + strconv.FormatInt(p.Off, 16)
			if !yield([]string{offset, cut(p.Old, digits), cut(p.New, digits), SafeMessage(p.Reason)}) {
				return
			}
		}
	}, ">offset", "old", "new", "<reason")
}

// Hexadecimal digits of a value: the maximum, and the maximum per line if the width is limited.
const (
	manyDigits = 32
	fewDigits  = 16
)

// cut shortens a run of hexadecimal digits. digits is the number of digits per line. JSON has all digits.
func cut(s string, digits int) string {
	if len(s) > manyDigits {
		s = s[:manyDigits] + "…"
	}
	if digits == fewDigits && len(s) > fewDigits {
		s = s[:fewDigits] + "\n" + s[fewDigits:]
	}
	return s
}

// moved prints the moved partitions of a copied disk, and its free space.
func (t *Text) moved(d *AlignedDisk, indent string) {
	for _, m := range d.Moves {
		t.printf("%spartition %d: LBA %d -> %d\n", indent, m.Partition, m.From/d.sector, m.To/d.sector)
	}
	t.Say("free space", d.FreeSpace)
}

// Align prints the result of a copy.
func (t *Text) Align(r *Align) {
	if r.Package != nil {
		t.alignPackage(r)
		return
	}
	d := r.Disks[0]
	t.Say("notes", slices.Concat(d.Findings, r.Findings))
	if t.Say("aligned", r); !r.Written {
		return
	}
	t.moved(d, "  ")
	t.Say("grown", r)
	if t.Verbose {
		t.patches(d.Patches)
	}
	t.Say("files", r)
	proof := r.Flags
	switch {
	case r.Offset != nil:
		if t.offset(r.Offset); r.Offset.Losetup != "" {
			proof = append(slices.Clone(proof), "--dest-offset", decimal(r.Offset.At))
		}
	case r.Replaced != nil && d.registered: // the path is unchanged, but VirtualBox also compares the UUID
		t.next("VirtualBox identifies the disk by the UUID of the original. If it has no snapshots in any folder:   ",
			"VBoxManage internalcommands sethduuid "+shell.Quote(r.Dest)+" UUID")
	case r.Source != r.Dest:
		t.Say("use", r)
	}
	// The socket of a server may end with this run, and a device is larger than a shifted disk.
	lasts := !strings.HasPrefix(r.Source, "nbd+unix://") && (r.Offset == nil || !realign.IsDevice(r.Dest))
	if r.Source != r.Dest && (r.Replaced == nil || r.Replaced.Original != "") && lasts {
		t.next("To prove it again later:   ", shell.Command("verify", proof, r.Source, r.Dest))
	}
}

// virtXML quotes DEST for virt-xml, which splits its argument as Python's shlex does in POSIX mode, at commas. Source:
// virtinst/cli.py.
func virtXML(r *Align) string {
	const special = `\,'"`
	dest, relative := r.Dest, !filepath.IsAbs(r.Dest)
	if relative && strings.ContainsAny(r.Folder, special) {
		dest, relative = filepath.Join(r.Folder, dest), false
	}
	name := shell.Quote(strings.NewReplacer(`\`, `\\`, ",", `\,`, "'", `\'`, `"`, `\"`).Replace(dest))
	if relative {
		return `"$PWD"/` + name
	}
	return name
}

// workText returns the amount of data copied, the time it took, and its rate.
func workText(bytes int64, seconds float64) string {
	text := units.Format(bytes) + " in " + Seconds(seconds)
	if seconds >= 1 && bytes > 0 {
		text += ", " + units.Format(int64(float64(bytes)/seconds)) + "/s"
	}
	return text
}

// Seconds prints a duration: in tenths of seconds, or in minutes and hours.
func Seconds(n float64) string {
	switch {
	case n < 0.05:
		return "less than 0.1 s"
	case n < 60:
		return fmt.Sprintf("%.1f s", n)
	}
	return time.Duration(n * float64(time.Second)).Round(time.Second).String()
}

// movedText describes the changes. none stands for a plan without moves.
func (c Changes) movedText(none string) string {
	if c.Moved > 0 {
		none = units.Counted(c.Moved, "partition") + " moved"
	}
	if c.ToSectors > 0 {
		none += fmt.Sprintf(", for sectors of %d bytes", c.ToSectors)
	}
	return none
}

// Verify prints whether a copy is correct.
func (t *Text) Verify(r *Verify) {
	for _, d := range r.Disks {
		t.Say("compared disk", d)
		if !d.Equal {
			continue
		}
		if t.Verbose {
			t.patches(d.Patches)
		}
		t.Say("not compared", d)
	}
	t.Say("compared", r)
}

// leavesOut reports whether zeros replace free space.
func (c Changes) leavesOut() bool {
	return slices.ContainsFunc(c.FreeSpace, func(v freespace.Volume) bool { return v.LeftOut > 0 })
}

// Reference is a stored position of a partition, or of data in one, and its new value.
type Reference struct {
	Kind      string `json:"kind"`
	Partition int    `json:"partition,omitempty"` // that stores it
	File      string `json:"file,omitempty"`
	Off       int64  `json:"offset_bytes"` // in the file, the partition or the disk
	Points    int64  `json:"points_to_bytes"`
	Target    int    `json:"target,omitempty"` // the partition that contains the position
	Disk      string `json:"disk,omitempty"`   // the signature of the referenced disk, if it is another disk
	To        int64  `json:"becomes_bytes"`
	Stays     string `json:"stays,omitempty"` // reason why it stays unchanged
}

// newReferences describes the references of a layout under a plan.
func newReferences(p *plan.Plan, l *layout.Layout) []Reference {
	out := []Reference{}
	for _, r := range p.References(l) {
		x := Reference{
			Kind: r.Kind, Partition: r.Partition, File: r.File, Off: r.Off, Points: r.Points, Target: r.Target,
			To: r.To, Stays: r.Stays,
		}
		if r.Disk != 0 {
			x.Disk = fmt.Sprintf("0x%08x", r.Disk)
		}
		out = append(out, x)
	}
	return out
}

// maxReferences bounds the number of references listed as text. JSON has all of them.
const maxReferences = 100

// references prints the stored positions, grouped by the file, partition or disk that stores them.
func (t *Text) references(refs []Reference) {
	if len(refs) == 0 {
		return
	}
	t.printf("\nStored positions, before and after:\n\n")
	shown := refs[:min(len(refs), maxReferences)]
	w := t.referenceWidths(shown)
	t.printf(" %-*s  %*s  %-*s  %s\n", w.kind+2, "position", w.off, "at byte", w.points, "points to byte", "becomes")
	for i, r := range shown {
		if i == 0 || r.home() != shown[i-1].home() {
			t.printf(" ")
			t.Para(3, "%s:", r.home())
		}
		t.reference(r, w)
		// If several adjacent positions stay for the same reason, it is printed once, below the last one.
		if r.reason() != "" && (i+1 == len(shown) || shown[i+1].home() != r.home() ||
			shown[i+1].reason() != r.reason()) {
			t.printf("     ")
			t.Para(7, "stays: %s", r.reason())
		}
	}
	if n := len(refs) - maxReferences; n > 0 {
		t.printf(" … and %d more, which --json lists\n", n)
	}
}

// referenceWidths holds the widths of columns, in characters.
type referenceWidths struct{ kind, off, points int }

// leastKind is the least width of the names of positions on a narrow terminal.
const leastKind = 16

// referenceWidths fits the columns to their content. If there is no room, the first column is wrapped.
func (t *Text) referenceWidths(refs []Reference) referenceWidths {
	w, becomes := referenceWidths{len("position"), len("at byte"), len("points to byte")}, len("the same")
	for _, r := range refs {
		w.kind = max(w.kind, len(Safe(r.Kind)))
		w.off = max(w.off, len(decimal(r.Off)))
		w.points = max(w.points, len(r.pointsTo()))
		becomes = max(becomes, len(r.becomes()))
	}
	const blanks = 3 + 3*2
	if t.Width > 0 {
		w.kind = max(leastKind, min(w.kind, t.Width-blanks-w.off-w.points-becomes))
	}
	return w
}

func (t *Text) reference(r Reference, w referenceWidths) {
	for i, line := range Fold(Safe(r.Kind), w.kind) {
		if i > 0 {
			t.printf("   %s\n", line)
			continue
		}
		t.printf("   %-*s  %*d  %-*s  %s\n", w.kind, line, w.off, r.Off, w.points, r.pointsTo(), r.becomes())
	}
}

// home names the file, partition or disk that stores a position.
func (r Reference) home() string {
	switch {
	case r.File != "":
		return fmt.Sprintf("partition %d, %s", r.Partition, Safe(r.File))
	case r.Partition > 0:
		return fmt.Sprintf("partition %d", r.Partition)
	}
	return "the disk"
}

func (r Reference) pointsTo() string {
	if r.Disk != "" {
		return fmt.Sprintf("%d (disk %s)", r.Points, r.Disk)
	}
	if r.Target == 0 {
		return decimal(r.Points)
	}
	return fmt.Sprintf("%d (partition %d)", r.Points, r.Target)
}

func (r Reference) becomes() string {
	switch {
	case r.To != r.Points:
		return decimal(r.To)
	case r.Stays != "":
		return "stays"
	}
	return "the same"
}

// reason returns the reason why a position stays although it may have to change.
func (r Reference) reason() string {
	if r.To != r.Points {
		return ""
	}
	return SafeMessage(r.Stays)
}
