package results

import (
	"cmp"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/shell"
)

// Priority is the urgency of realigning an image. Classes begin at 1, the most urgent.
type Priority struct {
	Class   int     `json:"class"`
	Cost    float64 `json:"cost_percent"`   // of the most expensive start; a higher cost comes first in a class
	Rank    int     `json:"rank,omitempty"` // among all images of the run, from 1; set by Numbers
	Reason  string  `json:"reason"`
	Command string  `json:"command,omitempty"` // that makes the copy, if one is proposed
}

// Weights of a class: the missed boundary counts most, then the role of the disk, then whether a copy can be made.
const (
	classRefused = 1
	classUnsure  = classRefused * 2 // unknown whether a system boots from the disk
	classBoot    = classRefused * 4
	classBelow   = classRefused * 6 // on 4 KiB, off the boundary

	// classStays comes after all other classes: a move would make the data worse, so no copy is proposed.
	classStays = 1 + classBelow + classBoot + classRefused + 1
)

// Assess computes verdict and priority of an image from its disks. flags are the command-line flags that a copy would
// need.
func (i *Image) Assess(flags []string) {
	i.Verdict, i.Content, i.Priority = "", "", nil
	if i.State != Judged {
		return
	}
	i.assessVerdict()
	if !i.Verdict.Off() || i.ByHead() {
		return
	}
	if i.stays() {
		i.Priority = &Priority{Class: classStays, Reason: "a partition is off the boundary, and I/O would touch more " +
			"blocks of the storage after a move: the image stays as it is"}
		return
	}
	p := Priority{Class: 1, Command: report.AlignCommand(i.ExactPath(), i.Format, flags)}
	i.exchange = shell.Command("replace", flags, i.ExactPath())
	if i.packed() {
		p.Command = report.AlignPackageCommand(i.ExactPath(), flags)
	}
	why := []string{"a partition starts off a 4 KiB boundary"}
	if i.Verdict == align.BelowBoundary {
		p.Class, why[0] = p.Class+classBelow, "a partition is on 4 KiB, but off "+i.boundary().String()
	}
	role := i.role()
	switch role {
	case align.BootDisk:
		p.Class += classBoot
		why = append(why, "a system boots from the disk")
	case align.DataDisk:
		why = append(why, "no system boots from the disk")
	default:
		p.Class += classUnsure
		why = append(why, "whether a system boots from the disk is not known")
	}
	if refused := i.Refusals(); len(refused) > 0 {
		p.Class += classRefused
		why = append(why, "a copy is refused: "+refused[0].Text)
	} else if i.hindered() {
		p.Class += classRefused
		why = append(why, "no plan could be made")
	} else {
		why = append(why, "a copy can be made")
	}
	if c := i.highestCost(); c != nil {
		p.Cost = c.More
		if c.Text != "" {
			why = append(why, c.Text)
		}
	}
	p.Reason = strings.Join(why, "; ")
	i.Priority = &p
}

// stays reports whether a copy would make the data of all disks off the boundary worse.
func (i *Image) stays() bool {
	off := false
	for _, d := range i.Disks {
		if !d.Verdict.Off() {
			continue
		}
		if off = true; d.Advice == nil || d.Advice.Gainful() {
			return false
		}
	}
	return off
}

// BoundaryFlags returns the flags of trueup align for the boundary of a scan.
func BoundaryFlags(boundary align.Boundary) []string {
	if boundary == align.DefaultBoundary {
		return nil
	}
	return []string{"--boundary", boundary.String()}
}

// assessVerdict combines the verdicts of the disks.
func (i *Image) assessVerdict() {
	i.Verdict = align.NothingToJudge
	if len(i.Disks) == 0 {
		i.Content = align.NoDisks
	}
	for _, d := range i.Disks {
		i.Verdict = i.Verdict.Worse(d.Verdict)
		i.Content = i.Content.Vaguer(d.Content)
	}
	if i.Verdict != align.NothingToJudge {
		i.Content = ""
	}
}

// packed reports whether the image is a package. A copy of a package contains all disks.
func (i *Image) packed() bool { return i.Format == "ova" || i.Format == "ovf" }

func (i *Image) boundary() align.Boundary {
	for _, d := range i.Disks {
		if d.Verdict.Off() {
			return d.Boundary
		}
	}
	return align.DefaultBoundary
}

// role returns the role of the disks off the boundary. A boot disk among them decides.
func (i *Image) role() align.Role {
	role := align.DataDisk
	for _, d := range i.Disks {
		switch {
		case !d.Verdict.Off():
		case d.Advice == nil || d.Advice.Role == align.UnknownRole:
			role = align.UnknownRole
		case d.Advice.Role == align.BootDisk:
			return align.BootDisk
		}
	}
	return role
}

// highestCost returns the highest cost of the disks.
func (i *Image) highestCost() (out *Cost) {
	for _, d := range i.Disks {
		if d.Cost != nil && (out == nil || d.Cost.More > out.More) {
			out = d.Cost
		}
	}
	return out
}

// Compare sorts images by urgency: images to realign by priority, failed ones, images that stay off the boundary,
// unknown and packed ones, orphans, aligned ones, and images with nothing to judge or to do. Equal images are sorted by
// path.
func Compare(a, b *Image) int {
	return cmp.Or(a.Order().Compare(b.Order()), strings.Compare(a.Path, b.Path))
}

// Order is the sort key of an image in a report, before its path: group, class, higher cost, more stored bytes.
type Order struct {
	group, class int8
	cost         float64
	stored       int64
}

// Order returns the sort key of the image.
func (i *Image) Order() Order {
	p := orZero(i.Priority)
	return Order{int8(i.group()), int8(p.Class), p.Cost, i.Stored} //nolint:gosec // below 20
}

// Compare compares sort keys.
func (o Order) Compare(other Order) int {
	return cmp.Or(cmp.Compare(o.group, other.group), cmp.Compare(o.class, other.class), cmp.Compare(other.cost, o.cost),
		cmp.Compare(other.stored, o.stored))
}

// group returns the position of the image's group. Accepted images come last.
func (i *Image) group() int {
	n := map[State]int{Judged: 0, Failed: 1, Packed: 3, Orphan: 4, Original: 6, Gone: 7}[i.State]
	switch {
	case i.Copied != "":
		n = 5
	case i.State != Judged:
	case i.Priority != nil && i.Priority.Class == classStays:
		n = 2
	case i.Priority != nil:
	case i.unknown():
		n = 3
	case i.Verdict == align.NothingToJudge:
		n = 6
	default:
		n = 5
	}
	if i.Accepted != nil {
		n += 10
	}
	return n
}

// Rank sorts images worst first and numbers the images to realign. Accepted images and images with a copy have no rank.
func Rank(images []*Image) {
	slices.SortStableFunc(images, Compare)
	number := Numbers()
	for _, i := range images {
		number(i)
	}
}

// Numbers returns a function that numbers the images with work to do. The caller passes all images, worst first.
func Numbers() func(*Image) {
	n := 0
	return func(i *Image) {
		if i.Priority == nil {
			return
		}
		if i.Priority.Rank = 0; i.toDo() {
			n++
			i.Priority.Rank = n
		}
	}
}

// CopyName returns the path for the aligned copy, or an empty string if no copy can be made or is needed.
func (i *Image) CopyName() string {
	switch {
	case i.Priority == nil || i.Priority.Class == classStays || i.hindered():
		return ""
	case i.packed():
		return report.PackageCopyName(i.ExactPath())
	}
	return report.CopyName(i.ExactPath())
}

// copiedText returns the place of the copy and the command that proves it. Only the name and the time of the copy are
// known.
func (i *Image) copiedText() string {
	return "copy: " + i.Copied + "; to prove it: " + shell.Command("verify", nil, i.ExactPath(), i.Copied)
}

// codeWritten is the code of a kept original that was modified after the exchange.
const codeWritten = "original-written"

// originalText returns the text about the disk of a kept original, or an empty string for any other image.
func (i *Image) originalText() string {
	at := slices.IndexFunc(i.Findings, func(f align.Finding) bool {
		return f.Code == string(Original) || f.Code == codeWritten
	})
	if at < 0 {
		return ""
	}
	return i.Findings[at].Text
}

// command returns the command that makes the copy, or an empty string if no copy is needed.
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
