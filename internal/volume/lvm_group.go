package volume

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// volumeGroup has the fields of a text that are used here. Sizes are in extents or in sectors of 512 bytes, as in the
// text. Spec: LVM2, lib/format_text/import_vsn1.c.
type volumeGroup struct {
	name, id string
	seqno    string
	extent   uint64 // sectors
	pvs      map[string]*groupPV
	lvs      []*logicalVolume
	lvCount  int
	last     *logicalVolume
	lastName string
}

type groupPV struct {
	id      string
	peStart uint64 // sectors
}

// Limits of the parts of a text that are kept.
const (
	lvmMaxPVs      = 4096
	lvmMaxSegments = 1024 // of one logical volume; more are fragments that are not read one by one
)

// parseGroup parses the text of a volume group.
func parseGroup(text []byte) (*volumeGroup, error) {
	g := &volumeGroup{pvs: map[string]*groupPV{}}
	var broken error
	err := walkLVM(text, func(path []string, key string, values []string) {
		if err := g.take(path, key, values); err != nil && broken == nil {
			broken = err
		}
	})
	switch {
	case err != nil:
		return nil, err
	case broken != nil:
		return nil, broken
	case g.name == "":
		return nil, ondisk.Field("lvm text", "volume group", 0, "none", "a section with its name")
	case g.extent == 0:
		return nil, ondisk.Field("lvm text", "extent size", 0, 0, "1 sector or more")
	}
	return g, nil
}

// take stores one key. Sections nest as group, physical_volumes or logical_volumes, volume, segment.
func (g *volumeGroup) take(path []string, key string, values []string) error {
	if len(path) == 0 || len(values) == 0 {
		return nil
	}
	if g.name == "" {
		g.name = strings.Clone(path[0])
	}
	switch {
	case path[0] != g.name:
		return nil
	case len(path) == 1:
		return g.own(key, values[0])
	case len(path) == 3 && path[1] == "physical_volumes":
		return g.pv(path[2], key, values[0])
	case path[1] != "logical_volumes" || len(path) < 3:
		return nil
	}
	lv := g.lv(path[2])
	switch {
	case lv == nil:
		return nil
	case len(path) == 3 && key == "status":
		lv.visible = slices.Contains(values, "VISIBLE")
	case len(path) == 4:
		return lv.segment(path[3], key, values)
	}
	return nil
}

func (g *volumeGroup) own(key, value string) (err error) {
	switch key {
	case "id":
		g.id, err = lvmShort(key, value)
	case "seqno":
		g.seqno, err = lvmShort(key, value)
	case "extent_size":
		g.extent, err = lvmNumber(key, value)
	}
	return err
}

func (g *volumeGroup) pv(name, key, value string) (err error) {
	pv := g.pvs[name]
	if pv == nil {
		if len(g.pvs) == lvmMaxPVs {
			return nil
		}
		pv = &groupPV{}
		g.pvs[name] = pv
	}
	switch key {
	case "id":
		pv.id = value
	case "pe_start":
		pv.peStart, err = lvmNumber(key, value)
	}
	return err
}

// lv returns the logical volume of the current section; nil beyond the limit.
func (g *volumeGroup) lv(name string) *logicalVolume {
	if g.lvCount > 0 && g.lastName == name {
		return g.last
	}
	g.lastName, g.last = name, nil
	if g.lvCount++; len(g.lvs) < maxParts {
		g.last = &logicalVolume{name: strings.Clone(name)}
		g.lvs = append(g.lvs, g.last)
	}
	return g.last
}

// lvmShort copies a word that is kept, so that the text is not.
func lvmShort(key, value string) (string, error) {
	if len(value) > lvmMaxName {
		return "", ondisk.Field("lvm text", key, 0, value, fmt.Sprintf("up to %d characters", lvmMaxName))
	}
	return strings.Clone(value), nil
}

func lvmNumber(key, value string) (uint64, error) {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return 0, ondisk.Field("lvm text", key, 0, value, "a number")
	}
	return n, nil
}

// describe fills the volume from the group.
func (g *volumeGroup) describe(p *physicalVolume) {
	v, own := p.v, g.ownName(p.uuid)
	v.Label = g.name
	v.Add("volume group", g.name)
	v.Add("group UUID", plainID(g.id))
	if n, ok := g.bytes(1); ok {
		v.Add("extent size", units.Format(n))
	}
	v.Add("revision", g.seqno)
	if len(g.pvs) > 1 {
		v.Add("physical volumes", fmt.Sprintf("%d (this is %q)", len(g.pvs), own))
	}
	v.Add("logical volumes", strconv.Itoa(g.lvCount))
	if pv := g.pvs[own]; pv != nil && pv.peStart > 0 && pv.peStart < ondisk.U64(p.d.Size())/lvmSector {
		v.DataStart = ondisk.I64(pv.peStart) * lvmSector
	}
	for _, lv := range g.lvs {
		v.Parts = append(v.Parts, g.part(lv, own, v.DataStart, p.d.Size()))
	}
}

// hibernated looks for a hibernated Linux in the logical volumes, since swap is often on LVM.
func (p *physicalVolume) hibernated() error {
	for _, part := range p.v.Parts {
		if part.Start < 0 {
			continue
		}
		inner, err := probeSwap(disk.Section(p.d, disk.Range{Off: part.Start, Len: part.Size}))
		switch {
		case errors.Is(err, ondisk.ErrNoMatch) || errors.Is(err, ondisk.ErrFormat):
		case err != nil:
			return err
		default:
			p.v.Inherit(inner)
		}
	}
	return nil
}

// ownName returns the name of the physical volume with an identifier.
func (g *volumeGroup) ownName(uuid string) string {
	for name, pv := range g.pvs {
		if pv.id == uuid {
			return name
		}
	}
	return ""
}

// bytes returns the size of a number of extents; false if it overflows.
func (g *volumeGroup) bytes(extents uint64) (int64, bool) {
	hi, lo := bits.Mul64(extents, g.extent)
	if hi != 0 || lo > math.MaxInt64/lvmSector {
		return 0, false
	}
	return ondisk.I64(lo) * lvmSector, true
}

// maxParts bounds the parts that are kept of a volume: a VG has rarely more logical volumes.
const maxParts = 256

// logicalVolume is a logical volume of a text.
type logicalVolume struct {
	name     string
	visible  bool
	segments []segment
	dropped  bool // it has more segments than are kept
	section  string
}

// segment is a run of extents with one mapping.
type segment struct {
	extents uint64
	kind    string
	stripes []string // names of physical volumes and first extents by turns
}

// segment stores a key of a segment of the volume.
func (lv *logicalVolume) segment(section, key string, values []string) (err error) {
	if lv.section != section {
		if lv.dropped = lv.dropped || len(lv.segments) == lvmMaxSegments; lv.dropped {
			return nil
		}
		lv.section = section
		lv.segments = append(lv.segments, segment{})
	}
	s := &lv.segments[len(lv.segments)-1]
	switch key {
	case "extent_count":
		s.extents, err = lvmNumber(key, values[0])
	case "type":
		s.kind, err = lvmShort(key, values[0])
	case "stripes":
		// More are stripes over several volumes, which lie in no one place.
		s.stripes = slices.Clone(values[:min(len(values), 4)])
	}
	return err
}

// part returns a logical volume as lvs(8) prints it: names of internal volumes stand in brackets.
func (g *volumeGroup) part(lv *logicalVolume, own string, start, size int64) Part {
	out := Part{Name: lv.name, Kind: lv.kind(), Start: -1}
	if !lv.visible {
		out.Name = "[" + lv.name + "]"
	}
	var extents uint64
	for _, s := range lv.segments {
		extents = min(extents+s.extents, math.MaxUint64/2) // a sum that cannot be stays above every disk
	}
	var ok bool
	if out.Size, ok = g.bytes(extents); !ok || lv.dropped {
		return out
	}
	first, linear := lv.place(own)
	off, ok := g.bytes(first)
	if linear && ok && start > 0 && off <= size-start && out.Size <= size-start-off {
		out.Start = start + off
	}
	return out
}

// kind returns the kinds of all segments. LVM calls a single stripe linear, and stores it as striped.
func (lv *logicalVolume) kind() string {
	kinds := map[string]bool{}
	for _, s := range lv.segments {
		kinds[s.name()] = true
	}
	names := slices.Sorted(maps.Keys(kinds))
	return strings.Join(names[:min(len(names), 4)], ", ")
}

func (s segment) name() string {
	if s.kind == "striped" && len(s.stripes) == 2 {
		return "linear"
	}
	return s.kind
}

// place returns the first extent of a volume that is contiguous on the physical volume own.
func (lv *logicalVolume) place(own string) (first uint64, ok bool) {
	next := uint64(0)
	for i, s := range lv.segments {
		if own == "" || len(s.stripes) != 2 || s.name() != "linear" || s.stripes[0] != own {
			return 0, false
		}
		at, err := strconv.ParseUint(s.stripes[1], 10, 64)
		switch {
		case err != nil || at > math.MaxUint64/2 || s.extents > math.MaxUint64/2:
			return 0, false
		case i == 0:
			first = at
		case at != next:
			return 0, false
		}
		next = at + s.extents
	}
	return first, len(lv.segments) > 0
}
