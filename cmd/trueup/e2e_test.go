package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// TestAlignRealDisks aligns disks made by other programs, in every format, and checks the results with those programs.
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

// alignCase is a disk in one format, before and after.
type alignCase struct {
	disk      madeDisk
	format    diskFormat
	before    string // the guest's disk, as a raw file
	source    string
	dest      string
	after     string // of dest, like before of source
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

// checkPlan requires that the dry run reports the actions of align, and writes nothing.
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

// checkVolumes checks the volumes of both disks with the tools of each file system. QEMU, which shares no code with
// trueup, compares the longest part of each that no move may change.
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
	// ReadDir sorts "a-flat.vmdk" before "a.vmdk", but an image's descriptor comes first here.
	if len(names) == 2 && strings.HasSuffix(names[0], "-flat.vmdk") {
		names[0], names[1] = names[1], names[0]
	}
	return names
}

// TestFreeBSDMoves moves a FreeBSD whose disklabel has offsets relative to its partition: nothing in it changes, and
// libblkid finds its slices. A Solaris is refused.
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

// slicesOf lists the partition at an LBA and its slices, as reported by libblkid: LBA relative to the partition,
// sectors and type.
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

// Where the fields lie that hold a position. MBR: 446 boot code bytes, then entries of 16. BPB: that of NTFS
// (ntfs-3g, include/ntfs-3g/layout.h) and of FAT ("Microsoft Extensible Firmware Initiative FAT32 File System
// Specification 1.03").
const (
	mbrEntryAt      = 446
	mbrEntrySize    = 16
	mbrSignatureAt  = 510
	geometryAt      = 0x18 // u16 sectors per track, u16 heads
	hiddenSectorsAt = 0x1C // u32
	ntfsTotalAt     = 0x28 // u64 sectors, one less than the partition; the backup boot sector is after them
	fat32BackupAt   = 0x32 // u16 sector
)

// bootSectors lists the offsets in the volume of sectors that hold the position of the volume. ext has none.
func (v madeVolume) bootSectors() []int64 {
	switch v.kind {
	case "ntfs":
		return []int64{0, (v.sectors - 1) * sectorSize}
	case "fat16":
		return []int64{0}
	case "fat32":
		return []int64{0, 6 * sectorSize} // mkfs.fat puts the backup there
	}
	return nil
}

// checkPositions requires that sfdisk reads the old table with new starts, that the CHS bytes agree, and that the
// volumes hold their positions. It uses none of trueup's code.
func (c *alignCase) checkPositions(t *testing.T) {
	t.Helper()
	want := readSfdisk(t, c.before)
	require.Equal(t, diskSignature, want.ID)
	for i, v := range c.disk.volumes {
		require.Equal(t, v.start, want.Partitions[i].Start)
		require.Zero(t, v.wantStart%128, "64 KiB is what every result has to reach")
		want.Partitions[i].Start = v.wantStart
	}
	require.Equal(t, want, readSfdisk(t, c.after))

	mbr := readAt(t, c.after, 0, sectorSize)
	for i, v := range c.disk.volumes {
		entry := mbr[mbrEntryAt+i*mbrEntrySize:][:mbrEntrySize]
		head, sector := int64(entry[1]), int64(entry[2]&0x3F)
		cylinders := int64(entry[2]&0xC0)<<2 | int64(entry[3])
		require.Equal(t, v.wantStart, (cylinders*255+head)*63+sector-1,
			"the start CHS in the 255/63 geometry of the source")
		// QEMU and some BIOSes derive the geometry of the disk from the last head and sector of an entry.
		if end := entry[5:8]; !bytes.Equal(end, []byte{0xFE, 0xFF, 0xFF}) {
			require.Equal(t, byte(254), end[0], "head of the end CHS")
			require.Equal(t, byte(63), end[1]&0x3F, "sector of the end CHS")
		}
	}

	for _, v := range c.disk.volumes {
		primary := readAt(t, c.after, v.wantStart*sectorSize, sectorSize)
		for _, off := range v.bootSectors() {
			sector := readAt(t, c.after, v.wantStart*sectorSize+off, sectorSize)
			require.Equal(t, uint32(v.wantStart), binary.LittleEndian.Uint32(sector[hiddenSectorsAt:]), "%s at 0x%x",
				v.kind, off)
			require.Equal(t, primary, sector, "a backup boot sector equals the first")
		}
		switch v.kind {
		case "ntfs":
			require.Equal(t, uint64(v.sectors-1), binary.LittleEndian.Uint64(primary[ntfsTotalAt:]))
		case "fat32":
			require.Equal(t, uint16(6), binary.LittleEndian.Uint16(primary[fat32BackupAt:]))
		}
	}
}

// checkEveryByte builds the result from the source, the placement and the reported patches, and requires that DEST
// equals it to the last byte. This finds every unreported difference.
func (c *alignCase) checkEveryByte(t *testing.T, patches []jsonPatch) {
	t.Helper()
	before := disktest.ReadFile(t, c.before)
	after := disktest.ReadFile(t, c.after)
	require.Len(t, after, int(c.disk.wantSectors*sectorSize))

	want := make([]byte, len(after)) // the source is zero outside its first track and its partitions
	copy(want, before[:firstTrack*sectorSize])
	for _, m := range c.placement {
		copy(want[m.ToBytes:], before[m.FromBytes:m.FromBytes+m.SizeBytes])
	}
	allowed := []disk.Range{{Off: mbrEntryAt, Len: mbrSignatureAt - mbrEntryAt}} // that a move may change
	for _, v := range c.disk.volumes {
		for _, off := range v.bootSectors() {
			at := v.wantStart*sectorSize + off + geometryAt
			allowed = append(allowed, disk.Range{Off: at, Len: hiddenSectorsAt + 4 - geometryAt})
		}
	}
	require.NotEmpty(t, patches)
	for _, p := range patches {
		old, err := hex.DecodeString(p.Old)
		require.NoError(t, err)
		new, err := hex.DecodeString(p.New)
		require.NoError(t, err)
		require.Len(t, old, int(p.LengthBytes))
		require.Len(t, new, int(p.LengthBytes))
		require.NotEmpty(t, p.Reason)
		require.True(t, slices.ContainsFunc(allowed, func(a disk.Range) bool {
			return a.Contains(disk.Range{Off: p.OffsetBytes, Len: p.LengthBytes})
		}), "patch at 0x%x", p.OffsetBytes)
		place := want[p.OffsetBytes:][:p.LengthBytes]
		require.Equal(t, old, append([]byte(nil), place...), "old value at 0x%x", p.OffsetBytes)
		copy(place, new)
	}
	if !bytes.Equal(want, after) {
		off := 0
		for want[off] == after[off] {
			off++
		}
		require.Fail(t, "an untold difference", "at 0x%x: 0x%02x, want 0x%02x", off, after[off], want[off])
	}
}

// The parts of trueup's JSON that these tests examine.

type jsonHead struct {
	Schema   string `json:"schema"`
	Command  string `json:"command"`
	ExitCode int    `json:"exit_code"`
}

type jsonImage struct {
	Path       string `json:"path"`
	Format     string `json:"format"`
	Subformat  string `json:"subformat"`
	SizeBytes  int64  `json:"size_bytes"`
	SectorSize int64  `json:"sector_size_bytes"`
}

type jsonVolume struct {
	Kind  string `json:"kind"`
	Label string `json:"label"`
}

type jsonPartition struct {
	Number     int             `json:"number"`
	Kind       string          `json:"kind"`
	Active     bool            `json:"active"`
	Type       string          `json:"type"`
	Name       string          `json:"name"`
	GUID       string          `json:"guid"`
	StartLBA   int64           `json:"start_lba"`
	StartBytes int64           `json:"start_bytes"`
	SizeBytes  int64           `json:"size_bytes"`
	Aligned    map[string]bool `json:"aligned"`
	Volume     jsonVolume      `json:"volume"`
}

type jsonFinding struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	Text     string `json:"text"`
	Remedy   string `json:"remedy"`
}

type jsonInspect struct {
	jsonHead
	Image jsonImage `json:"image"`
	Table struct {
		SectorSize int64 `json:"sector_size_bytes"`
	} `json:"table"`
	Partitions []jsonPartition `json:"partitions"`
	Findings   []jsonFinding   `json:"findings"`
	Verdict    string          `json:"verdict"`
}

type jsonMove struct {
	Partition  int   `json:"partition"`
	FromBytes  int64 `json:"from_bytes"`
	ToBytes    int64 `json:"to_bytes"`
	SizeBytes  int64 `json:"size_bytes"`
	DeltaBytes int64 `json:"delta_bytes"`
}

// jsonPatch is a patch of the resulting disk.
type jsonPatch struct {
	OffsetBytes int64  `json:"offset_bytes"`
	LengthBytes int64  `json:"length_bytes"`
	Old         string `json:"old"`
	New         string `json:"new"`
	Reason      string `json:"reason"`
}

type jsonPlan struct {
	jsonHead
	OldSizeBytes int64       `json:"old_size_bytes"`
	NewSizeBytes int64       `json:"new_size_bytes"`
	Moved        int         `json:"moved"`
	Moves        []jsonMove  `json:"moves"`
	Patches      []jsonPatch `json:"patches"`
	Result       struct {
		SizeBytes  int64           `json:"size_bytes"`
		Partitions []jsonPartition `json:"partitions"`
		Verdict    string          `json:"verdict"`
	} `json:"result"`
}

type jsonAlign struct {
	jsonHead
	Source   string        `json:"source"`
	Dest     string        `json:"dest"`
	Disks    []jsonAligned `json:"disks"`
	Moved    int           `json:"moved"`
	Files    []string      `json:"files"`
	Written  bool          `json:"written"`
	Verified string        `json:"verified"`
}

type jsonAligned struct {
	OldSizeBytes int64       `json:"old_size_bytes"`
	NewSizeBytes int64       `json:"new_size_bytes"`
	Moves        []jsonMove  `json:"moves"`
	Patches      []jsonPatch `json:"patches"`
	Format       string      `json:"format"`
	Subformat    string      `json:"subformat"`
}

type jsonVerify struct {
	Equal bool `json:"equal"`
}

// trueupJSON runs a command with --json, requires wantCode as its exit code, also in the JSON, and returns the JSON.
func trueupJSON[T any](t testing.TB, wantCode int, args ...string) T {
	t.Helper()
	r := trueup(t, append(args, "--json")...)
	require.Equal(t, wantCode, r.code, "trueup %q\n%s%s", args, r.stdout, r.stderr)
	var head jsonHead
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &head), "one JSON object is wanted:\n%s", r.stdout)
	require.Equal(t, jsonHead{Schema: "trueup/1", Command: args[0], ExitCode: wantCode}, head)
	var answer T
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &answer), "%s", r.stdout)
	return answer
}

// sfdiskTable is the partition table of a raw disk in sfdisk's JSON.
type sfdiskTable struct {
	Label      string            `json:"label"`
	ID         string            `json:"id"`
	Partitions []sfdiskPartition `json:"partitions"`
}

type sfdiskPartition struct {
	Start    int64  `json:"start"`
	Size     int64  `json:"size"`
	Type     string `json:"type"`
	Bootable bool   `json:"bootable"`
}

func readSfdisk(t testing.TB, raw string) sfdiskTable {
	t.Helper()
	var answer struct {
		Table sfdiskTable `json:"partitiontable"`
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "sfdisk", "--json", raw)), &answer))
	return answer.Table
}

func match(t testing.TB, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(t, found, "%s in\n%s", pattern, text)
	return strings.TrimSpace(found[1])
}

// fsck runs the read-only check of the file system in the file part, which must succeed, and returns its output without
// the file's name.
func fsck(t testing.TB, kind, part string) string {
	t.Helper()
	var out string
	switch kind {
	case "ntfs":
		out = disktest.Run(t, "ntfsfix", "-n", part)
		require.Contains(t, out, "alternate boot sector... OK")
	case "fat16", "fat32":
		out = disktest.Run(t, "fsck.fat", "-n", part)
	default:
		out = disktest.Run(t, "e2fsck", "-f", "-n", part)
	}
	return strings.ReplaceAll(out, part, "PART")
}

// readVolumeFile reads a file from the volume with the file system's own tool.
func readVolumeFile(t testing.TB, kind, part, name string) []byte {
	t.Helper()
	switch kind {
	case "ntfs":
		return []byte(disktest.Output(t, "ntfscat", part, name))
	case "fat16", "fat32":
		return []byte(disktest.Output(t, "mcopy", "-i", part, "::/"+name, "-"))
	default:
		return []byte(disktest.Output(t, "debugfs", "-R", fmt.Sprintf("cat \"/%s\"", name), part))
	}
}

// qemuWindow returns a range of an image in the syntax of qemu-img.
func qemuWindow(f diskFormat, path string, off, size int64) string {
	return fmt.Sprintf(
		`json:{"driver":"raw","offset":%d,"size":%d,"file":{"driver":%q,"file":{"driver":"file","filename":%q}}}`,
		off, size, f.container, path)
}

// exfatTools makes a volume with mkfs.exfat, which cannot set its partition offset: the field and its checksum are
// written as Windows writes them.
func exfatTools(t testing.TB, size, lba int64) forge.Bytes {
	t.Helper()
	path := disktest.Blank(t, "volume", size)
	disktest.Run(t, "mkfs.exfat", "-L", "Bilder", path)
	data := disktest.ReadFile(t, path)
	v := forge.Bytes(data)
	for _, first := range []int64{0, 12} {
		v.U64(first*512+fsforge.ExFATPartitionOffset, uint64(lba))
		fsforge.SealExFAT(v, first)
	}
	return v
}

// TestAlignExFAT moves an exFAT that stores its position. fsck.exfat verifies the checksum of the copy, and fails after
// a flipped byte.
func TestAlignExFAT(t *testing.T) {
	t.Parallel()
	const start, sectors, total = 63, 40960, 65536
	volume := exfatTools(t, sectors*512, start)
	source := disktest.Blank(t, "exfat.raw", total*512)
	disktest.RunInput(t, "label: dos\nstart=63, size=40960, type=7\n", "sfdisk", "--quiet", source)
	disktest.WriteAt(t, source, start*512, volume)

	report := trueupJSON[jsonInspect](t, 3, "inspect", source)
	require.Equal(t, "exfat", report.Partitions[0].Volume.Kind)
	require.Equal(t, "Bilder", report.Partitions[0].Volume.Label)
	dest := filepath.Join(t.TempDir(), "aligned.raw")
	r := trueup(t, "align", source, dest)
	require.Equal(t, 0, r.code, r.stderr)

	moved := readSfdisk(t, dest).Partitions[0].Start
	require.Equal(t, int64(2048), moved)
	got := forge.Bytes(readAt(t, dest, moved*512, sectors*512))
	for _, first := range []int64{0, 12} {
		require.Equal(t, uint64(moved), binary.LittleEndian.Uint64(got[first*512+fsforge.ExFATPartitionOffset:]))
		volume.U64(first*512+fsforge.ExFATPartitionOffset, uint64(moved))
		fsforge.SealExFAT(volume, first)
	}
	require.Equal(t, sha256.Sum256(volume), sha256.Sum256(got), "nothing else changes")
	part := filepath.Join(t.TempDir(), "part")
	require.NoError(t, os.WriteFile(part, got, 0o644))
	disktest.Run(t, "fsck.exfat", "-n", part)
	require.Contains(t, disktest.Output(t, "dump.exfat", part), "Bilder")
	require.Equal(t, 0, trueup(t, "verify", source, dest).code)

	got.U32(11*512, binary.LittleEndian.Uint32(got[11*512:])+1)
	got.U32(23*512, binary.LittleEndian.Uint32(got[23*512:])+1)
	require.NoError(t, os.WriteFile(part, got, 0o644))
	require.Error(t, exec.Command(disktest.Tool(t, "fsck.exfat"), "-n", part).Run(), "fsck.exfat reads the checksum")
}
