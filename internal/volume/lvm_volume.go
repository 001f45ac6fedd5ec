package volume

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

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
