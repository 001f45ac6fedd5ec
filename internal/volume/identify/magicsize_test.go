package identify

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/volume"
)

// sizedVolume makes a file system with a tool, and returns its file and its size. Tools that make images write all of
// their bytes; those that format a device fill it.
type sizedVolume func(t *testing.T) (path string, size int64)

// formatted formats a device of so many bytes.
func formatted(size int64, program string, args ...string) sizedVolume {
	return func(t *testing.T) (string, int64) {
		t.Helper()
		path := blank(t, size)
		disktest.Run(t, program, append(args, path)...)
		return path, size
	}
}

// image makes an image by a program whose arguments are put in order by arrange.
func image(program string, arrange func(dir, path string) []string) sizedVolume {
	return func(t *testing.T) (string, int64) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "volume")
		dir, noise := folder(t), make([]byte, 5000)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(noise) // which no compressor makes small
		require.NoError(t, os.WriteFile(filepath.Join(dir, "more"), noise, 0o644))
		disktest.Run(t, program, arrange(dir, path)...)
		info, err := os.Stat(path)
		require.NoError(t, err)
		return path, info.Size()
	}
}

// A volume that is known by its magic number alone has the size that its maker gave it, and one that is cut short is
// found out.
func TestSizesByMagic(t *testing.T) {
	t.Parallel()
	last := func(args ...string) func(dir, path string) []string {
		return func(dir, path string) []string { return append(append([]string{}, args...), dir, path) }
	}
	ocfs2 := []string{"-q", "-F", "-N", "1", "-M", "local"}
	for name, make := range map[string]sizedVolume{
		"minix 1":            formatted(4<<20, "mkfs.minix", "-1"),
		"minix 2":            formatted(4<<20+1024, "mkfs.minix", "-2"),
		"minix 3":            formatted(100<<20, "mkfs.minix", "-3"),
		"bfs":                formatted(4<<20+512, "mkfs.bfs"),
		"nilfs2":             formatted(130<<20, "mkfs.nilfs2", "-q"),
		"ocfs2":              formatted(300<<20, "mkfs.ocfs2", append(ocfs2[:6:6], "-b", "4096", "-C", "8192")...),
		"ocfs2 1K":           formatted(300<<20, "mkfs.ocfs2", append(ocfs2[:6:6], "-b", "1024", "-C", "4096")...),
		"cramfs":             image("mkfs.cramfs", last()),
		"cramfs, big-endian": image("mkfs.cramfs", last("-N", "big")),
		"squashfs": image("mksquashfs", func(dir, path string) []string {
			return []string{dir, path, "-noappend", "-nopad", "-quiet"}
		}),
		"erofs": image("mkfs.erofs", func(dir, path string) []string { return []string{path, dir} }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, size := make(t)
			require.NoError(t, os.Truncate(path, (size+511)&^511))
			v := probe(t, path)
			require.Equal(t, size, v.Size)
			require.Empty(t, v.Issues)
			require.NoError(t, os.Truncate(path, (size-1)&^511))
			v = probe(t, path)
			require.Equal(t, size, v.Size)
			require.Contains(t, disktest.Codes(v.Issues), volume.CodeSize)
		})
	}
}

// genromfs fills the last KiB of the file. Its superblock has the size before that.
func TestSizeOfROMFS(t *testing.T) {
	t.Parallel()
	path, size := image("genromfs", func(dir, path string) []string { return []string{"-d", dir, "-f", path} })(t)
	v := probe(t, path)
	require.Equal(t, size, (v.Size+1023)&^1023)
	require.Empty(t, v.Issues)
	require.NoError(t, os.Truncate(path, (v.Size-1)&^511))
	require.Contains(t, disktest.Codes(probe(t, path).Issues), volume.CodeSize)
}

// putBeFS makes a superblock. Spec: Linux, fs/befs/befs_fs_types.h, struct befs_super_block.
func putBeFS(f forge.Bytes, order binary.ByteOrder, blocks uint64) {
	for at, n := range map[int]uint32{32: 0x42465331, 36: 0x42494745, 40: 2048, 44: 11, 68: 0xdd121031} {
		order.PutUint32(f[at:], n)
	}
	order.PutUint64(f[48:], blocks)
}

func TestSizeOfBeFS(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		at    int
		order binary.ByteOrder
	}{"of a PC": {512, binary.LittleEndian}, "of a PowerPC": {0, binary.BigEndian}} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, 4<<20)
			putBeFS(f[tc.at:], tc.order, 2048)
			v := probeForged(t, f)
			require.Equal(t, volume.Kind("befs"), v.Kind)
			require.Equal(t, int64(4<<20), v.Size)
			require.Empty(t, v.Issues)
			require.Contains(t, disktest.Codes(probeForged(t, f[:2<<20]).Issues), volume.CodeSize)
		})
	}
}

// A superblock that cannot have such a size, or does not say that it has one, gives none.
func TestSizesThatDoNotCount(t *testing.T) {
	t.Parallel()
	const erofs, ocfs, ocfs2, squashfs = 0xe0f5e1e2, 0x5346434f, 0x3256, 0x73717368 // "OCFSV2", "hsqs"
	for name, words := range map[string]map[int64]uint32{
		"BeFS of 2^63 blocks":          {32: 0x42465331, 36: 0x42494745, 44: 11, 52: 1 << 31},
		"BeFS without its byte order":  {32: 0x42465331, 44: 11, 48: 1 << 31},
		"squashfs 3":                   {0: squashfs, 28: 3, 40: 1 << 31},
		"cramfs 1":                     {0: 0x28cd3d45, 4: 1 << 31},
		"EROFS with a long count":      {1024: erofs, 1060: 1 << 31, 1104: 0x80},
		"EROFS with blocks of 2^200":   {1024: erofs, 1060: 1, 1036: 200},
		"BFS that ends within a block": {0: 0x1badface, 8: 1 << 31},
		"OCFS2 of too many clusters":   {1024: ocfs, 1028: ocfs2, 1044: 1 << 31, 1276: 40},
		"OCFS2 with a negative shift":  {1024: ocfs, 1028: ocfs2, 1044: 1, 1276: 1<<32 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, 1<<20)
			for at, n := range words {
				f.U32(at, n)
			}
			v := probeForged(t, f)
			require.NotEqual(t, volume.Unknown, v.Kind)
			require.Zero(t, v.Size)
			require.Empty(t, v.Issues)
		})
	}
}
