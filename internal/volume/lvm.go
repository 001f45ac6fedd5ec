package volume

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// lvm is the label of an LVM2 physical volume, in one of the first four sectors. It stores its own sector, and the
// offset of the header in that sector. Spec: LVM2, lib/label/label.h, struct label_header.
var lvm = &row{
	kinds: []Traits{{
		Kind: LVM2, Title: "LVM2", Precedence: 2, Data: "first extent of LVM2",
		Realign: "to align its extents, move them (pvmove) to a physical volume made by pvcreate --dataalignment 1m",
	}},
	what: "lvm label", at: []int64{0, 512, 1024, 1536}, size: lvmSector, order: binary.LittleEndian,
	magic:   []Mark{{0, "LABELONE"}},
	matches: func(s *super) bool { return s.text(24, 8) == "LVM2 001" },
	checks: func(s *super) {
		const last = lvmSector - lvmPVFixed
		s.check(
			check{"checksum", 16, 4, sum(func() uint64 { return uint64(lvmCRC(s.b[20:])) })},
			check{"sector", 8, 8, equal(ondisk.U64(s.at / lvmSector))},
			check{"offset", 20, 4, within(32, last)},
		)
	},
	volume: probePV,
}

// lvmArea is a range of the device in bytes. Spec: LVM2, lib/format_text/layout.h, struct disk_locn.
type lvmArea struct{ Offset, Size uint64 }

// lvmMetadata is the header of a metadata area, one sector. Spec: LVM2, lib/format_text/layout.h, struct mda_header.
type lvmMetadata struct {
	Checksum uint32 // of the rest of the sector
	Magic    [16]byte
	Version  uint32
	Start    uint64 // its own offset on the device
	Size     uint64 // of the area, including this sector
	Text     lvmText
	_        [448]byte // the precommitted text, and unused slots
}

// lvmText is the position of a text in the ring behind the header of its area. Spec: LVM2, lib/format_text/layout.h,
// struct raw_locn.
type lvmText struct {
	Offset   uint64 // from the start of the area
	Size     uint64
	Checksum uint32
	Flags    uint32 // 1 if this area is ignored
}

const (
	lvmPVWhat   = "lvm physical volume header"
	lvmAreaWhat = "lvm metadata area"
	lvmMagic    = " LVM2 x[5A%r0N*>"

	lvmPVFixed  = 40 // bytes of the physical volume header in front of its lists
	lvmMaxText  = 1 << 20
	lvmSector   = 512 // unit of all LVM offsets, independent of the device
	lvmMaxAreas = 8
)

// lvmCRC returns the checksum of all LVM structures.
func lvmCRC(b []byte) uint32 {
	const initial = 0xf597a6cf
	return ^crc32.Update(^uint32(initial), crc32.IEEETable, b)
}

// probePV reads the header of a physical volume: its UUID and the size of the device. Two lists of lvmArea follow: data
// areas and metadata areas, each terminated by zeros. Spec: LVM2, lib/format_text/layout.h, struct pv_header.
func probePV(s *super) *Volume {
	at := s.i64(20)
	p := &physicalVolume{d: s.d, uuid: dashed(s.b[at : at+32]), v: &Volume{Kind: LVM2}}
	p.v.UUID = p.uuid
	size := s.u64(at + 32)
	if size > math.MaxInt64 {
		s.err = ondisk.Field(lvmPVWhat, "device size", s.at+at+32, size, "less than 2^63")
		return nil
	}
	if s.err = p.areas(s.b[at+lvmPVFixed:], s.at+at+lvmPVFixed); s.err != nil {
		return nil
	}
	p.v.Size = cmp.Or(ondisk.I64(size), s.d.Size())
	s.err = p.readGroup()
	return p.v
}

// physicalVolume is the state of reading a physical volume.
type physicalVolume struct {
	d        disk.Disk
	v        *Volume
	uuid     string
	metadata []lvmArea
}

// areas reads the two lists behind the header. at is their offset.
func (p *physicalVolume) areas(b []byte, at int64) error {
	size := ondisk.U64(p.d.Size())
	lists := 0
	for i := 0; lists < 2 && len(b) >= 16; i, b, at = i+1, b[16:], at+16 {
		var a lvmArea
		ondisk.Fill(b, binary.LittleEndian, &a)
		switch {
		case a.Offset == 0:
			lists++
		case a.Offset >= size || a.Size > size-a.Offset:
			return ondisk.Field(lvmPVWhat, "area", at, fmt.Sprintf("%d bytes at %#x", a.Size, a.Offset),
				fmt.Sprintf("a place within the %d bytes there are", size))
		case lists == 0 && i == 0:
			p.v.DataStart = ondisk.I64(a.Offset)
		case lists == 1 && len(p.metadata) < lvmMaxAreas:
			p.metadata = append(p.metadata, a)
		}
	}
	if lists < 2 {
		return ondisk.Field(lvmPVWhat, "areas", at, "no end", "a list that ends in its sector")
	}
	return nil
}

// readGroup reads the volume group from the first metadata area with a text. A broken area is a warning, since the
// volume moves without it.
func (p *physicalVolume) readGroup() error {
	var broken error
	for _, a := range p.metadata {
		text, err := p.readText(ondisk.I64(a.Offset))
		if err == nil && text != nil {
			if err = p.describe(text); err == nil {
				return p.hibernated()
			}
			err = fmt.Errorf("text of the lvm metadata area at %#x: %w", a.Offset, err)
		}
		switch {
		case isBroken(err):
			broken = err
		case err != nil:
			return err
		}
	}
	if broken != nil {
		p.v.Note("lvm-metadata", ondisk.Warn,
			"the metadata of the LVM2 cannot be read (places count from its start): "+broken.Error(),
			"run vgck in the guest")
	}
	return nil
}

// readText reads the text of a metadata area. It returns nil if the text is absent.
func (p *physicalVolume) readText(at int64) ([]byte, error) {
	if at > p.d.Size()-lvmSector {
		return nil, ondisk.Field(lvmAreaWhat, "place", at, at, "a whole sector within the device")
	}
	var m lvmMetadata
	head, err := ondisk.Decode(p.d, at, &m)
	if err != nil {
		return nil, err
	}
	end := ondisk.U64(p.d.Size() - at)
	switch sum := lvmCRC(head[4:]); {
	case string(m.Magic[:]) != lvmMagic:
		return nil, ondisk.Field(lvmAreaWhat, "magic", at+4, m.Magic[:], fmt.Sprintf("%q", lvmMagic))
	case m.Checksum != sum:
		return nil, ondisk.Field(lvmAreaWhat, "checksum", at, Hex(m.Checksum), Hex(sum))
	case m.Version != 1:
		return nil, ondisk.Field(lvmAreaWhat, "version", at+20, m.Version, 1)
	case m.Start != ondisk.U64(at):
		return nil, ondisk.Field(lvmAreaWhat, "start", at+24, m.Start, at)
	case m.Size <= lvmSector || m.Size > end:
		return nil, ondisk.Field(lvmAreaWhat, "size", at+32, m.Size, fmt.Sprintf("%d to %d", lvmSector+1, end))
	}
	if m.Text.Offset == 0 || m.Text.Flags&1 != 0 {
		return nil, nil
	}
	return p.ring(at, m)
}

// ring reads a text from the ring of an area. A text that reaches the end continues behind the header.
func (p *physicalVolume) ring(at int64, m lvmMetadata) ([]byte, error) {
	t := m.Text
	switch {
	case t.Offset < lvmSector || t.Offset >= m.Size:
		return nil, ondisk.Field(lvmAreaWhat, "text offset", at+40, t.Offset,
			fmt.Sprintf("%d to %d", lvmSector, m.Size-1))
	case t.Size == 0 || t.Size > lvmMaxText || t.Size > m.Size-lvmSector:
		return nil, ondisk.Field(lvmAreaWhat, "text size", at+48, t.Size,
			fmt.Sprintf("1 to %d", min(lvmMaxText, m.Size-lvmSector)))
	}
	first := min(t.Size, m.Size-t.Offset)
	text, err := ondisk.Bytes(p.d, at+ondisk.I64(t.Offset), ondisk.I64(first))
	if err != nil {
		return nil, err
	}
	rest, err := ondisk.Bytes(p.d, at+lvmSector, ondisk.I64(t.Size-first))
	if err != nil {
		return nil, err
	}
	text = append(text, rest...)
	if sum := lvmCRC(text); sum != t.Checksum {
		return nil, ondisk.Field(lvmAreaWhat, "text checksum", at+56, Hex(t.Checksum), Hex(sum))
	}
	return bytes.TrimRight(text, "\x00"), nil
}

// dashed formats an identifier like LVM: groups of 6, 4, 4, 4, 4, 4 and 6 characters.
func dashed(id []byte) string {
	var groups []string
	for _, n := range []int{6, 4, 4, 4, 4, 4, 6} {
		groups = append(groups, string(id[:n]))
		id = id[n:]
	}
	return plainID(strings.Join(groups, "-"))
}

// isBroken reports whether an error means a malformed or too large structure, rather than an unreadable disk.
func isBroken(err error) bool {
	return errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit)
}

// plainID replaces characters that are illegal in identifiers, so that reports can print it.
func plainID(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case '0' <= r && r <= '9', 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', r == '-', r == ':':
			return r
		}
		return '-'
	}, s)
}

// lvmScanner reads the text of LVM metadata: sections in braces, and keys with one value or a list. Only the length of
// the text, limited by readText, bounds a token. Spec: LVM2, libdm/libdm-config.c, and lvm.conf(5).
type lvmScanner struct {
	text string
	pos  int
}

// lvmToken is a mark ({ } [ ] = ,), a word or a string. Its mark is empty at the end of the text.
type lvmToken struct {
	mark string
	word string
}

// isWord reports whether a token is a key or a value.
func (t lvmToken) isWord() bool { return t.mark == "w" }

// values reads the value or list behind an equals sign.
func (s *lvmScanner) values() ([]string, error) {
	t, err := s.next()
	if err != nil || t.isWord() {
		return []string{t.word}, err
	}
	if t.mark != "[" {
		return nil, s.wrong(t, "a value")
	}
	var out []string
	for {
		t, err := s.next()
		switch {
		case err != nil || t.mark == "]":
			return out, err
		case t.isWord():
			out = append(out, t.word)
		case t.mark != ",":
			return nil, s.wrong(t, "a value, a comma or ]")
		}
	}
}

// next returns the next token.
func (s *lvmScanner) next() (lvmToken, error) {
	s.skip()
	if s.pos == len(s.text) {
		return lvmToken{}, nil
	}
	rest := s.text[s.pos:]
	switch c := rest[0]; {
	case strings.IndexByte("{}[]=,", c) >= 0:
		s.pos++
		return lvmToken{mark: rest[:1]}, nil
	case c == '"' || c == '\'':
		return s.quoted(rest)
	}
	n := strings.IndexAny(rest, " \t\r\n{}[]=,#\"'")
	if n < 0 {
		n = len(rest)
	}
	s.pos += n
	return lvmToken{mark: "w", word: rest[:n]}, nil
}

// quoted reads a string. A backslash escapes a quote or another backslash.
func (s *lvmScanner) quoted(rest string) (lvmToken, error) {
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == rest[0]:
			s.pos += i + 1
			return lvmToken{mark: "w", word: b.String()}, nil
		case c == '\\' && i+1 < len(rest):
			i++
			b.WriteByte(rest[i])
		default:
			b.WriteByte(c)
		}
	}
	return lvmToken{}, s.wrong(lvmToken{}, "the end of a string")
}

// skip skips blanks and comments.
func (s *lvmScanner) skip() {
	for s.pos < len(s.text) {
		rest := s.text[s.pos:]
		switch blank := len(rest) - len(strings.TrimLeft(rest, " \t\r\n\x00")); {
		case blank > 0:
			s.pos += blank
		case rest[0] == '#':
			line, _, _ := strings.Cut(rest, "\n")
			s.pos += len(line)
		default:
			return
		}
	}
}

// wrong returns the error for an unexpected token, which was just read.
func (s *lvmScanner) wrong(t lvmToken, want string) error {
	got := t.word
	if !t.isWord() {
		got = t.mark
	}
	line := 1 + strings.Count(s.text[:s.pos], "\n")
	return ondisk.Field("lvm text", "token", int64(s.pos), got, want+" in line "+strconv.Itoa(line))
}

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
	first, extents, contiguous := uint64(0), uint64(0), true
	for i, s := range lv.sections {
		n, err1 := s.number("extent_count")
		kind, err2 := s.value("type")
		if err := errors.Join(err1, err2); err != nil {
			return out, err
		}
		stripes := s.values("stripes") // alternating names of physical volumes and first extents
		at, here := uint64(0), false
		if kind == "striped" && len(stripes) == 2 {
			kind = "linear"
			at, err1 = strconv.ParseUint(stripes[1], 10, 64)
			here = err1 == nil && stripes[0] == own && at < most && n < most
		}
		if i == 0 {
			first = at
		}
		kinds = append(kinds, kind)
		contiguous = contiguous && here && at == first+extents
		extents = min(extents+min(n, most), most)
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	out.Kind = strings.Join(kinds[:min(len(kinds), 4)], ", ")
	var ok bool
	if out.Size, ok = lvmBytes(extents, extent); !ok || !contiguous || len(lv.sections) == 0 ||
		own == "" || in.Off <= 0 {
		return out, nil
	}
	if off, ok := lvmBytes(first, extent); ok && off <= in.Len && out.Size <= in.Len-off {
		out.Start = in.Off + off
	}
	return out, nil
}
