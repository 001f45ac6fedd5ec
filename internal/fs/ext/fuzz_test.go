package ext

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
)

func FuzzExt(f *testing.F) {
	if _, err := os.Stat("/usr/sbin/mke2fs"); err != nil {
		f.Skip("mke2fs is missing")
	}
	var bases []filetest.FuzzBase
	for _, k := range []extKind{
		{size: "256K", args: []string{"-t", "ext2", "-b", "1024", "-N", "32"}},
		{size: "512K", args: []string{
			"-t", "ext4", "-b", "1024", "-N", "32", "-O",
			"^has_journal,^resize_inode,inline_data",
		}},
		{size: "512K", args: []string{
			"-t", "ext4", "-b", "1024", "-N", "64", "-g", "256", "-O",
			"^has_journal,^resize_inode,meta_bg",
		}},
	} {
		dir := filetest.WriteTree(f, map[string][]byte{
			"file":           filetest.Noise(1, 3000),
			"dir/in dir.txt": filetest.Noise(2, 100), "DIR/IN DIR.TXT": nil, "holes": make([]byte, 100_000),
		})
		require.NoError(f, os.Symlink("dir/in dir.txt", filepath.Join(dir, "link")))
		require.NoError(f, os.Symlink("././././././././././././././././././././././././././././././././dir/in dir.txt",
			filepath.Join(dir, "slow link")))
		img := makeExt(f, k, dir)
		scatter(f, img, 12)
		raw := disktest.ReadFile(f, img)
		bases = append(bases, filetest.NewFuzzBase(raw))
	}
	for i := range bases {
		f.Add(byte(i), []byte{})
		f.Add(byte(i), []byte{30, 0, 0, 0xff, 0xff, 9, 1, 2, 0, 0})
	}
	f.Fuzz(func(t *testing.T, which byte, input []byte) {
		filetest.Exercise(t, bases[int(which)%len(bases)].Mutated(input), alone)
	})
}

func FuzzExtCensus(f *testing.F) {
	if _, err := os.Stat("/usr/sbin/mke2fs"); err != nil {
		f.Skip("mke2fs is missing")
	}
	var bases []filetest.FuzzBase
	for _, args := range [][]string{
		{"-t", "ext2", "-b", "1024", "-N", "64"},
		{"-t", "ext4", "-b", "1024", "-N", "64", "-g", "256", "-O", "^has_journal,^resize_inode,inline_data,^flex_bg"},
	} {
		img := makeExt(f, extKind{size: "1M", args: args}, filetest.WriteTree(f, map[string][]byte{
			"file": filetest.Noise(1, 30000), "dir/in dir.txt": filetest.Noise(2, 100), "holes": make([]byte, 100_000),
		}))
		scatter(f, img, 12)
		raw := disktest.ReadFile(f, img)
		bases = append(bases, filetest.NewFuzzBase(raw))
	}
	for i := range bases {
		f.Add(byte(i), []byte{})
		f.Add(byte(i), []byte{30, 0, 0, 0xff, 0xff, 9, 1, 2, 0, 0})
	}
	f.Fuzz(func(t *testing.T, which byte, input []byte) {
		filetest.ExerciseCensus(t, bases[int(which)%len(bases)].Mutated(input), Fragments)
	})
}
