package ntfs

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Prober finds the file system of Windows NT.
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
		// ntfs-3g, libntfs-3g/bootsect.c, ntfs_boot_sector_is_ntfs: a warning, since there are such volumes.
		v.Note("ntfs-signature", ondisk.Warn,
			fmt.Sprintf("the NTFS boot sector ends in %#04x, want 0xaa55: "+
				"no BIOS starts it, and systems may not take it for NTFS", b.Magic),
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
		v.Note("ntfs-backup", ondisk.Note, "there is no backup of the NTFS boot sector where it belongs (last sector)",
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

// fields returns the bytes that must agree in both boot sectors: the BPB without the place on the disk, which tools
// forget to update in the backup.
func fields(b []byte) []byte {
	return append(bytes.Clone(b[0x0b:0x18]), b[0x28:0x50]...)
}

// Of the attributes of $Volume. Spec: Linux-NTFS documentation, "$VOLUME_INFORMATION", "$AttrDef".
const (
	dirtyFlag     = 1
	maxVolumeName = 256 // bytes
)

// readNames reads label, version and dirty flag from record 3 of the MFT. The label is empty if the record cannot be
// read: the volume can move all the same.
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
			fmt.Sprintf("the record of $Volume at %#x cannot be read, so the label is not known", off), "")
		return nil
	}
	if name, ok := attribute(rec, attrVolumeName); ok {
		v.Label = ondisk.UTF16Z(name[:min(len(name), maxVolumeName)], binary.LittleEndian)
	}
	info, ok := attribute(rec, attrVolumeInfo)
	if !ok || len(info) < 12 {
		return nil
	}
	// 1.2: NT 4, 3.0: 2000, 3.1: since XP
	v.Addf("version", "%d.%d", info[8], info[9])
	if binary.LittleEndian.Uint16(info[10:])&dirtyFlag != 0 {
		v.Note("ntfs-dirty", ondisk.Warn, "NTFS is marked dirty: Windows was not shut down cleanly",
			"start Windows, let chkdsk run, shut it down cleanly")
	}
	return nil
}

// attribute returns the value of the first resident attribute of a kind. Every step goes forward.
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
