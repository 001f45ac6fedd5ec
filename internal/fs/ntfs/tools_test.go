package ntfs

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
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

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// mkntfs makes a volume and returns its path.
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

// ntfscat returns the content of a file of a volume.
func ntfscat(t testing.TB, volume, name string) []byte {
	t.Helper()
	return []byte(disktest.Output(t, "ntfscat", "-f", volume, name))
}

func openNTFS(t testing.TB, path string) *fileSystem {
	t.Helper()
	return alone.Sound(t, filetest.RawImage(t, path)).(*fileSystem)
}

// file opens an existing file.
func (n *fileSystem) file(t testing.TB, path string) *guestfile.File {
	t.Helper()
	return filetest.File(t, n, path)
}

// at returns the node of a file or folder, which must exist.
func (n *fileSystem) at(t testing.TB, path string) *node {
	t.Helper()
	node, err := n.find(path)
	require.NoError(t, err)
	return node
}

// requireLikeNTFSCat compares a file with the output of ntfscat.
func requireLikeNTFSCat(t testing.TB, volume string, v guestfile.FS, path string) *guestfile.File {
	t.Helper()
	f := filetest.File(t, v, path)
	if f.Size() > 64<<20 { // shadow copies: their runs are compared
		return f
	}
	got := filetest.ReadAll(t, f)
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

// ntfsTree returns the paths of a volume from ntfsls: of files, and of folders with a final "/".
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

// listTree returns the paths from List in the format of ntfsTree.
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

// An attribute in the output of ntfsinfo.
var (
	infoSize = regexp.MustCompile(`(?m)^\tInitialized size:\s+(\d+)`)
	infoRun  = regexp.MustCompile(
		`(?m)^(?:\tRunlist:.*\n)?\t\t\t(0x[0-9a-f]+)\t\t(0x[0-9a-f]+|<HOLE>)\t\t(0x[0-9a-f]+)`)
)

func hexOf(t testing.TB, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 0, 64)
	require.NoError(t, err)
	return n
}

// requireRunsOfNTFSInfo compares the positions of a file with the runs in ntfsinfo, up to the end of its initialized
// bytes, except for resident data.
func requireRunsOfNTFSInfo(t testing.TB, volume string, v *fileSystem, f *guestfile.File) {
	t.Helper()
	var want []guestfile.Run
	size := int64(-1)
	for section := range strings.SplitSeq(disktest.Output(t, "ntfsinfo", "-f", "-v", "-F", f.Path, volume),
		"Dumping attribute ") {
		if !strings.HasPrefix(section, "$DATA (0x80)") || !strings.Contains(section, "Name length:\t\t 0 (") {
			continue
		}
		if strings.Contains(section, "Resident: \t\t Yes") {
			return
		}
		if m := infoSize.FindStringSubmatch(section); size < 0 {
			require.NotNil(t, m, section)
			size = hexOf(t, m[1])
		}
		for _, m := range infoRun.FindAllStringSubmatch(section, -1) {
			vcn, count := hexOf(t, m[1])*v.cluster, hexOf(t, m[3])*v.cluster
			if m[2] == "<HOLE>" || vcn >= size {
				continue
			}
			r := guestfile.Run{Off: vcn, Len: min(count, size-vcn), At: hexOf(t, m[2]) * v.cluster}
			// A run that continues the preceding one is part of it.
			if k := len(want) - 1; k >= 0 && want[k].Off+want[k].Len == r.Off && want[k].At+want[k].Len == r.At {
				want[k].Len += r.Len
			} else {
				want = append(want, r)
			}
		}
	}
	require.NotEqual(t, int64(-1), size, f.Path)
	require.Equal(t, want, filetest.RunsOf(t, f), f.Path)
	for _, r := range want {
		places, err := f.Where(r.Off, r.Len)
		require.NoError(t, err)
		require.Equal(t, []disk.Range{{Off: r.At, Len: r.Len}}, places)
	}
}

// noData lists metadata files without unnamed data.
var noData = map[string]bool{"$Secure": true, "$Extend/$ObjId": true, "$Extend/$Quota": true, "$Extend/$Reparse": true}

// requireLikeTools compares everything in a volume with the tools of ntfs-3g.
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

// ntfsRewrite inverts bytes of a file at its positions.
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

var alone = filetest.Alone(Open)

// filledNTFS mounts a volume with ntfs-3g, calls fill in it, and unmounts it. If mounting is impossible, the test is
// skipped.
func filledNTFS(t *testing.T, volume string, fill func(dir string), options ...string) {
	t.Helper()
	dir := t.TempDir()
	args := slices.Concat(options, []string{volume, dir})
	if out, err := exec.Command(disktest.Tool(t, "ntfs-3g"), args...).CombinedOutput(); err != nil {
		t.Skipf("ntfs-3g cannot mount here: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("fusermount", "-u", "-z", dir).Run() }) // when fill failed
	fill(dir)
	disktest.WaitFor(t, "an unmount: another process can be looking at all mounts", func() bool {
		return exec.Command("fusermount", "-u", dir).Run() == nil
	})
	// The program may still be writing, and holds a lock until it has finished.
	f, err := os.OpenFile(volume, os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_SETLKW, &unix.Flock_t{Type: unix.F_WRLCK}))
	require.NoError(t, f.Close())
}

// Folders in folders, a folder of a thousand files with names in any order and case, short names, holes, and reparse
// points.
func TestNTFSOfAMountedVolume(t *testing.T) {
	for _, args := range []string{"-c 512", "-c 4096", "-c 65536"} {
		t.Run(args, func(t *testing.T) {
			vol := mkntfs(t, 32<<20, strings.Fields(args)...)
			long := "Programs and Settings.longer"
			filledNTFS(t, vol, func(dir string) {
				deep := filepath.Join(dir, "Windows", "System32", "Config")
				require.NoError(t, os.MkdirAll(deep, 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(deep, "SYSTEM"), filetest.Noise(1, 300000), 0o644))
				many := filepath.Join(dir, "Many")
				require.NoError(t, os.Mkdir(many, 0o755))
				r := rand.New(rand.NewPCG(5, 6))
				for i := range 1000 {
					name := fmt.Sprintf("%c%c%c %d", rune('A'+r.IntN(60)), rune(0xc0+r.IntN(64)),
						rune(0x390+r.IntN(60)), i)
					name = strings.Map(func(c rune) rune {
						if strings.ContainsRune(`\^`, c) {
							return '_'
						}
						return c
					}, name)
					require.NoError(t, os.WriteFile(filepath.Join(many, name), []byte(name), 0o644))
				}
				require.NoError(t, os.WriteFile(filepath.Join(dir, long), filetest.Noise(4, 10), 0o644))
				require.NoError(t, unix.Setxattr(filepath.Join(dir, long), "system.ntfs_dos_name",
					[]byte("PROGRA~1.LON"), 0))
				holes, err := os.Create(filepath.Join(dir, "holes"))
				require.NoError(t, err)
				for i := range int64(5) {
					_, err := holes.WriteAt(filetest.Noise(5, 70000), (i*2+1)<<20)
					require.NoError(t, err)
				}
				require.NoError(t, holes.Close())
				require.NoError(t, os.WriteFile(filepath.Join(dir, "wof"), nil, 0o644))
				require.NoError(t, unix.Setxattr(filepath.Join(dir, "wof"), "system.ntfs_reparse_data",
					[]byte{0x17, 0, 0, 0x80, 4, 0, 0, 0, 1, 0, 0, 0}, 0))
			})
			v := alone.Sound(t, filetest.RawImage(t, vol))
			_, err := v.Open("wof")
			require.ErrorIs(t, err, ondisk.ErrUnsupported)
			require.ErrorContains(t, err, "WOF")
			f := requireLikeNTFSCat(t, vol, v, "WINDOWS/SYSTEM32/CONFIG/system")
			require.Equal(t, "Windows/System32/Config/SYSTEM", f.Path)
			require.Equal(t, filetest.Noise(4, 10), filetest.ReadAll(t, requireLikeNTFSCat(t, vol, v, "progra~1.lon")))
			require.Equal(t, filetest.Noise(4, 10), filetest.ReadAll(t,
				requireLikeNTFSCat(t, vol, v, strings.ToUpper(long))))
			require.ElementsMatch(t, ntfsTree(t, vol), listTree(t, v, ""))
			requireRunsOfNTFSInfo(t, vol, v.(*fileSystem), requireLikeNTFSCat(t, vol, v, "holes"))
			entries, err := v.List("many")
			require.NoError(t, err)
			require.Len(t, entries, 1000)
			for _, e := range entries {
				f := filetest.File(t, v, "many/"+e.Name)
				require.Equal(t, e.Name, string(filetest.ReadAll(t, f)))
				f = filetest.File(t, v, "many/"+strings.ToLower(e.Name))
				require.Equal(t, "Many/"+e.Name, f.Path)
			}
		})
	}
}
