package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// stale is a stored position that trueup mends, put back to what it was before the move. The boot that then fails
// proves that the boot which succeeded did so because of trueup.
type stale struct {
	name  string
	at    func(first window) int64
	bytes []byte
}

var (
	// staleCHS: bytes 1 to 3 of the first table entry, at 0x1BE, say cylinder 0, head 1, sector 1, which is LBA 63.
	staleCHS = stale{"start CHS", func(window) int64 { return 0x1BE + 1 }, []byte{1, 1, 0}}
	// staleHidden: the hidden sectors of the BPB, at 0x1C, say 63.
	staleHidden = stale{
		"hidden sectors", func(w window) int64 { return w.start*sectorSize + 0x1C },
		[]byte{63, 0, 0, 0},
	}
)

type bootCase struct {
	name   string
	disk   bootDisk
	flags  []string
	starts []int64  // LBAs of the partitions in the result
	stale  stale    // nothing is tried if it is empty
	fails  []string // what the console shows with it; nil: it does not matter, the disk boots
	view   bool     // a view of the disk is booted, too
	quick  bool     // make test starts it: one row for each thing that only a start shows
}

// LBA 128 is 64 KiB, where the rule `auto` puts partitions whose MBR code reads CHS; LBA 2048 is 1 MiB, for the rest.
var bootCases = []bootCase{
	{
		name:   "code that reads chs, 16 heads, fat16, raw",
		disk:   bootDisk{code: assembled(ownCHSCode), fat: 16, heads: 16},
		starts: []int64{128}, stale: staleCHS, fails: ownCHSFailed,
	}, {
		name:   "code that reads chs, 255 heads, fat32, sparse vmdk",
		disk:   bootDisk{code: assembled(ownCHSCode), fat: 32, heads: 255, subformat: "monolithicSparse"},
		starts: []int64{128}, stale: staleCHS, fails: ownCHSFailed, quick: true,
	}, {
		// LBA 2048 is cylinder 2, head 0, sector 33 with 16 heads.
		name:  "code that reads chs, 16 heads, 1 MiB asked for, flat vmdk",
		disk:  bootDisk{code: assembled(ownCHSCode), fat: 16, heads: 16, subformat: "monolithicFlat"},
		flags: []string{"--boundary", "1M"}, starts: []int64{2048}, stale: staleCHS, fails: ownCHSFailed,
	}, {
		// LBA 2048 is cylinder 0, head 32, sector 33 with 255 heads. The descriptor says 16 heads and is wrong, as
		// qemu-img always writes that; the table knows better.
		name:  "code that reads chs, 255 heads, 1 MiB asked for, sparse vmdk",
		disk:  bootDisk{code: assembled(ownCHSCode), fat: 16, heads: 255, subformat: "monolithicSparse"},
		flags: []string{"--boundary", "1M"}, starts: []int64{2048}, stale: staleCHS, fails: ownCHSFailed,
	}, {
		// The first partition moves by 65 sectors and then ends before LBA 64325, the next multiple of 128 is 64384:
		// the
		// second partition moves from 64261 by 123.
		name:   "code that reads chs, a data partition that moves by another distance, sparse vmdk",
		disk:   bootDisk{code: assembled(ownCHSCode), fat: 16, heads: 255, data: true, subformat: "monolithicSparse"},
		starts: []int64{128, 64384}, stale: staleCHS, fails: ownCHSFailed,
	}, {
		// Such a disk just hangs when its CHS are stale, there is nothing to see.
		name:   "parted code, which reads chs, fat16, raw",
		disk:   bootDisk{code: chsBootCode, fat: 16, heads: 255},
		starts: []int64{128},
	}, {
		name:   "windows 2003 code, 255 heads, fat16, flat vmdk",
		disk:   bootDisk{code: windowsCode, fat: 16, heads: 255, subformat: "monolithicFlat"},
		starts: []int64{128}, stale: staleCHS, fails: windowsFailed, quick: true,
	}, {
		name:   "windows 2003 code, 16 heads, fat32, raw",
		disk:   bootDisk{code: windowsCode, fat: 32, heads: 16},
		starts: []int64{128}, stale: staleCHS, fails: windowsFailed,
	}, {
		name:   "syslinux code, which reads the lba, fat16, raw",
		disk:   bootDisk{code: lbaBootCode, fat: 16, heads: 255},
		starts: []int64{2048}, stale: staleCHS,
	}, {
		name:   "syslinux code, which hands the entry over, fat32, sparse vmdk",
		disk:   bootDisk{code: lbaBootCode, fat: 32, heads: 16, subformat: "monolithicSparse"},
		starts: []int64{2048}, stale: staleHidden,
	}, {
		name: "code that reads the lba and hands nothing over, fat16, flat vmdk",
		disk: bootDisk{code: assembled(ownLBACode), fat: 16, heads: 255, subformat: "monolithicFlat"}, view: true,
		starts: []int64{2048}, stale: staleHidden, fails: vbrFailed, quick: true,
	}, {
		name:   "code that reads the lba and hands nothing over, fat32, raw",
		disk:   bootDisk{code: assembled(ownLBACode), fat: 32, heads: 255},
		starts: []int64{2048}, stale: staleHidden, fails: vbrFailed,
	},
}

// TestAlignedDiskBoots has the tools look at each result. make boots starts each, too, and each source; make test those
// that are quick.
func TestAlignedDiskBoots(t *testing.T) {
	t.Parallel()
	for _, c := range bootCases {
		t.Run(c.name, c.run)
	}
}

func (c bootCase) run(t *testing.T) {
	sourceDir, destDir := t.TempDir(), t.TempDir()
	source := c.disk.build(t, sourceDir)
	dest := filepath.Join(destDir, "aligned"+filepath.Ext(source))
	before := hashFolder(t, sourceDir)
	if disktest.Exhaustive {
		require.Equal(t, booted, boot(t, source, c.disk.heads), "before")
	}
	goldenPlan(t, c.name, source, c.flags...)

	got := trueup(t, append(append([]string{"align"}, c.flags...), source, dest)...)
	require.Equal(t, 0, got.code, "%s%s", got.stdout, got.stderr)
	starts := c.quick || disktest.Exhaustive
	if starts {
		require.Equal(t, booted, boot(t, dest, c.disk.heads), "after")
	}
	if c.disk.subformat != "monolithicSparse" {
		view := sameView(t, source, dest, c.flags...)
		if c.view && starts {
			require.Equal(t, booted, boot(t, view, c.disk.heads), "from a view")
		}
		removeView(t, view)
	}
	require.Equal(t, before, hashFolder(t, sourceDir), "the source has changed")

	raw := filepath.Join(t.TempDir(), "result.raw")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", dest, raw)
	c.checkTable(t, raw)
	c.checkStale(t, raw, starts)
}

// checkTable looks at the result with the tools that made the disk.
func (c bootCase) checkTable(t *testing.T, raw string) {
	t.Helper()
	want := c.disk.windows()
	for i := range want {
		want[i].start = c.starts[i]
	}
	require.Equal(t, want, tableOf(t, raw))
	if c.disk.data {
		require.Equal(t, dataText, disktest.Output(t, "mtype", "-i", drive(raw, want[1]), "::data.txt"))
	}
}

// checkStale undoes one of trueup's patches in a copy of the result, and boots that where starts is set.
func (c bootCase) checkStale(t *testing.T, raw string, starts bool) {
	t.Helper()
	if c.stale.at == nil {
		return
	}
	at := c.stale.at(tableOf(t, raw)[0])
	require.NotEqual(t, c.stale.bytes, readAt(t, raw, at, int64(len(c.stale.bytes))), c.stale.name)
	if !starts {
		return
	}
	disktest.WriteAt(t, raw, at, c.stale.bytes)
	shown := boot(t, raw, c.disk.heads)
	if c.fails == nil {
		require.Equal(t, booted, shown, "stale %s", c.stale.name)
		return
	}
	require.Contains(t, c.fails, shown, "stale %s, and the disk boots nevertheless", c.stale.name)
}
