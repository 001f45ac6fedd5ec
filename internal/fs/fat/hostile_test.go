package fat

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

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
	raw, err := os.ReadFile(makeFAT(t, k, map[string][]byte{
		"FILE":       filetest.Noise(1, 2000),
		"dir/in dir": filetest.Noise(2, 10),
	}))
	require.NoError(t, err)
	require.NoError(t, useFAT(raw))
	g, err := alone(filetest.Memory(raw))
	require.NoError(t, err)
	return g.(*fileSystem), raw
}

func TestFATHostileBootSector(t *testing.T) {
	_, raw := fatVolume(t, fatKind{size: "1440K"})
	for _, a := range []filetest.Attack{
		{Name: "bytes per sector 0", Off: 0x0b, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "bytes per sector 0"},
		{Name: "bytes per sector 3", Off: 0x0b, Put: filetest.LE16(3), Want: ondisk.ErrFormat, Text: "bytes per sector"},
		{Name: "bytes per sector 8192", Off: 0x0b, Put: filetest.LE16(8192), Want: ondisk.ErrFormat, Text: "bytes per sector"},
		{Name: "sectors per cluster 0", Off: 0x0d, Put: []byte{0}, Want: ondisk.ErrFormat, Text: "sectors per cluster 0"},
		{Name: "sectors per cluster 3", Off: 0x0d, Put: []byte{3}, Want: ondisk.ErrFormat, Text: "sectors per cluster 3"},
		{Name: "no reserved sector", Off: 0x0e, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "reserved sectors"},
		{Name: "no FAT", Off: 0x10, Put: []byte{0}, Want: ondisk.ErrFormat, Text: "number of FATs"},
		{Name: "255 FATs", Off: 0x10, Put: []byte{255}, Want: ondisk.ErrFormat, Text: "number of FATs"},
		{Name: "FAT of no sector", Off: 0x16, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "at 0x24: FAT size"},
		{Name: "FAT larger than the volume", Off: 0x16, Put: filetest.LE16(65535), Want: ondisk.ErrFormat, Text: "FAT size 65535"},
		{Name: "65535 entries in the root", Off: 0x11, Put: filetest.LE16(65535), Want: ondisk.ErrFormat, Text: ""},
		{Name: "media of no FAT", Off: 0x15, Put: []byte{0xf1}, Want: ondisk.ErrFormat, Text: "media 0xf1"},
		{Name: "no sector", Off: 0x13, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "total sectors 0"},
		{Name: "fewer sectors than data starts at", Off: 0x13, Put: filetest.LE16(33), Want: ondisk.ErrFormat, Text: "within the 33 sectors"},
		{Name: "an ntfs", Off: 3, Put: []byte("NTFS    "), Want: ondisk.ErrNoMatch, Text: ""},
		{Name: "an exfat", Off: 3, Put: []byte("EXFAT   "), Want: ondisk.ErrNoMatch, Text: ""},
		{Name: "no signature", Off: 510, Put: filetest.LE16(0), Want: ondisk.ErrNoMatch, Text: ""},
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
		{Name: "no root", Off: 0x2c, Put: filetest.LE32(0), Want: ondisk.ErrFormat, Text: "root cluster 0"},
		{Name: "root past the end", Off: 0x2c, Put: filetest.LE32(0x0ffffff0), Want: ondisk.ErrFormat, Text: "root cluster"},
		{Name: "version 1", Off: 0x2a, Put: filetest.LE16(1), Want: ondisk.ErrUnsupported, Text: "version"},
		{Name: "FAT of 2 TiB", Off: 0x24, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "FAT size 4294967295"},
		{Name: "root entries in a FAT32", Off: 0x11, Put: filetest.LE16(512), Want: ondisk.ErrFormat, Text: "root entries 512, want 0"},
		{Name: "FAT of no sector", Off: 0x24, Put: filetest.LE32(0), Want: ondisk.ErrFormat, Text: "FAT size 0"},
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
				{Name: "a cluster before itself", Off: at(file), Put: number(file), Want: ondisk.ErrFormat, Text: "has not passed"},
				{Name: "back to the start", Off: at(file + 3), Put: number(file), Want: ondisk.ErrFormat, Text: "has not passed"},
				{Name: "back to the middle", Off: at(file + 3), Put: number(file + 1), Want: ondisk.ErrFormat, Text: "has not passed"},
				{Name: "free", Off: at(file + 1), Put: number(0), Want: ondisk.ErrFormat, Text: "0, want a cluster from 2"},
				{Name: "cluster 1", Off: at(file + 1), Put: number(1), Want: ondisk.ErrFormat, Text: "1, want a cluster from 2"},
				{Name: "bad", Off: at(file + 1), Put: number(0x0ffffff7), Want: ondisk.ErrFormat, Text: "want a cluster from 2"},
				{Name: "past the end", Off: at(file + 1), Put: number(g.Clusters + 2), Want: ondisk.ErrFormat, Text: "want a cluster from 2"},
				{Name: "too short", Off: at(file + 1), Put: number(0x0fffffff), Want: ondisk.ErrFormat, Text: "4 clusters before the end"},
				{Name: "a folder before itself", Off: at(dir), Put: number(dir), Want: ondisk.ErrFormat, Text: "has not passed"},
				{Name: "a file without a cluster", Off: slot("FILE       ") + 26, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "first cluster 0"},
				{Name: "a folder without a cluster", Off: slot("DIR        ") + 26, Put: filetest.LE16(0), Want: ondisk.ErrFormat, Text: "first cluster 0"},
				{Name: "a file of 4 GiB", Off: slot("FILE       ") + 28, Put: filetest.LE32(0xffffffff), Want: ondisk.ErrFormat, Text: "before the end of the chain"},
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
	again, err := alone(filetest.Memory(raw))
	require.NoError(t, err)
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
