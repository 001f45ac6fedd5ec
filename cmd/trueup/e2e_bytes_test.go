package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
)

// Where the fields lie that hold a position. MBR: 446 boot code bytes, then entries of 16. BPB: that of NTFS
// (ntfs-3g, include/ntfs-3g/layout.h) and of FAT ("Microsoft Extensible Firmware Initiative FAT32 File System
// Specification 1.03").
const (
	mbrEntryAt      = 446
	mbrEntrySize    = 16
	mbrSignatureAt  = 510
	geometryAt      = 0x18 // u16 sectors per track, u16 heads
	hiddenSectorsAt = 0x1C // u32
	ntfsTotalAt     = 0x28 // u64 sectors, one less than the partition has; the backup boot sector follows them
	fat32BackupAt   = 0x32 // u16 sector
)

// bootSectors are the offsets in the volume of the sectors that hold its own position. ext has none.
func (v madeVolume) bootSectors() []int64 {
	switch v.kind {
	case "ntfs":
		return []int64{0, (v.sectors - 1) * sectorSize}
	case "fat16":
		return []int64{0}
	case "fat32":
		return []int64{0, 6 * sectorSize} // mkfs.fat puts the backup there
	}
	return nil
}

// checkPositions requires that sfdisk sees the old table with new starts, that the CHS bytes say the same, and that the
// volumes hold their positions. It reads these with none of trueup's code.
func (c *alignCase) checkPositions(t *testing.T) {
	t.Helper()
	want := readSfdisk(t, c.before)
	require.Equal(t, diskSignature, want.ID)
	for i, v := range c.disk.volumes {
		require.Equal(t, v.start, want.Partitions[i].Start)
		require.Zero(t, v.wantStart%128, "64 KiB is what every result has to reach")
		want.Partitions[i].Start = v.wantStart
	}
	require.Equal(t, want, readSfdisk(t, c.after))

	mbr := readAt(t, c.after, 0, sectorSize)
	for i, v := range c.disk.volumes {
		entry := mbr[mbrEntryAt+i*mbrEntrySize:][:mbrEntrySize]
		head, sector := int64(entry[1]), int64(entry[2]&0x3F)
		cylinders := int64(entry[2]&0xC0)<<2 | int64(entry[3])
		require.Equal(t, v.wantStart, (cylinders*255+head)*63+sector-1,
			"the start CHS in the 255/63 geometry of the source")
		// QEMU and some BIOSes derive the geometry of the disk from the last head and sector of an entry.
		if end := entry[5:8]; !bytes.Equal(end, []byte{0xFE, 0xFF, 0xFF}) {
			require.Equal(t, byte(254), end[0], "head of the end CHS")
			require.Equal(t, byte(63), end[1]&0x3F, "sector of the end CHS")
		}
	}

	for _, v := range c.disk.volumes {
		primary := readAt(t, c.after, v.wantStart*sectorSize, sectorSize)
		for _, off := range v.bootSectors() {
			sector := readAt(t, c.after, v.wantStart*sectorSize+off, sectorSize)
			require.Equal(t, uint32(v.wantStart), binary.LittleEndian.Uint32(sector[hiddenSectorsAt:]), "%s at 0x%x",
				v.kind, off)
			require.Equal(t, primary, sector, "a backup boot sector equals the first")
		}
		switch v.kind {
		case "ntfs":
			require.Equal(t, uint64(v.sectors-1), binary.LittleEndian.Uint64(primary[ntfsTotalAt:]))
		case "fat32":
			require.Equal(t, uint16(6), binary.LittleEndian.Uint16(primary[fat32BackupAt:]))
		}
	}
}

// checkEveryByte builds the result from the source, the placement and the patches that align told, and requires that
// DEST is this to the last byte. So a difference that align did not tell is found wherever it is.
func (c *alignCase) checkEveryByte(t *testing.T, patches []jsonPatch) {
	t.Helper()
	before := disktest.ReadFile(t, c.before)
	after := disktest.ReadFile(t, c.after)
	require.Len(t, after, int(c.disk.wantSectors*sectorSize))

	want := make([]byte, len(after)) // the source holds nothing beyond its first track and its partitions
	copy(want, before[:firstTrack*sectorSize])
	for _, m := range c.placement {
		copy(want[m.ToBytes:], before[m.FromBytes:m.FromBytes+m.SizeBytes])
	}
	allowed := []disk.Range{{Off: mbrEntryAt, Len: mbrSignatureAt - mbrEntryAt}} // the few places that a move may touch
	for _, v := range c.disk.volumes {
		for _, off := range v.bootSectors() {
			at := v.wantStart*sectorSize + off + geometryAt
			allowed = append(allowed, disk.Range{Off: at, Len: hiddenSectorsAt + 4 - geometryAt})
		}
	}
	require.NotEmpty(t, patches)
	for _, p := range patches {
		old, err := hex.DecodeString(p.Old)
		require.NoError(t, err)
		new, err := hex.DecodeString(p.New)
		require.NoError(t, err)
		require.Len(t, old, int(p.LengthBytes))
		require.Len(t, new, int(p.LengthBytes))
		require.NotEmpty(t, p.Reason)
		require.True(t, slices.ContainsFunc(allowed, func(a disk.Range) bool {
			return a.Contains(disk.Range{Off: p.OffsetBytes, Len: p.LengthBytes})
		}), "patch at 0x%x", p.OffsetBytes)
		place := want[p.OffsetBytes:][:p.LengthBytes]
		require.Equal(t, old, append([]byte(nil), place...), "old value at 0x%x", p.OffsetBytes)
		copy(place, new)
	}
	if !bytes.Equal(want, after) {
		off := 0
		for want[off] == after[off] {
			off++
		}
		require.Fail(t, "an untold difference", "at 0x%x: 0x%02x, want 0x%02x", off, after[off], want[off])
	}
}
