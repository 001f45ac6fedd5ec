package volume

import (
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
)

const firmwareSectors = 8192

// fromEnd is the byte at which a sector begins that is so many from the end of the disk.
func fromEnd(n int64) int64 { return (firmwareSectors - n) * 512 }

// seal16 writes a word that makes the words up to it zero.
func seal16(f forge.Bytes, from, at int64) { f.U16(at, -sum16(f[from:at])) }

// firmwareDisks are forged by the specifications, and judged by libblkid.
var firmwareDisks = map[string]func(f forge.Bytes){
	"isw_raid_member":      func(f forge.Bytes) { f.Text(fromEnd(2), "Intel Raid ISM Cfg Sig. 1.1.00") },
	"lsi_mega_raid_member": func(f forge.Bytes) { f.Text(fromEnd(1), "$XIDE$") },
	"ddf_raid_member": func(f forge.Bytes) {
		binary.BigEndian.PutUint32(f[fromEnd(1):], 0xde11de11)
		f.Text(fromEnd(1)+8, "GUID of the disk array..01.02.00")
		for i := range 4 {
			f.U8(fromEnd(1)+4+int64(i), 0xff)
		}
	},
	"via_raid_member": func(f forge.Bytes) {
		f.U16(fromEnd(1), 0xaa55)
		f.U8(fromEnd(1)+2, 1)
		f.U8(fromEnd(1)+50, 0) // of 55, aa and 1
	},
	"silicon_medley_raid_member": func(f forge.Bytes) {
		f.U32(fromEnd(1)+0x60, 0x2f000000)
		f.U16(fromEnd(1)+0x104, 0x3114)
		seal16(f, fromEnd(1), fromEnd(1)+0x13e)
	},
	"nvidia_raid_member": func(f forge.Bytes) {
		const words = 30
		at := fromEnd(2)
		f.Text(at, "NVIDIA")
		f.U32(at+8, words)
		f.U16(at+16, 100)
		sum := uint32(0)
		for i := range int64(words) {
			sum += binary.LittleEndian.Uint32(f[at+4*i:])
		}
		f.U32(at+12, -sum)
	},
	"promise_fasttrack_raid_member": func(f forge.Bytes) { f.Text(fromEnd(63), "Promise Technology, Inc.") },
	"hpt45x_raid_member":            func(f forge.Bytes) { f.U32(fromEnd(11), 0x5a7816f3) },
	"hpt37x_raid_member":            func(f forge.Bytes) { f.U32(9*512+32, 0x5a7816f0) },
	"adaptec_raid_member": func(f forge.Bytes) {
		binary.BigEndian.PutUint32(f[fromEnd(1):], 0x37fc4d1e)
		f.Text(fromEnd(1)+256, "DPTM")
	},
	"jmicron_raid_member": func(f forge.Bytes) {
		f.Text(fromEnd(1), "JM")
		f.U16(fromEnd(1)+2, 0x0100)
		f.U16(fromEnd(1)+4, -sum16(f[fromEnd(1):fromEnd(1)+128]))
	},
}

func TestFirmwareRAID(t *testing.T) {
	for want, put := range firmwareDisks {
		t.Run(want, func(t *testing.T) {
			f := make(forge.Bytes, firmwareSectors*512)
			put(f)
			path := filepath.Join(t.TempDir(), "disk")
			f.Write(t, path)
			require.Equal(t, want, strings.TrimSpace(disktest.Output(t, "blkid", "-p", "-o", "value", "-s", "TYPE",
				path)))
			got, _, err := FirmwareRAID(disktest.ShortDisk(f, int64(len(f))))
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
	require.Len(t, firmwareDisks, len(firmwareRAIDs))
}

// Stray bytes are no array: what has a sum is held to it.
func TestNoFirmwareRAID(t *testing.T) {
	for name, at := range map[string]int64{
		"via_raid_member": fromEnd(1) + 9, "silicon_medley_raid_member": fromEnd(1) + 7,
		"nvidia_raid_member":  fromEnd(2) + 30,
		"jmicron_raid_member": fromEnd(1) + 77, "ddf_raid_member": fromEnd(1) + 34, "isw_raid_member": fromEnd(2) + 25,
	} {
		f := make(forge.Bytes, firmwareSectors*512)
		firmwareDisks[name](f)
		f[at] ^= 0x40
		got, _, err := FirmwareRAID(disktest.ShortDisk(f, int64(len(f))))
		require.NoError(t, err)
		require.Empty(t, got, name)
	}
	small := make(forge.Bytes, 100*512)
	small.Text(98*512, "Intel Raid ISM Cfg Sig. 1.1.00")
	got, _, err := FirmwareRAID(disktest.ShortDisk(small, int64(len(small))))
	require.NoError(t, err)
	require.Empty(t, got, "no array has disks as small")
}
