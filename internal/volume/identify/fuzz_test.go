package identify

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
)

// seedBytes is short, because a mutation hits any byte: the boot sector, the superblock of ext, and the master file
// table where it stands right behind.
const seedBytes = 8 << 10

// superAt are the places of superblocks, in bytes. The input of the fuzzer stands at one of them, which the top two
// bits of the size choose, so that it stays short. superPlace is that of the kinds that do not begin at the start.
var (
	superAt    = []int64{0, 8 << 10, 32 << 10, 64 << 10}
	superPlace = map[string]uint32{"ufs1": 1, "jfs": 2, "iso9660": 2, "btrfs": 3, "reiserfs": 3, "ufs2": 3}
)

// sealed are copies of an input with the checksums made right, which no mutation would find.
func sealed(data []byte) [][]byte {
	out := [][]byte{data}
	padded := func(n int) forge.Bytes {
		b := make(forge.Bytes, max(n, len(data)))
		copy(b, data)
		return b
	}
	head := padded(4096)
	var c forge.Bytes
	switch {
	case string(head[:4]) == "XFSB":
		c = padded(4096)
		volumeforge.SealXFS(c)
	case string(head[3:7]) == "ReFS":
		c = padded(4096)
		volumeforge.SealReFS(c)
	case string(head[3:8]) == "EXFAT":
		c = padded(24 * 512)
		fsforge.SealExFAT(c, 0)
		fsforge.SealExFAT(c, 12)
	case string(head[32:36]) == "NXSB":
		c = padded(4096)
		volumeforge.SealAPFS(c)
	case string(head[0x40:0x48]) == "_BHRfS_M":
		b := make(forge.Bytes, volumeforge.BtrfsAt+4096)
		copy(b[volumeforge.BtrfsAt:], head[:4096])
		volumeforge.SealBtrfs(b, false)
		c = b[volumeforge.BtrfsAt:]
	}
	if c != nil {
		out = append(out, c)
	}
	return out
}

// FuzzVolume probes anything as a volume.
func FuzzVolume(f *testing.F) {
	const sectors uint32 = forgedSectors
	for name, put := range forgers {
		disk := make(forge.Bytes, sectors*512)
		put(disk, 0, forgedSectors)
		place := superPlace[name]
		f.Add([]byte(disk[superAt[place]:superAt[place]+seedBytes]), sectors|place<<30)
	}
	ntfs := make(forge.Bytes, sectors*512)
	fsforge.PutNTFS(ntfs, 0, forgedSectors)
	ntfs.U64(fsforge.NTFSMFT, 1)
	ntfs.Put(4096+3<<10, fsforge.NTFSVolumeRecord("a label"))
	f.Add([]byte(ntfs[:seedBytes]), sectors)
	for _, b := range disktest.Seeds(f, seedBytes, "dftt/7-ntfs-undel.dd.xz", "dftt/6-fat-undel.dd.xz",
		"imagemounter/test.ntfs.xz", "imagemounter/test.fat12.xz",
		"imagemounter/test.ext3.xz", "dfvfs/ext2.splitraw.000.xz", "go-ntfs/ads_with_same_ids-0x0.bin") {
		f.Add(b, uint32(32768))
	}
	addPools(f)
	for _, put := range []func(forge.Bytes){
		func(d forge.Bytes) {
			tableforge.PutDisklabel(d, 512, tableforge.Slice{Start: 16, Sectors: 100, Type: 7},
				tableforge.Slice{Start: 8})
		},
		func(d forge.Bytes) {
			tableforge.PutDisklabel(d, 64, tableforge.Slice{Start: 16, Sectors: 100, Type: 7})
		},
		func(d forge.Bytes) { tableforge.PutVTOC(d, 0, tableforge.Slice{Start: 16, Sectors: 100, Type: 2}) },
		func(d forge.Bytes) { d.Put(508, []byte{0xda, 0xbe, 0xda, 0xbf, 0, 0}) },
	} {
		label := make(forge.Bytes, 2048)
		put(label)
		f.Add([]byte(label), uint32(64))
	}
	f.Fuzz(func(t *testing.T, data []byte, sectors uint32) {
		for _, b := range sealed(data) {
			d := disktest.ShortDisk(append(make([]byte, superAt[sectors>>30]), b...), int64(sectors<<2>>2)*512)
			spent := disktest.Spent()
			v, err := Probe(d, 63*512)
			require.Less(t, spent(), 5*time.Second)
			require.NoError(t, err, "only reading can fail, and this disk can be read")
			require.NotNil(t, v)
			require.GreaterOrEqual(t, v.Size, int64(0))
			require.GreaterOrEqual(t, v.BlockSize, int64(0))
			require.GreaterOrEqual(t, v.DataStart, int64(0))
			require.LessOrEqual(t, len(v.Label), 1<<16)
			for _, p := range v.Parts {
				require.Positive(t, p.Size)
				require.GreaterOrEqual(t, p.Start, int64(-1))
				require.True(t, p.Start < 0 || v.OnDisk || p.Start+p.Size <= d.Size(),
					"a slice with a place lies in its container")
			}
			if v.Boot != nil {
				require.Positive(t, v.Boot.SectorSize)
				require.LessOrEqual(t, v.Boot.Backup+512, max(d.Size(), 512),
					"the copy of the boot sector is one to write to")
			}
		}
	})
}

// addPools adds containers. What has a checksum gets no further by mutation: the texts of LVM, LUKS2 and ZFS have
// targets of their own.
func addPools(f *testing.F) {
	f.Helper()
	const size = 128 << 10
	for _, put := range []func(forge.Bytes){
		func(v forge.Bytes) { poolforge.PutLVM(v, poolforge.LVMText, 512) },
		func(v forge.Bytes) { poolforge.PutMD1(v, "1.1", 64) },
		func(v forge.Bytes) { poolforge.PutMD1(v, "1.2", 64) },
		func(v forge.Bytes) { poolforge.PutBcache(v, 16) },
		func(v forge.Bytes) { poolforge.PutLUKS1(v, 64, 1000) },
		func(v forge.Bytes) {
			v.Text(0, "\xeb\x58\x90-FVE-FS-")
			v.U64(poolforge.FVEBlocks, 512)
			v.Text(512, "-FVE-FS-\x70\x00\x02")
		},
		func(v forge.Bytes) {
			v.Text(4086, "SWAPSPACE2")
			v.U32(1024, 1)
			v.U32(1028, 31)
		},
	} {
		v := make(forge.Bytes, size)
		put(v)
		f.Add([]byte(v[:seedBytes]), uint32(size/512))
	}
}
