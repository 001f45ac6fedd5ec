package fat

import (
	"encoding/binary"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/ondisk"
)

// Attributes of an entry. Spec: Microsoft FAT specification 1.03, "FAT Directory Structure", "FAT Long Directory
// Entries".
const (
	attrLabel    = 0x08
	attrDir      = 0x10
	attrLong     = 0x0f
	attrLongMask = 0x3f

	deleted = 0xe5
	kanji   = 0x05 // stands for 0xe5 as the first byte of a name

	// Windows NT notes in the reserved byte that a name is all lower case, which saves the long one.
	lowerBase = 0x08
	lowerExt  = 0x10
)

// entry is a file or a folder.
type entry struct {
	long, short string // long may be empty
	attr        byte
	root        bool
	first       int64 // cluster; 0 for an empty file
	size        int64
}

func (e *entry) dir() bool { return e.attr&attrDir != 0 }

func (e *entry) name() string {
	if e.long != "" {
		return e.long
	}
	return e.short
}

// is compares a name with both names of an entry, without case.
func (e *entry) is(name string) bool {
	return (e.long != "" && equalNames(e.long, name)) || equalNames(e.short, name)
}

// namesWeight is the cost of a byte of a folder relative to one that is only read: a few bytes are a name that is built
// and compared.
const namesWeight = 5

// each calls visit for the entries of a folder until it returns false.
func (f *fileSystem) each(dir entry, visit func(entry) bool) error {
	raw, err := f.folder(dir)
	if err != nil {
		return err
	}
	if err := f.meter.Budget.Spend(namesWeight * int64(len(raw))); err != nil {
		return err
	}
	var long longName
	for ; len(raw) >= slotSize && raw[0] != 0; raw = raw[slotSize:] {
		slot := raw[:slotSize]
		if slot[0] != deleted && slot[11]&attrLongMask == attrLong {
			long.add(slot)
			continue
		}
		name := long.take(slot[:11])
		if slot[0] == deleted || slot[11]&attrLabel != 0 || slot[0] == '.' {
			continue
		}
		if !visit(f.entry(slot, name)) {
			return nil
		}
	}
	return nil
}

// folder reads a whole folder, 2 MiB at most.
func (f *fileSystem) folder(dir entry) ([]byte, error) {
	if dir.root && f.Bits != 32 {
		return ondisk.Bytes(f.meter, f.Root.Off, f.Root.Len)
	}
	if dir.root {
		dir.first = int64(f.RootCluster)
	}
	runs, err := f.chain(dir.first, max(maxFolder/f.Cluster, 1), 1)
	if err != nil {
		return nil, err
	}
	last := runs[len(runs)-1]
	raw := make([]byte, last.Off+last.Len)
	for _, r := range runs {
		if r.At+r.Len > f.volume.Size() {
			return nil, ondisk.Field("fat folder", "length", r.At, r.Len, "an end within the volume")
		}
		if err := ondisk.ReadFull(f.meter, raw[r.Off:r.Off+r.Len], r.At); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

// entry decodes a slot that is a file or a folder.
func (f *fileSystem) entry(slot []byte, long string) entry {
	e := entry{long: long, short: shortName(slot), attr: slot[11], size: int64(binary.LittleEndian.Uint32(slot[28:]))}
	e.first = int64(binary.LittleEndian.Uint16(slot[26:]))
	if f.Bits == 32 { // OS/2 keeps something else there in FAT16
		e.first |= int64(binary.LittleEndian.Uint16(slot[20:])&0x0fff) << 16
	}
	return e
}

// shortName builds a name of the eleven bytes. Bytes other than ASCII stay, since their code page is not stored.
func shortName(slot []byte) string {
	name := append([]byte(nil), slot[:11]...)
	if name[0] == kanji {
		name[0] = deleted
	}
	base, ext := strings.TrimRight(string(name[:8]), " "), strings.TrimRight(string(name[8:]), " ")
	if slot[12]&lowerBase != 0 {
		base = lowerCase(base)
	}
	if slot[12]&lowerExt != 0 {
		ext = lowerCase(ext)
	}
	if ext == "" {
		return base
	}
	return base + "." + ext
}

func lowerCase(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// longName collects the slots of a long name, the last of which comes first.
type longName struct {
	units [20 * 13]uint16
	slots int // 0: none, or not a valid one
	at    int // slot that came last, 1 to slots
	sum   byte
}

// add adds a slot. One out of order or with another checksum is a leftover of a system without long names.
func (l *longName) add(slot []byte) {
	const last = 0x40
	order := int(slot[0] &^ last)
	switch {
	case order == 0 || order > len(l.units)/13:
		l.slots = 0
		return
	case slot[0]&last != 0:
		l.slots, l.sum = order, slot[13]
	case l.slots == 0 || order != l.at-1 || slot[13] != l.sum:
		l.slots = 0
		return
	}
	l.at = order
	units := l.units[(order-1)*13:]
	for i := range 13 {
		at := 1 + 2*i
		switch {
		case i >= 11:
			at = 28 + 2*(i-11)
		case i >= 5:
			at = 14 + 2*(i-5)
		}
		units[i] = binary.LittleEndian.Uint16(slot[at:])
	}
}

// take returns the long name of the entry with a short name, and forgets it; empty if absent.
func (l *longName) take(short []byte) string {
	slots := l.slots
	l.slots = 0
	if slots == 0 || l.at != 1 || l.sum != shortSum(short) {
		return ""
	}
	units := l.units[:slots*13]
	for i, u := range units {
		if u == 0 {
			units = units[:i]
			break
		}
	}
	return string(utf16.Decode(units))
}

// shortSum ties a long name to its short one. Spec: "Checksum generation".
func shortSum(short []byte) (sum byte) {
	for _, c := range short {
		sum = sum>>1 | sum<<7
		sum += c
	}
	return sum
}

// equalNames compares names without case.
func equalNames(a, b string) bool {
	for a != "" && b != "" {
		r, n := utf8.DecodeRuneInString(a)
		s, m := utf8.DecodeRuneInString(b)
		switch {
		case r == utf8.RuneError || s == utf8.RuneError: // bytes of an unknown code page
			if a[:n] != b[:m] {
				return false
			}
		case r != s && upper(r) != upper(s):
			return false
		}
		a, b = a[n:], b[m:]
	}
	return a == b
}

// upper maps pairs of letters only: in Windows "ſ" is not "S".
func upper(r rune) rune {
	if u := unicode.ToUpper(r); unicode.ToLower(u) == r {
		return u
	}
	return r
}
