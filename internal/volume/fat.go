package volume

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Kinds of FAT.
const (
	FAT12 Kind = "fat12"
	FAT16 Kind = "fat16"
	FAT32 Kind = "fat32"
)

// A broken one is "fat", since which of the three it is cannot be said then.
var fat = Prober{
	Kinds: []Traits{{Kind: "fat", NeverStale: true}, traitsOfFAT(FAT12), traitsOfFAT(FAT16), traitsOfFAT(FAT32)},
	Marks: []Mark{{510, "\x55\xaa"}},
	Probe: probeFAT,
}

func traitsOfFAT(k Kind) Traits {
	return Traits{
		Kind: k, Title: strings.ToUpper(string(k)), Unit: "cluster", Windows: true, Letter: true, DOS: true,
		Data:    fmt.Sprintf("first %s cluster", k),
		Realign: "to align its clusters, format it again with a tool that aligns them (mkfs.fat does), and copy the files",
	}
}

// fatBoot is the part of the boot sector that all FATs share. Spec: Microsoft FAT specification 1.03, "Boot Sector and BPB".
type fatBoot struct {
	Jump              [3]byte
	OEM               [8]byte
	BytesPerSector    uint16
	SectorsPerCluster uint8
	Reserved          uint16
	FATs              uint8
	RootEntries       uint16
	Sectors16         uint16
	Media             uint8
	FATSize16         uint16
	SectorsPerTrack   uint16
	Heads             uint16
	Hidden            uint32
	Sectors32         uint32
}

// fatExt is the extension at 0x24 in FAT12 and FAT16, at 0x40 in FAT32.
type fatExt struct {
	Drive    uint8
	State    uint8 // bit 0: dirty
	BootSig  uint8 // 0x29: the three fields below are there
	Serial   uint32
	Label    [11]byte
	TypeName [8]byte
}

// fat32Ext stands at 0x24 in FAT32, in front of fatExt.
type fat32Ext struct {
	FATSize32    uint32
	Flags        uint16
	Version      uint16
	RootCluster  uint32
	FSInfo       uint16
	BackupSector uint16
	_            [12]byte
}

const (
	fatWhat   = "fat boot sector"
	atFATExt  = 0x24
	atFAT32X  = 0x40
	dirEntry  = 32
	extPlaced = 0x29
)

// fatLayout is where the areas of a FAT lie, in bytes.
type fatLayout struct {
	boot     fatBoot
	x        fat32Ext
	ext      fatExt
	sector   int64
	cluster  int64
	fatSize  int64
	root     disk.Range // FAT12 and FAT16
	data     int64
	clusters int64
	total    int64
}

func probeFAT(d disk.Disk) (*Volume, error) {
	if d.Size() < units.SectorSize {
		return nil, ondisk.ErrNoMatch
	}
	raw, err := ondisk.Bytes(d, 0, units.SectorSize)
	if err != nil {
		return nil, err
	}
	l := decodeFAT(raw)
	if l == nil {
		return nil, ondisk.ErrNoMatch
	}
	if err := l.check(d.Size()); err != nil {
		if named(raw) {
			return nil, err
		}
		return nil, ondisk.ErrNoMatch // without the name, a sector that is not a FAT in every field is not one
	}
	v := &Volume{Kind: l.kind(), Size: l.total, BlockSize: l.cluster, DataStart: l.data, Boot: &BPB{
		Kind: l.kind(), SectorSize: l.sector, Hidden: l.boot.Hidden, Sectors: int(l.boot.SectorsPerTrack), Heads: int(l.boot.Heads),
	}}
	if l.ext.BootSig == extPlaced {
		v.Label, v.UUID = padded(l.ext.Label[:]), fmt.Sprintf("%04X-%04X", l.ext.Serial>>16, l.ext.Serial&0xffff)
	}
	if v.Kind == FAT32 {
		if err := v.fatBackup(d, l); err != nil {
			return nil, err
		}
	}
	if l.total > d.Size() {
		v.tooLarge(d.Size())
	}
	if err := v.fatDirty(d, l); err != nil {
		return nil, err
	}
	return v, v.fatLabel(d, l)
}

// fatDirty says that a FAT was not unmounted: by the flag of the boot sector, where Windows NT and Linux keep it, or by a bit of the second
// entry, which DOS and Windows 95 clear while they write. Spec: Linux, include/uapi/linux/msdos_fs.h, FAT_STATE_DIRTY; Microsoft FAT
// specification 1.03, "ClnShutBitMask". A table whose first entry is not one says nothing.
func (v *Volume) fatDirty(d disk.Disk, l *fatLayout) error {
	dirty := l.ext.BootSig == extPlaced && l.ext.State&1 != 0
	var entries [2]uint32
	clean := uint32(1 << 27)
	at := int64(l.boot.Reserved) * l.sector
	if v.Kind == FAT16 {
		var short [2]uint16
		if _, err := superblock(d, at, binary.LittleEndian, &short); err != nil && !isNoMatch(err) {
			return err
		}
		entries, clean = [2]uint32{uint32(short[0]), uint32(short[1])}, 1<<15
	} else if _, err := superblock(d, at, binary.LittleEndian, &entries); err != nil && !isNoMatch(err) {
		return err
	}
	if v.Kind != FAT12 && entries[0]&0xff == uint32(l.boot.Media) && entries[1]&clean == 0 {
		dirty = true
	}
	if dirty {
		v.note("fat-dirty", ondisk.Note, "the FAT is marked dirty: it was not unmounted cleanly", "")
	}
	return nil
}

// tooLarge reports a file system that says it is larger than its partition, as a truncated image does. It can be read as
// far as it is there; moving the partition would cut off the rest for good.
func (v *Volume) tooLarge(size int64) {
	text := fmt.Sprintf("the %s has %d bytes by its boot sector, but the partition has %d", v.Kind, v.Size, size)
	v.note("volume-size", ondisk.Warn, text, "run a file-system check in the guest")
	v.note("volume-size", ondisk.Refuse, text, "correct the partition table or the file system in the guest first")
}

// named reports whether the sector calls itself a FAT.
func named(raw []byte) bool {
	return string(raw[0x36:0x39]) == "FAT" || string(raw[0x52:0x57]) == "FAT32"
}

// MayBeFAT reports whether a boot sector can be that of a FAT: it has the signature, and not the name of another file system that begins with
// a parameter block.
func MayBeFAT(sector []byte) bool {
	return string(sector[510:512]) == "\x55\xaa" && !slices.Contains([]string{"NTFS    ", exfatName, fveSignature}, string(sector[3:11]))
}

// decodeFAT is nil for what cannot be a boot sector of a FAT at all.
func decodeFAT(raw []byte) *fatLayout {
	if !MayBeFAT(raw) {
		return nil
	}
	l := &fatLayout{}
	at := atFATExt
	if string(raw[0x52:0x57]) == "FAT32" {
		at = atFAT32X
	}
	for _, p := range []struct {
		v  any
		at int
	}{{&l.boot, 0}, {&l.x, atFATExt}, {&l.ext, at}} {
		if _, err := binary.Decode(raw[p.at:], binary.LittleEndian, p.v); err != nil {
			panic(err) // fixed sizes inside of a sector
		}
	}
	if l.boot.FATSize16 == 0 && at == atFATExt { // a FAT32 that does not name itself
		_, _ = binary.Decode(raw[atFAT32X:], binary.LittleEndian, &l.ext)
	}
	return l
}

// check holds the BPB to its specification and computes the areas. size is that of the partition in bytes.
func (l *fatLayout) check(size int64) error {
	b := l.boot
	l.sector = int64(b.BytesPerSector)
	perCluster := int64(b.SectorsPerCluster)
	switch {
	case l.sector < 512 || l.sector > 4096 || !units.IsPowerOfTwo(l.sector):
		return field(fatWhat, "bytes per sector", 0x0b, l.sector, "512, 1024, 2048 or 4096")
	case !units.IsPowerOfTwo(perCluster):
		return field(fatWhat, "sectors per cluster", 0x0d, perCluster, "1, 2, 4, … 128")
	case b.Reserved == 0:
		return field(fatWhat, "reserved sectors", 0x0e, 0, "1 or more")
	case b.FATs == 0 || b.FATs > 4:
		return field(fatWhat, "number of FATs", 0x10, b.FATs, "1 to 4")
	case b.Media != 0xf0 && b.Media < 0xf8:
		return field(fatWhat, "media", 0x15, fmt.Sprintf("%#02x", b.Media), "0xf0, or 0xf8 to 0xff")
	}
	return l.place(size)
}

// place computes where root directory and data begin.
func (l *fatLayout) place(size int64) error {
	b := l.boot
	sectors, fatSectors, atFATSize := int64(b.Sectors16), int64(b.FATSize16), int64(0x16)
	if sectors == 0 {
		sectors = int64(b.Sectors32)
	}
	if fatSectors == 0 { // FAT32
		fatSectors, atFATSize = int64(l.x.FATSize32), atFATExt
	}
	if fatSectors == 0 {
		return field(fatWhat, "FAT size", atFATSize, 0, "1 or more sectors")
	}
	l.total = sectors * l.sector
	if sectors == 0 {
		return field(fatWhat, "total sectors", 0x20, sectors, fmt.Sprintf("1 to %d, the size of the partition", size/l.sector))
	}
	l.cluster = int64(b.SectorsPerCluster) * l.sector
	l.fatSize = fatSectors * l.sector
	l.root.Off = int64(b.Reserved)*l.sector + int64(b.FATs)*l.fatSize
	l.root.Len = units.AlignUp(int64(b.RootEntries)*dirEntry, l.sector)
	l.data = l.root.End()
	if l.data >= l.total {
		return field(fatWhat, "FAT size", atFATSize, fatSectors, fmt.Sprintf("less, so that data starts within the %d sectors", sectors))
	}
	l.clusters = (l.total - l.data) / l.cluster
	return nil
}

// kind follows from the number of clusters, and from nothing else.
func (l *fatLayout) kind() Kind {
	switch {
	case l.boot.FATSize16 == 0:
		return FAT32
	case l.clusters < 4085:
		return FAT12
	default:
		return FAT16
	}
}

// fatBackup remembers the copy of the boot sector that FAT32 keeps in its reserved sectors.
func (v *Volume) fatBackup(d disk.Disk, l *fatLayout) error {
	n := int64(l.x.BackupSector)
	if n == 0 || n >= int64(l.boot.Reserved) {
		return nil // 0 and 0xffff mean that it is absent
	}
	var magic uint16
	_, err := superblock(d, n*l.sector+units.SectorSize-2, binary.LittleEndian, &magic)
	if err != nil && !isNoMatch(err) {
		return err
	}
	if magic != bootMagic {
		v.note("fat-backup", ondisk.Note, fmt.Sprintf("there is no backup boot sector in sector %d, where the boot sector says it is", n), "")
		return nil
	}
	v.Boot.Backup = n * l.sector
	return nil
}

// fatLabel prefers the label in the root directory, which is the one that Windows shows. Only the first cluster of a FAT32
// root is looked at.
func (v *Volume) fatLabel(d disk.Disk, l *fatLayout) error {
	r := l.root
	if v.Kind == FAT32 {
		c := int64(l.x.RootCluster)
		if c < 2 || c-2 >= l.clusters {
			v.note("fat-root", ondisk.Warn, fmt.Sprintf("the root cluster at 0x2c is %d, want 2 to %d", c, l.clusters+1), "run a file-system check in the guest")
			return nil
		}
		r = disk.Range{Off: l.data + (c-2)*l.cluster, Len: l.cluster}
	}
	if r.Off >= d.Size() {
		return nil // cut off, see tooLarge
	}
	end := min(r.Off+min(r.Len, maxRoot), d.Size())
	for at := r.Off; at < end; at += rootPiece {
		b, err := ondisk.Bytes(d, at, min(rootPiece, end-at))
		if err != nil {
			return err
		}
		for ; len(b) >= dirEntry; b = b[dirEntry:] {
			const volumeID, longName, deleted = 0x08, 0x0f, 0xe5
			switch {
			case b[0] == 0:
				return nil
			case b[0] != deleted && b[11]&longName != longName && b[11]&volumeID != 0:
				v.Label = padded(b[:11])
				return nil
			}
		}
	}
	return nil
}

// What is read of a root directory for the label, in bytes: formatters make it the first entry.
const (
	maxRoot   = 64 << 10
	rootPiece = 2 << 10
)
