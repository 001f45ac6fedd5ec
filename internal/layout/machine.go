package layout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Machine relates the disks of one machine. Windows names the partitions of an MBR disk by the signature of the disk
// and the byte offset of their start, even on another disk. The zero value has no disks.
type Machine struct {
	disks   map[uint32]int       // number of disks with a signature
	moves   map[uint32]bool      // by signature: a partition will move
	to      map[boot.Place]int64 // new start of the partition at a place
	taken   map[boot.Place]bool  // a partition will move to this place
	windows bool                 // one of the disks holds a Windows
}

// Add adds a disk to the machine. to maps partition numbers to their new starts; other partitions stay.
func (m *Machine) Add(l *Layout, to map[int]int64) {
	m.windows = m.windows || l.Boot.Windows
	s := l.Signature()
	if s == 0 {
		return
	}
	m.init()
	m.disks[s]++
	for _, p := range l.Partitions {
		if p.Kind == table.Extended {
			continue
		}
		off, ok := to[p.Number]
		if !ok {
			off = p.Off
		}
		m.to[boot.Place{Disk: s, Off: p.Off}] = off
		if off != p.Off {
			m.moves[s], m.taken[boot.Place{Disk: s, Off: off}] = true, true
		}
	}
}

// Follow adds a partition of an unavailable disk, with its start and its new start.
func (m *Machine) Follow(at boot.Place, to int64) {
	m.init()
	m.disks[at.Disk], m.to[at] = 1, to
}

func (m *Machine) init() {
	if m.disks == nil {
		m.disks, m.moves, m.to, m.taken = map[uint32]int{}, map[uint32]bool{}, map[boot.Place]int64{},
			map[boot.Place]bool{}
	}
}

// Disks returns the number of the machine's disks with a signature.
func (m *Machine) Disks(signature uint32) int { return m.disks[signature] }

// To returns the new start of the partition at a place. ok is false without such a partition, and for an ambiguous
// signature.
func (m *Machine) To(at boot.Place) (off int64, ok bool) {
	if m.disks[at.Disk] != 1 {
		return 0, false
	}
	off, ok = m.to[at]
	return off, ok
}

// Moves reports whether a partition on a disk with this signature will move.
func (m *Machine) Moves(signature uint32) bool { return m.moves[signature] }

// Taken reports whether a partition will start at a place where none starts now.
func (m *Machine) Taken(at boot.Place) bool {
	_, now := m.to[at]
	return m.taken[at] && !now
}

// Signature returns the signature by which Windows identifies the disk, or 0 if it uses another identifier.
func (l *Layout) Signature() uint32 {
	if l.Table == nil || l.Table.Scheme != table.MBR && !l.Table.IsHybrid() {
		return 0
	}
	return l.Table.Signature
}

// Codes of the issues caused by the other disks of a machine.
const (
	NamesOthers    = "names-other-disks"
	KnownElsewhere = "known-elsewhere"
)

// Elsewhere returns the issues caused by the other disks of a machine.
func Elsewhere(issues []ondisk.Issue) []ondisk.Issue {
	return slices.DeleteFunc(slices.Clone(issues), func(i ondisk.Issue) bool { return !isElsewhere(i) })
}

func isElsewhere(i ondisk.Issue) bool { return i.Code == NamesOthers || i.Code == KnownElsewhere }

// Relate compares a disk with the other disks of its machine, and replaces the issues of an earlier comparison.
func (l *Layout) Relate(m *Machine) {
	l.Issues = slices.DeleteFunc(l.Issues, isElsewhere)
	l.namesOthers(m)
	l.knownElsewhere(m)
}

// maxNamed limits the places on other disks that one issue lists.
const maxNamed = 4

// namesOthers warns of references to unavailable disks: they become stale when those disks are aligned.
func (l *Layout) namesOthers(m *Machine) {
	var named []boot.Place
	first := "Windows"
	for _, r := range l.Boot.Refs {
		if r.Disk == 0 || m.Disks(r.Disk) > 0 || slices.Contains(named, r.Names()) {
			continue
		}
		if named = append(named, r.Names()); len(named) == 1 {
			first = r.Holder()
		}
	}
	if len(named) == 0 && l.Boot.Unlisted == 0 {
		return
	}
	var text []string
	for _, at := range named[:min(len(named), maxNamed)] {
		text = append(text, fmt.Sprintf("disk 0x%08x at byte %d", at.Disk, at.Off))
	}
	if more := len(named) - len(text) + l.Boot.Unlisted; more > 0 {
		text = append(text, fmt.Sprintf("and %d more", more))
	}
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: NamesOthers, Effect: ondisk.Warn, OnMove: true,
		Text: fmt.Sprintf("%s refers to partitions of other disks by signature and byte offset (%s), and does not "+
			"find them once they are aligned",
			first, strings.Join(text, ", ")),
		Remedy: "align the disks of the machine together, each with --with for the others, or in one package",
	})
}

// knownElsewhere warns of a data disk whose partitions a Windows on another disk may identify by their places.
func (l *Layout) knownElsewhere(m *Machine) {
	if l.Signature() == 0 || m.windows || l.Boot.Windows || l.starts() {
		return
	}
	number, count := 0, 0
	for _, p := range l.Partitions {
		if identify.Traits(p.Volume.Kind).Letter {
			number, count = p.Number, count+1
		}
	}
	if count == 0 {
		return
	}
	if count > 1 {
		number = 0
	}
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: KnownElsewhere, Effect: ondisk.Warn, OnMove: true, Partition: number,
		Text: fmt.Sprintf("if Windows starts from another disk of this machine, it may assign new drive letters to "+
			"this disk after a move: it stores letters by disk signature 0x%08x and byte offset", l.Signature()),
		Remedy: "align the disks of the machine together, each with --with for the others; or assign the old letters " +
			"after the first boot",
	})
}

// starts reports whether a BIOS may boot the disk.
func (l *Layout) starts() bool {
	c := l.Boot.Code
	return c.AnyFlag || c != boot.Empty &&
		slices.ContainsFunc(l.Partitions, func(p boot.Partition) bool { return p.Active })
}
