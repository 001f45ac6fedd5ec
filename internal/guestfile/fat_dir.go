package guestfile

import (
	"encoding/binary"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/ondisk"
)

// Attributes of an entry. Spec: Microsoft FAT specification 1.03, "FAT Directory Structure", "FAT Long Directory Entries".
const (
	fatAttrLabel    = 0x08
	fatAttrDir      = 0x10
	fatAttrLong     = 0x0f
	fatAttrLongMask = 0x3f

	fatDeleted = 0xe5
	fatKanji   = 0x05 // stands for 0xe5 as the first byte of a name

	// Windows NT notes in the reserved byte that a name is all lower case, which saves the long one.
	fatLowerBase = 0x08
	fatLowerExt  = 0x10
)

// fatEntry is a file or a folder.
type fatEntry struct {
	long, short string // long may be empty
	attr        byte
	root        bool
	first       int64 // cluster; 0 for an empty file
	size        int64
}

func (e *fatEntry) dir() bool { return e.attr&fatAttrDir != 0 }

func (e *fatEntry) name() string {
	if e.long != "" {
		return e.long
	}
	return e.short
}

// is compares without case, and with both names.
func (e *fatEntry) is(name string) bool {
	return (e.long != "" && fatEqual(e.long, name)) || fatEqual(e.short, name)
}

// fatNames is how much more a byte of a folder costs than one that is read only: an entry of few bytes is a name that is made and compared.
const fatNames = 5

// each hands the entries of a folder to visit until that says no.
func (f *fatFS) each(dir fatEntry, visit func(fatEntry) bool) error {
	raw, err := f.folder(dir)
	if err != nil {
		return err
	}
	if err := f.meter.spend(fatNames * int64(len(raw))); err != nil {
		return err
	}
	var long fatLong
	for ; len(raw) >= fat.Slot && raw[0] != 0; raw = raw[fat.Slot:] {
		slot := raw[:fat.Slot]
		if slot[0] != fatDeleted && slot[11]&fatAttrLongMask == fatAttrLong {
			long.add(slot)
			continue
		}
		name := long.take(slot[:11])
		if slot[0] == fatDeleted || slot[11]&fatAttrLabel != 0 || slot[0] == '.' {
			continue
		}
		if !visit(f.entry(slot, name)) {
			return nil
		}
	}
	return nil
}

// folder reads all of a folder, 2 MiB at most.
func (f *fatFS) folder(dir fatEntry) ([]byte, error) {
	if dir.root && f.Bits != 32 {
		return ondisk.Bytes(f.meter, f.Root.Off, f.Root.Len)
	}
	if dir.root {
		dir.first = int64(f.RootCluster)
	}
	runs, err := f.chain(dir.first, max(fatFolder/f.Cluster, 1), 1)
	if err != nil {
		return nil, err
	}
	last := runs[len(runs)-1]
	raw := make([]byte, last.Off+last.Len)
	for _, r := range runs {
		if r.At+r.Len > f.volume.Size() {
			return nil, &ondisk.FormatError{What: "fat folder", Off: r.At, Field: "length", Got: r.Len, Want: "an end within the volume"}
		}
		if err := ondisk.ReadFull(f.meter, raw[r.Off:r.Off+r.Len], r.At); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

// entry decodes a slot that is a file or a folder.
func (f *fatFS) entry(slot []byte, long string) fatEntry {
	e := fatEntry{long: long, short: fatShort(slot), attr: slot[11], size: int64(binary.LittleEndian.Uint32(slot[28:]))}
	e.first = int64(binary.LittleEndian.Uint16(slot[26:]))
	if f.Bits == 32 { // OS/2 keeps something else there in FAT16
		e.first |= int64(binary.LittleEndian.Uint16(slot[20:])&0x0fff) << 16
	}
	return e
}

// fatShort makes a name of the eleven bytes. What is not ASCII stays as it is: which code page it means stands nowhere.
func fatShort(slot []byte) string {
	name := append([]byte(nil), slot[:11]...)
	if name[0] == fatKanji {
		name[0] = fatDeleted
	}
	base, ext := strings.TrimRight(string(name[:8]), " "), strings.TrimRight(string(name[8:]), " ")
	if slot[12]&fatLowerBase != 0 {
		base = fatLower(base)
	}
	if slot[12]&fatLowerExt != 0 {
		ext = fatLower(ext)
	}
	if ext == "" {
		return base
	}
	return base + "." + ext
}

func fatLower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// fatLong collects the slots of a long name, the last of which comes first.
type fatLong struct {
	units [20 * 13]uint16
	slots int // 0: none, or not a valid one
	at    int // slot that came last, 1 to slots
	sum   byte
}

// add takes a slot. One out of order, or with another checksum, is a leftover of a system that knows no long names.
func (l *fatLong) add(slot []byte) {
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

// take gives the long name of the entry with the short name, and forgets it; empty if absent.
func (l *fatLong) take(short []byte) string {
	slots := l.slots
	l.slots = 0
	if slots == 0 || l.at != 1 || l.sum != fatChecksum(short) {
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

// fatChecksum ties a long name to its short one. Spec: "Checksum generation".
func fatChecksum(short []byte) (sum byte) {
	for _, c := range short {
		sum = sum>>1 | sum<<7
		sum += c
	}
	return sum
}

// fatEqual compares names without case.
func fatEqual(a, b string) bool {
	for a != "" && b != "" {
		r, n := utf8.DecodeRuneInString(a)
		s, m := utf8.DecodeRuneInString(b)
		switch {
		case r == utf8.RuneError || s == utf8.RuneError: // bytes of an unknown code page
			if a[:n] != b[:m] {
				return false
			}
		case r != s && fatUpper(r) != fatUpper(s):
			return false
		}
		a, b = a[n:], b[m:]
	}
	return a == b
}

// fatUpper knows pairs of letters only: to Windows "ſ" is no "S".
func fatUpper(r rune) rune {
	if u := unicode.ToUpper(r); unicode.ToLower(u) == r {
		return u
	}
	return r
}
