package volume

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Limits of a text: LVM nests four sections, has names of up to 127 characters, and even the largest text has fewer
// sections and keys.
const (
	lvmMaxDepth = 16
	lvmMaxName  = 128
	lvmMaxLines = 1 << 16
)

// lvmSection is a section of a text: the group, a list of volumes, a volume or a segment. Sizes are in extents or in
// sectors of 512 bytes. Spec: LVM2, lib/format_text/import_vsn1.c.
type lvmSection struct {
	name     string
	keys     []lvmKey
	sections []*lvmSection
}

type lvmKey struct {
	name   string
	values []string
}

// parseLVM parses a text into its outermost sections.
func parseLVM(text []byte) (*lvmSection, error) {
	s := &lvmScanner{text: string(text)}
	path := []*lvmSection{{}}
	for lines := 0; ; lines++ {
		in := path[len(path)-1]
		t, err := s.next()
		switch {
		case err != nil:
			return nil, err
		case t.mark == "" && len(path) == 1:
			return in, nil
		case t.mark == "}" && len(path) > 1:
			path = path[:len(path)-1]
			continue
		case !t.isWord():
			return nil, s.wrong(t, "the name of a section or a key")
		case lines == lvmMaxLines:
			return nil, fmt.Errorf("lvm text: %w of %d sections and keys", ondisk.ErrLimit, lvmMaxLines)
		}
		is, err := s.next()
		switch {
		case err != nil:
			return nil, err
		case is.mark == "{" && len(path) <= lvmMaxDepth && len(t.word) <= lvmMaxName:
			in.sections = append(in.sections, &lvmSection{name: t.word})
			path = append(path, in.sections[len(in.sections)-1])
		case is.mark == "=":
			values, err := s.values()
			if err != nil {
				return nil, err
			}
			in.keys = append(in.keys, lvmKey{t.word, values})
		default:
			return nil, s.wrong(is, "{ or =, within 16 sections of short names")
		}
	}
}

// values returns the values of a key.
func (s *lvmSection) values(key string) []string {
	for _, k := range s.keys {
		if k.name == key {
			return k.values
		}
	}
	return nil
}

// value returns the first value of a key, or "" if the key is absent.
func (s *lvmSection) value(key string) (string, error) {
	v := s.values(key)
	switch {
	case len(v) == 0:
		return "", nil
	case len(v[0]) > lvmMaxName:
		return "", ondisk.Field("lvm text", key, 0, v[0], fmt.Sprintf("up to %d characters", lvmMaxName))
	}
	return strings.Clone(v[0]), nil // the text is not kept
}

// number returns the number stored under a key, or 0 if the key is absent.
func (s *lvmSection) number(key string) (uint64, error) {
	v, err := s.value(key)
	if v == "" {
		return 0, err
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		return 0, ondisk.Field("lvm text", key, 0, v, "a number")
	}
	return n, nil
}

// inside returns the subsections of the section with a name.
func (s *lvmSection) inside(name string) []*lvmSection {
	for _, x := range s.sections {
		if x.name == name {
			return x.sections
		}
	}
	return nil
}

// maxParts limits the parts kept for a volume: a volume group rarely has more logical volumes.
const maxParts = 256

// describe fills the volume from the metadata text of its group.
func (p *physicalVolume) describe(text []byte) error {
	root, err := parseLVM(text)
	if err != nil {
		return err
	}
	if len(root.sections) == 0 {
		return ondisk.Field("lvm text", "volume group", 0, "none", "a section with its name")
	}
	g := root.sections[0]
	id, err1 := g.value("id")
	seqno, err2 := g.value("seqno")
	extent, err3 := g.number("extent_size")
	own, peStart, err4 := p.own(g)
	switch err := errors.Join(err1, err2, err3, err4); {
	case err != nil:
		return err
	case extent == 0:
		return ondisk.Field("lvm text", "extent size", 0, 0, "1 sector or more")
	}
	start := p.v.DataStart
	if peStart > 0 && peStart < ondisk.U64(p.d.Size())/lvmSector {
		start = ondisk.I64(peStart) * lvmSector
	}
	pvs, lvs := g.inside("physical_volumes"), g.inside("logical_volumes")
	parts := make([]Part, 0, min(len(lvs), maxParts))
	for _, lv := range lvs[:min(len(lvs), maxParts)] {
		part, err := logicalVolume(lv, own, extent, disk.Range{Off: start, Len: p.d.Size() - start})
		if err != nil {
			return err
		}
		parts = append(parts, part)
	}
	v := p.v
	v.Label, v.DataStart, v.Parts = strings.Clone(g.name), start, parts
	v.Add("volume group", v.Label)
	v.Add("group UUID", plainID(id))
	if n, ok := lvmBytes(1, extent); ok {
		v.Add("extent size", units.Format(n))
	}
	v.Add("revision", seqno)
	if len(pvs) > 1 {
		v.Addf("physical volumes", "%d (this is %q)", len(pvs), own)
	}
	v.Addf("logical volumes", "%d", len(lvs))
	return nil
}

// own returns the name of this physical volume in its group, and its first extent in sectors. The name is empty if the
// group does not list the volume.
func (p *physicalVolume) own(g *lvmSection) (name string, peStart uint64, err error) {
	for _, pv := range g.inside("physical_volumes") {
		if id := pv.values("id"); len(id) > 0 && id[0] == p.uuid {
			peStart, err = pv.number("pe_start")
			return strings.Clone(pv.name), peStart, err
		}
	}
	return "", 0, nil
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

// lvmBytes returns the size in bytes of a number of extents of the given sectors. It returns false on overflow.
func lvmBytes(extents, sectors uint64) (int64, bool) {
	hi, lo := bits.Mul64(extents, sectors)
	if hi != 0 || lo > math.MaxInt64/lvmSector {
		return 0, false
	}
	return ondisk.I64(lo) * lvmSector, true
}

// logicalVolume returns a logical volume as printed by lvs(8): names of internal volumes are in brackets. own is the
// name of the physical volume, in is the range of its extents, and extent is their size in sectors. Only a volume that
// is contiguous in this range has a start. LVM calls a single stripe linear, and stores it as striped.
func logicalVolume(lv *lvmSection, own string, extent uint64, in disk.Range) (Part, error) {
	const most = math.MaxUint64 / 2 // an impossible sum stays larger than every disk
	out := Part{Name: strings.Clone(lv.name), Start: -1}
	if !slices.Contains(lv.values("status"), "VISIBLE") {
		out.Name = "[" + lv.name + "]"
	}
	var kinds []string
	first, extents, contiguous := uint64(0), uint64(0), own != "" && in.Off > 0
	for i, s := range lv.sections {
		n, err1 := s.number("extent_count")
		kind, err2 := s.value("type")
		if err := errors.Join(err1, err2); err != nil {
			return out, err
		}
		stripes := s.values("stripes") // alternating names of physical volumes and first extents
		linear := kind == "striped" && len(stripes) == 2
		if linear {
			kind = "linear"
		}
		kinds = append(kinds, kind)
		if contiguous = contiguous && linear && stripes[0] == own; contiguous {
			at, err := strconv.ParseUint(stripes[1], 10, 64)
			if i == 0 {
				first = at
			}
			contiguous = err == nil && at < most && n < most && at == first+extents
		}
		extents = min(extents+min(n, most), most)
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	out.Kind = strings.Join(kinds[:min(len(kinds), 4)], ", ")
	var ok bool
	if out.Size, ok = lvmBytes(extents, extent); !ok || !contiguous || len(lv.sections) == 0 {
		return out, nil
	}
	if off, ok := lvmBytes(first, extent); ok && off <= in.Len && out.Size <= in.Len-off {
		out.Start = in.Off + off
	}
	return out, nil
}
