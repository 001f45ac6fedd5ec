package results

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/report"
)

// Limits of one row, far beyond what any image has.
const (
	maxText  = 64 << 10 // bytes of one text
	maxItems = 1 << 17  // of one list
)

// Check returns what is wrong with a row from outside: from a worker, which an image may have taken over, or from a
// file of results. A row that passes can be summed and shown. The contents of texts are not judged: each report escapes
// them.
func (i *Image) Check() error {
	if i.Origin != (report.Origin{Schema: report.Schema, Command: Command}) || i.Event != imageEvent {
		return fmt.Errorf("a row that is %.32q of %.32q in %.32q, want %q of %q in %q", i.Event, i.Command, i.Schema,
			imageEvent, Command, report.Schema)
	}
	if err := i.checkState(); err != nil {
		return err
	}
	c := checker{}
	c.list("files", len(i.Files), i.Files == nil)
	c.list("parents", len(i.Parents), i.Parents == nil)
	c.list("disks", len(i.Disks), i.Disks == nil)
	c.texts(i.Format, i.Subformat)
	if u := i.Unpacked; u != nil {
		c.texts(u.File, u.Kind, u.Member)
		c.numbers(u.Stored, u.Size)
	}
	c.texts(i.Parents...)
	c.findings(i.Findings)
	c.error(i.Error)
	c.texts(i.FileSystem, i.Path, i.PathBytes)
	if i.Reuse != nil {
		c.texts(i.Reuse.Settings, i.Reuse.Beside)
	}
	if i.Accepted != nil {
		c.texts(i.Accepted.Reason, i.Accepted.Until)
	}
	if err := i.Labels.Check(); err != nil {
		c.errs = append(c.errs, err)
	}
	c.numbers(i.Size, i.Stored, i.Read)
	for _, f := range i.Files {
		c.file(f)
	}
	for n := range i.Disks {
		c.disk(&i.Disks[n])
	}
	return errors.Join(c.errs...)
}

// checkState requires what readers of a row rely on: a judged one has a format and no error, and all of its disks that
// could be read have a verdict.
func (i *Image) checkState() error {
	switch i.State {
	case Failed, Orphan, Packed, Original:
		if (i.State == Failed) != (i.Error != nil) {
			return fmt.Errorf("a row that is %s, and an error: %t", i.State, i.Error != nil)
		}
		return nil
	case Judged:
		if i.Error != nil || i.Format == "" {
			return fmt.Errorf("a row that is judged, with format %.32q and an error: %t", i.Format, i.Error != nil)
		}
	default:
		return fmt.Errorf("a row that is %.32q, want %s, %s, %s, %s or %s", i.State, Judged, Failed, Orphan, Packed,
			Original)
	}
	for _, d := range i.Disks {
		if d.Verdict == "" && d.Error == nil {
			return errors.New("a disk with neither verdict nor error")
		}
	}
	return nil
}

// checker collects the first few problems.
type checker struct{ errs []error }

const maxWrong = 4

func (c *checker) wrong(format string, args ...any) {
	if len(c.errs) < maxWrong {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

func (c *checker) list(what string, n int, absent bool) {
	if absent || n > maxItems {
		c.wrong("list of %s: %d of them, absent: %t, want at most %d", what, n, absent, maxItems)
	}
}

func (c *checker) texts(texts ...string) {
	for _, s := range texts {
		if len(s) > maxText {
			c.wrong("a text of %d bytes, want at most %d", len(s), maxText)
		}
	}
}

func (c *checker) numbers(numbers ...int64) {
	for _, n := range numbers {
		if n < 0 {
			c.wrong("the number %d, want 0 or more", n)
		}
	}
}

// file requires a name in the folder of the image, since a later scan compares the files that it names, or the path of
// a file elsewhere, which is not looked at.
func (c *checker) file(f File) {
	if f.Name == "" || f.Name == "." || f.Name == ".." || strings.Contains(f.Name, "\x00") ||
		strings.Contains(f.Name, "/") && !path.IsAbs(f.Name) {
		c.wrong("the file %.64q, want a name in the folder of the image", f.Name)
	}
	c.texts(f.Name)
	c.numbers(f.Size, f.Allocated)
}

// errorCodes are those that an error of an image can have, as docs/schema/common.json lists them.
var errorCodes = []string{
	"format", "unsupported", "reference", "limit", "busy", "changed", "io", "output", "verify", "internal", "usage",
	"unfinished",
}

// CheckError is Check for an error that comes alone.
func CheckError(e *report.Error) error {
	c := checker{}
	c.error(e)
	return errors.Join(c.errs...)
}

func (c *checker) error(e *report.Error) {
	if e == nil {
		return
	}
	if !slices.Contains(errorCodes, e.Code) {
		c.wrong("the error code %.32q, want one of %s", e.Code, strings.Join(errorCodes, ", "))
	}
	c.texts(e.Message)
}

func (c *checker) verdict(v align.Verdict) {
	all := []align.Verdict{"", align.NothingToJudge, align.Aligned, align.BelowBoundary, align.Misaligned}
	if !slices.Contains(all, v) {
		c.wrong("the verdict %.32q", v)
	}
}

// content requires that a disk has a verdict or the reason for none.
func (c *checker) content(d *Disk) {
	if (d.Verdict == align.NothingToJudge) != (d.Content != "") ||
		d.Content != "" && !slices.Contains(align.Contents, d.Content) {
		c.wrong("the content %.32q with the verdict %.32q", d.Content, d.Verdict)
	}
}

func (c *checker) findings(fs []align.Finding) {
	c.list("findings", len(fs), fs == nil)
	for _, f := range fs {
		if !slices.Contains([]align.Severity{align.Info, align.Warning, align.Error}, f.Severity) {
			c.wrong("the severity %.32q", f.Severity)
		}
		c.texts(f.Code, f.Subject, f.Text, f.Remedy)
	}
}

func (c *checker) disk(d *Disk) {
	c.list("partitions", len(d.Partitions), d.Partitions == nil)
	c.list("steps of a boot", len(d.Chain), d.Chain == nil)
	c.verdict(d.Verdict)
	c.content(d)
	c.error(d.Error)
	c.error(d.Unplanned)
	c.findings(d.Findings)
	c.numbers(d.Size)
	c.texts(d.Member, d.Table.Scheme, d.Table.Signature, d.Table.GUID, d.Boot.Name, d.Boot.Text)
	known := d.Depth == Survey || d.Depth == Full || d.Depth == Head && d.Fix == nil && d.Advice == nil
	if !known {
		c.wrong("the depth %.32q", d.Depth)
	}
	if err := align.CheckBoundary(d.Boundary); err != nil {
		c.wrong("%w", err)
	}
	for _, l := range d.Chain {
		c.texts(l.Text)
	}
	for _, u := range d.Unseen {
		c.texts(u.What, u.Why)
	}
	c.guest(d)
	c.volume(d.Volume)
	for n := range d.Partitions {
		c.partition(&d.Partitions[n])
	}
	c.remedy(d)
}

// guest requires the state of a machine whose disk was looked into. Rows of versions that did not look for it are read
// anew.
func (c *checker) guest(d *Disk) {
	if d.Guest == nil {
		if d.Depth == Full && d.Error == nil {
			c.wrong("a disk of depth %s without the state of its machine", Full)
		}
		return
	}
	states := []boot.State{d.Guest.State}
	c.list("signs", len(d.Guest.Signs), d.Guest.Signs == nil)
	for _, s := range d.Guest.Signs {
		states = append(states, s.State)
		c.texts(s.Text, s.OnMove)
	}
	for _, s := range states {
		if guestTags[s] == "" {
			c.wrong("the state %.32q of a machine", s)
		}
	}
}

func (c *checker) partition(p *report.Partition) {
	c.verdict(p.Verdict)
	c.numbers(int64(p.Number), p.StartLBA, p.Start, p.Size, p.Alignment)
	c.texts(p.Kind, p.Type, p.TypeName, p.Name, p.GUID)
	c.volume(p.Volume)
}

func (c *checker) volume(v *report.Volume) {
	if v == nil {
		return
	}
	c.numbers(v.Size, v.Cluster)
	c.list("parts", len(v.Parts), false)
	c.texts(v.Kind, v.Label, v.UUID)
	for name, value := range v.Details {
		c.texts(name, value)
	}
}

// remedy checks the fields of a disk about an aligned copy.
func (c *checker) remedy(d *Disk) {
	if a := d.Advice; a != nil {
		c.list("findings", len(a.Unmended), a.Unmended == nil)
		c.texts(string(a.Action), string(a.Gain), string(a.Role), a.Text)
	}
	if f := d.Fix; f != nil {
		c.list("moves", len(f.Moves), f.Moves == nil)
		c.findings(f.Refusals)
		c.numbers(f.Boundary, f.OldSize, f.NewSize, f.NewSize-f.OldSize)
		for _, m := range f.Moves {
			c.numbers(int64(m.Partition), m.From, m.To, m.Size)
		}
	}
	if k := d.Cost; k != nil {
		c.numbers(k.Block, int64(k.Partition))
		c.texts(k.Storage, k.Text)
	}
}

// MostItems bounds the partitions, moves, findings and steps of a boot in a row, of each on all disks together: a GPT
// may have 16,384 partitions, of which the worst are enough.
const MostItems = 1024

// leftOut is the code of the finding about it.
const leftOut = "details-left-out"

// Items returns how many parts a row has that Trim can leave out, at about a kilobyte of memory each.
func (i *Image) Items() (n int) {
	n = len(i.Findings)
	for _, d := range i.Disks {
		n += len(d.Partitions) + len(d.Findings) + len(d.Chain)
		if d.Guest != nil {
			n += len(d.Guest.Signs)
		}
		if d.Fix != nil {
			n += len(d.Fix.Moves) + len(d.Fix.Refusals)
		}
	}
	return n
}

// Trim leaves out the parts of a row beyond so many of each kind, the best partitions first, with a finding. Verdicts,
// costs and the fix stay.
func (i *Image) Trim(most int) {
	before := i.Items()
	left := [5]int{most, most, most, most, most}
	cut := func(kind, n int) int {
		n = min(n, left[kind])
		left[kind] -= n
		return n
	}
	i.Findings = slices.DeleteFunc(slices.Clone(i.Findings), func(f align.Finding) bool { return f.Code == leftOut })
	i.Findings = slices.Clone(i.Findings[:cut(0, len(i.Findings))])
	for k := range i.Disks {
		d := &i.Disks[k]
		d.Partitions = worst(d.Partitions, cut(1, len(d.Partitions)))
		d.Findings = slices.Clone(d.Findings[:cut(0, len(d.Findings))])
		d.Chain = slices.Clone(d.Chain[:cut(2, len(d.Chain))])
		if g := d.Guest; g != nil {
			slices.SortStableFunc(g.Signs, func(a, b report.Sign) int { return b.State.Gravity() - a.State.Gravity() })
			g.Signs = slices.Clone(g.Signs[:cut(4, len(g.Signs))])
		}
		if d.Fix != nil {
			d.Fix.Moves = slices.Clone(d.Fix.Moves[:cut(3, len(d.Fix.Moves))])
			// at least one stays: none would mean that it can be made
			d.Fix.Refusals = slices.Clone(d.Fix.Refusals[:max(cut(0, len(d.Fix.Refusals)),
				min(1, len(d.Fix.Refusals)))])
		}
	}
	if after := i.Items(); after < before {
		i.Findings = append(i.Findings, align.Finding{
			Code: leftOut, Severity: align.Info, Text: "the row has not all partitions and findings: " +
				"there are too many",
			Remedy: "see them with trueup inspect",
		})
	}
}

// worst returns n partitions, in their order: those off the boundary before the others.
func worst(all []report.Partition, n int) []report.Partition {
	out := slices.Clone(all)
	if n == len(all) {
		return out
	}
	slices.SortStableFunc(out, func(a, b report.Partition) int { return badness(b.Verdict) - badness(a.Verdict) })
	out = slices.Clone(out[:n])
	slices.SortFunc(out, func(a, b report.Partition) int { return a.Number - b.Number })
	return out
}

func badness(v align.Verdict) int {
	return slices.Index([]align.Verdict{align.NothingToJudge, align.Aligned, align.BelowBoundary, align.Misaligned}, v)
}

// Digest returns a hash of the facts of a result that matter to users. Results with the same digest are the same:
// state, verdict, format, sizes, the class of the error, each file (name, size, inode, time of the last write), and
// each disk with the places, kinds, contents and verdicts of its partitions. Findings, plans, costs and texts are not
// in it, since a new version words them anew. A name counts as JSON has it, which replaces the bytes that are no UTF-8.
func Digest(i *Image) []byte {
	h := sha256.New()
	text := func(name string) string { return string([]rune(name)) }
	fmt.Fprintf(h, "%q %q %q %q %q %d %q %q\n", i.State, i.Verdict, i.Content, i.Format, i.Subformat, i.Size,
		orZero(i.Error).Code, i.Parents)
	for _, f := range i.Files {
		fmt.Fprintf(h, "file %q %d %d %d\n", text(f.Name), f.Size, f.Inode, f.Modified)
	}
	for _, d := range i.Disks {
		fmt.Fprintf(h, "disk %q %d %q %q %q %q\n", text(d.Member), d.Size, d.Table.Scheme, d.Verdict, d.Content,
			orZero(d.Error).Code)
		for _, p := range d.Partitions {
			v := orZero(p.Volume)
			fmt.Fprintf(h, "%d %q %q %d %d %q %q %q\n", p.Number, p.Kind, p.Type, p.Start, p.Size, v.Kind,
				text(v.Label), p.Verdict)
		}
	}
	return h.Sum(nil)
}
