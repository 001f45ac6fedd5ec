package ntfs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// fragmentedNTFS is a volume filled by ntfs-3g, and filled again after removals: holes, streams, a compressed folder, a
// file with an attribute list, a second name, and a folder with many names.
func fragmentedNTFS(t *testing.T) string {
	t.Helper()
	vol := mkntfs(t, 6<<20, "-c", "512")
	filledNTFS(t, vol, func(dir string) {
		noise := filetest.Noise(1, 1<<20)
		write := func(name string, b []byte) error { return os.WriteFile(filepath.Join(dir, name), b, 0o600) }
		small := func(i int) string { return fmt.Sprintf("many/%0*d", 20+i%3*80, i) }
		require.NoError(t, os.Mkdir(filepath.Join(dir, "many"), 0o700))
		for i := range 500 {
			require.NoError(t, write(small(i), noise[:[]int{0, 300, 900, 2500, 5000, 9000}[i/2%6]]))
		}
		require.ErrorIs(t, write("rest", slices.Repeat(noise, 6)), unix.ENOSPC)
		last, err := os.Create(filepath.Join(dir, "last"))
		for err == nil {
			_, err = last.Write(noise[:512])
		}
		require.ErrorIs(t, err, unix.ENOSPC)
		_ = last.Close()
		for i := range 500 {
			if i%2 > 0 {
				require.NoError(t, os.Remove(filepath.Join(dir, small(i))))
			}
		}
		require.NoError(t, write("pieces", noise[:60_000]))
		var holes [2]*os.File
		for i := range holes {
			holes[i], err = os.Create(filepath.Join(dir, fmt.Sprint("holes", i)))
			require.NoError(t, err)
		}
		for i := range int64(400) { // alternately, so that no run continues the one before
			_, err := holes[i%2].WriteAt(noise[:500], i<<16)
			require.NoError(t, err)
		}
		for _, f := range holes {
			require.NoError(t, f.Close())
		}
		require.NoError(t, unix.Setxattr(filepath.Join(dir, "pieces"), "user.stream", noise[:9_000], 0))
		require.NoError(t, write("streams", nil))
		for _, s := range []string{"user.a", "user.b", "user.tiny"} {
			require.NoError(t, unix.Setxattr(filepath.Join(dir, "streams"), s, noise[:len(s)*len(s)*len(s)*20], 0))
		}
		require.NoError(t, os.Mkdir(filepath.Join(dir, "packed"), 0o700))
		require.NoError(t, unix.Setxattr(filepath.Join(dir, "packed"), "system.ntfs_attrib_be", []byte{0, 0, 8, 0x10},
			0))
		require.NoError(t, write("packed/file", bytes.Repeat(append(make([]byte, 30_000), noise[:7000]...), 3)))
		require.NoError(t, os.Link(filepath.Join(dir, "pieces"), filepath.Join(dir, "second name")))
	}, "-o", "compression")
	return vol
}

var (
	attrLine = regexp.MustCompile(`^ +(0x[0-9a-f]+) - (resident|non-resident)`)
	runLine  = regexp.MustCompile(`^ +(\d+) +(-?\d+) +(\d+)$`)
)

// ntfscluster is a file in the output of ntfscluster: pieces and clusters of its streams, or of its index. Without a
// name there is no file.
func ntfscluster(t *testing.T, vol string, record int64) (path string, folder bool, pieces, clusters int64) {
	t.Helper()
	out, err := exec.Command(disktest.Tool(t, "ntfscluster"), "-f", "-I", strconv.FormatInt(record, 10), vol).Output()
	if err != nil {
		return "", false, 0, 0
	}
	kind, first := "", true
	var v, l, n, next int64 // the last run, and the end of the last row
	counted := map[string][2]int64{}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		if m := attrLine.FindStringSubmatch(line); m != nil {
			kind, first = m[1], true
			if _, ok := counted[kind]; !ok {
				counted[kind] = [2]int64{}
			}
		}
		if p, ok := strings.CutPrefix(line, "Dump: /"); ok {
			path = p
		}
		m := runLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		c := counted[kind]
		vcn, lcn, length := disktest.Number(t, m[1]), disktest.Number(t, m[2]), disktest.Number(t, m[3])
		first = first && vcn != next // otherwise a part of the same stream
		next = vcn + length
		if lcn < 0 {
			continue
		}
		if c[0] == 0 || (!first && lcn != l+n && lcn-l != vcn-v) {
			c[0]++
		}
		c[1] += length
		counted[kind] = c
		v, l, n, first = vcn, lcn, length, false
	}
	if _, data := counted["0x80"]; !data {
		_, folder = counted["0x90"]
		return path, folder, counted["0xa0"][0], counted["0xa0"][1]
	}
	return path, false, counted["0x80"][0], counted["0x80"][1]
}

// Files, folders, the MFT and the free space equal the counts of ntfscluster and blkls.
func TestCensusLikeNTFSProgs(t *testing.T) {
	t.Parallel()
	vol := fragmentedNTFS(t)
	c := filetest.Counted(t, filetest.RawImage(t, vol), Fragments)
	require.Zero(t, c.Unread)
	require.Equal(t, filetest.FreeOfSleuthkit(t, vol, 512), c.Free)
	_, _, pieces, _ := ntfscluster(t, vol, 0)
	require.Equal(t, pieces, c.MFT)

	var files, folders guestfile.Group
	worst, most := int64(0), int64(0)
	add := func(number int64) {
		path, folder, pieces, clusters := ntfscluster(t, vol, number)
		if path == "" || strings.HasPrefix(path, "$Extend/") {
			return
		}
		g := &files
		if folder {
			g = &folders
		} else if pieces > most {
			worst, most = number, pieces
		}
		filetest.Count(g, pieces, 512*clusters)
	}
	add(rootRecord)
	for number := int64(firstRecord); number < c.Of; number++ {
		add(number)
	}
	require.Equal(t, files, c.Files)
	require.Equal(t, folders, c.Folders)
	require.Positive(t, folders.Fragmented)
	require.Greater(t, files.Fragmented, int64(3))
	require.Greater(t, files.Number, files.Placed)
	// The attribute list shows that the runs of the worst file are in several records.
	require.Greater(t, most, int64(100))
	require.Contains(t, disktest.Output(t, "istat", vol, strconv.FormatInt(worst, 10)), "$ATTRIBUTE_LIST")
}

// The runs of an MFT in many pieces are in several records.
func TestCensusOfScatteredMFT(t *testing.T) {
	t.Parallel()
	m := forgeNTFS(t, smallFiles(t, 2))
	m.splitMFT(t, forgeNTFS(t, m.save(t)).scatterMFT(t))
	m.scatterMFT(t)
	vol := m.save(t)
	_, _, pieces, _ := ntfscluster(t, vol, 0)
	require.Greater(t, pieces, int64(10))
	require.Equal(t, pieces, filetest.Counted(t, filetest.RawImage(t, vol), Fragments).MFT)
}

// A broken record does not hide the others, and the budget ends a walk.
func TestCensusOfBrokenNTFS(t *testing.T) {
	t.Parallel()
	m := forgeNTFS(t, smallFiles(t, 12))
	require.Equal(t, int64(12), filetest.Counted(t, m.disk(), Fragments).Files.Number)
	for i := range 3 {
		m.change(t, m.number(t, fmt.Sprint("small", 2+3*i)), func(r forge.Bytes) { r.U32(0x1c, 7) }) // allocated size
	}
	c := filetest.Counted(t, m.disk(), Fragments)
	require.Equal(t, int64(3), c.Unread)
	require.Equal(t, int64(9), c.Files.Number)

	c = filetest.CountedInPart(t, m.disk(), Fragments, 48<<10)
	require.Less(t, c.Looked, c.Of)
	require.Positive(t, c.Files.Number)
}

// Sorting the runs of a file takes longer than reading them, and a volume can have many such files.
func TestFilesOfManyRunsCost(t *testing.T) {
	n := newFileSystem(guestfile.NewBudget(), filetest.Memory(make([]byte, 70<<20)))
	n.cluster, n.clusters = 512, 1<<20
	v := &value{fs: n, found: true, size: 512, initialised: 512, clusters: guestfile.MaxRuns, runs: filetest.ManyRuns()}
	filetest.EndsWithin(t, 100, func() error {
		_, err := v.file("file")
		return err
	})
}

// File systems that share a budget end together.
func TestSharedBudget(t *testing.T) {
	volume := filetest.RawImage(t, mkntfs(t, 2<<20))
	b := guestfile.NewBudget()
	_, err := Open(b, volume)
	require.NoError(t, err)
	b.Runs.Limit = 1
	_, err = Open(b, volume)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	b = guestfile.NewBudget()
	first, err := Open(b, volume)
	require.NoError(t, err)
	b.Work.Limit = 1
	_, err = first.List("")
	require.ErrorIs(t, err, ondisk.ErrLimit)
	_, err = Open(b, volume)
	require.ErrorIs(t, err, ondisk.ErrLimit)
}
