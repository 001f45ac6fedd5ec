package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// TestAlignRealDisks is the main job from end to end, on disks that other programs made, in every format, checked by
// those programs.
func TestAlignRealDisks(t *testing.T) {
	t.Parallel()
	for i, d := range madeDisks {
		t.Run(d.name, func(t *testing.T) {
			dir := t.TempDir()
			raw := d.make(t, dir)
			for k, f := range diskFormats {
				if !disktest.Exhaustive && (i+k)%6 != 0 {
					continue
				}
				t.Run(f.name, func(t *testing.T) {
					c := &alignCase{disk: d, format: f, before: raw}
					c.source = f.convert(t, raw, t.TempDir(), "disk", d.adapter)
					c.dest = filepath.Join(t.TempDir(), "aligned"+f.ext)
					for i, v := range d.volumes {
						c.placement = append(c.placement, jsonMove{
							Partition: i + 1, FromBytes: v.start * sectorSize, ToBytes: v.wantStart * sectorSize,
							SizeBytes: v.sectors * sectorSize, DeltaBytes: (v.wantStart - v.start) * sectorSize,
						})
					}
					c.run(t)
				})
			}
		})
	}
}

// alignCase is one disk in one format, before and after.
type alignCase struct {
	disk      madeDisk
	format    diskFormat
	before    string // what the guest sees, as a raw file
	source    string
	dest      string
	after     string // of dest, as before is of source
	placement []jsonMove
}

func (c *alignCase) run(t *testing.T) {
	t.Helper()
	untouched := hashFolder(t, filepath.Dir(c.source))
	c.checkPlan(t)
	answer := c.align(t)
	if c.format != formatSparse {
		requireSameView(t, c.source, c.dest)
	}
	require.Equal(t, untouched, hashFolder(t, filepath.Dir(c.source)), "the source must not change")

	c.after = c.format.rawOf(t, c.dest)
	c.checkPositions(t)
	c.checkEveryByte(t, answer.Disks[0].Patches)
	c.checkVolumes(t)
	if c.format == formatSparse {
		require.Contains(t, disktest.Run(t, "qemu-img", "check", "-f", "vmdk", c.dest), "No errors were found")
	}
	grown := c.format.storedBytes(t, c.dest) - c.format.storedBytes(t, c.source)
	require.LessOrEqual(t, grown, int64(2<<20), "a sparse source has a sparse result")

	// Nothing is left to do.
	report := trueupJSON[jsonInspect](t, 0, "inspect", c.dest)
	require.Equal(t, "aligned", report.Verdict)
	require.Equal(t, c.disk.wantSectors*sectorSize, report.Image.SizeBytes)
	for i, p := range report.Partitions {
		require.Equal(t, c.placement[i].ToBytes, p.StartBytes)
		require.True(t, p.Aligned["boundary"])
	}
	again := filepath.Join(t.TempDir(), "again"+c.format.ext)
	answer = trueupJSON[jsonAlign](t, 0, "align", c.dest, again)
	require.Zero(t, answer.Moved)
	require.Empty(t, answer.Disks[0].Patches)
	require.True(t, answer.Written)
	require.Equal(t, sha256Of(t, c.after), sha256Of(t, c.format.rawOf(t, again)))

	// A second run writes the same bytes.
	twin := filepath.Join(t.TempDir(), filepath.Base(c.dest))
	r := trueup(t, "align", c.source, twin)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, c.format.hashFiles(t, c.dest), c.format.hashFiles(t, twin))

	require.True(t, trueupJSON[jsonVerify](t, 0, "verify", c.source, c.dest).Equal)
}

// checkPlan requires that the dry run says what align will do, and writes nothing.
func (c *alignCase) checkPlan(t *testing.T) {
	t.Helper()
	plan := trueupJSON[jsonPlan](t, 0, "plan", c.source)
	require.Equal(t, c.placement, plan.Moves)
	require.Equal(t, len(c.placement), plan.Moved)
	require.Equal(t, c.disk.sectors*sectorSize, plan.OldSizeBytes)
	require.Equal(t, c.disk.wantSectors*sectorSize, plan.NewSizeBytes)
	require.Equal(t, c.disk.wantSectors*sectorSize, plan.Result.SizeBytes)
	require.Equal(t, "aligned", plan.Result.Verdict)
	require.Len(t, plan.Result.Partitions, len(c.placement))

	text := trueup(t, "plan", c.source)
	require.Equal(t, 0, text.code, text.stderr)
	entries, err := os.ReadDir(filepath.Dir(c.dest))
	require.NoError(t, err)
	require.Empty(t, entries, "plan has nothing to write")
}

func (c *alignCase) align(t *testing.T) jsonAlign {
	t.Helper()
	answer := trueupJSON[jsonAlign](t, 0, "align", c.source, c.dest)
	require.Equal(t, c.placement, answer.Disks[0].Moves)
	require.Equal(t, len(c.placement), answer.Moved)
	require.True(t, answer.Written)
	require.Equal(t, "full", answer.Verified)
	require.Equal(t, c.format.container, answer.Disks[0].Format)
	require.Equal(t, c.format.subformat, answer.Disks[0].Subformat)
	require.Equal(t, c.disk.wantSectors*sectorSize, answer.Disks[0].NewSizeBytes)
	var names []string
	for _, file := range c.format.files(c.dest) {
		names = append(names, filepath.Base(file))
	}
	require.Equal(t, names, folderNames(t, filepath.Dir(c.dest)), "no partial file may stay")
	return answer
}

// checkVolumes lets each file system's own tools look at the volumes of both disks, and QEMU, which shares no code with
// trueup, compare the longest part of each that no move may change.
func (c *alignCase) checkVolumes(t *testing.T) {
	t.Helper()
	for _, v := range c.disk.volumes {
		old := extract(t, c.before, v.start*sectorSize, v.sectors*sectorSize)
		moved := extract(t, c.after, v.wantStart*sectorSize, v.sectors*sectorSize)
		require.Equal(t, fsck(t, v.kind, old), fsck(t, v.kind, moved), v.label)
		for name, want := range v.files() {
			require.Equal(t, want, readVolumeFile(t, v.kind, moved, name), "%s on %s", name, v.label)
		}

		from, to := int64(0), v.sectors*sectorSize
		for _, off := range v.bootSectors() {
			if off+sectorSize == to {
				to = off
			} else {
				from = off + sectorSize
			}
		}
		a := qemuWindow(c.format, c.source, v.start*sectorSize+from, to-from)
		b := qemuWindow(c.format, c.dest, v.wantStart*sectorSize+from, to-from)
		out, err := exec.Command(disktest.Tool(t, "qemu-img"), "compare", a, b).CombinedOutput()
		require.NoError(t, err, "%s\n%s\n%s", a, b, out)
	}
}

func folderNames(t testing.TB, dir string) []string {
	t.Helper()
	names := disktest.Names(t, dir)
	// ReadDir sorts "a-flat.vmdk" before "a.vmdk"; an image's descriptor comes first here.
	if len(names) == 2 && strings.HasSuffix(names[0], "-flat.vmdk") {
		names[0], names[1] = names[1], names[0]
	}
	return names
}

// TestFreeBSDMoves moves a FreeBSD whose disklabel counts from its partition: nothing in it changes, and libblkid finds
// its slices. A Solaris is refused.
func TestFreeBSDMoves(t *testing.T) {
	t.Parallel()
	const sectors = 6000
	dir := t.TempDir()
	source, dest := filepath.Join(dir, "source.raw"), filepath.Join(dir, "dest.raw")
	disk := tableforge.NewMBR(8192, tableforge.Slot{Type: 0xa5, Start: trackSectors, Sectors: sectors})
	tableforge.PutDisklabel(disk, (trackSectors+1)*sectorSize, tableforge.Slice{Start: 16, Sectors: 4000, Type: 7},
		tableforge.Slice{Start: 4016, Sectors: 1000, Type: 1}, tableforge.Slice{Sectors: sectors})
	disk.Write(t, source)
	require.Zero(t, trueup(t, "align", source, dest).code)
	require.Equal(t, readAt(t, source, trackSectors*sectorSize, sectors*sectorSize),
		readAt(t, dest, 1<<20, sectors*sectorSize))
	require.Equal(t, slicesOf(t, source, trackSectors), slicesOf(t, dest, 2048))

	disk = tableforge.NewMBR(8192, tableforge.Slot{Type: 0xbf, Start: trackSectors, Sectors: sectors})
	tableforge.PutVTOC(disk, trackSectors, tableforge.Slice{Start: 16, Sectors: 4000, Type: 2},
		tableforge.Slice{Start: 4016, Sectors: 1000, Type: 3})
	solaris := filepath.Join(dir, "solaris.raw")
	disk.Write(t, solaris)
	require.Equal(t, 4, trueup(t, "align", solaris, filepath.Join(dir, "refused.raw")).code)
}

// slicesOf lists the partition that starts at an LBA and its slices, as libblkid finds them: LBA from the start of the
// partition, sectors and type.
func slicesOf(t *testing.T, path string, start int64) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(disktest.Output(t, "partx", "-rgo", "START,SECTORS,TYPE", path)) {
		var at, sectors int64
		var kind string
		_, err := fmt.Sscan(line, &at, &sectors, &kind)
		require.NoError(t, err)
		out = append(out, fmt.Sprint(at-start, sectors, kind))
	}
	require.Len(t, out, 3, "the partition and two slices")
	return out
}
