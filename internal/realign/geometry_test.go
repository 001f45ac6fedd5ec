package realign

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/ondisk"
)

// dosDisk is a raw disk as DOS made them: code that reads CHS, and one active FAT16 behind the first track up to the
// end of the last of 1023 cylinders.
func dosDisk(t *testing.T, dir string, heads, track int64) (path string, size int64) {
	t.Helper()
	path = filepath.Join(dir, "disk.img")
	sectors := min(1023*heads*track, 80_000/(heads*track)*heads*track)
	disktest.MakeBlank(t, path, sectors*sector)
	disktest.RunInput(t, fmt.Sprintf("o\nn\np\n1\n%d\n%d\nt\n6\na\nw\n", track, sectors-1), "fdisk",
		"--compatibility=dos", "--units=sectors", "--heads", strconv.FormatInt(heads, 10),
		"--sectors", strconv.FormatInt(track, 10), path)
	disktest.Run(t, "mkfs.fat", "-F", "16", "-g", fmt.Sprintf("%d/%d", heads, track),
		"-h", strconv.FormatInt(track, 10), "--offset", strconv.FormatInt(track, 10), path,
		strconv.FormatInt((sectors-track)/2, 10))
	code, err := ondisk.Bytes(disktest.Fixture(t, disktest.Fixtures(t)["xp-lba63-one-ntfs"]), 0, 440)
	require.NoError(t, err)
	disktest.WriteAt(t, path, 0, code)
	return path, sectors * sector
}

// told returns the heads and sectors that an image tells the machine, read by none of trueup's code; of one that tells
// none, those of the end of its first partition.
func told(t *testing.T, path string) (heads, sectors int64) {
	t.Helper()
	b := disktest.ReadFile(t, path)
	number := func(key string) int64 {
		m := regexp.MustCompile(`ddb\.geometry\.` + key + ` = "(\d+)"`).FindSubmatch(b)
		require.NotNil(t, m, "%s", key)
		n, err := strconv.ParseInt(string(m[1]), 10, 64)
		require.NoError(t, err)
		return n
	}
	switch filepath.Ext(path) {
	case ".vhd": // VHD 1.0, "Hard Disk Footer Format": cylinders, heads and sectors at byte 56
		foot := b[len(b)-512:]
		require.LessOrEqual(t, binary.BigEndian.Uint16(foot[56:]), uint16(1024), "more would be translated")
		return int64(foot[58]), int64(foot[59])
	case ".vmdk":
		return number("heads"), number("sectors")
	case ".vdi": // VirtualBox, VDICore.h, VDIHEADER1PLUS
		return int64(binary.LittleEndian.Uint32(b[0x1cc:])), int64(binary.LittleEndian.Uint32(b[0x1d0:]))
	}
	flat := filepath.Join(t.TempDir(), "flat.raw")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", path, flat)
	entry := disktest.ReadFile(t, flat)[446:462]
	return int64(entry[5]) + 1, int64(entry[6] & 63)
}

// A disk that boots by CHS tells the machine the same heads and sectors before and after, whatever its format is, and
// what others take for its size stays the size.
func TestMachineOfAGuestThatReadsCHS(t *testing.T) {
	qemu := map[string]string{
		"raw": "raw", "vhd": "vpc", "vmdk": "vmdk", "vdi": "vdi", "qcow2": "qcow2", "vhdx": "vhdx",
	}
	for _, tc := range []struct {
		from, to     string
		heads, track int64
		warned       string
	}{
		{"vhd", "", 4, 17, ""},
		{"vhd", "vhd:fixed", 4, 17, ""},
		{"vhd", "vmdk", 4, 17, ""},
		{"vhd", "vdi", 4, 17, ""},
		{"vhd", "qcow2", 4, 17, ""},
		{"raw", "vhd", 4, 17, ""},
		{"raw", "", 4, 17, ""},
		{"raw", "vhd", 16, 63, ""},
		{"raw", "vmdk:monolithicFlat", 16, 63, ""},
		{"qcow2", "vdi", 64, 32, ""},
		{"raw", "vmdk", 255, 63, ""},
		{"raw", "vhd", 255, 63, "the disk boots by a geometry of 255 heads and 63 sectors, and a BIOS reports 4 heads"},
		{"vmdk", "vmdk", 16, 63, ""},
	} {
		t.Run(fmt.Sprintf("%s to %s, %d heads", tc.from, tc.to, tc.heads), func(t *testing.T) {
			dir := t.TempDir()
			source, size := dosDisk(t, dir, tc.heads, tc.track)
			if tc.from != "raw" {
				source = converted(t, source, "disk."+tc.from, qemu[tc.from])
			}
			s := open(t, source)
			require.True(t, s.Layout.ReadsCHS())
			p := mustPlan(t, s)
			require.Len(t, p.Moves, 1)
			require.Greater(t, p.Size, size)
			target, err := ParseTarget(tc.to)
			require.NoError(t, err)
			name, _, _ := strings.Cut(tc.to, ":")
			if name == "" {
				name = tc.from
			}
			dest := filepath.Join(dir, "aligned."+name)
			to := File{Path: dest, Format: target.Format, Subformat: target.Subformat}
			w, err := (&Job{Full: true, Jobs: 1}).Write(t.Context(), s, p, to)
			require.NoError(t, err)
			var said []string
			for _, n := range w.Notes {
				if n.Code == "container-geometry" {
					said = append(said, n.Text)
				}
			}
			if tc.warned != "" {
				require.Len(t, said, 1)
				require.Contains(t, said[0], tc.warned)
				return
			}
			require.Empty(t, said)
			heads, sectors := told(t, dest)
			require.Equal(t, []int64{tc.heads, tc.track}, []int64{heads, sectors})
			require.Contains(t, disktest.Output(t, "qemu-img", "info", "-f", qemu[name], dest),
				fmt.Sprintf("(%d bytes)", p.Size))
		})
	}
}

// A move inside of a fixed VHD and of a flat VMDK tells the machine what a copy does.
func TestMachineAfterAMoveInPlace(t *testing.T) {
	for name, args := range map[string][]string{
		"disk.vhd":  {"vpc", "-o", "subformat=fixed"},
		"disk.vmdk": {"vmdk", "-o", "subformat=monolithicFlat,adapter_type=ide"},
	} {
		raw, _ := dosDisk(t, t.TempDir(), 4, 17)
		source := converted(t, raw, name, args...)
		if strings.HasSuffix(name, "vmdk") { // qemu-img takes 16 heads and 63 sectors for every IDE disk
			b := regexp.MustCompile(`heads = "16"`).ReplaceAll(disktest.ReadFile(t, source), []byte(`heads = "4"`))
			b = regexp.MustCompile(`sectors = "63"`).ReplaceAll(b, []byte(`sectors = "17"`))
			require.NoError(t, os.WriteFile(source, b, 0o600))
		}
		s := open(t, source)
		p := mustPlan(t, s)
		_, err := (&Job{Jobs: 1}).MoveInPlace(t.Context(), s, p, Move{})
		require.NoError(t, err)
		heads, sectors := told(t, source)
		require.Equal(t, []int64{4, 17}, []int64{heads, sectors}, name)
		if strings.HasSuffix(name, "vmdk") {
			require.Contains(t, string(disktest.ReadFile(t, source)), "ddb.geometry.biosCylinders = \"1024\"")
		}
		require.Empty(t, imagetest.Codes(open(t, source).Image.Issues, ondisk.Warn))
	}
}
