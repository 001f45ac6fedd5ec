package plan

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
)

// Starts returns the starts of moved partitions in the result, by partition number.
func (p *Plan) Starts() map[int]int64 {
	to := map[int]int64{}
	for _, m := range p.Moves {
		to[m.Partition] = m.To
	}
	return to
}

// Join updates references to other disks of the machine to follow their moves. A reference to a place with no
// partition, or with several, stays as found. Join is called once, at the end.
func (p *Plan) Join(l *layout.Layout, m *layout.Machine) {
	p.machine = m
	p.Notes = slices.DeleteFunc(p.Notes,
		func(f align.Finding) bool { return f.Code == layout.NamesOthers || f.Code == layout.KnownElsewhere })
	p.Notes = append(p.Notes, align.Relevant(layout.Elsewhere(l.Issues), p.moved())...)
	p.warnDangling(l)
	said := map[string]bool{}
	for _, r := range l.Boot.Refs {
		i, wrong := p.stale(r)
		if wrong && !said[i.Text] && len(said) < maxStale {
			said[i.Text] = true
			p.Notes = append(p.Notes, align.FromIssue(i))
		}
	}
	p.rewrite(l, func(r Reference) bool {
		p.Renames = p.Renames || r.Disk != 0
		return r.Disk != 0
	})
	p.sortPatches()
}

// warnDangling warns of references to places on other disks where no partition starts: stale drive letters, or a disk
// that was aligned without this one.
func (p *Plan) warnDangling(l *layout.Layout) {
	var first boot.Ref
	count := 0
	for _, r := range l.Boot.Refs {
		if _, ok := p.machine.To(r.Names()); r.Disk == 0 || ok || p.machine.Disks(r.Disk) != 1 ||
			p.machine.Taken(r.Names()) {
			continue
		}
		if count++; count == 1 {
			first = r
		}
	}
	if count == 0 {
		return
	}
	more := ""
	if count > 1 {
		more = fmt.Sprintf(" (and %d more)", count-1)
	}
	p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
		Code: "no-partition-there", Effect: ondisk.Warn, Partition: first.Partition,
		Text: fmt.Sprintf("%s points to byte %d of disk 0x%08x, where no partition starts%s: it is not changed",
			first.Name(), first.Points, first.Disk, more),
		Remedy: "if that disk has been aligned already, give its original with --with; an entry of a removed " +
			"partition is harmless",
	}))
}

// maxStale limits the reports of references to other disks that cannot follow.
const maxStale = 16

// elsewhere returns the target of a reference to another disk in the result. known reports whether the machine has that
// partition, so that the reference follows it.
func (p *Plan) elsewhere(r boot.Ref) (to int64, known bool) {
	if p.machine != nil && r.Encode != nil {
		to, known = p.machine.To(r.Names())
	}
	if !known {
		to = r.Points
	}
	return to, known
}

// stale reports a reference to a disk of the machine that is or may be wrong in the result.
func (p *Plan) stale(r boot.Ref) (i ondisk.Issue, wrong bool) {
	m := p.machine
	if r.Disk == 0 || m.Disks(r.Disk) == 0 {
		return i, false
	}
	i = ondisk.Issue{Code: "other-disk", Effect: ondisk.Warn, Partition: r.Partition, Remedy: r.Remedy}
	to, one := m.To(r.Names())
	switch {
	case m.Disks(r.Disk) > 1 && m.Moves(r.Disk):
		i.Text = fmt.Sprintf("%s points to disk 0x%08x, and %d disks of the machine have that signature: it is not "+
			"changed",
			r.Name(), r.Disk, m.Disks(r.Disk))
		i.Remedy = "change the signatures in the guest first, or align the disks of the machine one by one"
	case one && to != r.Points && r.Encode == nil:
		i.Text = fmt.Sprintf("%s points to byte %d of disk 0x%08x, the old start of a moved partition, and cannot be "+
			"changed: %s",
			r.Name(), r.Points, r.Disk, r.Stays)
		if i.Remedy = shutDown; r.Loss == "" {
			i.Effect = ondisk.Unbootable
		}
	case !one && m.Taken(r.Names()):
		i.Text = fmt.Sprintf("%s points to byte %d of disk 0x%08x, where no partition starts now but one would after "+
			"the move", r.Name(), r.Points, r.Disk)
		i.Remedy = "remove the stale entry in the guest first, or choose another --boundary"
	default:
		return i, false
	}
	return i, true
}

const shutDown = "shut Windows down cleanly, without fast startup, and copy again"
