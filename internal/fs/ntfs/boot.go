// Package ntfs identifies an NTFS volume, and finds files in it.
package ntfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// oemName is the OEM name of a boot sector of NTFS.
const oemName = "NTFS    "

// maxRecord is the largest record of the MFT, in bytes.
const maxRecord = 64 << 10

const bootSectorName = "ntfs boot sector"

// bootSector is the boot sector. Spec: Microsoft "NTFS boot sector layout"; Linux-NTFS documentation, $Boot.
type bootSector struct {
	Jump              [3]byte
	OEM               [8]byte // Name
	BytesPerSector    uint16
	SectorsPerCluster uint8    // above 128: 2^(256-n)
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
	Magic             uint16    // 0xaa55, but some volumes lack it
}

// readBoot decodes the boot sector of a volume. It returns ErrNoMatch if the volume is not NTFS, and ErrFormat if the
// boot sector is broken.
func readBoot(d disk.Disk) (*bootSector, error) {
	b := &bootSector{}
	if _, err := volume.Superblock(d, 0, binary.LittleEndian, b); err != nil {
		return nil, err
	}
	if string(b.OEM[:]) != oemName {
		return nil, ondisk.ErrNoMatch
	}
	return b, b.check(d.Size())
}

// check accepts the values that Windows and ntfs-3g accept. size is the size of the partition in bytes.
func (b *bootSector) check(size int64) error {
	field := func(name string, off int64, got, want any) error {
		return ondisk.Field(bootSectorName, name, off, got, want)
	}
	sector := int64(b.BytesPerSector)
	if sector < 512 || sector > 4096 || !units.IsPowerOfTwo(sector) {
		return field("bytes per sector", 0x0b, sector, "512, 1024, 2048 or 4096")
	}
	if b.cluster() == 0 {
		return field("sectors per cluster", 0x0d, fmt.Sprintf("%#02x", b.SectorsPerCluster),
			"a power of two up to 128, or 0xf4 to 0xff (2^(256-n))")
	}
	sectors := ondisk.U64(size / sector)
	if b.TotalSectors == 0 || b.TotalSectors > sectors {
		return field("total sectors", 0x28, b.TotalSectors, fmt.Sprintf("1 to %d, the size of the partition", sectors))
	}
	if clusters := ondisk.U64(b.clusters()); b.MFTCluster == 0 || b.MFTCluster >= clusters {
		return field("MFT cluster", 0x30, b.MFTCluster, fmt.Sprintf("1 to %d", max(clusters, 1)-1))
	}
	if b.record() == 0 {
		return field("clusters per MFT record", 0x40, b.ClustersPerRecord,
			fmt.Sprintf("a size of %d to %d bytes", stride, maxRecord))
	}
	return nil
}

// volumeSize returns the size of the file system in bytes.
func (b *bootSector) volumeSize() int64 { return ondisk.I64(b.TotalSectors) * int64(b.BytesPerSector) }

// clusters returns the number of whole clusters of the volume.
func (b *bootSector) clusters() int64 { return b.volumeSize() / b.cluster() }

// mft returns the byte offset of the MFT in the volume.
func (b *bootSector) mft() int64 { return ondisk.I64(b.MFTCluster) * b.cluster() }

// cluster returns the size of a cluster in bytes; 0 if the field is illegal.
func (b *bootSector) cluster() int64 {
	n := int64(b.SectorsPerCluster)
	if n >= 0xf4 { // 2^(256-n) sectors, for clusters above 64 KiB
		n = 1 << (256 - n)
	} else if n > 0x80 || !units.IsPowerOfTwo(n) {
		return 0
	}
	return n * int64(b.BytesPerSector)
}

// record returns the size of a record of the MFT in bytes; 0 if the field is illegal.
func (b *bootSector) record() int64 {
	n := int64(b.ClustersPerRecord)
	switch {
	case n > 0:
		n *= b.cluster()
	case n >= -16:
		n = 1 << -n
	}
	if n < stride || n > maxRecord || !units.IsPowerOfTwo(n) {
		return 0
	}
	return n
}

// stride is the unit of protection against torn writes in bytes, independent of the sector size. A counter replaces the
// last two bytes of each stride, and the update sequence array keeps the original bytes. Spec: Linux-NTFS
// documentation, "Fixup".
const stride = 512

// UndoFixups restores the last two bytes of each stride of a record, and reports whether all fix-ups are valid. The
// fix-ups must lie behind the header and within the first 510 bytes, so that none displaces another.
func UndoFixups(raw []byte, header int) bool {
	at, n := int(binary.LittleEndian.Uint16(raw[4:])), int(binary.LittleEndian.Uint16(raw[6:]))
	if n != len(raw)/stride+1 || at < header || at%2 != 0 || at+2*n > stride-2 {
		return false
	}
	for i := 1; i < n; i++ {
		end := raw[i*stride-2 : i*stride]
		if !bytes.Equal(end, raw[at:at+2]) {
			return false
		}
		copy(end, raw[at+2*i:])
	}
	return true
}

// Prober detects NTFS, the file system of Windows NT.
var Prober = volume.Prober{
	Kinds: []volume.Traits{{
		Kind: volume.NTFS, Title: "NTFS", Unit: "cluster", Windows: true, Letter: true,
		NeverStale: true,
	}},
	Marks: []volume.Mark{{Off: 3, Bytes: oemName}},
	Probe: probe,
}

func probe(d disk.Disk) (*volume.Volume, error) {
	b, err := readBoot(d)
	if err != nil {
		return nil, err
	}
	v := &volume.Volume{
		Kind: volume.NTFS, UUID: fmt.Sprintf("%016X", b.Serial), BlockSize: b.cluster(), Size: b.volumeSize(),
		Boot: &volume.BPB{
			Kind: volume.NTFS, SectorSize: int64(b.BytesPerSector), Hidden: b.HiddenSectors,
			Sectors: int(b.SectorsPerTrack), Heads: int(b.Heads),
		},
	}
	if b.Magic != volume.BootMagic {
		// ntfs-3g only warns too, since such volumes exist: libntfs-3g/bootsect.c, ntfs_boot_sector_is_ntfs.
		v.Note("ntfs-signature", ondisk.Warn,
			fmt.Sprintf("the NTFS boot sector ends in %#04x, must be 0xaa55: no BIOS starts it, and systems may "+
				"not recognize the NTFS", b.Magic),
			"restore the boot sector from its backup in the guest (testdisk)")
	}
	if err := readBackup(v, d); err != nil {
		return nil, err
	}
	return v, readNames(v, d, b)
}

// readBackup checks the copy of the boot sector directly behind the file system, normally in the last sector of the
// partition.
func readBackup(v *volume.Volume, d disk.Disk) error {
	if v.Size+units.SectorSize > d.Size() {
		v.Note("ntfs-backup", ondisk.Note,
			"the partition has no sector for a backup of the NTFS boot sector behind the file system", "")
		return nil
	}
	backup, err := ondisk.Bytes(d, v.Size, units.SectorSize)
	if err != nil {
		return err
	}
	primary, err := ondisk.Bytes(d, 0, units.SectorSize)
	if err != nil {
		return err
	}
	if string(backup[3:11]) != oemName {
		v.Note("ntfs-backup", ondisk.Note, "there is no backup of the NTFS boot sector in its place (last sector)",
			"")
		return nil
	}
	v.Boot.Backup = v.Size
	if !bytes.Equal(fields(backup), fields(primary)) {
		v.Note("ntfs-backup", ondisk.Unbootable,
			"the backup of the NTFS boot sector describes another volume than the primary",
			"run chkdsk /f in the guest and shut it down cleanly")
	}
	return nil
}

// fields returns the BPB bytes that must agree in both boot sectors. It omits geometry and hidden sectors, which tools
// forget to update in the backup.
func fields(b []byte) []byte {
	return append(bytes.Clone(b[0x0b:0x18]), b[0x28:0x50]...)
}

// The dirty flag in $VOLUME_INFORMATION, and the limit of $VOLUME_NAME. Spec: Linux-NTFS documentation,
// "$VOLUME_INFORMATION", "$AttrDef".
const (
	dirtyFlag     = 1
	maxVolumeName = 256 // bytes
)

// readNames reads label, version and dirty flag from record 3 of the MFT. If the record is unreadable, it leaves the
// label empty, since a move does not need it.
func readNames(v *volume.Volume, d disk.Disk, b *bootSector) error {
	size := b.record()
	off := b.mft() + volumeRecord*size
	if off+size > d.Size() {
		return nil
	}
	rec, err := ondisk.Bytes(d, off, size)
	if err != nil {
		return err
	}
	if string(rec[:4]) != "FILE" || !UndoFixups(rec, recordHeadSize) {
		v.Note("ntfs-volume", ondisk.Note,
			fmt.Sprintf("the record of $Volume at %#x cannot be read, so the label is unknown", off), "")
		return nil
	}
	if name, ok := attribute(rec, attrVolumeName); ok {
		v.Label = ondisk.UTF16Z(name[:min(len(name), maxVolumeName)], binary.LittleEndian)
	}
	info, ok := attribute(rec, attrVolumeInfo)
	if !ok || len(info) < 12 {
		return nil
	}
	// Version 1.2 is NT 4, 3.0 is 2000, 3.1 is XP and later.
	v.Addf("version", "%d.%d", info[8], info[9])
	if binary.LittleEndian.Uint16(info[10:])&dirtyFlag != 0 {
		v.Note("ntfs-dirty", ondisk.Warn, "NTFS is marked dirty: Windows was not shut down cleanly",
			"start Windows, let chkdsk run, shut it down cleanly")
	}
	return nil
}

// attribute returns the value of the first resident attribute of a kind.
func attribute(rec []byte, kind uint32) ([]byte, bool) {
	for _, a := range attributes(rec) {
		if binary.LittleEndian.Uint32(a) != kind || a[8] != 0 { // non-resident
			continue
		}
		size, from := int64(binary.LittleEndian.Uint32(a[0x10:])), int64(binary.LittleEndian.Uint16(a[0x14:]))
		if from+size > int64(len(a)) {
			break
		}
		return a[from : from+size], true
	}
	return nil, false
}

// attributes yields each attribute of a record with its offset in the record. It stops at the first broken attribute.
func attributes(rec []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		if len(rec) < recordHeadSize {
			return
		}
		at := int(binary.LittleEndian.Uint16(rec[recordAttributes:]))
		for at >= recordHeadSize && at+attributeHead <= len(rec) {
			n := int64(binary.LittleEndian.Uint32(rec[at+4:]))
			if binary.LittleEndian.Uint32(rec[at:]) == attrEnd || n < attributeHead || n > int64(len(rec)-at) ||
				!yield(at, rec[at:at+int(n)]) {
				return
			}
			at += int(n)
		}
	}
}
