package volume

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// NTFS is the file system of Windows NT.
const NTFS Kind = "ntfs"

var ntfs = Prober{
	Kinds: []Traits{{Kind: NTFS, Title: "NTFS", Unit: "cluster", Windows: true, Letter: true, NeverStale: true}},
	Marks: []Mark{{3, "NTFS    "}},
	Probe: probeNTFS,
}

// ntfsBoot is the boot sector. Spec: Microsoft "NTFS boot sector layout"; Linux-NTFS documentation, $Boot.
type ntfsBoot struct {
	Jump              [3]byte
	OEM               [8]byte // "NTFS    "
	BytesPerSector    uint16
	SectorsPerCluster uint8
	_                 [10]byte // reserved, zero; media descriptor at 0x15
	SectorsPerTrack   uint16
	Heads             uint16
	HiddenSectors     uint32
	_                 [8]byte
	TotalSectors      uint64
	MFTCluster        uint64
	MFTMirrCluster    uint64
	ClustersPerRecord int8 // negative: the record has 2^-n bytes
	_                 [3]byte
	ClustersPerIndex  int8
	_                 [3]byte
	Serial            uint64
	_                 [430]byte // checksum (unused) and boot code
	Magic             uint16
}

const (
	ntfsWhat  = "ntfs boot sector"
	bootMagic = 0xaa55
)

func probeNTFS(d disk.Disk) (*Volume, error) {
	var b ntfsBoot
	if d.Size() < units.SectorSize {
		return nil, ondisk.ErrNoMatch
	}
	raw, err := ondisk.Decode(d, 0, &b)
	if err != nil {
		return nil, err
	}
	if string(b.OEM[:]) != "NTFS    " {
		return nil, ondisk.ErrNoMatch
	}
	if err := b.check(d.Size()); err != nil {
		return nil, err
	}
	v := &Volume{
		Kind: NTFS, UUID: fmt.Sprintf("%016X", b.Serial), BlockSize: b.cluster(),
		Size: ondisk.I64(b.TotalSectors) * int64(b.BytesPerSector),
		Boot: &BPB{Kind: NTFS, SectorSize: int64(b.BytesPerSector), Hidden: b.HiddenSectors, Sectors: int(b.SectorsPerTrack), Heads: int(b.Heads)},
	}
	if b.Magic != bootMagic {
		// ntfs-3g, libntfs-3g/bootsect.c, ntfs_boot_sector_is_ntfs: a warning, since there are such volumes.
		v.note("ntfs-signature", ondisk.Warn, fmt.Sprintf("the NTFS boot sector ends in %#04x, want 0xaa55: no BIOS starts it, and systems may not take it for NTFS", b.Magic),
			"restore the boot sector from its backup in the guest (testdisk)")
	}
	if err := v.ntfsBackup(d, raw); err != nil {
		return nil, err
	}
	return v, v.ntfsNames(d, b)
}

// check holds the fields to the values that Windows and ntfs-3g accept. size is that of the partition in bytes.
func (b *ntfsBoot) check(size int64) error {
	sector := int64(b.BytesPerSector)
	if sector < 512 || sector > 4096 || !units.IsPowerOfTwo(sector) {
		return field(ntfsWhat, "bytes per sector", 0x0b, sector, "512, 1024, 2048 or 4096")
	}
	if b.cluster() == 0 {
		return field(ntfsWhat, "sectors per cluster", 0x0d, fmt.Sprintf("%#02x", b.SectorsPerCluster), "a power of two up to 128, or 0xf4 to 0xff (2^(256-n))")
	}
	sectors := ondisk.U64(size / sector)
	if b.TotalSectors == 0 || b.TotalSectors > sectors {
		return field(ntfsWhat, "total sectors", 0x28, b.TotalSectors, fmt.Sprintf("1 to %d, the size of the partition", sectors))
	}
	clusters := b.TotalSectors / ondisk.U64(b.cluster()/sector)
	if b.MFTCluster == 0 || b.MFTCluster >= clusters {
		return field(ntfsWhat, "MFT cluster", 0x30, b.MFTCluster, fmt.Sprintf("1 to %d", max(clusters, 1)-1))
	}
	if b.record() == 0 {
		return field(ntfsWhat, "clusters per MFT record", 0x40, b.ClustersPerRecord, "a size of 512 to 65536 bytes")
	}
	return nil
}

// cluster is the size of a cluster in bytes, 0 when the field is illegal.
func (b *ntfsBoot) cluster() int64 {
	n := int64(b.SectorsPerCluster)
	if n > 0x80 { // 2^(256-n) sectors, for clusters above 64 KiB
		if n < 0xf4 {
			return 0
		}
		n = 1 << (256 - n)
	}
	if !units.IsPowerOfTwo(n) {
		return 0
	}
	return n * int64(b.BytesPerSector)
}

// record is the size of an MFT record in bytes, 0 when the field is illegal.
func (b *ntfsBoot) record() int64 {
	n := int64(b.ClustersPerRecord)
	switch {
	case n > 0 && n <= 128:
		n *= b.cluster()
	case n < 0 && n >= -16:
		n = 1 << -n
	default:
		return 0
	}
	if n < 512 || n > 65536 || !units.IsPowerOfTwo(n) {
		return 0
	}
	return n
}

// ntfsBackup looks at the copy of the boot sector, which stands directly behind the file system: normally in the last
// sector of the partition.
func (v *Volume) ntfsBackup(d disk.Disk, primary []byte) error {
	if v.Size+units.SectorSize > d.Size() {
		v.note("ntfs-backup", ondisk.Note, "the partition has no sector for a backup of the NTFS boot sector behind the file system", "")
		return nil
	}
	backup, err := ondisk.Bytes(d, v.Size, units.SectorSize)
	if err != nil {
		return err
	}
	if string(backup[3:11]) != "NTFS    " {
		v.note("ntfs-backup", ondisk.Note, "there is no backup of the NTFS boot sector where it belongs (last sector)", "")
		return nil
	}
	v.Boot.Backup = v.Size
	if !bytes.Equal(ntfsFields(backup), ntfsFields(primary)) {
		v.note("ntfs-backup", ondisk.Unbootable, "the backup of the NTFS boot sector describes another volume than the primary",
			"run chkdsk /f in the guest and shut it down cleanly")
	}
	return nil
}

// ntfsFields are the parts of a boot sector that must agree in both copies: all of the BPB but the place on the disk,
// which tools forget to update in the backup.
func ntfsFields(b []byte) []byte {
	return append(bytes.Clone(b[0x0b:0x18]), b[0x28:0x50]...)
}

func (v *Volume) note(code string, effect ondisk.Effect, text, remedy string) {
	v.Issues = append(v.Issues, ondisk.Issue{Code: code, Effect: effect, OnMove: effect > ondisk.Warn, Text: text, Remedy: remedy})
}

// NTFS attributes of the record of $Volume. Spec: Linux-NTFS documentation, "File Record", "$VOLUME_NAME".
const (
	volumeRecord = 3
	attrName     = 0x60
	attrInfo     = 0x70
	attrEnd      = 0xffffffff
	dirtyFlag    = 1

	maxVolumeName = 256 // bytes. Spec: Linux-NTFS documentation, "$AttrDef"
)

// ntfsNames reads label and dirty flag from record 3 of the MFT. A record that cannot be read leaves the label empty: the
// volume moves all the same.
func (v *Volume) ntfsNames(d disk.Disk, b ntfsBoot) error {
	size := b.record()
	if b.MFTCluster > ondisk.U64(v.Size/v.BlockSize) {
		return nil
	}
	off := ondisk.I64(b.MFTCluster)*v.BlockSize + volumeRecord*size
	if off+size > d.Size() {
		return nil
	}
	rec, err := ondisk.Bytes(d, off, size)
	if err != nil {
		return err
	}
	if !applyFixups(rec) {
		v.note("ntfs-volume", ondisk.Note, fmt.Sprintf("the record of $Volume at %#x cannot be read, so the label is not known", off), "")
		return nil
	}
	if name, ok := attribute(rec, attrName); ok {
		v.Label = ondisk.UTF16Z(name[:min(len(name), maxVolumeName)], binary.LittleEndian)
	}
	info, ok := attribute(rec, attrInfo)
	if !ok || len(info) < 12 {
		return nil
	}
	v.Details = append(v.Details, Detail{"version", fmt.Sprintf("%d.%d", info[8], info[9])}) // 1.2: NT 4, 3.0: 2000, 3.1: since XP
	if binary.LittleEndian.Uint16(info[10:])&dirtyFlag != 0 {
		v.note("ntfs-dirty", ondisk.Warn, "NTFS is marked dirty: Windows was not shut down cleanly", "start Windows, let chkdsk run, shut it down cleanly")
	}
	return nil
}

// applyFixups puts the last two bytes of each 512 back that NTFS replaced by a counter.
func applyFixups(rec []byte) bool {
	if string(rec[:4]) != "FILE" {
		return false
	}
	at, n := int(binary.LittleEndian.Uint16(rec[4:])), int(binary.LittleEndian.Uint16(rec[6:]))
	if n != len(rec)/512+1 || at+2*n > 512-2 {
		return false
	}
	for i := 1; i < n; i++ {
		end := rec[i*512-2 : i*512]
		if !bytes.Equal(end, rec[at:at+2]) {
			return false
		}
		copy(end, rec[at+2*i:])
	}
	return true
}

// attribute gives the value of the first resident attribute of a kind. Every step goes forward.
func attribute(rec []byte, kind uint32) ([]byte, bool) {
	at := int(binary.LittleEndian.Uint16(rec[0x14:]))
	for at+0x18 <= len(rec) {
		a := rec[at:]
		n := int64(binary.LittleEndian.Uint32(a[4:]))
		found := binary.LittleEndian.Uint32(a)
		if found == attrEnd || n < 0x18 || n > int64(len(a)) {
			return nil, false
		}
		if found == kind && a[8] == 0 { // resident
			size, from := int64(binary.LittleEndian.Uint32(a[0x10:])), int64(binary.LittleEndian.Uint16(a[0x14:]))
			if from+size > n {
				return nil, false
			}
			return a[from : from+size], true
		}
		at += int(n)
	}
	return nil, false
}
