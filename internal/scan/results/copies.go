package results

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/shell"
)

// Copies finds the images off the boundary that seem to have their aligned copy beside them: another one would be
// refused, since its name is taken. A copy has the name that Priority.Command gives it, the same disk identifiers and
// partitions, of which none is off, and was written after SOURCE was. Only verify proves every byte.
type Copies struct {
	due     map[string]due  // by the path of the copy
	aligned map[string]pair // images that may be copies, by path
}

// pair is compared between an image and its copy.
type pair struct {
	disks   string
	size    int64
	written int64 // SOURCE: last, copy: first; nanoseconds since 1970
}

// due is a copy that an image asks for.
type due struct {
	pair
	copies, grows int64 // bytes, as in FixSum
}

// NewCopies returns an empty Copies.
func NewCopies() *Copies { return &Copies{due: map[string]due{}, aligned: map[string]pair{}} }

// Add takes a row, in any order.
func (c *Copies) Add(i *Image) {
	switch {
	case i.State != Judged || i.Accepted != nil:
	case i.Verdict == align.Aligned:
		if p := i.ExactPath(); strings.Contains(path.Base(p), report.CopyMark) {
			first, _ := i.written()
			c.aligned[p] = pair{i.disks(), i.Size, first}
		}
	case i.Priority != nil && fixCell(i) == "yes":
		if disks := i.disks(); disks != "" {
			_, last := i.written()
			c.due[i.alignedName()] = due{pair{disks, i.Size, last}, i.copies(), i.Grows()}
		}
	}
}

// has reports whether the copy that an image asks for is there.
func (c *Copies) has(dest string, d due) bool {
	x, ok := c.aligned[dest]
	return ok && x.disks == d.disks && x.size >= d.size && x.written >= d.written
}

// Wants reports whether an image that was added may be the copy that i asks for.
func (c *Copies) Wants(i *Image) bool {
	_, ok := c.aligned[i.alignedName()]
	return ok && i.Priority != nil
}

// Settle takes the images with a copy out of the work that is left.
func (c *Copies) Settle(s *Summary) {
	for dest, d := range c.due {
		if !c.has(dest, d) {
			continue
		}
		s.Copied++
		s.Fix.Images--
		s.Fix.Copies -= d.copies
		s.Fix.Grows -= d.grows
	}
}

// Mark notes the copy of an image that is shown, if it has one.
func (c *Copies) Mark(i *Image) {
	if i.Priority == nil || i.Accepted != nil || fixCell(i) != "yes" {
		return
	}
	if d, ok := c.due[i.alignedName()]; ok && d.disks == i.disks() && c.has(i.alignedName(), d) {
		i.Copied = i.alignedName()
	}
}

// disks identifies the disks of an image by the facts that a copy keeps; empty if they have no identifiers.
func (i *Image) disks() string {
	var b strings.Builder
	for _, d := range i.Disks {
		if d.Table.GUID == "" && strings.Trim(d.Table.Signature, "0x") == "" {
			return ""
		}
		fmt.Fprintf(&b, "%q %s %s %s\n", d.Member, d.Table.Scheme, d.Table.Signature, d.Table.GUID)
		for _, p := range d.Partitions {
			if p.Kind != "extended" { // it can grow
				fmt.Fprintln(&b, p.Number, p.Type, p.Size)
			}
		}
	}
	return b.String()
}

// written returns when the first and the last file of an image were written, in nanoseconds since 1970.
func (i *Image) written() (first, last int64) {
	for n, f := range i.Files {
		if n == 0 {
			first = f.Modified
		}
		first, last = min(first, f.Modified), max(last, f.Modified)
	}
	return first, last
}

// copiedText returns the place of the copy, and the command that proves it.
func (i *Image) copiedText() string {
	return "copy: " + i.Copied + " (aligned); to prove it: trueup verify " + shell.Quote(i.ExactPath()) + " " +
		shell.Quote(i.Copied)
}

// codeWritten is the code of a kept original that was written since.
const codeWritten = "original-written"

// originalText returns which disk a kept original belongs to; empty for any other image.
func (i *Image) originalText() string {
	at := slices.IndexFunc(i.Findings, func(f align.Finding) bool {
		return f.Code == string(Original) || f.Code == codeWritten
	})
	if at < 0 {
		return ""
	}
	return i.Findings[at].Text
}

// command returns the command that makes the copy, empty if none is to be made.
func (i *Image) command() string {
	if i.Priority == nil || i.Copied != "" {
		return ""
	}
	return i.Priority.Command
}

// toDo reports whether the image is to be realigned.
func (i *Image) toDo() bool {
	return i.Priority != nil && i.Priority.Class != classStays && i.Accepted == nil && i.Copied == ""
}
