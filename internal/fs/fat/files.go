package fat

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// Sizes of a FAT. Spec: Microsoft FAT specification 1.03.
const (
	maxFolder = 65536 * slotSize // bytes of the largest folder
	// Maximum of clusters of a FAT16 and of a FAT32. Spec: "FAT Type Determination".
	most16 = 65524
	most32 = 0x0ffffff5
)

// fileSystem reads a FAT12, FAT16 or FAT32.
type fileSystem struct {
	*bootSector
	volume disk.Disk
	meter  guestfile.Metered
	table  int64 // byte offset of the FAT in use
}

// Open opens the FAT12, FAT16 or FAT32 of a partition.
func Open(b *guestfile.Budget, d disk.Disk) (guestfile.FS, error) {
	boot, err := readBoot(d)
	if err != nil {
		return nil, err
	}
	f := &fileSystem{bootSector: boot, volume: d, meter: b.Meter(d), table: boot.FAT.Off}
	return f, f.check()
}

// check returns an error for a FAT whose files cannot be located with certainty. It adds to the checks of readBoot.
func (f *fileSystem) check() error {
	most := int64(most16)
	if f.Bits == 32 {
		most = most32
	}
	if f.Clusters < 1 || f.Clusters > most {
		return field("clusters", 0x20, f.Clusters, fmt.Sprintf("1 to %d", most))
	}
	if f.Bits != 32 {
		return nil
	}
	if f.RootEntries != 0 {
		return field("root entries", 0x11, f.RootEntries, "0, since it has no FAT of a FAT16")
	}
	if f.Version != 0 {
		return fmt.Errorf("fat32 version %#x: %w", f.Version, ondisk.ErrUnsupported)
	}
	return f.choose()
}

// choose selects the FAT in use. Spec: "BPB_ExtFlags": bit 7 set means that only the FAT in bits 0 to 3 is current.
func (f *fileSystem) choose() error {
	if active := int64(f.Flags & 0xf); f.Flags&0x80 != 0 {
		if active >= int64(f.FATs) {
			return field("active FAT", 0x28, active, fmt.Sprintf("0 to %d", f.FATs-1))
		}
		f.table += active * f.FAT.Len
	}
	if root := int64(f.RootCluster); !f.has(root) {
		return field("root cluster", 0x2c, root, f.allowed())
	}
	return nil
}

// Open finds a regular file.
func (f *fileSystem) Open(path string) (*guestfile.File, error) {
	e, stored, err := f.find(path)
	if err != nil {
		return nil, err
	}
	if e.dir() {
		return nil, fmt.Errorf("file %.256q: is a folder: %w", path, fs.ErrNotExist)
	}
	var runs []guestfile.Run
	if e.size > 0 {
		if runs, err = f.chain(e.first, f.Clusters, (e.size+f.Cluster-1)/f.Cluster); err != nil {
			return nil, fmt.Errorf("file %.256q: %w", path, err)
		}
	}
	return guestfile.NewFile(f.volume, stored, e.size, runs)
}

// Volume is implemented by the result of Open, to check a volume that was not unmounted.
type Volume interface {
	// Mirrored returns nil if all FATs agree on the clusters of a file and of the folders on its path.
	Mirrored(path string) error
	// FirstEntry returns nil if the first entry of the FAT in use repeats the media byte. Spec: "FAT Data Structure".
	FirstEntry() error
}

// FirstEntry implements Volume.
func (f *fileSystem) FirstEntry() error {
	v, _, err := f.value(f.table, 0)
	if err == nil && v&0xff != uint32(f.Media) {
		err = f.broken(0, int64(v), fmt.Sprintf("the media byte %#02x in the low byte", f.Media))
	}
	return err
}

// Mirrored implements Volume.
func (f *fileSystem) Mirrored(path string) error {
	names := guestfile.Elements(path)
	for i := range len(names) + 1 {
		e, _, err := f.find(strings.Join(names[:i], "/"))
		switch {
		case err != nil:
			return err
		case e.root && f.Bits != 32, !e.dir() && e.size == 0:
			continue // without clusters
		case e.root:
			e.first = int64(f.RootCluster)
		}
		if _, err := f.chain(e.first, f.Clusters, 1); err != nil {
			return fmt.Errorf("path %.256q: %w", path, err)
		}
		if err := f.sameInAll(e.first); err != nil {
			return fmt.Errorf("path %.256q: %w", path, err)
		}
	}
	return nil
}

// List returns the names of a folder.
func (f *fileSystem) List(path string) ([]guestfile.Entry, error) {
	e, _, err := f.find(path)
	if err != nil {
		return nil, err
	}
	if !e.dir() {
		return nil, fmt.Errorf("folder %.256q: is a file: %w", path, fs.ErrNotExist)
	}
	var out []guestfile.Entry
	err = f.each(e, func(e entry) bool {
		out = append(out, guestfile.Entry{Name: e.name(), Dir: e.dir()})
		return true
	})
	return out, err
}

// find follows a path from the root. stored is the path with the names as stored in the folders.
func (f *fileSystem) find(path string) (at entry, stored string, err error) {
	names := guestfile.Elements(path)
	if len(names) > guestfile.MaxDepth {
		return at, "", fmt.Errorf("path %.256q: %w of %d folders", path, ondisk.ErrLimit, guestfile.MaxDepth)
	}
	at = entry{attr: attrDir, root: true}
	for i, name := range names {
		found := false
		if at.dir() {
			err = f.each(at, func(e entry) bool {
				if found = e.is(name); found {
					at = e
				}
				return !found
			})
		}
		if err != nil {
			return at, "", fmt.Errorf("path %.256q: %w", path, err)
		}
		if !found {
			return at, "", fmt.Errorf("path %.256q: %w", path, fs.ErrNotExist)
		}
		names[i] = at.name()
	}
	return at, strings.Join(names, "/"), nil
}

func (f *fileSystem) allowed() string { return fmt.Sprintf("a cluster from 2 to %d", f.Clusters+1) }

// step is the cost of following one FAT entry in bytes of the budget, beside the reads.
const step = 32

// next returns the cluster behind another in its chain. end is true at the end of the chain.
func (f *fileSystem) next(cluster int64) (n int64, end bool, err error) {
	v, mask, err := f.value(f.table, cluster)
	if err != nil || v >= mask-7 {
		return 0, true, err
	}
	if n = int64(v); !f.has(n) {
		return 0, false, f.broken(cluster, n, f.allowed())
	}
	return n, false, nil
}

// value returns the entry of a cluster in the FAT at offset table, and the mask of its valid bits.
func (f *fileSystem) value(table, cluster int64) (v, mask uint32, err error) {
	if err := f.meter.Budget.Spend(step); err != nil {
		return 0, 0, err
	}
	v, err = f.meter.Pages.U32(table + cluster*f.Bits/8)
	mask = 0x0fffffff // the upper bits of FAT32 are reserved
	switch f.Bits {
	case 12:
		v, mask = v>>(cluster%2*4), 0xfff
	case 16:
		mask = 0xffff
	}
	return v & mask, mask, err
}

// sameInAll requires that all FATs hold the same chain, which was followed to its end before.
func (f *fileSystem) sameInAll(first int64) error {
	for c, end := first, false; !end; {
		used, _, err := f.value(f.table, c)
		if err != nil {
			return err
		}
		for i := range int64(f.FATs) {
			at := f.FAT.Off + i*f.FAT.Len
			switch other, _, err := f.value(at, c); {
			case err != nil:
				return err
			case other != used:
				field := fmt.Sprintf("entry of cluster %d in FAT %d", c, i+1)
				return ondisk.Field("fat", field, at+c*f.Bits/8, other, fmt.Sprintf("%d, as in the FAT in use", used))
			}
		}
		if c, end, err = f.next(c); err != nil {
			return err
		}
	}
	return nil
}

func (f *fileSystem) broken(cluster, got int64, want string) error {
	field := fmt.Sprintf("entry of cluster %d", cluster)
	return ondisk.Field("fat", field, f.table+cluster*f.Bits/8, got, want)
}

// chain returns the runs of a chain from its first cluster to the end mark, which proves that no cluster repeats. The
// chain must have least to most clusters: a file may have spare clusters past its end.
func (f *fileSystem) chain(first, most, least int64) ([]guestfile.Run, error) {
	var runs []guestfile.Run
	err := f.follow(first, most, least, func(cluster int64) error {
		if runs = f.join(runs, cluster); len(runs) > guestfile.MaxRuns {
			return fmt.Errorf("fat chain from cluster %d: %w of %d runs", first, ondisk.ErrLimit, guestfile.MaxRuns)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return runs, nil
}

// follow visits the clusters of a chain, with the checks of chain.
func (f *fileSystem) follow(first, most, least int64, visit func(cluster int64) error) error {
	if !f.has(first) {
		return ondisk.Field("fat folder entry", "first cluster", 0x1a, first, f.allowed())
	}
	// Brent's algorithm: a chain that returns to a cluster eventually passes the saved one.
	saved, power, steps := first, int64(1), int64(0)
	for c, n := first, int64(1); ; n++ {
		if n > most {
			return fmt.Errorf("fat chain from cluster %d: %w of %d clusters", first, ondisk.ErrLimit, most)
		}
		if err := visit(c); err != nil {
			return err
		}
		to, end, err := f.next(c)
		switch {
		case err != nil:
			return err
		case n == f.Clusters && !end:
			return f.broken(c, to, "the end of the chain, which has had all clusters")
		case end && n < least:
			return f.broken(c, n, fmt.Sprintf("%d clusters before the end of the chain from %d", least, first))
		case end:
			return nil
		case to == saved:
			return f.broken(c, to, "a cluster that the chain has not passed")
		}
		if steps++; steps == power {
			saved, power, steps = to, power*2, 0
		}
		c = to
	}
}

// join adds a cluster to the end of the runs.
func (f *fileSystem) join(runs []guestfile.Run, cluster int64) []guestfile.Run {
	at, off := f.at(cluster), int64(0)
	if k := len(runs) - 1; k >= 0 {
		if r := &runs[k]; r.At+r.Len == at {
			r.Len += f.Cluster
			return runs
		}
		off = runs[k].Off + runs[k].Len
	}
	return append(runs, guestfile.Run{Off: off, Len: f.Cluster, At: at})
}

// Attributes of an entry. Spec: Microsoft FAT specification 1.03, "FAT Directory Structure", "FAT Long Directory
// Entries".
const (
	attrLabel    = 0x08
	attrDir      = 0x10
	attrLong     = 0x0f
	attrLongMask = 0x3f

	deleted = 0xe5
	kanji   = 0x05 // encodes 0xe5 as the first byte of a name

	// Windows NT flags an all lower-case name in the reserved byte, which saves the long name.
	lowerBase = 0x08
	lowerExt  = 0x10
)

// entry is a file or a folder.
type entry struct {
	long, short string // long may be empty
	attr        byte
	root        bool
	first       int64 // first cluster, 0 for an empty file
	size        int64
}

func (e *entry) dir() bool { return e.attr&attrDir != 0 }

func (e *entry) name() string {
	if e.long != "" {
		return e.long
	}
	return e.short
}

// is reports whether name equals the long or short name of an entry, ignoring case.
func (e *entry) is(name string) bool {
	return (e.long != "" && equalNames(e.long, name)) || equalNames(e.short, name)
}

// namesWeight is the cost of a byte of a folder relative to a byte that is only read, since names are built and
// compared.
const namesWeight = 5

// each calls visit for the entries of a folder, until visit returns false.
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

// entry decodes the slot of a file or folder.
func (f *fileSystem) entry(slot []byte, long string) entry {
	e := entry{long: long, short: shortName(slot), attr: slot[11], size: int64(binary.LittleEndian.Uint32(slot[28:]))}
	e.first = int64(binary.LittleEndian.Uint16(slot[26:]))
	if f.Bits == 32 { // in FAT16, OS/2 has another use for the field
		e.first |= int64(binary.LittleEndian.Uint16(slot[20:])&0x0fff) << 16
	}
	return e
}

// shortName decodes the name of eleven bytes. Non-ASCII bytes stay as they are, since their code page is not stored.
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

// longName collects the slots of a long name, which are stored last to first.
type longName struct {
	units [20 * 13]uint16
	slots int // 0 without a valid name
	at    int // latest slot, 1 to slots
	sum   byte
}

// add adds a slot. A slot out of order or with another checksum is left over from a system without long names.
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

// take returns and clears the long name that belongs to a short name. It returns "" if the long name is absent or
// invalid.
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

// shortSum returns the checksum of a short name, which is stored with its long name. Spec: "Checksum generation".
func shortSum(short []byte) (sum byte) {
	for _, c := range short {
		sum = sum>>1 | sum<<7
		sum += c
	}
	return sum
}

// equalNames compares names, ignoring case.
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

// upper returns the upper-case form of a letter, or the letter itself if the form does not map back to it: in Windows
// "ſ" is not "S".
func upper(r rune) rune {
	if u := unicode.ToUpper(r); unicode.ToLower(u) == r {
		return u
	}
	return r
}
