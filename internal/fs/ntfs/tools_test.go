package ntfs

import (
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// mkntfs makes a volume and gives its path.
func mkntfs(t testing.TB, size int64, args ...string) string {
	t.Helper()
	path := disktest.Blank(t, "volume", size)
	disktest.Run(t, "mkntfs", append([]string{"-q", "-Q", "-F", "-p", "63", "-H", "255", "-S", "63"},
		append(args, path)...)...)
	return path
}

// ntfscp writes bytes to a file of a volume.
func ntfscp(t testing.TB, volume, name string, b []byte) {
	t.Helper()
	from := filepath.Join(filepath.Dir(volume), "file")
	require.NoError(t, os.WriteFile(from, b, 0o644))
	disktest.Run(t, "ntfscp", "-q", volume, from, name)
}

// ntfscat is what a file of a volume holds.
func ntfscat(t testing.TB, volume, name string) []byte {
	t.Helper()
	return []byte(disktest.Output(t, "ntfscat", "-f", volume, name))
}

// ntfsNoise is a file that has other bytes everywhere.
func ntfsNoise(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func openNTFS(t testing.TB, path string) *fileSystem {
	t.Helper()
	v, err := alone(filetest.RawImage(t, path))
	require.NoError(t, err)
	return v.(*fileSystem)
}

// file opens what must be there.
func (n *fileSystem) file(t testing.TB, path string) *guestfile.File {
	t.Helper()
	f, err := n.Open(path)
	require.NoError(t, err)
	return f
}

// at finds what must be there.
func (n *fileSystem) at(t testing.TB, path string) *node {
	t.Helper()
	node, err := n.find(path)
	require.NoError(t, err)
	return node
}

func allOf(t testing.TB, f *guestfile.File) []byte {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, f.Size()))
	require.NoError(t, err)
	return b
}

// requireLikeNTFSCat holds a file to what ntfscat prints of it.
func requireLikeNTFSCat(t testing.TB, volume string, v guestfile.FS, path string) *guestfile.File {
	t.Helper()
	f, err := v.Open(path)
	require.NoError(t, err, path)
	if f.Size() > 64<<20 { // shadow copies: their runs are compared
		return f
	}
	got := allOf(t, f)
	if path == "$MFT" || path == "$MFTMirr" { // ntfscat undoes the fix-ups
		record := v.(*fileSystem).record
		for at := int64(0); at < f.Size(); at += record {
			UndoFixups(got[at:at+record], recordHeadSize)
		}
	}
	want := ntfscat(t, volume, f.Path)
	require.Equal(t, int64(len(want)), f.Size(), path)
	require.Equal(t, sha256.Sum256(want), sha256.Sum256(got), path)
	return f
}

// ntfsTree is what ntfsls finds in a volume: the paths of files, and of folders with a "/" behind.
func ntfsTree(t testing.TB, volume string) []string {
	t.Helper()
	cmd := exec.Command(disktest.Tool(t, "ntfsls"), "-f", "-R", "-a", "-s", "-F", volume)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.Output()
	require.NoError(t, err)
	var paths []string
	dir := ""
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "" || line == "./" || line == "../":
		case strings.HasPrefix(line, "/") && strings.HasSuffix(line, ":"):
			dir = strings.TrimPrefix(strings.ReplaceAll(strings.TrimSuffix(line, ":")+"/", "//", "/"), "/")
		default:
			paths = append(paths, dir+line)
		}
	}
	return paths
}

// listTree is what List finds in a volume, in the words of ntfsTree.
func listTree(t testing.TB, v guestfile.FS, dir string) []string {
	t.Helper()
	entries, err := v.List(dir)
	require.NoError(t, err, dir)
	var out []string
	for _, e := range entries {
		path := strings.TrimPrefix(dir+"/"+e.Name, "/")
		if !e.Dir {
			out = append(out, path)
			continue
		}
		out = append(out, path+"/")
		out = append(out, listTree(t, v, path)...)
	}
	return out
}

// What ntfsinfo prints of an attribute.
var (
	infoSize = regexp.MustCompile(`(?m)^\tInitialized size:\s+(\d+)`)
	infoRun  = regexp.MustCompile(
		`(?m)^(?:\tRunlist:.*\n)?\t\t\t(0x[0-9a-f]+)\t\t(0x[0-9a-f]+|<HOLE>)\t\t(0x[0-9a-f]+)`)
)

// ntfsRuns are the runs of a file as ntfsinfo prints them, up to the end of its initialised bytes; resident when they
// are those of its record.
func ntfsRuns(t testing.TB, volume string, v *fileSystem, path string) (runs []guestfile.Run, resident bool) {
	t.Helper()
	size := int64(-1)
	for section := range strings.SplitSeq(disktest.Output(t, "ntfsinfo", "-f", "-v", "-F", path, volume),
		"Dumping attribute ") {
		if !strings.HasPrefix(section, "$DATA (0x80)") || !strings.Contains(section, "Name length:\t\t 0 (") {
			continue
		}
		if strings.Contains(section, "Resident: \t\t Yes") {
			return nil, true
		}
		if m := infoSize.FindStringSubmatch(section); size < 0 {
			require.NotNil(t, m, section)
			size = hexOf(t, m[1])
		}
		for _, m := range infoRun.FindAllStringSubmatch(section, -1) {
			vcn, count := hexOf(t, m[1])*v.cluster, hexOf(t, m[3])*v.cluster
			if m[2] != "<HOLE>" && vcn < size {
				runs = joined(runs, guestfile.Run{Off: vcn, Len: min(count, size-vcn), At: hexOf(t, m[2]) * v.cluster})
			}
		}
	}
	require.NotEqual(t, int64(-1), size, path)
	return runs, false
}

func hexOf(t testing.TB, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 0, 64)
	require.NoError(t, err)
	return n
}

// joined appends a run, which is part of the one before when it goes on where that ends.
func joined(runs []guestfile.Run, r guestfile.Run) []guestfile.Run {
	if k := len(runs) - 1; k >= 0 && runs[k].Off+runs[k].Len == r.Off && runs[k].At+runs[k].Len == r.At {
		runs[k].Len += r.Len
		return runs
	}
	return append(runs, r)
}

// requireRunsOfNTFSInfo holds the places of a file to the runs that ntfsinfo prints.
func requireRunsOfNTFSInfo(t testing.TB, volume string, v *fileSystem, f *guestfile.File) {
	t.Helper()
	want, resident := ntfsRuns(t, volume, v, f.Path)
	if resident {
		return
	}
	require.Equal(t, want, filetest.RunsOf(t, f), f.Path)
	for _, r := range want {
		places, err := f.Where(r.Off, r.Len)
		require.NoError(t, err)
		require.Equal(t, []disk.Range{{Off: r.At, Len: r.Len}}, places)
	}
}

// noData are metadata files that have no unnamed data.
var noData = map[string]bool{"$Secure": true, "$Extend/$ObjId": true, "$Extend/$Quota": true, "$Extend/$Reparse": true}

// requireLikeTools holds all that a volume has to what the tools of ntfs-3g find in it.
func requireLikeTools(t *testing.T, volume string) *fileSystem {
	t.Helper()
	v := openNTFS(t, volume)
	want := ntfsTree(t, volume)
	require.ElementsMatch(t, want, listTree(t, v, ""))
	for _, path := range want {
		if folder, is := strings.CutSuffix(path, "/"); is {
			_, err := v.Open(folder)
			require.ErrorIs(t, err, os.ErrNotExist, path)
			continue
		}
		if noData[path] {
			_, err := v.Open(path)
			require.ErrorIs(t, err, ondisk.ErrUnsupported, path)
			continue
		}
		requireRunsOfNTFSInfo(t, volume, v, requireLikeNTFSCat(t, volume, v, path))
	}
	return v
}

// ntfsRewrite inverts bytes of a file through its places.
func ntfsRewrite(t testing.TB, volume string, f *guestfile.File, off, n int64) {
	t.Helper()
	places, err := f.Where(off, n)
	require.NoError(t, err)
	file, err := os.OpenFile(volume, os.O_RDWR, 0)
	require.NoError(t, err)
	for _, p := range places {
		b := make([]byte, p.Len)
		_, err := file.ReadAt(b, p.Off)
		require.NoError(t, err)
		_, err = file.WriteAt(inverted(b), p.Off)
		require.NoError(t, err)
	}
	require.NoError(t, file.Close())
}

func inverted(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = ^b[i]
	}
	return out
}
