// Package fat identifies FAT12, FAT16 and FAT32, and finds files in them. Spec: Microsoft FAT specification 1.03.
package fat

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// BPB is the part of the boot sector common to all FATs. Spec: "Boot Sector and BPB".
type BPB struct {
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

// bpb32 is at 0x24 in FAT32, in front of the extension.
type bpb32 struct {
	FATSize32    uint32
	Flags        uint16 // bit 7 set: only the FAT in bits 0 to 3 is current
	Version      uint16
	RootCluster  uint32
	FSInfo       uint16
	BackupSector uint16
	_            [12]byte
}

// extension is the extension at 0x24 in FAT12 and FAT16, at 0x40 in FAT32.
type extension struct {
	Drive    uint8
	State    uint8 // bit 0 is the dirty flag
	BootSig  uint8 // 0x29 if the three fields below are valid
	Serial   uint32
	Label    [11]byte
	TypeName [8]byte
}

// slotSize is the size of a folder entry in bytes.
const slotSize = 32

const (
	bootSectorName = "fat boot sector"
	atExt          = 0x24
	atExt32        = 0x40
	extPlaced      = 0x29

	most12 = 4084 // maximum of clusters of a FAT12. Spec: "FAT Type Determination"
)

// bootSector is a boot sector with the computed areas of the volume. Offsets and sizes are bytes of the volume.
type bootSector struct {
	BPB
	bpb32 // in FAT32
	extension

	Bits     int64      // bits per FAT entry: 12, 16 or 32
	Sector   int64      // bytes
	Cluster  int64      // bytes
	FAT      disk.Range // the first FAT
	Root     disk.Range // root directory of FAT12 and FAT16
	Data     int64      // offset of cluster 2
	Clusters int64      // clusters with an entry in the FAT
	Total    int64
}

// readBoot decodes the boot sector of a volume. It returns ErrNoMatch if the volume is not a FAT, and ErrFormat if the
// boot sector is broken.
func readBoot(d disk.Disk) (*bootSector, error) {
	raw, err := volume.ReadBlock(d, 0, units.SectorSize)
	if err != nil {
		return nil, err
	}
	// Other file systems begin with a BPB too.
	others := []string{"NTFS    ", "EXFAT   ", "-FVE-FS-"}
	if string(raw[510:]) != "\x55\xaa" || slices.Contains(others, string(raw[3:11])) {
		return nil, ondisk.ErrNoMatch
	}
	b := &bootSector{}
	named32 := string(raw[0x52:0x57]) == "FAT32"
	ondisk.Fill(raw, binary.LittleEndian, &b.BPB)
	ondisk.Fill(raw[atExt:], binary.LittleEndian, &b.bpb32)
	if named32 || b.FATSize16 == 0 {
		ondisk.Fill(raw[atExt32:], binary.LittleEndian, &b.extension)
	} else {
		ondisk.Fill(raw[atExt:], binary.LittleEndian, &b.extension)
	}
	if err := b.check(d.Size()); err != nil {
		if named32 || string(raw[0x36:0x39]) == "FAT" {
			return nil, err
		}
		return nil, ondisk.ErrNoMatch // without a name, every field must fit a FAT
	}
	return b, nil
}

func field(name string, off int64, got, want any) error {
	return ondisk.Field(bootSectorName, name, off, got, want)
}

// check verifies the BPB against its specification and computes the areas. size is the size of the partition in bytes.
func (b *bootSector) check(size int64) error {
	b.Sector = int64(b.BytesPerSector)
	per := int64(b.SectorsPerCluster)
	switch {
	case b.Sector < 512 || b.Sector > 4096 || !units.IsPowerOfTwo(b.Sector):
		return field("bytes per sector", 0x0b, b.Sector, "512, 1024, 2048 or 4096")
	case !units.IsPowerOfTwo(per):
		return field("sectors per cluster", 0x0d, per, "1, 2, 4, … 128")
	case b.Reserved == 0:
		return field("reserved sectors", 0x0e, 0, "1 or more")
	case b.FATs == 0 || b.FATs > 4:
		return field("number of FATs", 0x10, b.FATs, "1 to 4")
	case b.Media != 0xf0 && b.Media < 0xf8:
		return field("media", 0x15, fmt.Sprintf("%#02x", b.Media), "0xf0, or 0xf8 to 0xff")
	}
	b.Cluster = per * b.Sector
	return b.place(size)
}

// place computes the offsets of the areas. The number of clusters distinguishes FAT12 from FAT16. FAT32 is detected by
// its FAT size field instead, since tools create small FAT32 volumes.
func (b *bootSector) place(size int64) error {
	sectors, fatSectors, atFATSize := int64(b.Sectors16), int64(b.FATSize16), int64(0x16)
	if sectors == 0 {
		sectors = int64(b.Sectors32)
	}
	if fatSectors == 0 {
		b.Bits, fatSectors, atFATSize = 32, int64(b.FATSize32), atExt
	}
	if fatSectors == 0 {
		return field("FAT size", atFATSize, 0, "1 or more sectors")
	}
	if sectors == 0 {
		return field("total sectors", 0x20, sectors, fmt.Sprintf("1 to %d, the size of the partition", size/b.Sector))
	}
	b.Total = sectors * b.Sector
	b.FAT = disk.Range{Off: int64(b.Reserved) * b.Sector, Len: fatSectors * b.Sector}
	b.Root = disk.Range{Off: b.FAT.Off + int64(b.FATs)*b.FAT.Len, Len: int64(b.RootEntries) * slotSize}
	b.Data = units.AlignUp(b.Root.End(), b.Sector)
	if b.Data >= b.Total {
		return field("FAT size", atFATSize, fatSectors,
			fmt.Sprintf("less, so that data starts within the %d sectors", sectors))
	}
	b.Clusters = (b.Total - b.Data) / b.Cluster
	switch {
	case b.Bits == 32:
	case b.Clusters <= most12:
		b.Bits = 12
	default:
		b.Bits = 16
	}
	// The FAT may be too small for the volume. Clusters without an entry are unused.
	b.Clusters = min(b.Clusters, b.FAT.Len*8/b.Bits-2)
	return nil
}

// named reports whether the boot sector stores a serial number and a label.
func (b *bootSector) named() bool { return b.BootSig == extPlaced }

// has reports whether a cluster is in the volume. The first cluster has number 2.
func (b *bootSector) has(cluster int64) bool { return cluster >= 2 && cluster-2 < b.Clusters }

// at returns the offset of a cluster.
func (b *bootSector) at(cluster int64) int64 { return b.Data + (cluster-2)*b.Cluster }

// Prober detects FAT12, FAT16 and FAT32. A broken volume has the kind "fat", since its boot sector does not tell the
// type.
var Prober = volume.Prober{
	Kinds: []volume.Traits{
		{Kind: "fat", NeverStale: true},
		traits(volume.FAT12), traits(volume.FAT16),
		traits(volume.FAT32),
	},
	Marks: []volume.Mark{{Off: 510, Bytes: "\x55\xaa"}},
	Probe: probe,
}

func traits(k volume.Kind) volume.Traits {
	return volume.Traits{
		Kind: k, Title: strings.ToUpper(string(k)), Unit: "cluster", Windows: true, Letter: true, DOS: true,
		Data: fmt.Sprintf("first %s cluster", k),
		Realign: "to align its clusters, format it again with a tool that aligns them (mkfs.fat does), and " +
			"copy the files",
	}
}

// kinds maps bits per FAT entry to kinds.
var kinds = map[int64]volume.Kind{12: volume.FAT12, 16: volume.FAT16, 32: volume.FAT32}

func probe(d disk.Disk) (*volume.Volume, error) {
	b, err := readBoot(d)
	if err != nil {
		return nil, err
	}
	kind := kinds[b.Bits]
	v := &volume.Volume{Kind: kind, Size: b.Total, BlockSize: b.Cluster, DataStart: b.Data, Boot: &volume.BPB{
		Kind: kind, SectorSize: b.Sector, Hidden: b.Hidden, Sectors: int(b.SectorsPerTrack), Heads: int(b.Heads),
	}}
	if b.named() {
		v.Label, v.UUID = volume.DOSLabel(b.Label[:]), fmt.Sprintf("%04X-%04X", b.Serial>>16, b.Serial&0xffff)
	}
	if kind == volume.FAT32 {
		if err := readBackup(v, d, b); err != nil {
			return nil, err
		}
	}
	if err := readDirty(v, d, b); err != nil {
		return nil, err
	}
	return v, readLabel(v, d, b)
}

// readDirty adds a note if the FAT was not unmounted. Windows NT and Linux keep a dirty flag in the boot sector. DOS
// and Windows 95 clear a bit of the second FAT entry while they write. The bit is invalid if the first entry is wrong.
// Spec: Linux, include/uapi/linux/msdos_fs.h, FAT_STATE_DIRTY; Microsoft FAT specification 1.03, "ClnShutBitMask".
func readDirty(v *volume.Volume, d disk.Disk, b *bootSector) error {
	dirty := b.named() && b.State&1 != 0
	var entries [2]uint32
	clean := uint32(1 << 27)
	if v.Kind == volume.FAT16 {
		var short [2]uint16
		if _, err := volume.Superblock(d, b.FAT.Off, binary.LittleEndian, &short); err != nil &&
			!errors.Is(err, ondisk.ErrNoMatch) {
			return err
		}
		entries, clean = [2]uint32{uint32(short[0]), uint32(short[1])}, 1<<15
	} else if _, err := volume.Superblock(d, b.FAT.Off, binary.LittleEndian, &entries); err != nil &&
		!errors.Is(err, ondisk.ErrNoMatch) {
		return err
	}
	if v.Kind != volume.FAT12 && entries[0]&0xff == uint32(b.Media) && entries[1]&clean == 0 {
		dirty = true
	}
	if dirty {
		v.Note("fat-dirty", ondisk.Note, "the FAT is marked dirty: it was not unmounted cleanly", "")
	}
	return nil
}

// readBackup finds the copy of the boot sector in the reserved sectors of a FAT32.
func readBackup(v *volume.Volume, d disk.Disk, b *bootSector) error {
	n := int64(b.BackupSector)
	if n == 0 || n >= int64(b.Reserved) {
		return nil // 0 and 0xffff mean that there is no backup
	}
	var magic uint16
	_, err := volume.Superblock(d, n*b.Sector+units.SectorSize-2, binary.LittleEndian, &magic)
	if err != nil && !errors.Is(err, ondisk.ErrNoMatch) {
		return err
	}
	if magic != volume.BootMagic {
		v.Note("fat-backup", ondisk.Note,
			fmt.Sprintf("there is no backup boot sector in sector %d, its position according to the boot "+
				"sector", n), "")
		return nil
	}
	v.Boot.Backup = n * b.Sector
	return nil
}

// readLabel reads the label in the root directory, which Windows shows. In FAT32 it reads only the first cluster of the
// root directory.
func readLabel(v *volume.Volume, d disk.Disk, b *bootSector) error {
	r := b.Root
	if v.Kind == volume.FAT32 {
		c := int64(b.RootCluster)
		if !b.has(c) {
			v.Note("fat-root", ondisk.Warn, fmt.Sprintf("the root cluster at 0x2c is %d, must be 2 to %d", c,
				b.Clusters+1),
				"run a file-system check in the guest")
			return nil
		}
		r = disk.Range{Off: b.at(c), Len: b.Cluster}
	}
	if r.Off >= d.Size() {
		return nil // truncated
	}
	end := min(r.Off+min(r.Len, maxRoot), d.Size())
	for at := r.Off; at < end; at += rootPiece {
		raw, err := ondisk.Bytes(d, at, min(rootPiece, end-at))
		if err != nil {
			return err
		}
		for ; len(raw) >= slotSize; raw = raw[slotSize:] {
			const volumeID, longName, deleted = 0x08, 0x0f, 0xe5
			switch {
			case raw[0] == 0:
				return nil
			case raw[0] != deleted && raw[11]&longName != longName && raw[11]&volumeID != 0:
				v.Label = volume.DOSLabel(raw[:11])
				return nil
			}
		}
	}
	return nil
}

// Limits of the search for the label in the root directory, in bytes. Formatters store the label as the first entry.
const (
	maxRoot   = 64 << 10
	rootPiece = 2 << 10
)

// maxReserved bounds the reserved sectors of a FAT that InSectors rewrites, in bytes. Formatters reserve up to 32 KiB.
const maxReserved = units.MiB

// InSectors returns the patches that make a FAT count larger sectors of n bytes, for a partition at byte at of a disk.
// Files and FATs keep their bytes. It returns none if an area is not a whole number of such sectors, or their places in
// the reserved area are in use.
func InSectors(d disk.Disk, at, n int64) (patches []disk.Patch, err error) {
	b, err := readBoot(d)
	if err != nil || b.Sector >= n || b.FAT.Off > maxReserved {
		return nil, err
	}
	for _, area := range []int64{b.Cluster, b.FAT.Off, b.FAT.Len, b.Root.Len, b.Data} {
		if area%n != 0 {
			return nil, nil
		}
	}
	was, err := ondisk.Bytes(d, 0, b.FAT.Off)
	if err != nil {
		return nil, err
	}
	is := slices.Clone(was)
	b.resize(is, at, n)
	if b.Bits == 32 && !b.relocate(was, is, n) {
		return nil, nil
	}
	for off := int64(0); off < b.FAT.Off; off += units.SectorSize {
		old, now := was[off:off+units.SectorSize], is[off:off+units.SectorSize]
		if string(old) != string(now) {
			patches = append(patches, disk.Patch{
				Off: off, Old: old, New: now, Reason: fmt.Sprintf("FAT in sectors of %d bytes", n),
			})
		}
	}
	return patches, nil
}

// resize rewrites the fields of a boot sector that count sectors.
func (b *bootSector) resize(sector []byte, at, n int64) {
	k := n / b.Sector
	now := b.BPB
	now.BytesPerSector = uint16(n)    //nolint:gosec // 4096 at most
	now.SectorsPerCluster /= uint8(k) //nolint:gosec // 8 at most
	now.Reserved /= uint16(k)         //nolint:gosec // 8 at most
	now.FATSize16 /= uint16(k)        //nolint:gosec // 8 at most
	now.Sectors16, now.Sectors32 = 0, ondisk.U32(b.Total/n)
	if int64(b.Hidden)*b.Sector == at {
		now.Hidden = ondisk.U32(at / n)
	}
	copy(sector, ondisk.Encode(binary.LittleEndian, now))
	if b.Bits == 32 {
		binary.LittleEndian.PutUint32(sector[atExt:], b.FATSize32/uint32(k)) //nolint:gosec // 8 at most
	}
}

// relocate places the information sector of a FAT32 in sector 1, and the backups of both sectors in the following ones
// if they are reserved. The old places become zero. It reports whether the new places were free.
func (b *bootSector) relocate(was, is []byte, n int64) bool {
	const atInfo, atBackup = 0x30, 0x32
	sector := func(number int64) []byte {
		if off := number * b.Sector; number > 0 && off < int64(len(was)) {
			return was[off : off+units.SectorSize]
		}
		return nil
	}
	reserved, info, backup := int64(len(was))/n, int64(b.FSInfo), int64(b.BackupSector)
	if reserved < 2 || sector(info) == nil {
		return false
	}
	old := []int64{info}
	if sector(backup) != nil {
		old = append(old, backup, backup+info)
	}
	for _, number := range old {
		if sector(number) != nil {
			clear(is[number*b.Sector:][:units.SectorSize])
		}
	}
	binary.LittleEndian.PutUint16(is[atInfo:], 1)
	binary.LittleEndian.PutUint16(is[atBackup:], 0)
	now := [][]byte{sector(info)} // from sector 1 on
	if sector(backup) != nil && reserved > 2 {
		binary.LittleEndian.PutUint16(is[atBackup:], 2)
		now = append(now, slices.Clone(is[:units.SectorSize]), sector(info))
		now = now[:min(reserved-1, 3)]
	}
	for i, content := range now {
		place := is[int64(i+1)*n:][:units.SectorSize]
		if !ondisk.IsZero(place) {
			return false
		}
		copy(place, content)
	}
	return true
}
