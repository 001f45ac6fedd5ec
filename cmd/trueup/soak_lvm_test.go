package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// A physical volume of LVM2 is written here by hand, since LVM itself takes block devices only. The kernel and the
// tools of the guest judge it: they have to find the volume group in the result and activate it.
// Source: LVM2, lib/format_text/layout.h and lib/label/label.h.
const (
	lvmExtent      = 64 * kib
	lvmDataStart   = 1 * mib // pe_start
	lvmMetadataAt  = 4096
	lvmTextAt      = 512 // in the metadata area
	lvmLabelSector = 1
)

// lvmLabel is the sector by which LVM knows a physical volume, up to the list of its areas.
type lvmLabel struct {
	ID        [8]byte // "LABELONE"
	Sector    uint64
	CRC       uint32 // of what follows, to the end of the sector
	Offset    uint32 // of the header behind the label
	Type      [8]byte
	UUID      [32]byte
	Size      uint64
	Data, _   lvmArea // each list of areas ends with an empty one
	Metadata  lvmArea
	_         lvmArea
	Extension uint32 // version
	Flags     uint32 // 1: in use
	_         lvmArea
}

type lvmArea struct{ Offset, Size uint64 }

// lvmHeader is the head of a metadata area.
type lvmHeader struct {
	CRC     uint32
	Magic   [16]byte
	Version uint32
	Start   uint64
	Size    uint64
	Text    lvmText
	_       lvmText
}

type lvmText struct {
	Offset, Size uint64
	CRC, Flags   uint32
}

// lvmCRC is the CRC of LVM: the usual polynomial, another start, no inversion at the end.
func lvmCRC(data []byte) uint32 {
	const start = 0xf597a6cf
	return ^crc32.Update(^uint32(start), crc32.IEEETable, data)
}

// lvmUUID is an identifier that depends on the name alone, as LVM prints it.
func lvmUUID(name string) string {
	const letters = "0123456789abcdefghijklmnopqrstuv"
	var text []byte
	for i, b := range noise(name, 32) {
		if i == 6 || i > 6 && i < 30 && (i-6)%4 == 0 {
			text = append(text, '-')
		}
		text = append(text, letters[b%32])
	}
	return string(text)
}

// makeLVM writes a volume group of one physical and one logical volume, with an ext4 on it.
func (v *soakVolume) makeLVM(t testing.TB, part, tree string) {
	t.Helper()
	extents := (v.size - lvmDataStart) / lvmExtent
	lv := part + "-lv"
	disktest.MakeBlank(t, lv, extents*lvmExtent)
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, lv)
	placeVolume(t, lv, part, lvmDataStart)

	text := append([]byte(v.lvmText(extents)), 0)
	header := lvmHeader{
		Version: 1, Start: lvmMetadataAt, Size: lvmDataStart - lvmMetadataAt,
		Text: lvmText{Offset: lvmTextAt, Size: uint64(len(text)), CRC: lvmCRC(text)},
	}
	copy(header.Magic[:], " LVM2 x[5A%r0N*>")
	head := lvmSector(t, &header)
	binary.LittleEndian.PutUint32(head, lvmCRC(head[4:]))
	disktest.WriteAt(t, part, lvmMetadataAt, append(head, text...))
	disktest.WriteAt(t, part, lvmLabelSector*sectorSize, v.lvmLabel(t))
}

func (v *soakVolume) lvmLabel(t testing.TB) []byte {
	t.Helper()
	label := lvmLabel{
		Sector: lvmLabelSector, Offset: 32, Size: uint64(v.size), Data: lvmArea{Offset: lvmDataStart},
		Metadata: lvmArea{Offset: lvmMetadataAt, Size: lvmDataStart - lvmMetadataAt}, Extension: 2, Flags: 1,
	}
	copy(label.ID[:], "LABELONE")
	copy(label.Type[:], "LVM2 001")
	copy(label.UUID[:], bytes.ReplaceAll([]byte(lvmUUID("pv "+v.group)), []byte("-"), nil))
	sector := lvmSector(t, &label)
	binary.LittleEndian.PutUint32(sector[16:], lvmCRC(sector[20:]))
	return sector
}

func lvmSector(t testing.TB, structure any) []byte {
	t.Helper()
	sector := make([]byte, sectorSize)
	_, err := binary.Encode(sector, binary.LittleEndian, structure)
	require.NoError(t, err)
	return sector
}

// lvmText is the metadata of the group.
func (v *soakVolume) lvmText(extents int64) string {
	return fmt.Sprintf(`%[1]s {
id = "%[2]s"
seqno = 1
format = "lvm2"
status = ["RESIZEABLE", "READ", "WRITE"]
flags = []
extent_size = %[5]d
max_lv = 0
max_pv = 0
metadata_copies = 0
physical_volumes {
pv0 {
id = "%[3]s"
device = "/dev/none"
status = ["ALLOCATABLE"]
flags = []
dev_size = %[7]d
pe_start = %[6]d
pe_count = %[8]d
}
}
logical_volumes {
data {
id = "%[4]s"
status = ["READ", "WRITE", "VISIBLE"]
flags = []
segment_count = 1
segment1 {
start_extent = 0
extent_count = %[8]d
type = "striped"
stripe_count = 1
stripes = ["pv0", 0]
}
}
}
}
contents = "Text Format Volume Group"
version = 1
description = ""
creation_host = "test"
creation_time = 1000000000
`, v.group, lvmUUID("vg "+v.group), lvmUUID("pv "+v.group), lvmUUID("lv "+v.group),
		lvmExtent/sectorSize, lvmDataStart/sectorSize, v.size/sectorSize, extents)
}

// placeVolume copies the file part to a place of the disk, holes left out.
func placeVolume(t testing.TB, part, raw string, off int64) {
	t.Helper()
	disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=65536", "conv=sparse,notrunc", "oflag=seek_bytes",
		fmt.Sprintf("seek=%d", off), "status=none")
	require.NoError(t, os.Remove(part))
}
