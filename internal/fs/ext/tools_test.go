package ext

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// extKind is a way to format. All have blocks of 4 KiB unless they say something else.
type extKind struct {
	name string
	size string
	args []string
}

// words are arguments of a program.
var words = strings.Fields

var extKinds = []extKind{
	{"ext2, 1 KiB blocks", "24M", words("-t ext2 -b 1024")},
	{"ext2, revision 0", "24M", words("-t ext2 -r 0 -b 1024")},
	{"ext2, no file types", "24M", words("-t ext2 -O ^filetype -b 2048 -I 128")},
	{"ext3", "32M", words("-t ext3 -b 4096")},
	{"ext3, inodes of 512 bytes", "32M", words("-t ext3 -b 1024 -I 512")},
	{"ext4", "32M", words("-t ext4 -b 4096")},
	{"ext4, 1 KiB blocks, no 64bit, no checksums", "32M", words("-t ext4 -b 1024 -O ^64bit,^metadata_csum,uninit_bg")},
	{"ext4, inline data", "32M", words("-t ext4 -b 4096 -O inline_data -I 256")},
	{"ext4, inline data, inodes of 1 KiB", "32M", words("-t ext4 -b 4096 -O inline_data -I 1024")},
	{"ext4, bigalloc", "64M", words("-t ext4 -b 4096 -O bigalloc -C 16384")},
	{"ext4, bigalloc, 1 KiB blocks", "64M", words("-t ext4 -b 1024 -O bigalloc -C 8192")},
	{
		"ext4, bigalloc, meta_bg, 1 KiB blocks", "64M",
		words("-t ext4 -b 1024 -O bigalloc,meta_bg,^resize_inode -C 8192"),
	},
	{"ext4, meta_bg, many groups", "64M", words("-t ext4 -b 1024 -g 512 -O meta_bg,^resize_inode")},
	{
		"ext4, meta_bg, no sparse_super", "64M",
		words("-t ext4 -b 1024 -g 512 -O meta_bg,^resize_inode,^sparse_super,^flex_bg"),
	},
	{"ext4, many groups, no flex_bg", "64M", words("-t ext4 -b 1024 -g 512 -O ^resize_inode,^flex_bg")},
	{
		"ext4, sparse_super2, meta_bg", "64M",
		words("-t ext4 -b 1024 -g 512 -O sparse_super2,meta_bg,^resize_inode,^flex_bg"),
	},
	{"ext4, 64 KiB blocks", "96M", words("-t ext4 -b 65536")},
	{"ext4, inodes of 128 bytes", "32M", words("-t ext4 -b 4096 -I 128")},
	{
		"ext4, many features", "32M",
		words("-t ext4 -b 4096 -O large_dir,ea_inode,encrypt,verity,quota,project,mmp,metadata_csum_seed,casefold"),
	},
	{"ext4, blocks mapped as in ext3", "32M", words("-t ext4 -b 1024 -O ^extents,^64bit")},
}

// manyFiles are so many that a folder has several blocks.
const manyFiles = 250

// extTree is put on each.
func extTree(t testing.TB) (dir string, files map[string][]byte) {
	t.Helper()
	files = map[string][]byte{
		"boot/grub/grub.cfg": filetest.Noise(1, 6000), "boot/vmlinuz-6.1.0-18-amd64": filetest.Noise(2, 700_001),
		"etc/fstab": filetest.Noise(3, 600), "ünïcödé ☃": filetest.Noise(4, 5),
		"deep/er/and/deep/er/file": filetest.Noise(5, 10), "empty folder/": nil,
		"name/" + strings.Repeat("n", 255): filetest.Noise(6, 20),
	}
	for _, n := range []int{
		0, 1, 59, 60, 61, 100, 120, 155, 156, 157, 500, 900, 1023, 1024, 1025, 4095, 4096, 4097,
		12 * 1024, 12*1024 + 1, 65536, 268*1024 + 1,
	} {
		files[fmt.Sprintf("sizes/%d", n)] = filetest.Noise(uint64(1000+n), n)
	}
	for i := range manyFiles {
		files[fmt.Sprintf("many/file number %d", i)] = filetest.Noise(uint64(i), i%7)
	}
	for i := range 3 {
		files[fmt.Sprintf("few/%d", i)] = nil
	}
	dir = filetest.WriteTree(t, files)
	for name, target := range map[string]string{
		"vmlinuz": "boot/vmlinuz-6.1.0-18-amd64", "abs": "/boot/grub/grub.cfg", "dirlink": "boot/grub",
		"boot/grub/up": "../../etc/fstab",
		"slow":         "deep/../deep/../deep/../deep/../deep/er/and/../../er/and/deep/er/file", "chain1": "chain2",
		"chain2": "/chain3", "chain3": "./vmlinuz",
		"loop": "loop", "dangling": "nothing/here", "above": "../../../etc//fstab", "slow60": strings.Repeat("./", 25) +
			"etc/fstab", "slow59": strings.Repeat("./", 25) + "etc/./fstab",
		"slow200": strings.Repeat("./", 95) + "etc/fstab", "throughfile": "etc/fstab/x",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	return dir, files
}

// sparse puts a file with holes into a folder: bytes in every range that a tree of blocks of 1 KiB tells apart.
func sparse(t testing.TB, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "sparse"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(66<<20))
	for i, off := range []int64{
		5000, 100_000, 263 << 10, 280 << 10, 2 << 20, 30<<20 + 7, 64<<20 + 200<<10, 65 << 20, 66<<20 - 10,
	} {
		_, err := f.WriteAt(filetest.Noise(uint64(i), 9), off)
		require.NoError(t, err)
	}
}

func makeExt(t testing.TB, k extKind, dir string) string {
	t.Helper()
	img := filepath.Join(t.TempDir(), "ext.img")
	disktest.Run(t, "truncate", "-s", k.size, img)
	disktest.Run(t, "mke2fs", slices.Concat([]string{"-q", "-F", "-d", dir}, k.args, []string{img})...)
	return img
}

func digest(t testing.TB, r io.Reader) [sha256.Size]byte {
	t.Helper()
	h := sha256.New()
	_, err := io.Copy(h, r)
	require.NoError(t, err)
	return [sha256.Size]byte(h.Sum(nil))
}

var extStretch = regexp.MustCompile(`\((\d+)(?:-(\d+))?(\[u\])?\):(\d+)`)

// debugfsRuns are the places of files as debugfs prints them: "(0-11):24-35, (IND):36, (12):37". Stretches that are
// taken but not written are marked "[u]" and left out.
func debugfsRuns(t testing.TB, img string, block int64, paths []string) map[string][]guestfile.Run {
	t.Helper()
	var script strings.Builder
	for _, p := range paths {
		fmt.Fprintf(&script, "stat \"/%s\"\n", p)
	}
	commands := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(commands, []byte(script.String()), 0o600))
	parts := strings.Split(disktest.Output(t, "debugfs", "-f", commands, img), "debugfs: stat ")[1:]
	require.Len(t, parts, len(paths))
	out := map[string][]guestfile.Run{}
	for i, p := range paths {
		var runs []guestfile.Run
		_, lists, _ := strings.Cut(parts[i], "\nBLOCKS:")
		if _, extents, ok := strings.Cut(parts[i], "\nEXTENTS:"); ok {
			lists = extents
		}
		for _, m := range extStretch.FindAllStringSubmatch(lists, -1) {
			first, at := disktest.Number(t, m[1]), disktest.Number(t, m[4])
			last := first
			if m[2] != "" {
				last = disktest.Number(t, m[2])
			}
			if m[3] == "" {
				runs = append(runs, guestfile.Run{Off: first * block, Len: (last - first + 1) * block, At: at * block})
			}
		}
		slices.SortFunc(runs, func(a, b guestfile.Run) int { return cmp.Compare(a.Off, b.Off) })
		out[p] = runs
	}
	return out
}

// equalDebugfs holds the places of all files, and the bytes of all, against debugfs.
func equalDebugfs(t *testing.T, img string, g *fileSystem, names []string) {
	t.Helper()
	mapped := 0
	for name, runs := range debugfsRuns(t, img, g.block, names) {
		f := filetest.File(t, g, name)
		if f.Fixed != nil { // inline
			require.Less(t, f.Size(), int64(1000))
			require.Empty(t, runs, name)
			if f.Size() > 0 {
				_, err := f.Where(0, 1)
				require.ErrorIs(t, err, ondisk.ErrUnsupported)
				require.ErrorContains(t, err, "within its inode")
			}
			continue
		}
		want, err := guestfile.NewFile(g.volume, name, f.Size(), runs)
		require.NoError(t, err)
		require.Equal(t, filetest.RunsOf(t, want), filetest.RunsOf(t, f), name)
		mapped++
	}
	require.Greater(t, mapped, 10)
	out := t.TempDir()
	disktest.Run(t, "debugfs", "-R", "rdump / "+out, img)
	for _, name := range names {
		f := filetest.File(t, g, name)
		other, err := os.Open(filepath.Join(out, name))
		require.NoError(t, err)
		var theirs io.Reader = other
		if f.Fixed != nil { // debugfs shows all 60 bytes that the inode has room for
			theirs = io.LimitReader(other, f.Size())
		}
		require.Equal(t, digest(t, theirs), digest(t, io.NewSectionReader(f, 0, f.Size())), name)
		require.NoError(t, other.Close())
	}
}
