package fat

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
)

// mshowfat is the group of files or folders whose runs of clusters mshowfat prints.
func mshowfat(t *testing.T, img string, cluster int64, names []string) (g guestfile.Group) {
	t.Helper()
	for _, runs := range clusterRuns(t, img, names) {
		bytes := int64(0)
		for _, r := range runs {
			bytes += (r[1] - r[0] + 1) * cluster
		}
		filetest.Count(&g, int64(len(runs)), bytes)
	}
	return g
}

var fsckLine = regexp.MustCompile(`: (\d+) files, (\d+)/(\d+) clusters`)

// Files, folders and free space of each FAT are as mshowfat, blkls and fsck.fat count them.
func TestCensusLikeMtools(t *testing.T) {
	for _, i := range []int{0, 3, 6, 7} {
		k := fatKinds[i]
		t.Run(k.name, func(t *testing.T) {
			files := fatTree()
			img := makeFAT(t, k, files)
			fragment(t, img, 200_000)
			volume := filetest.RawImage(t, img)
			g := alone.Sound(t, volume)
			v := g.(*fileSystem)
			c := filetest.Counted(t, volume, Fragments)
			require.Zero(t, c.Unread)

			names := filetest.WalkFS(t, g, "")
			want := mshowfat(t, img, v.Cluster, names)
			require.Equal(t, want.Number, int64(len(names)))
			require.Equal(t, want, c.Files)
			require.Positive(t, want.Fragmented)

			folders := map[string]bool{"": true, "empty folder": true}
			for _, name := range names {
				for parts := strings.Split(name, "/"); len(parts) > 1; {
					parts = parts[:len(parts)-1]
					folders[strings.Join(parts, "/")] = true
				}
			}
			require.Equal(t, int64(len(folders)), c.Folders.Number)
			delete(folders, "")
			want = mshowfat(t, img, v.Cluster, slices.Collect(maps.Keys(folders)))
			// The root, which mshowfat does not print, is a chain in FAT32 only.
			pieces, bytes := int64(0), int64(0)
			if v.Bits == 32 {
				b := disktest.ReadFile(t, img)
				for last, c := int64(-1), int64(v.RootCluster); c < 0x0ffffff8; {
					if c != last+1 {
						pieces++
					}
					bytes += v.Cluster
					last, c = c, int64(binary.LittleEndian.Uint32(b[int64(v.Reserved)*v.Sector+4*c:]))
				}
			}
			filetest.Count(&want, pieces, bytes)
			require.Equal(t, want, c.Folders)

			require.Equal(t, filetest.FreeOfSleuthkit(t, img, v.Sector), c.Free)
			m := fsckLine.FindStringSubmatch(disktest.Output(t, "fsck.fat", "-n", img))
			require.NotNil(t, m)
			require.Equal(t, v.Clusters-disktest.Number(t, m[2]), c.Free.Bytes/v.Cluster)
		})
	}
}

// A chain that comes back to itself, and one that leaves the volume, do not hide the other files; nor does a folder
// that holds itself.
func TestCensusOfBrokenFAT(t *testing.T) {
	img := makeFAT(t, fatKinds[3], map[string][]byte{
		"A": filetest.Noise(1, 2000), "B": filetest.Noise(2, 2000), "C": filetest.Noise(3, 2000),
		"D/E": filetest.Noise(4, 10),
	})
	b := disktest.ReadFile(t, img)
	g := alone.Sound(t, filetest.Memory(b))
	v := g.(*fileSystem)
	first := func(path string) int64 {
		e, _, err := v.find(path)
		require.NoError(t, err)
		return e.first
	}
	next := map[int64]uint16{first("A") + 1: uint16(first("A")), first("B"): 0xfff0}
	dir, inner := v.at(first("D")), first("D")
	for cluster, to := range next {
		b[v.table+2*cluster], b[v.table+2*cluster+1] = byte(to), byte(to>>8)
	}
	copy(b[dir+3*32:], "SELF       \x10")
	b[dir+3*32+26], b[dir+3*32+27] = byte(inner), byte(inner>>8)
	c := filetest.Counted(t, filetest.Memory(b), Fragments)
	require.Equal(t, int64(3), c.Unread)
	require.Equal(t, int64(2), c.Files.Number)
	require.Equal(t, int64(2), c.Folders.Number)

	filetest.CountedInPart(t, filetest.Memory(b), Fragments, 150<<10) // the free clusters and the root
}

func FuzzFAT(f *testing.F) {
	var volumes [][]byte
	for _, k := range []fatKind{
		{size: "128K", args: []string{"-F", "12", "-s", "1", "-r", "64"}},
		{size: "4400K", args: []string{"-F", "16", "-s", "1", "-r", "64"}},
		{size: "34M", args: []string{"-F", "32", "-s", "1"}},
	} {
		img := makeFAT(f, k, map[string][]byte{
			"file": filetest.Noise(1, 3000), "dir/in dir.txt": filetest.Noise(2, 100),
			"A long name with spaces.txt": filetest.Noise(3, 10),
		})
		volumes = append(volumes, disktest.ReadFile(f, img))
	}
	filetest.FuzzFiles(f, alone, volumes...)
}

func FuzzFATCensus(f *testing.F) {
	var volumes [][]byte
	for _, k := range []fatKind{
		{size: "128K", args: []string{"-F", "12", "-s", "1", "-r", "64"}},
		{size: "34M", args: []string{"-F", "32", "-s", "1"}},
	} {
		img := makeFAT(f, k, map[string][]byte{
			"file": filetest.Noise(1, 3000), "dir/in dir.txt": filetest.Noise(2, 100),
			"dir/dir/dir": filetest.Noise(3, 900),
		})
		fragment(f, img, 20_000)
		volumes = append(volumes, disktest.ReadFile(f, img))
	}
	filetest.FuzzCensus(f, Fragments, volumes...)
}

func TestFATLargeFolder(t *testing.T) {
	folder := bytes.Repeat([]byte{0}, 1<<21)
	for i := range filetest.ManyNames {
		copy(folder[i*32:], fmt.Sprintf("NAME%04XEXT ", i))
	}
	for _, k := range []fatKind{
		{size: "20M", args: []string{"-F", "16", "-s", "1"}},
		{size: "40M", args: []string{"-F", "32", "-s", "1"}},
	} {
		raw := disktest.ReadFile(t, makeFAT(t, k, map[string][]byte{"LARGE": folder}))
		raw[bytes.Index(raw, []byte("LARGE      "))+11] |= attrDir
		g := alone.Sound(t, filetest.Memory(raw))
		filetest.Cheap(t, lower{g}, g.(*fileSystem).meter, int64(len(folder))*(1+namesWeight),
			fmt.Sprintf("LARGE/NAME%04X.EXT", filetest.ManyNames-1))
	}
}

// lower asks with names in another case.
type lower struct{ guestfile.FS }

func (l lower) Open(path string) (*guestfile.File, error) { return l.FS.Open(strings.ToLower(path)) }

func (l lower) List(path string) ([]guestfile.Entry, error) { return l.FS.List(strings.ToLower(path)) }

var alone = filetest.Alone(Open)
