package ext

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
)

// extKind is a way to format. All have blocks of 4 KiB unless they say something else.
type extKind struct {
	name string
	size string
	args []string
}

var extKinds = []extKind{
	{"ext2, 1 KiB blocks", "24M", []string{"-t", "ext2", "-b", "1024"}},
	{"ext2, revision 0", "24M", []string{"-t", "ext2", "-r", "0", "-b", "1024"}},
	{"ext2, no file types", "24M", []string{"-t", "ext2", "-O", "^filetype", "-b", "2048", "-I", "128"}},
	{"ext3", "32M", []string{"-t", "ext3", "-b", "4096"}},
	{"ext3, inodes of 512 bytes", "32M", []string{"-t", "ext3", "-b", "1024", "-I", "512"}},
	{"ext4", "32M", []string{"-t", "ext4", "-b", "4096"}},
	{"ext4, 1 KiB blocks, no 64bit, no checksums", "32M", []string{
		"-t", "ext4", "-b", "1024", "-O",
		"^64bit,^metadata_csum,uninit_bg",
	}},
	{"ext4, inline data", "32M", []string{"-t", "ext4", "-b", "4096", "-O", "inline_data", "-I", "256"}},
	{"ext4, inline data, inodes of 1 KiB", "32M", []string{
		"-t", "ext4", "-b", "4096", "-O", "inline_data", "-I",
		"1024",
	}},
	{"ext4, bigalloc", "64M", []string{"-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"}},
	{"ext4, bigalloc, 1 KiB blocks", "64M", []string{"-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"}},
	{"ext4, bigalloc, meta_bg, 1 KiB blocks", "64M", []string{
		"-t", "ext4", "-b", "1024", "-O",
		"bigalloc,meta_bg,^resize_inode", "-C", "8192",
	}},
	{"ext4, meta_bg, many groups", "64M", []string{
		"-t", "ext4", "-b", "1024", "-g", "512", "-O",
		"meta_bg,^resize_inode",
	}},
	{"ext4, meta_bg, no sparse_super", "64M", []string{
		"-t", "ext4", "-b", "1024", "-g", "512", "-O",
		"meta_bg,^resize_inode,^sparse_super,^flex_bg",
	}},
	{"ext4, many groups, no flex_bg", "64M", []string{
		"-t", "ext4", "-b", "1024", "-g", "512", "-O",
		"^resize_inode,^flex_bg",
	}},
	{"ext4, sparse_super2, meta_bg", "64M", []string{
		"-t", "ext4", "-b", "1024", "-g", "512", "-O",
		"sparse_super2,meta_bg,^resize_inode,^flex_bg",
	}},
	{"ext4, 64 KiB blocks", "96M", []string{"-t", "ext4", "-b", "65536"}},
	{"ext4, inodes of 128 bytes", "32M", []string{"-t", "ext4", "-b", "4096", "-I", "128"}},
	{"ext4, many features", "32M", []string{
		"-t", "ext4", "-b", "4096", "-O",
		"large_dir,ea_inode,encrypt,verity,quota,project,mmp,metadata_csum_seed,casefold",
	}},
	{"ext4, blocks mapped as in ext3", "32M", []string{"-t", "ext4", "-b", "1024", "-O", "^extents,^64bit"}},
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
