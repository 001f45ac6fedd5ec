package fat

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// useFAT lists the root of a volume and opens two files of makeFAT.
func useFAT(b []byte) error {
	g, err := alone(filetest.Memory(b))
	if err != nil {
		return err
	}
	if _, err := g.List(""); err != nil {
		return err
	}
	if _, err := g.Open("dir/in dir"); err != nil {
		return err
	}
	_, err = g.Open("FILE")
	return err
}

// fatVolume has FILE of four clusters, and a folder.
func fatVolume(t *testing.T, k fatKind) (*fileSystem, []byte) {
	t.Helper()
	k.args = append(k.args, "-s", "1")
	raw := disktest.ReadFile(t, makeFAT(t, k, map[string][]byte{
		"FILE":       filetest.Noise(1, 2000),
		"dir/in dir": filetest.Noise(2, 10),
	}))
	require.NoError(t, useFAT(raw))
	g := alone.Sound(t, filetest.Memory(raw))
	return g.(*fileSystem), raw
}

func TestFATHostileBootSector(t *testing.T) {
	_, raw := fatVolume(t, fatKind{size: "1440K"})
	for _, a := range []filetest.Attack{
		filetest.Bad("bytes per sector 0", 0x0b, filetest.LE16(0), "bytes per sector 0"),
		filetest.Bad("bytes per sector 3", 0x0b, filetest.LE16(3), "bytes per sector"),
		filetest.Bad("bytes per sector 8192", 0x0b, filetest.LE16(8192), "bytes per sector"),
		filetest.Bad("sectors per cluster 0", 0x0d, []byte{0}, "sectors per cluster 0"),
		filetest.Bad("sectors per cluster 3", 0x0d, []byte{3}, "sectors per cluster 3"),
		filetest.Bad("no reserved sector", 0x0e, filetest.LE16(0), "reserved sectors"),
		filetest.Bad("no FAT", 0x10, []byte{0}, "number of FATs"),
		filetest.Bad("255 FATs", 0x10, []byte{255}, "number of FATs"),
		filetest.Bad("FAT of no sector", 0x16, filetest.LE16(0), "at 0x24: FAT size"),
		filetest.Bad("FAT larger than the volume", 0x16, filetest.LE16(65535), "FAT size 65535"),
		filetest.Bad("65535 entries in the root", 0x11, filetest.LE16(65535), ""),
		filetest.Bad("media of no FAT", 0x15, []byte{0xf1}, "media 0xf1"),
		filetest.Bad("no sector", 0x13, filetest.LE16(0), "total sectors 0"),
		filetest.Bad("fewer sectors than data starts at", 0x13, filetest.LE16(33), "within the 33 sectors"),
		filetest.NewAttack("an ntfs", 3, []byte("NTFS    "), ondisk.ErrNoMatch, ""),
		filetest.NewAttack("an exfat", 3, []byte("EXFAT   "), ondisk.ErrNoMatch, ""),
		filetest.NewAttack("no signature", 510, filetest.LE16(0), ondisk.ErrNoMatch, ""),
	} {
		a.Try(t, raw, useFAT)
	}
	require.ErrorIs(t, useFAT(nil), ondisk.ErrNoMatch)
	require.ErrorIs(t, useFAT(raw[:511]), ondisk.ErrNoMatch)
	require.ErrorIs(t, useFAT(raw[:512]), ondisk.ErrFormat)
	require.ErrorIs(t, useFAT(raw[:33*512]), ondisk.ErrFormat, "the FAT is there, the data is not")

	g, raw := fatVolume(t, fatKind{size: "40M", args: []string{"-F", "32"}})
	require.Equal(t, int64(32), g.Bits)
	for _, a := range []filetest.Attack{
		filetest.Bad("no root", 0x2c, filetest.LE32(0), "root cluster 0"),
		filetest.Bad("root past the end", 0x2c, filetest.LE32(0x0ffffff0), "root cluster"),
		filetest.NewAttack("version 1", 0x2a, filetest.LE16(1), ondisk.ErrUnsupported, "version"),
		filetest.Bad("FAT of 2 TiB", 0x24, filetest.LE32(0xffffffff), "FAT size 4294967295"),
		filetest.Bad("root entries in a FAT32", 0x11, filetest.LE16(512), "root entries 512, want 0"),
		filetest.Bad("FAT of no sector", 0x24, filetest.LE32(0), "FAT size 0"),
	} {
		a.Try(t, raw, useFAT)
	}
}

// The entries of FILE and of the folder are first in the root; both occupy clusters in the order of writing.
func TestFATHostileChains(t *testing.T) {
	for _, k := range []fatKind{
		{name: "fat16", size: "20M", args: []string{"-F", "16"}},
		{name: "fat32", size: "40M", args: []string{"-F", "32"}},
	} {
		t.Run(k.name, func(t *testing.T) {
			g, raw := fatVolume(t, k)
			first := func(path string) int64 {
				e, _, err := g.find(path)
				require.NoError(t, err)
				return e.first
			}
			number := func(v int64) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(v))[:g.Bits/8] }
			file, dir := first("FILE"), first("dir")
			at := func(cluster int64) int64 { return g.table + cluster*g.Bits/8 }
			slot := func(name string) int64 { return int64(bytes.Index(raw, []byte(name))) }
			for _, a := range []filetest.Attack{
				filetest.Bad("a cluster before itself", at(file), number(file), "has not passed"),
				filetest.Bad("back to the start", at(file+3), number(file), "has not passed"),
				filetest.Bad("back to the middle", at(file+3), number(file+1), "has not passed"),
				filetest.Bad("free", at(file+1), number(0), "0, want a cluster from 2"),
				filetest.Bad("cluster 1", at(file+1), number(1), "1, want a cluster from 2"),
				filetest.Bad("bad", at(file+1), number(0x0ffffff7), "want a cluster from 2"),
				filetest.Bad("past the end", at(file+1), number(g.Clusters+2), "want a cluster from 2"),
				filetest.Bad("too short", at(file+1), number(0x0fffffff), "4 clusters before the end"),
				filetest.Bad("a folder before itself", at(dir), number(dir), "has not passed"),
				filetest.Bad("a file without a cluster", slot("FILE       ")+26, filetest.LE16(0), "first cluster 0"),
				filetest.Bad("a folder without a cluster", slot("DIR        ")+26, filetest.LE16(0), "first cluster 0"),
				filetest.Bad("a file of 4 GiB", slot("FILE       ")+28, filetest.LE32(0xffffffff),
					"before the end of the chain"),
			} {
				a.Try(t, raw, useFAT)
			}
		})
	}
}

// More stretches than any file of a boot has, and more work than finding one takes.
func TestFATLimits(t *testing.T) {
	g, raw := fatVolume(t, fatKind{size: "80M", args: []string{"-F", "32"}})
	e, _, err := g.find("FILE")
	require.NoError(t, err)
	c := e.first
	for ; c+2 < g.Clusters; c += 2 { // only every other cluster
		binary.LittleEndian.PutUint32(raw[g.table+c*4:], uint32(c+2))
	}
	binary.LittleEndian.PutUint32(raw[g.table+c*4:], 0x0fffffff)
	again := alone.Sound(t, filetest.Memory(raw))
	_, err = again.Open("FILE")
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "65536 runs")

	// A folder of more than 2 MiB.
	for c := e.first; c < e.first+5000; c++ {
		binary.LittleEndian.PutUint32(raw[g.table+c*4:], uint32(c+1))
	}
	binary.LittleEndian.PutUint32(raw[g.table+int64(g.RootCluster)*4:], uint32(e.first))
	err = useFAT(raw)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "4096 clusters")

	g.meter.Budget.Limit = 100
	_, err = g.List("")
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = g.Open("a" + string(bytes.Repeat([]byte("/a"), guestfile.MaxDepth)))
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, err, "64 folders")
}

// Expected sizes are those of the specification.
func TestStructSizes(t *testing.T) {
	require.Equal(t, atExt, binary.Size(BPB{}), "BPB up to the extension")
	require.Equal(t, 26, binary.Size(extension{}), "extension")
	require.Equal(t, atExt32-atExt, binary.Size(bpb32{}), "FAT32 extension")
}

// forged is a FAT16 of 16,000 sectors with one field changed.
func forged(change func(f forge.Bytes)) (*bootSector, error) {
	f := make(forge.Bytes, 16000*512)
	fsforge.PutFAT16(f, 0, 16000)
	change(f)
	return readBoot(disktest.ShortDisk(f, int64(len(f))))
}

// A broken boot sector is a broken FAT only by its name: without one it is the boot sector of something else.
func TestBrokenFATNeedsItsName(t *testing.T) {
	_, err := forged(func(f forge.Bytes) { f.U8(0x15, 0xf1) })
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "media 0xf1")
	_, err = forged(func(f forge.Bytes) {
		f.U8(0x15, 0xf1)
		f.Text(0x36, "        ")
	})
	require.ErrorIs(t, err, ondisk.ErrNoMatch)
}

// A cluster without an entry in the FAT is not one, but the kind follows from the size of the volume.
// Spec: "FAT Type Determination".
func TestClustersOfShortFAT(t *testing.T) {
	whole, err := forged(func(forge.Bytes) {})
	require.NoError(t, err)
	require.Equal(t, int64(16), whole.Bits)
	b, err := forged(func(f forge.Bytes) { f.U16(0x16, 1) })
	require.NoError(t, err)
	require.Equal(t, int64(16), b.Bits)
	require.Equal(t, int64(512/2-2), b.Clusters)
	require.Greater(t, whole.Clusters, b.Clusters)
	require.True(t, b.has(255))
	require.False(t, b.has(256))
	require.False(t, b.has(1))
}
