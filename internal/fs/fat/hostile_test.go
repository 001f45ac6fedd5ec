package fat

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// useFAT opens what makeFAT put on the volume.
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
	g := opened(t, filetest.Memory(raw))
	return g.(*fileSystem), raw
}

func TestFATHostileBootSector(t *testing.T) {
	_, raw := fatVolume(t, fatKind{size: "1440K"})
	for _, a := range []filetest.Attack{
		filetest.NewAttack("bytes per sector 0", 0x0b, filetest.LE16(0), ondisk.ErrFormat, "bytes per sector 0"),
		filetest.NewAttack("bytes per sector 3", 0x0b, filetest.LE16(3), ondisk.ErrFormat, "bytes per sector"),
		filetest.NewAttack("bytes per sector 8192", 0x0b, filetest.LE16(8192), ondisk.ErrFormat, "bytes per sector"),
		filetest.NewAttack("sectors per cluster 0", 0x0d, []byte{0}, ondisk.ErrFormat, "sectors per cluster 0"),
		filetest.NewAttack("sectors per cluster 3", 0x0d, []byte{3}, ondisk.ErrFormat, "sectors per cluster 3"),
		filetest.NewAttack("no reserved sector", 0x0e, filetest.LE16(0), ondisk.ErrFormat, "reserved sectors"),
		filetest.NewAttack("no FAT", 0x10, []byte{0}, ondisk.ErrFormat, "number of FATs"),
		filetest.NewAttack("255 FATs", 0x10, []byte{255}, ondisk.ErrFormat, "number of FATs"),
		filetest.NewAttack("FAT of no sector", 0x16, filetest.LE16(0), ondisk.ErrFormat, "at 0x24: FAT size"),
		filetest.NewAttack("FAT larger than the volume", 0x16, filetest.LE16(65535), ondisk.ErrFormat,
			"FAT size 65535"),
		filetest.NewAttack("65535 entries in the root", 0x11, filetest.LE16(65535), ondisk.ErrFormat, ""),
		filetest.NewAttack("media of no FAT", 0x15, []byte{0xf1}, ondisk.ErrFormat, "media 0xf1"),
		filetest.NewAttack("no sector", 0x13, filetest.LE16(0), ondisk.ErrFormat, "total sectors 0"),
		filetest.NewAttack("fewer sectors than data starts at", 0x13, filetest.LE16(33), ondisk.ErrFormat,
			"within the 33 sectors"),
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
		filetest.NewAttack("no root", 0x2c, filetest.LE32(0), ondisk.ErrFormat, "root cluster 0"),
		filetest.NewAttack("root past the end", 0x2c, filetest.LE32(0x0ffffff0), ondisk.ErrFormat, "root cluster"),
		filetest.NewAttack("version 1", 0x2a, filetest.LE16(1), ondisk.ErrUnsupported, "version"),
		filetest.NewAttack("FAT of 2 TiB", 0x24, filetest.LE32(0xffffffff), ondisk.ErrFormat, "FAT size 4294967295"),
		filetest.NewAttack("root entries in a FAT32", 0x11, filetest.LE16(512), ondisk.ErrFormat,
			"root entries 512, want 0"),
		filetest.NewAttack("FAT of no sector", 0x24, filetest.LE32(0), ondisk.ErrFormat, "FAT size 0"),
	} {
		a.Try(t, raw, useFAT)
	}
}

// The entries of FILE and of the folder stand first in the root; both occupy clusters in the order they were written.
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
				filetest.NewAttack("a cluster before itself", at(file), number(file), ondisk.ErrFormat,
					"has not passed"),
				filetest.NewAttack("back to the start", at(file+3), number(file), ondisk.ErrFormat, "has not passed"),
				filetest.NewAttack("back to the middle", at(file+3), number(file+1), ondisk.ErrFormat,
					"has not passed"),
				filetest.NewAttack("free", at(file+1), number(0), ondisk.ErrFormat, "0, want a cluster from 2"),
				filetest.NewAttack("cluster 1", at(file+1), number(1), ondisk.ErrFormat, "1, want a cluster from 2"),
				filetest.NewAttack("bad", at(file+1), number(0x0ffffff7), ondisk.ErrFormat, "want a cluster from 2"),
				filetest.NewAttack("past the end", at(file+1), number(g.Clusters+2), ondisk.ErrFormat,
					"want a cluster from 2"),
				filetest.NewAttack("too short", at(file+1), number(0x0fffffff), ondisk.ErrFormat,
					"4 clusters before the end"),
				filetest.NewAttack("a folder before itself", at(dir), number(dir), ondisk.ErrFormat, "has not passed"),
				filetest.NewAttack("a file without a cluster", slot("FILE       ")+26, filetest.LE16(0),
					ondisk.ErrFormat, "first cluster 0"),
				filetest.NewAttack("a folder without a cluster", slot("DIR        ")+26, filetest.LE16(0),
					ondisk.ErrFormat, "first cluster 0"),
				filetest.NewAttack("a file of 4 GiB", slot("FILE       ")+28, filetest.LE32(0xffffffff),
					ondisk.ErrFormat, "before the end of the chain"),
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
	again := opened(t, filetest.Memory(raw))
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
