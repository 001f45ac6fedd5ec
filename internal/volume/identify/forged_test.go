package identify

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
	"github.com/trueup/trueup/internal/volume"
)

const forgedSectors = 6000

// forgers make a volume of each kind of file system, but of no container. What they write is judged by libblkid, which
// shows that a test with a broken field has nothing else wrong with it.
var forgers = map[string]func(f forge.Bytes, lba, sectors int64){
	"exfat": fsforge.PutExFAT, "refs": volumeforge.PutReFS, "xfs": volumeforge.PutXFS, "btrfs": volumeforge.PutBtrfs,
	"jfs": volumeforge.PutJFS, "hpfs": volumeforge.PutHPFS, "reiserfs": volumeforge.PutReiserFS,
	"f2fs": volumeforge.PutF2FS, "ufs1": volumeforge.PutUFS1, "ufs2": volumeforge.PutUFS2, "hfs": volumeforge.PutHFS,
	"hfsplus": volumeforge.PutHFSPlus, "apfs": volumeforge.PutAPFS,
	"iso9660": volumeforge.PutISO9660, "ntfs": fsforge.PutNTFS, "fat16": fsforge.PutFAT16, "ext2": fsforge.PutExt,
}

func forged(put func(f forge.Bytes, lba, sectors int64)) forge.Bytes {
	f := make(forge.Bytes, forgedSectors*512)
	put(f, 0, forgedSectors)
	return f
}

func probeForged(t testing.TB, f forge.Bytes) *volume.Volume {
	t.Helper()
	v, err := Probe(disktest.ShortDisk(f, int64(len(f))), 0)
	require.NoError(t, err)
	return v
}

func TestEachProberHasAForger(t *testing.T) {
	containers := []volume.Kind{
		volume.Swap, volume.LUKS, volume.BitLocker, volume.LVM2, volume.MDRaid, volume.BCache, volume.ZFS, volume.VMFS,
		volume.Disklabel, volume.VTOC,
	}
	for _, p := range Probers {
		forged := slices.ContainsFunc(p.Kinds, func(k volume.Traits) bool { return forgers[string(k.Kind)] != nil })
		require.True(t, forged || slices.Contains(containers, p.Kinds[0].Kind),
			"%s: add it to forgers, tools_test.go and the hostile images", p.Kinds[0].Kind)
	}
}

func TestForgedVolumes(t *testing.T) {
	for name, put := range forgers {
		t.Run(name, func(t *testing.T) {
			f := forged(put)
			path := filepath.Join(t.TempDir(), "volume")
			f.Write(t, path)
			require.NoError(t, os.Truncate(path, 16<<20)) // libblkid wants that much for a JFS
			v := probeForged(t, f)
			require.Empty(t, v.Issues)
			require.Equal(t, volume.Kind(name), v.Kind)
			if v.Kind != volume.FAT16 { // vfat for blkid
				requireBlkid(t, path, v)
			}
			require.LessOrEqual(t, v.Size, int64(len(f)))
		})
	}
}

// TestReFSOfWindows has boot sectors of real volumes as they were published: of ReFS 1.1 and 1.2 by ntfs.com ("ReFS
// Boot Sector example") and resilientfilesystem.co.uk ("ReFS VBR"), of 3.14 by a description of the format. What is not
// shown there is zero.
func TestReFSOfWindows(t *testing.T) {
	for version, tc := range map[string]struct {
		dump    string
		cluster int64
		serial  string
	}{
		"1.2": {"00000052654653000000000000000000 465352530002ffdd0000383a00000000 0002000080000000010200000a000000 " +
			"000000000000000028e86f9409709418", 65536, "18947009946FE828"},
		"1.1": {"00000052654653000000000000000000 46535253000233c200009e0000000000 00020000800000000101000000000000 " +
			"0000000000000000041c55c45655c434", 65536, "34C45556C4551C04"},
		"3.14": {"00000052654653000000000000000000 4653525300028954 00003e0000000000 " +
			"0002000008000000030e020066000000 000000000000000004888b4aa68b4a50" +
			"0000000400000000ffc86039e7a4f049 81cb4563786e1a860000000000000000", 4096, "504A8BA64A8B8804"},
	} {
		t.Run(version, func(t *testing.T) {
			b, err := hex.DecodeString(strings.ReplaceAll(tc.dump, " ", ""))
			require.NoError(t, err)
			i := slices.IndexFunc(Probers, func(p volume.Prober) bool { return p.Kinds[0].Kind == volume.ReFS })
			v, err := Probers[i].Probe(disktest.ShortDisk(b, 1<<40))
			require.NoError(t, err)
			require.Equal(t, version, detail(v, "version"))
			require.Equal(t, tc.cluster, v.BlockSize)
			require.Equal(t, tc.serial, v.UUID)
		})
	}
}

// TestLabelOfExFATFollowsTheChain puts the label after the first cluster of the root directory, and into a circle.
func TestLabelOfExFATFollowsTheChain(t *testing.T) {
	f := forged(fsforge.PutExFAT)
	const root, next, fat = 4, 9, 32 * 512
	cluster := func(n int64) forge.Bytes { return f[fsforge.ExFATHeap+(n-2)*4096:] }
	entry := append(forge.Bytes{}, cluster(root)[:32]...)
	for i := int64(0); i < 4096; i += 32 {
		cluster(root).U8(i, 0x05) // in use no more
	}
	cluster(next).Put(0, entry)
	f.U32(fat+4*root, next)
	require.Equal(t, "forged", probeForged(t, f).Label)
	for i := int64(0); i < 4096; i += 32 {
		cluster(next).U8(i, 0x05)
	}
	f.U32(fat+4*next, root)
	require.Empty(t, probeForged(t, f).Label)
}

func TestBackupOfExFAT(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(f forge.Bytes)
		says   string
	}{
		"checksum": {func(f forge.Bytes) { f.U8(13*512, 1) }, "wrong checksum"},
		"other volume": {func(f forge.Bytes) {
			f.U64(12*512+fsforge.ExFATVolumeLength, 5000)
			fsforge.SealExFAT(f, 12)
		}, "another volume"},
	} {
		t.Run(name, func(t *testing.T) {
			f := forged(fsforge.PutExFAT)
			tc.change(f)
			v := probeForged(t, f)
			require.Equal(t, []string{"exfat-backup"}, disktest.Codes(v.Issues))
			require.Contains(t, v.Issues[0].Text, tc.says)
		})
	}
}

// TestChecksums changes a byte that nothing but a checksum covers.
func TestChecksums(t *testing.T) {
	for name, at := range map[string]int64{
		"exfat": 5 * 512, "refs": 0x100, "xfs": 300, "btrfs": volumeforge.BtrfsAt + 0xfff, "f2fs": 1024 + 2000,
		"apfs": 4095,
	} {
		t.Run(name, func(t *testing.T) {
			f := forged(forgers[name])
			f.U8(at, f[at]+1)
			v := probeForged(t, f)
			require.Equal(t, []string{"volume"}, disktest.Codes(v.Issues))
			require.Contains(t, v.Issues[0].Text, "checksum")
		})
	}
}

// TestNotTheirs has what resembles a superblock and is not one.
func TestNotTheirs(t *testing.T) {
	for name, put := range map[string]func(f forge.Bytes){
		"BD in text":               func(f forge.Bytes) { f.Text(1024, "BD") },
		"H+ of an unknown version": func(f forge.Bytes) { f.Text(1024, "H+"); f.BE16(1026, 9) },
		"UFS2 in a file at 256 KiB": func(f forge.Bytes) {
			volumeforge.PutUFS2(f, (256<<10-volumeforge.UFS2At)/512, 1000)
		},
		"ReiserFS superblock in a journal": func(f forge.Bytes) {
			volumeforge.PutReiserFS(f, 0, forgedSectors)
			f.U32(volumeforge.ReiserAt+12, 3)
		},
		"boot record before an ISO": func(f forge.Bytes) { f.Text(volumeforge.ISOAt, "\x00CD001\x01") },
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, forgedSectors*512)
			put(f)
			require.Equal(t, volume.Unknown, probeForged(t, f).Kind)
		})
	}
}

// TestShortDisks truncates a volume anywhere: no prober may fail because of missing bytes.
func TestShortDisks(t *testing.T) {
	for name, put := range forgers {
		f := forged(put)
		for size := int64(0); size < 80<<10; size += 512 {
			_, err := Probe(disktest.ShortDisk(f, size), 0)
			require.NoError(t, err, "%s, %d bytes", name, size)
		}
	}
}

// Tables of machines other than PCs are known where their systems look for them, and nowhere else.
func TestForeignTables(t *testing.T) {
	for name, c := range map[string]struct {
		at   int64
		text string
		kind volume.Kind
	}{
		"driver map":                   {0, "ER\x02\x00", "apm"},
		"driver map of 3-byte blocks":  {0, "ER\x00\x03", volume.Unknown},
		"volume header of IRIX":        {0, "\x0b\xe5\xa9\x41", "sgi"},
		"rigid disk block in sector 2": {2 * 512, "RDSK", "rdb"},
		"rigid disk block, the last":   {15 * 512, "RDSK", "rdb"},
		"behind the first 16 sectors":  {16 * 512, "RDSK", volume.Unknown},
		"label of a SPARC":             {188, "\x60\x0d\xde\xee", "sun"},
		"VOL1 twice":                   {8192, "\xe5\xd6\xd3\xf1\xe5\xd6\xd3\xf1", "dasd"},
		"VOL1 once":                    {8192, "\xe5\xd6\xd3\xf1", volume.Unknown},
		"VOL1 twice, in block 1":       {4096, "\xe5\xd6\xd3\xf1\xe5\xd6\xd3\xf1", volume.Unknown},
		"LNX1 in sector 1":             {512, "\xd3\xd5\xe7\xf1", "dasd"},
		"CMS1 in block 1":              {4096, "\xc3\xd4\xe2\xf1", "dasd"},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, 2<<20)
			f.Text(c.at, c.text)
			v, err := Probe(disktest.ShortDisk(f, int64(len(f))), 0)
			require.NoError(t, err)
			require.Equal(t, c.kind, v.Kind)
			require.Equal(t, c.kind != volume.Unknown, Traits(v.Kind).Foreign)
			require.Empty(t, v.Issues)
		})
	}
}

// A CD that a Macintosh starts from has a partition map in front: it is a CD.
func TestMapOfACD(t *testing.T) {
	f := make(forge.Bytes, 2<<20)
	f.Text(0, "ER\x02\x00")
	f.Text(512, "PM")
	f.Text(0x8000, "\x01CD001\x01")
	v, err := Probe(disktest.ShortDisk(f, int64(len(f))), 0)
	require.NoError(t, err)
	require.Equal(t, volume.ISO9660, v.Kind)
}

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
