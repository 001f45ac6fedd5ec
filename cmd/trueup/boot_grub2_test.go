package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// staleSays is what the code of testdata/stale.S says.
const staleSays = "trueup: stale sectors"

// grubRescue is the prompt of a core.img that does not find its files.
const grubRescue = "grub rescue>"

// grubLoaded is what grub.cfg says when kernel and initrd are in memory, three times: the mirror of the BIOS can lose a
// character when the kernel takes over.
const grubLoaded = "trueup: loaded"

// oldGrubDisk is the disk of a Debian of old: one partition behind the first track, core.img in the gap.
var oldGrubDisk = grubDisk{
	size: 64 << 20, script: "label: dos\nstart=63, size=120000, type=83, bootable\n", root: 1,
	prefix: "(,msdos1)/boot/grub",
}

// GRUB 2 in the gap needs nothing but the table: it finds its partition by number. The table's old start LBA proves
// that it does.
func TestAlignedGrub2InTheGapBoots(t *testing.T) {
	t.Parallel()
	raw, dir := oldGrubDisk.build(t)
	installGrub(t, raw, 0, oldGrubDisk.core(t), []grubExtent{{1, oldGrubDisk.coreSectors(t)}})
	goldenPlan(t, "grub 2 in the gap", raw)
	dest := alignedLinux(t, raw, treeSum(t, dir), treeSum(t, dir), false)
	require.Equal(t, window{2048, 120000}, windowOf(t, dest, 1))

	const startLBA = 446 + 8 // of the first entry
	disktest.WriteAt(t, dest, startLBA, []byte{63, 0, 0, 0})
	require.Equal(t, grubRescue, bootLinux(t, pc{image: dest}, grubRescue), "with the old start LBA")
}

// TestAlignedGrub2InABootSectorBoots is a GRUB 2 beside another system's MBR code: its boot sector names the file
// core.img by sectors.
func TestAlignedGrub2InABootSectorBoots(t *testing.T) {
	t.Parallel()
	d := oldGrubDisk
	raw, dir := d.build(t)
	disktest.WriteAt(t, raw, 0, lbaBootCode(t))
	root := windowOf(t, raw, 1)
	extents := coreExtents(t, raw, root)
	// Two entries where one would do: as when the file had two fragments.
	first := extents[0]
	extents = append([]grubExtent{{first.start, 9}, {first.start + 9, first.sectors - 9}}, extents[1:]...)
	installGrub(t, raw, root.start, d.core(t), extents)

	// The list is a part of the file, which the guest looks at too: nothing else of it may change.
	const shift = 2048 - 63
	file := filepath.Join(dir, "boot/grub/i386-pc/core.img")
	require.NoError(t, os.WriteFile(file, listed(d.core(t), extents), 0o644))
	before := treeSum(t, dir)
	moved := slices.Clone(extents)
	for i := range moved {
		moved[i].start += shift
	}
	require.NoError(t, os.WriteFile(file, listed(d.core(t), moved), 0o644))
	// Its plan is no golden text: where a file lies depends on the sizes of the others.
	dest := alignedLinux(t, raw, before, treeSum(t, dir), false)
	require.Equal(t, int64(2048), windowOf(t, dest, 1).start)
	boot := (root.start + shift) * sectorSize
	core := (first.start + shift) * sectorSize
	checkField(t, dest, boot+grubKernelSector, first.start, shift)
	checkField(t, dest, core+grubFirstList, first.start+1, shift)
	checkField(t, dest, core+grubFirstList-grubListSize, first.start+9, shift)
	checkStale(t, dest, boot+grubKernelSector, first.start)
	checkStale(t, dest, core+grubFirstList, first.start+1)
}

// On a GPT the BIOS boot partition holds core.img. At LBA 34 it is off every boundary, and moves if it is named.
func TestAlignedGrub2OnGPTBoots(t *testing.T) {
	t.Parallel()
	d := grubDisk{
		size: 96 << 20, root: 2, prefix: "(,gpt2)/boot/grub",
		// With names of its own, because the sums in the golden plan cover them.
		script: "label: gpt\nlabel-id: 6E1FA5C0-0000-4000-8000-000000000000\nfirst-lba: 34\n" +
			"start=34, size=200, type=21686148-6449-6E6F-744E-656564454649, " +
			"uuid=6E1FA5C0-0000-4000-8000-000000000001\nstart=1063, size=120000, " +
			"type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, uuid=6E1FA5C0-0000-4000-8000-000000000002\n",
	}
	raw, dir := d.build(t)
	sectors := d.coreSectors(t)
	// setup.c leaves out sectors that something else has marked as its own.
	installGrub(t, raw, 0, d.core(t), []grubExtent{{34, 20}, {56, sectors - 20}})

	goldenPlan(t, "grub 2 in a bios boot partition", raw, bothParts...)
	dest := alignedLinux(t, raw, treeSum(t, dir), treeSum(t, dir), true, bothParts...)
	shift := windowOf(t, dest, 1).start - 34
	require.NotZero(t, shift)
	require.Zero(t, windowOf(t, dest, 1).start%2048)
	require.Zero(t, windowOf(t, dest, 2).start%2048)
	core := (34 + shift) * sectorSize
	checkField(t, dest, grubKernelSector, 34, shift)
	checkField(t, dest, core+grubFirstList, 35, shift)
	checkField(t, dest, core+grubFirstList-grubListSize, 56, shift)
	checkStale(t, dest, grubKernelSector, 34)
	checkStale(t, dest, core+grubFirstList, 35)
}

// An old disk with the root in a logical partition: its boot record moves too.
func TestAlignedGrub2WithALogicalRootBoots(t *testing.T) {
	t.Parallel()
	d := grubDisk{
		size: 96 << 20, root: 5, prefix: "(,msdos5)/boot/grub",
		script: "label: dos\n" +
			"start=63, size=16002, type=83\n" +
			"start=16065, size=144585, type=5\n" +
			"start=16128, size=120000, type=83\n",
	}
	raw, dir := d.build(t)
	installGrub(t, raw, 0, d.core(t), []grubExtent{{1, d.coreSectors(t)}})
	goldenPlan(t, "grub 2 in the gap, root in a logical partition", raw)
	dest := alignedLinux(t, raw, treeSum(t, dir), treeSum(t, dir), false)
	require.Zero(t, windowOf(t, dest, 5).start%2048)
}

// alignedLinux aligns the disk and boots the result: the guest must find all of its files in it. make boots starts the
// source, too. In make test a boot that is not whole ends where GRUB has loaded kernel and initrd: Linux takes ten
// seconds of a processor.
func alignedLinux(t *testing.T, raw, before, after string, whole bool, flags ...string) (dest string) {
	t.Helper()
	if disktest.Exhaustive {
		require.Equal(t, before, bootLinux(t, pc{image: raw}), "before")
	}
	dest = filepath.Join(t.TempDir(), "aligned.raw")
	got := trueup(t, append([]string{"align", raw, dest}, flags...)...)
	require.Equal(t, 0, got.code, "%s%s", got.stdout, got.stderr)
	requireSameView(t, raw, dest, flags...)
	if whole || disktest.Exhaustive {
		require.Equal(t, after, bootLinux(t, pc{image: dest}), "after")
	} else {
		require.Equal(t, grubLoaded, bootLinux(t, pc{image: dest}, grubLoaded), "after")
	}
	return dest
}

// checkField looks at a sector number in the result, which must have moved by shift sectors from was.
func checkField(t *testing.T, dest string, at, was, shift int64) {
	t.Helper()
	require.Equal(t, sectorField(was+shift), readAt(t, dest, at, 8), "sector number at byte %d", at)
}

// checkStale boots with the old sector number in a field of the result. What lies there is a program that says so, so
// that it is not necessary to wait for what else would hang. It must be a field whose first sector is run.
func checkStale(t *testing.T, dest string, at, was int64) {
	t.Helper()
	field, there := readAt(t, dest, at, 8), readAt(t, dest, was*sectorSize, sectorSize)
	disktest.WriteAt(t, dest, was*sectorSize, assembled(staleCode)(t))
	disktest.WriteAt(t, dest, at, sectorField(was))
	require.Equal(t, staleSays, bootLinux(t, pc{image: dest}, staleSays), "with the old sector number at byte %d", at)
	disktest.WriteAt(t, dest, was*sectorSize, there)
	disktest.WriteAt(t, dest, at, field)
}

// sectorField is a sector number as GRUB 2 stores it.
func sectorField(sector int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(sector)) }

// coreExtents are the sectors of the file core.img in an ext file system, as debugfs sees them.
func coreExtents(t testing.TB, raw string, root window) []grubExtent {
	t.Helper()
	part := filepath.Join(t.TempDir(), "part")
	require.NoError(t, os.WriteFile(part, readAt(t, raw, root.start*sectorSize, root.size*sectorSize), 0o600))
	text := disktest.Output(t, "debugfs", "-R", "blocks /boot/grub/i386-pc/core.img", part)
	info := disktest.Output(t, "debugfs", "-R", "stats -h", part)
	var blockSize int64
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, "Block size:"); ok {
			_, err := fmt.Sscan(rest, &blockSize)
			require.NoError(t, err)
		}
	}
	require.NotZero(t, blockSize)
	var all []grubExtent
	for field := range strings.FieldsSeq(text) {
		block, err := strconv.ParseInt(field, 10, 64)
		require.NoError(t, err)
		e := grubExtent{root.start + block*blockSize/sectorSize, blockSize / sectorSize}
		if k := len(all) - 1; k >= 0 && all[k].start+all[k].sectors == e.start {
			all[k].sectors += e.sectors
			continue
		}
		all = append(all, e)
	}
	return all
}
