package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

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
	hiddenSectorsAt = 0x1C // u32
)

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
	Dest    string        `json:"dest"`
	Disks   []jsonAligned `json:"disks"`
	Moved   int           `json:"moved"`
	Files   []string      `json:"files"`
	Written bool          `json:"written"`
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

func match(t testing.TB, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	require.NotNil(t, found, "%s in\n%s", pattern, text)
	return strings.TrimSpace(found[1])
}

// fsck runs the read-only check of the file system in the file part, which must succeed.
func fsck(t testing.TB, kind, part string) {
	t.Helper()
	switch kind {
	case "ntfs":
		require.Contains(t, disktest.Run(t, "ntfsfix", "-n", part), "alternate boot sector... OK")
	case "fat16", "fat32":
		disktest.Run(t, "fsck.fat", "-n", part)
	default:
		disktest.Run(t, "e2fsck", "-f", "-n", part)
	}
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

	moved := tableOf(t, dest)[0].start
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
