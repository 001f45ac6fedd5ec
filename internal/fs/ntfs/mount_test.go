package ntfs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/ondisk"
)

// filledNTFS mounts a volume with ntfs-3g, lets fill work in it, and unmounts it. Where nothing can be mounted the test
// is skipped.
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
	// The program still writes, and holds a lock until it has done.
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
				require.NoError(t, os.WriteFile(filepath.Join(deep, "SYSTEM"), ntfsNoise(300000, 1), 0o644))
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
				require.NoError(t, os.WriteFile(filepath.Join(dir, long), ntfsNoise(10, 4), 0o644))
				require.NoError(t, unix.Setxattr(filepath.Join(dir, long), "system.ntfs_dos_name",
					[]byte("PROGRA~1.LON"), 0))
				holes, err := os.Create(filepath.Join(dir, "holes"))
				require.NoError(t, err)
				for i := range int64(5) {
					_, err := holes.WriteAt(ntfsNoise(70000, 5), (i*2+1)<<20)
					require.NoError(t, err)
				}
				require.NoError(t, holes.Close())
				require.NoError(t, os.WriteFile(filepath.Join(dir, "wof"), nil, 0o644))
				require.NoError(t, unix.Setxattr(filepath.Join(dir, "wof"), "system.ntfs_reparse_data",
					[]byte{0x17, 0, 0, 0x80, 4, 0, 0, 0, 1, 0, 0, 0}, 0))
			})
			v, err := alone(filetest.RawImage(t, vol))
			require.NoError(t, err)
			_, err = v.Open("wof")
			require.ErrorIs(t, err, ondisk.ErrUnsupported)
			require.ErrorContains(t, err, "WOF")
			f := requireLikeNTFSCat(t, vol, v, "WINDOWS/SYSTEM32/CONFIG/system")
			require.Equal(t, "Windows/System32/Config/SYSTEM", f.Path)
			require.Equal(t, ntfsNoise(10, 4), allOf(t, requireLikeNTFSCat(t, vol, v, "progra~1.lon")))
			require.Equal(t, ntfsNoise(10, 4), allOf(t, requireLikeNTFSCat(t, vol, v, strings.ToUpper(long))))
			require.ElementsMatch(t, ntfsTree(t, vol), listTree(t, v, ""))
			requireRunsOfNTFSInfo(t, vol, v.(*fileSystem), requireLikeNTFSCat(t, vol, v, "holes"))
			entries, err := v.List("many")
			require.NoError(t, err)
			require.Len(t, entries, 1000)
			for _, e := range entries {
				f, err := v.Open("many/" + e.Name)
				require.NoError(t, err)
				require.Equal(t, e.Name, string(allOf(t, f)))
				f, err = v.Open("many/" + strings.ToLower(e.Name))
				require.NoError(t, err, e.Name)
				require.Equal(t, "Many/"+e.Name, f.Path)
			}
		})
	}
}
