package layout

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
	"github.com/trueup/trueup/internal/volume/stack"
)

// Dynamic is a dynamic disk of Windows whose volumes can be moved: all by one distance, for the database counts their
// extents from one start. The database stays. Offsets are bytes of the disk.
type Dynamic struct {
	Members  []int      // numbers of the partitions that move together, in the order of the disk
	Span     disk.Range // what moves as one: the space of the volumes and the partitions over it
	Database disk.Range // no partition may be put over it
	Metadata int        // number of the partition with the database; 0: it lies behind the partitions of an MBR
	Extents  []stack.LDMExtent

	heads []stack.LDMHead
	start int64 // that the private headers name
	ofXP  bool  // Windows may pass over that start
}

// Has reports whether a partition moves together with others.
func (x *Dynamic) Has(number int) bool { return x != nil && slices.Contains(x.Members, number) }

// Off returns the extents that are off a boundary when the volumes move by shift bytes.
func (x *Dynamic) Off(shift, boundary int64) (off []stack.LDMExtent) {
	for _, e := range x.Extents {
		if (e.Off+shift)%boundary != 0 {
			off = append(off, e)
		}
	}
	return off
}

// Anchor returns the byte of the span that has to be on a boundary so that most extents are. What is aligned needs a
// majority against it to move.
func (x *Dynamic) Anchor(boundary int64) (anchor int64) {
	alike := map[int64]int{}
	for _, e := range x.Extents {
		alike[e.Off%boundary]++
	}
	most := alike[0]
	if most > 0 {
		anchor = units.AlignUp(x.Span.Off, boundary) - x.Span.Off
	}
	for _, e := range x.Extents {
		if n := alike[e.Off%boundary]; n > most {
			anchor, most = e.Off-x.Span.Off, n
		}
	}
	return anchor
}

// database returns the place of the database of a dynamic disk that can be moved.
func (l *Layout) database() disk.Range {
	if l.Dynamic == nil {
		return disk.Range{}
	}
	return l.Dynamic.Database
}

// readDynamic reads the database of a dynamic disk, and lists in each of its partitions the parts of volumes that lie
// in it.
func (l *Layout) readDynamic(d disk.Disk) error {
	var heads []int64
	for _, p := range l.Partitions {
		switch member, database := p.Dynamic(); {
		case database:
			// The last sector, and the copy of it. Source: libldm, src/ldm.c; Linux, block/partitions/ldm.h.
			heads = append(heads, p.End()-d.SectorSize(), p.Off+1856*d.SectorSize())
		case member && p.Kind != table.Entry && heads == nil:
			heads = stack.LDMHeads(d.Size(), d.SectorSize())
		}
	}
	x, err := stack.ReadLDM(d, heads)
	switch {
	case errors.Is(err, ondisk.ErrNoMatch):
		return nil
	case errors.Is(err, ondisk.ErrFormat):
		l.unmovable = err
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: "ldm-database", Effect: ondisk.Warn, Text: "the database of the dynamic disk cannot be read: " +
				err.Error(), Remedy: "let Windows repair the disk group: import it, or rescan the disks",
		})
		return nil
	case err != nil:
		return err
	}
	left := x.Extents
	for _, p := range l.Partitions {
		if !p.InDynamic() {
			continue
		}
		if p.Volume.Kind == volume.Unknown {
			p.Volume.Kind, p.Volume.Size = volume.LDM, p.Len
		}
		left = l.describe(p, left)
	}
	return l.group(d, x)
}

// describe lists in a member the extents that lie in it, and returns the others: an extent belongs to one partition.
// Where no whole volume starts with the member, its file system may be too large or malformed: a striped, spanned or
// RAID-5 volume goes on elsewhere.
func (l *Layout) describe(p boot.Partition, extents []stack.LDMExtent) (left []stack.LDMExtent) {
	whole := false
	for _, x := range extents {
		if x.Off < p.Off || x.End() > p.End() {
			left = append(left, x)
			continue
		}
		kind := stack.LDMPiece
		if x.Whole {
			kind = "volume"
		}
		p.Volume.Parts = append(p.Volume.Parts, volume.Part{
			Name: x.Name, Kind: kind, Start: x.Off - p.Off,
			Size: x.Len,
		})
		whole = whole || x.Whole && x.Off == p.Off
	}
	if !whole && len(p.Volume.Parts) > 0 {
		// What a piece begins with is no volume to read: its other bytes lie elsewhere, or under a parity.
		*p.Volume = volume.Volume{Kind: volume.LDM, Size: p.Len, Boot: p.Volume.Boot, Parts: p.Volume.Parts}
	}
	if !whole {
		l.Issues = slices.DeleteFunc(l.Issues, func(i ondisk.Issue) bool {
			return i.Partition == p.Number && (i.Effect == ondisk.BadVolume || i.Code == volume.CodeSize)
		})
	}
	return left
}

// group sets Dynamic when the volumes of the disk can be moved, or the reason why they cannot.
func (l *Layout) group(d disk.Disk, x *stack.DynamicDisk) error {
	g := &Dynamic{Span: x.Data, Database: x.Config, Extents: x.Extents, start: x.Data.Off}
	var members []boot.Partition
	metadata := disk.Range{}
	for _, p := range l.Partitions {
		switch member, database := p.Dynamic(); {
		case database && g.Metadata != 0:
			l.unmovable = fmt.Errorf("partitions %d and %d both hold a database: %w", g.Metadata, p.Number,
				ondisk.ErrUnsupported)
			return nil
		case database:
			g.Metadata, metadata, g.Database = p.Number, p.Range, p.Range
		case member:
			members = append(members, p)
		}
	}
	slices.SortFunc(members, func(a, b boot.Partition) int { return cmp.Compare(a.Off, b.Off) })
	for _, p := range members {
		g.Members = append(g.Members, p.Number)
		g.Span.Len = max(g.Span.End(), p.End()) - g.Span.Off
	}
	heads, err := x.Heads(d, metadata)
	if err == nil {
		g.heads = heads
		err = l.apart(g, members)
	}
	switch {
	case errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported):
		l.unmovable = err
		return nil
	case err != nil:
		return err
	}
	g.ofXP = g.Metadata == 0 && x.OfXP()
	l.Dynamic = g
	return nil
}

// apart checks that the space of the volumes begins with the first of its partitions, and that nothing else lies in
// it, over the database or over a private header.
func (l *Layout) apart(g *Dynamic, members []boot.Partition) error {
	say := func(text string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(text, args...), ondisk.ErrUnsupported)
	}
	switch {
	case len(members) == 0:
		return say("no partition lies over the volumes")
	case members[0].Off != g.Span.Off:
		return say("partition %d starts at byte %d, and the volumes of the private header at byte %d",
			members[0].Number, members[0].Off, g.Span.Off)
	}
	for _, p := range l.Partitions {
		switch {
		case p.Kind == table.Extended: // logical ones lie in it
			return say("partition %d is %s, which Windows makes on no dynamic disk", p.Number, p.Kind)
		case !p.InDynamic() && p.Overlaps(g.Span):
			return say("partition %d lies in the space of the volumes", p.Number)
		case p.Number != g.Metadata && p.Overlaps(g.Database):
			return say("partition %d lies over the database", p.Number)
		}
		for _, h := range g.heads {
			if p.Number != g.Metadata && p.Overlaps(h.Place()) {
				return say("partition %d lies over the private header at byte %d", p.Number, h.At)
			}
		}
	}
	return nil
}

// dynamicRefs adds what a move of the volumes changes beside the table: the start in each private header, and hidden
// sectors. Not every volume begins with a partition, and not every partition with a volume.
func (l *Layout) dynamicRefs(d disk.Disk) error {
	x := l.Dynamic
	if x == nil {
		return nil
	}
	metadata, _ := l.Partition(x.Metadata)
	for _, h := range x.heads {
		at := disk.Range{Off: h.At + stack.AtLDMStart, Len: 8}
		l.Boot.Refs = append(l.Boot.Refs, boot.Ref{
			Kind: "start of the volumes in an LDM private header", Partition: x.Metadata, Off: at.Off - metadata.Off,
			At: []disk.Range{at}, Raw: h.Raw[stack.AtLDMStart:][:at.Len], Points: x.start, Target: x.Members[0],
			Encode: func(_ []byte, to int64) ([]byte, error) {
				return binary.BigEndian.AppendUint64(nil, ondisk.U64(to/d.SectorSize())), nil
			},
			Seals: []*boot.Seal{{
				Name: fmt.Sprintf("the LDM private header at byte %d", h.At),
				At:   []disk.Range{h.Place()}, Raw: h.Raw, Make: stack.SumLDMHead,
			}},
		})
	}
	m := meter(d, len(x.Extents))
	for _, e := range x.Extents {
		if i, full := m.exhausted(l.holder(e).Number); full {
			l.Issues = append(l.Issues, i)
			return nil
		}
		if err := l.hiddenSectors(m, e); err != nil {
			return err
		}
	}
	return nil
}

// holder returns the partition that an extent lies in, or the first one that moves as far.
func (l *Layout) holder(e stack.LDMExtent) boot.Partition {
	first, _ := l.Partition(l.Dynamic.Members[0])
	for _, n := range l.Dynamic.Members {
		if p, _ := l.Partition(n); p.Contains(e.Range) {
			return p
		}
	}
	return first
}

// oneChunk is the least piece of a striped volume that lies in one place: Windows makes chunks of 64 KiB.
const oneChunk = 64 * units.KiB

// hiddenSectors adds the sectors in front of a volume that begins with an extent. They count from the start of the
// disk. The parity of a RAID-5 volume covers them, on another disk, so they stay.
func (l *Layout) hiddenSectors(d disk.Disk, e stack.LDMExtent) error {
	if !e.Begins {
		return nil
	}
	v, err := identify.Front(disk.Compose(disk.Section(d, e.Range), max(e.Len, e.Copy), []disk.Shift{{Len: e.Len}}),
		e.Off)
	if err != nil || v.Boot == nil {
		return err
	}
	p := l.holder(e)
	starts := []int64{0}
	if b := v.Boot.Backup; b > 0 && (e.Whole || b < oneChunk) {
		starts = append(starts, b)
	}
	for i, at := range starts {
		r := boot.Ref{
			Kind: fmt.Sprintf("%s hidden sectors of the LDM extent %.64q", v.Boot.Kind, e.Name), Partition: p.Number,
			Off: e.Off - p.Off + at + volume.AtHidden, Encode: boot.EncodeSectors(v.Boot.SectorSize),
			At: []disk.Range{{Off: e.Off + at + volume.AtHidden, Len: 4}},
		}
		if i > 0 {
			r.Kind += ", backup boot sector"
		}
		if r.Raw, err = ondisk.Bytes(d, r.At[0].Off, r.At[0].Len); err != nil {
			return err
		}
		if r.Points = int64(binary.LittleEndian.Uint32(r.Raw)) * v.Boot.SectorSize; r.Points == e.Off {
			r.Target = p.Number
		} else {
			r.Stays = fmt.Sprintf("it points to byte %d, and the volume starts at byte %d", r.Points, e.Off)
		}
		l.Boot.Refs = append(l.Boot.Refs, r)
	}
	return nil
}

// CodeDynamic is that of the refusal of a dynamic disk.
const CodeDynamic = "ldm"

const ldmStart = "the private headers have version 2.11, and are of Windows 2000, XP or 2003: XP and 2003 look for " +
	"the volumes behind the first track of the disk, at LBA 63, and pass over the start that the headers name"

const moveDynamic = "--dynamic-disks moves the volumes and corrects the private headers of the database; " +
	"or convert it to a basic disk in the guest"

const moveOfXP = "convert it to a basic disk in the guest; for Windows Vista and later or Linux, --dynamic-disks " +
	"with --allow-unbootable moves the volumes"

// MovesDynamic returns the issues of a copy whose user asks for the move of the volumes, instead of the refusal.
func (l *Layout) MovesDynamic() []ondisk.Issue {
	issues := slices.DeleteFunc(slices.Clone(l.Issues), func(i ondisk.Issue) bool { return i.Code == CodeDynamic })
	add := func(code string, effect ondisk.Effect, partition int, text, remedy string) {
		issues = append(issues, ondisk.Issue{
			Code: code, Effect: effect, OnMove: true, Partition: partition, Text: text, Remedy: remedy,
		})
	}
	add("ldm-moved", ondisk.Warn, 0, "all volumes of the dynamic disk move by one distance, and the private headers "+
		"of its database follow: ldmtool and Linux read such a copy; Windows was not tried",
		"keep SOURCE until Windows shows the disk as online and its volumes as healthy")
	if l.Dynamic.ofXP {
		add("ldm-start", ondisk.Unbootable, 0, ldmStart,
			"convert it to a basic disk in the guest; if Windows Vista or later or Linux uses the disk, "+
				"--allow-unbootable accepts this")
	}
	for _, p := range l.Partitions {
		needs := ""
		if !l.Dynamic.Has(p.Number) || p.Active || l.Boot.Boots(p.Number) {
			needs = l.Boot.Needs(p)
		}
		if needs != "" {
			add("ldm-system", ondisk.Unbootable, 0, fmt.Sprintf("the dynamic disk belongs to a system, which may not "+
				"find its volumes after a move: partition %d, %s", p.Number, needs),
				"convert it to a basic disk in the guest, or align only disks of data")
			break
		}
	}
	var mirrored []string
	for _, e := range l.Dynamic.Extents {
		if e.Mirrored && len(mirrored) < maxNames {
			mirrored = append(mirrored, fmt.Sprintf("%.64q", e.Name))
		}
	}
	if len(mirrored) > 0 {
		add("ldm-mirror", ondisk.Note, 0, fmt.Sprintf("%s: the mirror has its other half on another disk; the halves "+
			"differ in the hidden sectors of their boot sectors unless both start at the same LBA",
			strings.Join(mirrored, ", ")),
			"align both disks with the same options")
	}
	return issues
}
