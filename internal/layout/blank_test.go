package layout_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/hostile"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// The content of a disk with nothing to judge depends only on the places of tables and superblocks.
func TestContents(t *testing.T) {
	const size = 16 * units.MiB
	for name, tc := range map[string]struct {
		put  func(f forge.Bytes)
		want align.Content
	}{
		"zeros":                         {func(forge.Bytes) {}, align.Blank},
		"data where no superblock lies": {func(f forge.Bytes) { f.Put(8*units.MiB, []byte("data")) }, align.Blank},
		"a byte at the start":           {func(f forge.Bytes) { f.Put(0, []byte{1}) }, align.UnknownContent},
		"a byte at 1 MiB":               {func(f forge.Bytes) { f.Put(units.MiB, []byte{1}) }, align.UnknownContent},
		"a byte at the end":             {func(f forge.Bytes) { f.Put(size-1, []byte{1}) }, align.UnknownContent},
		"a volume that is not known": {func(f forge.Bytes) {
			f.Put(0, bytes.Repeat([]byte{0xfa, 0x8b, 0x5e, 0xeb}, 510/4))
			f.Text(512+32, "1SFX")
			f.Put(510, []byte{0x55, 0xaa})
		}, align.UnknownContent},
		"an MBR without entries": {func(f forge.Bytes) { f.Put(510, []byte{0x55, 0xaa}) }, align.NoPartitions},
		"an MBR with boot code": {func(f forge.Bytes) {
			f.Put(0, bytes.Repeat([]byte{0xfa}, 440))
			f.Put(510, []byte{0x55, 0xaa})
		}, align.NoPartitions},
		// NEC PC-98 has its table in sector 1, after a signature in sector 0.
		"another table behind an empty MBR": {func(f forge.Bytes) {
			f.Put(510, []byte{0x55, 0xaa})
			f.Put(512, []byte{0xa0, 0xa1})
		}, align.UnknownContent},
		"an empty MBR before a superblock": {func(f forge.Bytes) {
			f.Put(510, []byte{0x55, 0xaa})
			f.Put(units.MiB, []byte("data"))
		}, align.UnknownContent},
		"an empty MBR, and a byte at the end": {func(f forge.Bytes) {
			f.Put(510, []byte{0x55, 0xaa})
			f.Put(size-1, []byte{1})
		}, align.UnknownContent},
		"an entry that only Linux follows": {func(f forge.Bytes) {
			f.Put(446+8, []byte{63, 0, 0, 0, 0, 8, 0, 0})
			f.Put(510, []byte{0x55, 0xaa})
		}, align.UnknownContent},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, size)
			tc.put(f)
			l := read(t, f)
			require.Equal(t, tc.want, align.ContentOf(l))
			blank := slices.ContainsFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == "blank" })
			require.Equal(t, tc.want == align.Blank, blank)
			require.Equal(t, align.NothingToJudge, align.Overall(l, align.DefaultBoundary))
		})
	}
}

// TestEmptyTables has tables of sfdisk without a data partition: on a blank disk, and with one byte elsewhere.
func TestEmptyTables(t *testing.T) {
	const size = 16 * units.MiB
	for name, tc := range map[string]struct {
		table string  // empty: a GPT of 4096-byte sectors
		grown int64   // amount by which the disk was enlarged after that
		at    []int64 // of bytes outside tables and partitions
	}{
		"MBR":           {"label: dos\n", 0, []int64{512, units.MiB, size - 1}},
		"extended only": {"label: dos\n2048,4096,5\n", 0, []int64{512, 2049 * 512, size - 1}},
		"GPT":           {"label: gpt\n", 0, []int64{34 * 512, units.MiB, size - 34*512, size - units.MiB}},
		"enlarged GPT":  {"label: gpt\n", 50 * 512, []int64{34 * 512, size - 84*512, size - 50*512}},
		"GPT of 4096":   {"", 0, []int64{6 * 4096, units.MiB, size - 7*4096}},
		"Microsoft reserved only": {
			"label: gpt\nfirst-lba: 34\nstart=34, size=1000, type=E3C9E316-0B5C-4DB8-817D-F92DF00215AE\n",
			0,
			[]int64{1034 * 512, size - 34*512},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := []byte(tableforge.NewGPT(4096, size/4096, 128))
			if tc.table != "" {
				path := disktest.Blank(t, "disk", size-tc.grown)
				disktest.RunInput(t, tc.table, "sfdisk", "-q", path)
				require.NoError(t, os.Truncate(path, size))
				var err error
				b, err = os.ReadFile(path)
				require.NoError(t, err)
			}
			if name == "Microsoft reserved only" {
				b[500*512] = 1
			}
			require.Equal(t, align.NoPartitions, align.ContentOf(read(t, b)))
			for _, at := range tc.at {
				f := slices.Clone(b)
				f[at] = 1
				l := read(t, f)
				require.Equal(t, align.UnknownContent, align.ContentOf(l), "byte %d", at)
				require.Contains(t, disktest.Codes(l.Issues), "unknown-content")
			}
		})
	}
}

// A bare volume that is identified by its magic number is judged: it starts at byte 0. The code of a BeFS is in the
// place of an MBR's table.
func TestBareVolumeKnownByMagic(t *testing.T) {
	f := make(forge.Bytes, 2*units.MiB)
	f.Put(0, bytes.Repeat([]byte{0xfa, 0x8b, 0x5e, 0xeb}, 510/4))
	f.Text(512+32, "1SFB")
	f.Put(510, []byte{0x55, 0xaa})
	l := read(t, f)
	require.Equal(t, volume.Kind("befs"), l.Volume.Kind)
	require.Empty(t, l.Issues)
	require.Empty(t, align.ContentOf(l))
	require.Equal(t, align.Aligned, align.Overall(l, align.DefaultBoundary))
}

// A FAT can count sectors after its last cluster that its partition lacks, as in DFTT 6: then no data are missing.
func TestBareVolumeWithoutItsLastSector(t *testing.T) {
	path := disktest.Blank(t, "volume", 6160896)
	disktest.Run(t, "mkfs.fat", "-F", "16", "-s", "2", "-a", "-R", "8", "-r", "512", path)
	for left, cut := range map[int64]bool{6160896: false, 6160896 - 512: false, 6160896 - 4096: true} {
		require.NoError(t, os.Truncate(path, left))
		l := readDisk(t, filetest.RawImage(t, path), table.Geometry{})
		require.Equal(t, volume.FAT16, l.Volume.Kind)
		require.Equal(t, cut, slices.Contains(disktest.Codes(l.Issues), "cut-short"), left)
		require.NoError(t, os.Truncate(path, 6160896))
	}
}

// A volume without a table that is larger than its image was truncated, for any kind: the sizes are those given to
// mkfs.
func TestBareVolumeCutShort(t *testing.T) {
	const size = 320 * units.MiB
	run := func(program string, args ...string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			t.Helper()
			disktest.Run(t, program, append(args, path)...)
		}
	}
	for name, make := range map[string]func(t *testing.T, path string){
		"FAT12":    run("mkfs.fat", "-F", "12", "-s", "128", "-S", "1024"),
		"FAT16":    run("mkfs.fat", "-F", "16"),
		"FAT32":    run("mkfs.fat", "-F", "32"),
		"NTFS":     run("mkfs.ntfs", "-qFf"),
		"exFAT":    run("mkfs.exfat"),
		"ext4":     run("mkfs.ext4", "-qF"),
		"XFS":      run("mkfs.xfs", "-qf"),
		"btrfs":    run("mkfs.btrfs", "-qf"),
		"f2fs":     run("mkfs.f2fs", "-q"),
		"JFS":      run("mkfs.jfs", "-q"),
		"ReiserFS": run("mkfs.reiserfs", "-qff"),
		"swap":     run("mkswap"),
		"LVM2": func(t *testing.T, path string) {
			t.Helper()
			disktest.Run(t, "pvcreate", "-qff", "-y", disktest.LoopDevice(t, path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := disktest.Blank(t, "volume", size)
			make(t, path)
			l := readDisk(t, filetest.RawImage(t, path), table.Geometry{})
			require.Nil(t, l.Table)
			require.NotContains(t, disktest.Codes(l.Issues), "cut-short", "it is whole")
			for _, left := range []int64{size / 4, size - 64*units.MiB, size - 24*units.MiB} {
				require.NoError(t, os.Truncate(path, left))
				l := readDisk(t, filetest.RawImage(t, path), table.Geometry{})
				require.True(t, slices.ContainsFunc(l.Issues, func(i ondisk.Issue) bool {
					return i.Effect == ondisk.Broken || i.Effect == ondisk.BadVolume
				}), "%d bytes left: %v", left, l.Issues)
			}
		})
	}
}

// A table that extends past the end of the disk is malformed, like an MBR: the image was truncated.
func TestTablesOfCutDisks(t *testing.T) {
	path := rawFile(t, 131072)
	disktest.Run(t, "parted", "-s", path, "mklabel", "bsd", "unit", "s", "mkpart", "8192", "40000")
	require.NotContains(t, disktest.Codes(read(t, load(t, path)).Issues), "slice-outside")
	l := read(t, load(t, path)[:8<<20])
	require.Nil(t, l.Table)
	found := coded(l.Issues, "slice-outside")
	require.NotEmpty(t, found)
	require.Equal(t, ondisk.Broken, found[0].Effect)
	require.ErrorAs(t, found[0].Err, new(*ondisk.FormatError))
}

// Tables that are only recognized leave the alignment of partitions open.
func TestTablesThatAreNotRead(t *testing.T) {
	dasd := filepath.Join(t.TempDir(), "dasd.raw")
	f := make(forge.Bytes, 4<<20)
	f.Text(8192, "\xd3\xd5\xe7\xf1\xd3\xc9\xd5\xe4\xe7\xf1")
	require.NoError(t, os.WriteFile(dasd, f, 0o600))
	made := func(label string, commands ...string) string {
		path := rawFile(t, 131072)
		disktest.Run(t, "parted", append([]string{"-s", path, "mklabel", label, "unit", "s"}, commands...)...)
		return path
	}
	cut := made("amiga", "mkpart", "one", "1024", "40063")
	require.NoError(t, os.Truncate(cut, 4<<20)) // in the middle of its partition
	for _, c := range []struct {
		name, path string
		kind       volume.Kind
	}{
		{"Apple partition map", made("mac", "mkpart", "one", "8192", "40000"), "apm"},
		{"SGI volume header", made("dvh", "mkpart", "primary", "8192", "40000"), "sgi"},
		{"Sun (SPARC) disk label", made("sun", "mkpart", "8192", "40063"), "sun"},
		{"Amiga rigid disk block", made("amiga", "mkpart", "one", "1024", "40063"), "rdb"},
		{"Amiga rigid disk block", cut, "rdb"},
		{"IBM DASD label", dasd, "dasd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := read(t, load(t, c.path))
			require.Nil(t, l.Table)
			require.Equal(t, c.kind, l.Volume.Kind)
			require.Equal(t, c.name, l.FixedTable())
			require.True(t, l.Unlisted())
			require.Empty(t, l.FixedParts())
			require.Equal(t, []string{layout.CodeUnknownContent}, disktest.Codes(l.Issues))
		})
	}
}

// A sound MBR counts, whatever is beside it.
func TestSecondTable(t *testing.T) {
	f := tableforge.NewMBR(80000, slot(0x83, 63, 70000))
	f.Text(0, "ER\x02\x00")
	f.Text(512, "PM\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x3f")
	l := read(t, f)
	require.NotNil(t, l.Table)
	require.Contains(t, disktest.Codes(l.Issues), "second-table")
	require.NotContains(t, disktest.Codes(l.Issues), "ambiguous-sector-0")
	require.Empty(t, l.FixedTable())
}

// issuesOf reads a raw disk.
func issuesOf(t *testing.T, path, _ string) ([]ondisk.Issue, error) {
	t.Helper()
	l, err := layout.Read(disktest.Memory(disktest.ReadFile(t, path)), table.Geometry{})
	if err != nil {
		return nil, err
	}
	return l.Issues, nil
}

// A broken table or volume does not hide the rest of the report.
func TestHostileDisks(t *testing.T) {
	hostile.Check(t, hostile.Tables(), issuesOf)
	hostile.Check(t, hostile.Volumes(), issuesOf)
	hostile.Check(t, hostile.Pools(), issuesOf)
	hostile.Check(t, hostile.OneGoodGPT(), issuesOf)
	hostile.Check(t, hostile.OddGPTs(), issuesOf)
	for _, r := range hostile.OneGoodGPT() {
		code := "gpt-backup"
		switch {
		case strings.Contains(r.Name, "alternate"):
			code = "gpt-alternate"
		case strings.Contains(r.Name, "primary"):
			code = "gpt-primary"
		}
		issues, err := issuesOf(t, r.Write(t, t.TempDir()), "")
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(issues, func(i ondisk.Issue) bool {
			return i.Code == code && r.Found(i.Text)
		}), "%s: no %s in %v", r.Name, code, issues)
	}
	for _, r := range append(hostile.Volumes(), hostile.Pools()...) {
		if r.Kind != "" {
			l := read(t, disktest.ReadFile(t, r.Write(t, t.TempDir())))
			require.Equal(t, volume.Kind(r.Kind), l.Partitions[0].Volume.Kind, r.Name)
		}
	}
}
