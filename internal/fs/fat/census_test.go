package fat

import (
	"encoding/binary"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
)

// mshowfat is what mshowfat prints of files and folders: the runs of clusters of each.
func mshowfat(t *testing.T, img string, cluster int64, names []string) (g guestfile.Group) {
	t.Helper()
	args := []string{"-i", img}
	for _, name := range names {
		args = append(args, "::"+name)
	}
	for line := range strings.Lines(disktest.Output(t, "mshowfat", args...)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "::/") {
			continue
		}
		_, rest, _ := strings.Cut(line, " <") // nothing behind it: the root directory, or an empty file
		n, bytes := int64(0), int64(0)
		for field := range strings.FieldsSeq(rest) {
			from, to, ok := strings.Cut(strings.Trim(field, "<>"), "-")
			if !ok {
				to = from
			}
			a, err := strconv.ParseInt(from, 10, 64)
			require.NoError(t, err, line)
			b, err := strconv.ParseInt(to, 10, 64)
			require.NoError(t, err, line)
			if a > 0 {
				n, bytes = n+1, bytes+(b-a+1)*cluster
			}
		}
		g.Number, g.Pieces, g.Bytes = g.Number+1, g.Pieces+n, g.Bytes+bytes
		if n > 0 {
			g.Placed++
		}
		if n > 1 {
			g.Fragmented, g.Apart = g.Fragmented+1, g.Apart+bytes
		}
	}
	return g
}

// rootChain is the chain of the root of a FAT32, which mshowfat does not print.
func rootChain(t *testing.T, img string, v *fileSystem) (pieces, bytes int64) {
	t.Helper()
	b := disktest.ReadFile(t, img)
	for last, c := int64(-1), int64(v.RootCluster); c < 0x0ffffff8; {
		if c != last+1 {
			pieces++
		}
		bytes += v.Cluster
		last, c = c, int64(binary.LittleEndian.Uint32(b[int64(v.Reserved)*v.Sector+4*c:]))
	}
	return pieces, bytes
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
			g := opened(t, volume)
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
			var list []string
			for name := range folders {
				list = append(list, name)
			}
			want = mshowfat(t, img, v.Cluster, list)
			want.Number++ // the root, which is a chain in FAT32 only
			if v.Bits == 32 {
				n, bytes := rootChain(t, img, v)
				want.Placed, want.Pieces, want.Bytes = want.Placed+1, want.Pieces+n, want.Bytes+bytes
				if n > 1 {
					want.Fragmented, want.Apart = want.Fragmented+1, want.Apart+bytes
				}
			}
			require.Equal(t, want, c.Folders)

			require.Equal(t, filetest.FreeOfSleuthkit(t, img, v.Sector), c.Free)
			m := fsckLine.FindStringSubmatch(disktest.Output(t, "fsck.fat", "-n", img))
			require.NotNil(t, m)
			used, err := strconv.ParseInt(m[2], 10, 64)
			require.NoError(t, err)
			require.Equal(t, v.Clusters-used, c.Free.Bytes/v.Cluster)
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
	g, err := alone(filetest.Memory(b))
	require.NoError(t, err)
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

	c = &guestfile.Census{Budget: guestfile.NewFragmentBudget()}
	c.Budget.Work.Limit = 150 << 10 // the free clusters and the root
	require.NoError(t, Fragments(c, filetest.Memory(b)))
	require.True(t, c.Ended)
}
