package identify

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
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

// TestLabelOfExFATFollowsTheChain puts the label behind the first cluster of the root directory, and into a circle.
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

// TestShortDisks cuts a volume anywhere: no prober may need what is not there.
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
