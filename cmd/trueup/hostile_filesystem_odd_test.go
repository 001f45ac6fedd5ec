package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/volumeforge"
)

// TestSoundOddFilesystems has what looks odd and moves: chains in a circle, trees that lead nowhere, another place
// stored.
func TestSoundOddFilesystems(t *testing.T) {
	t.Parallel()
	const fat, root = 32 * 512, 4
	runSound(t, map[string]sound{
		"T62 root directory of exFAT in a circle": {volumeImage(0x07, fsforge.PutExFAT, func(v forge.Bytes) {
			v.Put(fsforge.ExFATHeap+(root-2)*4096, bytesOf(5, 4096))
			v.U32(fat+4*root, root)
		}), "exfat", ""},
		"T62 exFAT of another place": {
			exfatImage(func(v forge.Bytes) { v.U64(fsforge.ExFATPartitionOffset, 1<<60) }), "exfat", "left as found",
		},
		"T62 exFAT of a place that is not known": {volumeImage(0x07, fsforge.PutExFAT, func(v forge.Bytes) {
			for _, first := range []int64{0, 12} {
				v.U64(first*512+fsforge.ExFATPartitionOffset, 0)
				fsforge.SealExFAT(v, first)
			}
		}), "exfat", ""},
		"T62 exFAT with a broken backup": {
			volumeImage(0x07, fsforge.PutExFAT, func(v forge.Bytes) { v.U8(15*512, 1) }),
			"exfat", "wrong checksum",
		},
	})
}

// TestHostileFilesystemLabels puts what a terminal would obey into the labels.
func TestHostileFilesystemLabels(t *testing.T) {
	t.Parallel()
	escape := []byte("\x1b]0;x\a")
	for name, image := range map[string]func(testing.TB, string) string{
		"xfs": volumeImage(0x83, volumeforge.PutXFS,
			func(v forge.Bytes) { v.Put(108, escape); volumeforge.SealXFS(v) }),
		"exfat": volumeImage(0x07, fsforge.PutExFAT, func(v forge.Bytes) {
			v.Put(fsforge.ExFATHeap+2*4096+2, []byte{0x1b, 0, 0x2e, 0x20, 0x9b, 0})
		}),
		"iso9660": volumeImage(0x83, volumeforge.PutISO9660,
			func(v forge.Bytes) { v.Put(volumeforge.ISOAt+40, escape); v.Put(volumeforge.ISOAt+813, escape) }),
		"hfs": volumeImage(0xaf, volumeforge.PutHFS,
			func(v forge.Bytes) { v.Put(volumeforge.HFSAt+37, []byte("\x9b\xff\x1b")) }),
	} {
		t.Run(name, func(t *testing.T) {
			path := image(t, t.TempDir())
			for _, r := range measure(t, []string{"inspect", path}, []string{"inspect", "--json", path},
				[]string{"plan", path}) {
				requireClean(t, r.stdout, r.stderr)
			}
		})
	}
}

// TestForgedFilesystemsAreValid makes sure that the cases above differ from a good volume in nothing but what they
// change.
func TestForgedFilesystemsAreValid(t *testing.T) {
	t.Parallel()
	for kind, put := range map[string]func(forge.Bytes, int64, int64){
		"exfat": fsforge.PutExFAT, "xfs": superXFS.put, "btrfs": superBtrfs.put, "reiserfs": superReiser.put,
		"f2fs": superF2FS.put, "ufs": superUFS2.put, "hfs": superHFS.put, "hfsplus": superHFSX.put,
		"apfs": superAPFS.put, "ReFS": superReFS.put, "iso9660": superISO.put,
	} {
		t.Run(kind, func(t *testing.T) {
			path := volumeImage(0x83, put, func(forge.Bytes) {})(t, t.TempDir())
			volume := filepath.Join(t.TempDir(), "volume")
			require.NoError(t, os.WriteFile(volume, readAt(t, path, volumeAt, volumeSectors*512), 0o644))
			require.Equal(t, kind+"\n", disktest.Output(t, "blkid", "-p", "-s", "TYPE", "-o", "value", volume))
			dest := filepath.Join(t.TempDir(), "dest.raw")
			r := measure(t, []string{"align", path, dest})[0]
			require.Equal(t, 0, r.code, r.stderr)
		})
	}
}
