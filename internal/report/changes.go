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
	t.image(r.Image)
	t.printf("\n")
	if len(r.Refusals) > 0 {
		t.refusals(r.Refusals)
		t.references(r.References)
		t.findings(r.Findings)
		return
	}
	t.changes(r.Changes)
	if len(r.FreeSpace) > 0 {
		t.printf("\nFree space (--skip-free), which becomes zeros:\n")
		t.freeSpace(r.Changes)
	}
	t.measured(r.Measured)
	t.references(r.References)
	t.findings(r.Findings)
	if r.same() && !slices.ContainsFunc(r.Findings,
		func(f align.Finding) bool { return f.Code == align.CodeUnshifted }) {
		if r.leavesOut() {
			t.copyCost(r.Cost, r.Image.Unpacked)
		}
		return
	}
	if r.Result != nil {
		t.printf("\nThe result, read from the planned bytes:\n")
		t.disk(*r.Result)
		if r.Before != nil {
			t.picture([]Disk{*r.Before, *r.Result}, "before  ", "after   ")
		}
		t.partitions(*r.Result)
		t.insides(*r.Result)
	}
	t.copyCost(r.Cost, r.Image.Unpacked)
	t.printf("\nThis was a dry run, nothing was written.\n")
	t.next("To do it:   ", r.Image.align(r.Flags))
}

// copyCost prints the bytes that a copy reads and writes, and the space to unpack a packed image first.
func (t *Text) copyCost(c *realign.Cost, u *Unpacked) {
	if c == nil {
		return
	}
	t.printf("\n")
	spool := ""
	if u != nil && u.Kind != "tar" {
		spool = fmt.Sprintf(" Unpacking needs up to %s more, there or in --spool DIR.", units.Format(u.Size))
	}
	t.Para(0, "A copy reads %s, and writes and rereads at most %s. It needs %s in the folder of DEST.%s",
		units.Format(c.Read), units.Format(c.Write), units.Format(c.Need), spool)
}

func (t *Text) refusals(fs []align.Finding) {
	t.printf("%s\n", t.Paint(Red, "Refused, nothing would be written:"))
	for _, f := range fs {
		t.printf("  ")
		t.Para(6, "%s: %s", f.Subject, SafeMessage(f.Text))
		t.remedy(f)
	}
}

func (t *Text) changes(c Changes) {
	if c.same() {
		t.printf("Nothing has to move: a copy would equal the disk.\n")
		return
	}
	t.summary(c)
	if c.Moved > 0 {
		t.moves(c)
	}
	t.gapMoves(c.GapMoves)
	t.patches(c.Patches)
	if c.ToSectors > 0 {
		t.printf("\n")
		t.Para(0, "Then the partition table, and a FAT with smaller sectors, are written for sectors of %d bytes. All "+
			"files keep their bytes.", c.ToSectors)
	}
}

// same reports whether the result equals the disk.
func (c Changes) same() bool { return c.Moved == 0 && len(c.Patches) == 0 && c.ToSectors == 0 }

// gapMoves prints the moved data outside of partitions.
func (t *Text) gapMoves(gs []GapMove) {
	if len(gs) == 0 {
		return
	}
	t.printf("\n")
	for i, g := range gs {
		if i == maxGapMoves {
			t.printf("  and %d more, which JSON lists\n", len(gs)-i)
			break
		}
		t.printf("  beside partitions: bytes %d to %d go to byte %d\n", g.From, g.From+g.Size-1, g.To)
	}
}

// maxGapMoves bounds the lines about moved data outside of partitions.
const maxGapMoves = 16

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

// summary prints the plan in a sentence.
func (t *Text) summary(c Changes) {
	bytes := 0
	for _, p := range c.Patches {
		bytes += p.Len
	}
	what := acting(c.Moved, "partition", "move")
	if c.Moved == 0 {
		what = "Nothing has to move"
	}
	size := "keeps its size of " + units.Format(c.OldSize)
	if c.NewSize > c.OldSize {
		size = fmt.Sprintf("grows by %s to %s", units.Format(c.NewSize-c.OldSize), units.Format(c.NewSize))
	}
	are := "are"
	if len(c.Patches) == 1 {
		are = "is"
	}
	t.Para(2, "%s, %s (%d bytes) %s corrected, and the disk %s.", what, units.Counted(len(c.Patches), "small field"),
		bytes, are, size)
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

// leaves reports whether a plan does not move a partition that is off the boundary.
func leaves(fs []align.Finding) bool {
	return slices.ContainsFunc(fs, func(f align.Finding) bool { return f.Code == "left-alone" || f.Code == "stays" })
}

// nothingToJudge reports whether a disk is blank or of unknown content.
func nothingToJudge(fs []align.Finding) bool {
	return slices.ContainsFunc(fs, func(f align.Finding) bool {
		return f.Code == layout.CodeBlank || f.Code == layout.CodeUnknownContent
	})
}

// moved prints the moved partitions of a copied disk, and its free space.
func (t *Text) moved(d *AlignedDisk, indent string) {
	for _, m := range d.Moves {
		t.printf("%spartition %d: LBA %d -> %d\n", indent, m.Partition, m.From/d.sector, m.To/d.sector)
	}
	t.freeSpace(d.Changes)
}

// Align prints the result of a copy.
func (t *Text) Align(r *Align) {
	if r.Package != nil {
		t.alignPackage(r)
		return
	}
	d := r.Disks[0]
	t.notes(slices.Concat(d.Findings, r.Findings))
	if !r.Written {
		what, state := "nothing was written", "is aligned already"
		switch {
		case leaves(d.Findings):
			state = "has nothing else to move"
		case nothingToJudge(d.Findings):
			state = "has no known content"
		}
		t.Para(2, "%s %s; %s.", Safe(r.Source), state, what)
		return
	}
	name := d.Format
	if d.Subformat != "" {
		name += " " + d.Subformat
	}
	t.Para(2, "%s: %s, %s, %s, %s.", Safe(r.Dest), name, d.movedText("a copy with nothing moved"),
		verifiedText[r.Verified], workText(r.Copied, r.Took))
	t.moved(d, "  ")
	if r.Command != "convert" && slices.ContainsFunc(d.Findings,
		func(f align.Finding) bool { return f.Severity == align.Error }) {
		t.Para(2, "  accepted with --allow-unbootable: the errors above")
	}
	if d.NewSize > d.OldSize {
		t.printf("  the disk grew by %s to %s\n", units.Format(d.NewSize-d.OldSize), units.Format(d.NewSize))
	}
	if t.Verbose {
		t.patches(d.Patches)
	}
	t.checksums(r.Sums)
	t.replacedLines(r.Replaced, r.Dest)
	words, command := useOf(d.Format, d.Subformat, r.Dest, r.Folder)
	proof := r.Flags
	switch {
	case r.Offset != nil:
		if t.offset(r.Offset); r.Offset.Losetup != "" {
			proof = append(slices.Clone(proof), "--dest-offset", decimal(r.Offset.At))
		}
	case r.Replaced != nil && d.registered: // the path is unchanged, but VirtualBox also compares the UUID
		t.next("VirtualBox identifies the disk by the UUID of the original. If it has no snapshots in any folder:   ",
			"VBoxManage internalcommands sethduuid "+shell.Quote(r.Dest)+" UUID")
	case r.Source != r.Dest && command != "":
		t.next(words, command)
	}
	// The socket of a server may end with this run, and a device is larger than a shifted disk.
	lasts := !strings.HasPrefix(r.Source, "nbd+unix://") && (r.Offset == nil || !realign.IsDevice(r.Dest))
	if r.Source != r.Dest && (r.Replaced == nil || r.Replaced.Original != "") && lasts {
		t.next("To prove it again later:   ", shell.Command("verify", proof, r.Source, r.Dest))
	}
}

var verifiedText = map[string]string{
	"full":      "every byte compared",
	"structure": "structures compared (--verify full compares every byte)",
}

// useOf returns the next step for a result, as words and a command. The user replaces VM and the other words in
// capitals. Sources: virt-xml(1), Set-VMHardDiskDrive of Hyper-V, VBoxManage(1), vmkfstools -i of vSphere, which reads
// the hosted types of VMDK, and govc import.vmdk, which reads streamOptimized. folder is the working directory.
func useOf(format, subformat, dest, folder string) (words, command string) {
	name := shell.Quote(dest)
	switch {
	case dest == "-":
		return "", ""
	case format == "raw" || format == "qcow2":
		// virt-xml splits its argument as Python's shlex does in POSIX mode, at commas. Source: virtinst/cli.py.
		const special = `\,'"`
		relative := !filepath.IsAbs(dest)
		if relative && strings.ContainsAny(folder, special) {
			dest, relative = filepath.Join(folder, dest), false
		}
		name = shell.Quote(strings.NewReplacer(`\`, `\\`, ",", `\,`, "'", `\'`, `"`, `\"`).Replace(dest))
		if relative {
			name = `"$PWD"/` + name
		}
		return "To use it with libvirt:   ",
			"virt-xml VM --edit target=TARGET --disk path=" + name + ",driver.type=" + format
	case strings.HasPrefix(format, "vhd"):
		return "To use it with Hyper-V:   ", "Set-VMHardDiskDrive VM -ControllerType TYPE -ControllerNumber N " +
			"-ControllerLocation N -Path " + shell.QuoteWindows(dest)
	case format == "vdi":
		return "To use it with VirtualBox:   ",
			"VBoxManage storageattach VM --storagectl CONTROLLER --port N --device N --type hdd --medium " + name
	case subformat == "vmfs":
		return "To use it with vSphere, copy its two files to the datastore:   ",
			"govc vm.disk.attach -vm VM -ds DATASTORE -disk VM/" + shell.Quote(filepath.Base(dest))
	case subformat == "streamOptimized":
		return "To use it with vSphere:   ", "govc import.vmdk -ds DATASTORE " + name
	}
	return "To use it with vSphere:   ", "vmkfstools -d thin -i " + name + " /vmfs/volumes/DATASTORE/VM/" +
		shell.Quote(filepath.Base(dest))
}

// checksums prints the digests of the written files.
func (t *Text) checksums(sums []Checksum) {
	for _, s := range sums {
		t.printf("  SHA-256 %s  %s\n", s.SHA256, Safe(s.File))
	}
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
		if !d.Equal && len(d.Differences) == 0 {
			t.notProved(d)
		} else {
			t.verifiedDisk(d)
		}
	}
	for _, d := range r.Differences {
		t.printf("%s ", t.Paint(Red, "Different:"))
		t.Para(4, "%s", SafeMessage(d))
	}
	if r.Equal && r.Package != nil {
		t.Para(2, "%s is the package %s with these disks; its manifest and all other files are correct.", Safe(r.Dest),
			Safe(r.Source))
	}
}

// notProved prints that a bitmap is unknown.
func (t *Text) notProved(r *VerifiedDisk) {
	t.printf("%s ", t.Paint(Yellow, "Not proved:"))
	t.Para(2, "%s of %s differ from an aligned copy of %s. The bitmap %s is lost or inconsistent: the image was not "+
		"closed properly, or a program that ignores bitmaps has written it. So these bytes may be the guest's, or "+
		"damage.",
		units.Format(r.Guest.Differ), Safe(r.Dest), Safe(r.Source), SafeMessage(r.Guest.Bitmap))
}

func (t *Text) verifiedDisk(r *VerifiedDisk) {
	outside := r.outside()
	if r.Guest != nil {
		if outside != "" {
			outside += " and"
		}
		outside += " outside of the guest's writes"
	}
	switch {
	case !r.Equal:
		t.printf("%s: %s differs from an aligned copy of %s:\n", t.Paint(Red, "Different"), Safe(r.Dest),
			Safe(r.Source))
		for _, d := range r.Differences {
			t.printf("  ")
			if d.Len == 0 {
				t.Para(4, "%s", SafeMessage(d.Text))
			} else {
				t.Para(4, "bytes %d to %d: %s", d.Off, d.Off+d.Len-1, SafeMessage(d.Text))
			}
		}
		if r.Guest != nil {
			t.Para(0, "DEST was written while the bitmap did not record, or it is not a copy of this SOURCE made with "+
				"these options. The disk is not proved; keep what the guest wrote.")
			return
		}
		t.Para(0, "The copy was changed after it was made, is a copy of another SOURCE, or was made by another "+
			"version of trueup or with other options (--skip-free): do not use it. Align SOURCE again, or verify "+
			"with the same version and options.")
	case r.same():
		t.printf("%s is the same disk as %s: nothing is moved, and every byte%s is equal.\n", Safe(r.Dest),
			Safe(r.Source), outside)
	default:
		differ := acting(len(r.Patches), "listed field", "differ")
		if r.ToSectors > 0 {
			differ = "only structures that count sectors differ"
		}
		t.Para(2, "%s is %s with %s: %s, every other byte%s is equal.", Safe(r.Dest), Safe(r.Source),
			r.movedText("nothing moved"), differ, outside)
		if t.Verbose {
			t.patches(r.Patches)
		}
	}
	if r.Equal {
		t.freeSpace(r.Changes)
		if g := r.Guest; g != nil {
			t.printf("  ")
			t.Para(4, "not compared: %s written by the guest (bitmap %s), of which %s differ", units.Format(g.Written),
				SafeMessage(g.Bitmap), units.Format(g.Differ))
		}
	}
}

// leavesOut reports whether zeros replace free space.
func (c Changes) leavesOut() bool {
	return slices.ContainsFunc(c.FreeSpace, func(v freespace.Volume) bool { return v.LeftOut > 0 })
}

// outside returns the words that exclude free space from a claim about every byte.
func (c Changes) outside() string {
	if c.leavesOut() {
		return " outside of free space"
	}
	return ""
}

// freeSpace prints the treatment of the free space of each volume.
func (t *Text) freeSpace(c Changes) {
	for _, v := range c.FreeSpace {
		t.printf("  ")
		where := "disk"
		if v.Partition > 0 {
			where = fmt.Sprintf("partition %d", v.Partition)
		}
		t.Para(4, "%s: %s", where, freeSpaceText(v))
	}
}

func freeSpaceText(v freespace.Volume) string {
	if v.Whole != "" {
		return "copied with its free space: " + SafeMessage(v.Whole)
	}
	return fmt.Sprintf("%s, left out %s of free space in %s, of which SOURCE stores %s",
		volumeName(string(v.Kind), ""),
		units.Format(v.LeftOut), units.Counted(v.Ranges, "range"), units.Format(v.Stored))
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
