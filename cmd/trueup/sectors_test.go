package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// fourK is the size in bytes of the sectors of the disks here.
const fourK = 4096

// fourKVolumes are what such a disk holds. Positions are in sectors; the wanted ones are the next multiples of 1 MiB
// behind what lies in front.
var fourKVolumes = []madeVolume{
	{kind: "ntfs", label: "NT", start: 263, sectors: 4000, wantStart: 512},
	{kind: "vfat", label: "FATTY", start: 4502, sectors: 6000, wantStart: 4608},
	{kind: "ext4", label: "EX", start: 11001, sectors: 4000, wantStart: 11008},
}

// fourKDisk is a raw disk of 128 MiB whose table, of a kind that fdisk knows, counts sectors of 4096 bytes.
func fourKDisk(t testing.TB, label string) string {
	t.Helper()
	dir := t.TempDir()
	raw, script := filepath.Join(dir, "disk.raw"), filepath.Join(dir, "script")
	disktest.Run(t, "truncate", "-s", "128M", raw)
	table := "label: " + label + "\nunit: sectors\nsector-size: 4096\n"
	for _, v := range fourKVolumes {
		table += fmt.Sprintf("start=%d, size=%d\n", v.start, v.sectors)
	}
	require.NoError(t, os.WriteFile(script, []byte(table), 0o644))
	disktest.RunInput(t, "I\n"+script+"\nw\n", "fdisk", "--sector-size", "4096", "--wipe", "never", raw)
	require.Equal(t, startsOf(func(v madeVolume) int64 { return v.start }), fdiskStarts(t, raw))
	for i, v := range fourKVolumes {
		part := filepath.Join(dir, fmt.Sprintf("part%d", i+1))
		disktest.Run(t, "truncate", "-s", fmt.Sprint(v.sectors*fourK), part)
		hidden := fmt.Sprint(v.start)
		switch v.kind {
		case "ntfs":
			disktest.Run(t, "mkntfs", "-q", "-F", "-Q", "-s", "4096", "-c", "4096", "-p", hidden, "-H", "255", "-S",
				"63", "-L", v.label, part)
		case "vfat":
			disktest.Run(t, "mkfs.fat", "-F", "16", "-S", "4096", "-s", "1", "-h", hidden, "-n", v.label, part)
		default:
			disktest.Run(t, "mke2fs", "-q", "-t", v.kind, "-b", "4096", "-L", v.label, "-d", v.writeFiles(t), part)
		}
		disktest.Run(t, "dd", "if="+part, "of="+raw, "bs=4096", "conv=sparse,notrunc", fmt.Sprintf("seek=%d", v.start),
			"status=none")
	}
	return raw
}

func startsOf(of func(madeVolume) int64) (out []string) {
	for _, v := range fourKVolumes {
		out = append(out, fmt.Sprint(of(v)))
	}
	return out
}

// fdiskStarts are the starts of all partitions in sectors of 4096 bytes, from a table in which fdisk finds no fault.
func fdiskStarts(t testing.TB, raw string) (starts []string) {
	t.Helper()
	require.Contains(t, disktest.RunInput(t, "v\nq\n", "fdisk", "--sector-size", "4096", raw), "No errors detected")
	_, list, found := strings.Cut(disktest.Output(t, "fdisk", "--sector-size", "4096", "-l", "-o", "Start", raw),
		"\n\n")
	require.True(t, found)
	return strings.Fields(list)[1:] // behind the title
}

// TestSectorsOf4096Bytes aligns disks with such sectors, in a file that cannot say so and in one that does.
func TestSectorsOf4096Bytes(t *testing.T) {
	t.Parallel()
	for _, label := range []string{"dos", "gpt"} {
		t.Run(label, func(t *testing.T) {
			raw := fourKDisk(t, label)
			report := trueupJSON[jsonInspect](t, 2, "inspect", "--sector-size", "4096", raw)
			require.Equal(t, int64(fourK), report.Image.SectorSize)
			require.NotContains(t, fmt.Sprint(report.Findings), "sector-size", "nothing to say of it")
			for i, v := range fourKVolumes {
				p := report.Partitions[i]
				require.Equal(t, v.start, p.StartLBA)
				require.Equal(t, v.start*fourK, p.StartBytes)
				require.Equal(t, v.sectors*fourK, p.SizeBytes)
				require.Equal(t, v.label, p.Volume.Label)
			}
			dir := t.TempDir()
			file := func(name string) string { return filepath.Join(dir, name) }
			require.Equal(t, 0, trueup(t, "convert", "--sector-size", "4096", "--to", "vhdx", raw,
				file("source.vhdx")).code)
			for _, args := range [][]string{
				{"--sector-size", "4096", raw, file("raw.raw")},
				{"--sector-size", "4096", "--to", "vhdx", raw, file("raw.vhdx")},
				{"--to", "raw", file("source.vhdx"), file("vhdx.raw")},
				{"--sector-size", "4096", file("source.vhdx"), file("vhdx.vhdx")},
			} {
				r := trueup(t, append([]string{"align"}, args...)...)
				require.Equal(t, 0, r.code, r.stderr)
				for _, v := range fourKVolumes {
					require.Contains(t, r.stdout, fmt.Sprintf("LBA %d -> %d\n", v.start, v.wantStart))
				}
			}
			requireFourKResult(t, raw, file("raw.raw"))
			require.Equal(t, sha256Of(t, file("raw.raw")), sha256Of(t, file("vhdx.raw")))
			requireFourKProofs(t, raw, file, label == "gpt")
		})
	}
}

// requireFourKResult holds the result against the source with other tools, and finds each volume at its new place with
// nothing changed but the hidden sectors.
func requireFourKResult(t *testing.T, source, result string) {
	t.Helper()
	require.Equal(t, startsOf(func(v madeVolume) int64 { return v.wantStart }), fdiskStarts(t, result))
	for _, v := range fourKVolumes {
		size := v.sectors * fourK
		want := readAt(t, source, v.start*fourK, size)
		got := readAt(t, result, v.wantStart*fourK, size)
		at := []int64{0x1c} // hidden sectors of a BIOS parameter block
		switch v.kind {
		case "ntfs":
			at = append(at, size-fourK+0x1c) // of the copy in the last sector
		case "ext4":
			at = nil
		}
		for _, off := range at {
			require.Equal(t, uint32(v.start), binary.LittleEndian.Uint32(want[off:]), v.kind)
			binary.LittleEndian.PutUint32(want[off:], uint32(v.wantStart))
		}
		require.True(t, bytes.Equal(want, got), v.kind) // too long to be printed
	}
}

// requireFourKProofs verifies the results of all ways. The flag speaks of SOURCE; a raw DEST has the sectors of SOURCE.
// A GPT needs no flag: it states its sectors.
func requireFourKProofs(t *testing.T, raw string, file func(string) string, stated bool) {
	t.Helper()
	code, says := 5, "the disk has sectors of 4096 bytes, want 512"
	if stated {
		code, says = 0, "3 partitions moved"
	}
	flag := []string{"--sector-size", "4096"}
	for _, c := range []struct {
		source, dest string
		flags        []string
		code         int
		says         string
	}{
		{raw, file("raw.raw"), flag, 0, "3 partitions moved"},
		{raw, file("raw.vhdx"), flag, 0, "3 partitions moved"},
		{raw, file("vhdx.raw"), flag, 0, "3 partitions moved"},
		{file("source.vhdx"), file("vhdx.raw"), nil, 0, "3 partitions moved"},
		{file("source.vhdx"), file("raw.raw"), flag, 0, "3 partitions moved"},
		{file("source.vhdx"), file("vhdx.vhdx"), nil, 0, "3 partitions moved"},
		{raw, file("raw.vhdx"), nil, code, says},
		{file("source.vhdx"), file("vhdx.raw"), []string{"--sector-size", "512"}, 1, ""},
	} {
		r := trueup(t, append(append([]string{"verify"}, c.flags...), c.source, c.dest)...)
		require.Equal(t, c.code, r.code, "%v %s%s", c, r.stdout, r.stderr)
		require.Contains(t, r.stdout, c.says)
	}
}

// TestSectorSizeIsMentioned reads such disks with sectors of 512 bytes, and the other way round: file systems or a GPT
// tell that it is wrong.
func TestSectorSizeIsMentioned(t *testing.T) {
	t.Parallel()
	small := filepath.Join(t.TempDir(), "small.raw")
	disk := tableforge.NewMBR(xpSectors, slot(0x07, 63, 3000))
	fsforge.PutNTFS(disk, 63, 3000)
	disk.Write(t, small)
	mbr, gpt := fourKDisk(t, "dos"), fourKDisk(t, "gpt")
	for name, c := range map[string]struct {
		args         []string
		says, remedy string // of the note; empty for none
	}{
		"MBR of 4096": {
			[]string{mbr},
			"the partition table makes sense in sectors of 4096 bytes",
			"--sector-size 4096",
		},
		"MBR of 4096, said to be 512": {
			[]string{"--sector-size", "512", mbr},
			"the partition table makes sense in sectors of 4096 bytes", "--sector-size 4096",
		},
		"GPT of 4096": {[]string{gpt}, "the GPT counts sectors of 4096 bytes", "logical_block_size=4096"},
		// Its partition then ends behind the disk, which is an error; the note says why.
		"MBR of 512, said to be 4096": {
			[]string{"--sector-size", "4096", small},
			"the partition table makes sense in sectors of 512 bytes", "--sector-size 512",
		},
		"MBR of 512":            {[]string{small}, "", ""},
		"MBR of 4096, as it is": {[]string{"--sector-size", "4096", mbr}, "", ""},
		"GPT of 4096, as it is": {[]string{"--sector-size", "4096", gpt}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := trueup(t, append([]string{"inspect", "--json"}, c.args...)...)
			var notes []jsonFinding
			for _, f := range parseFailure(t, r).Findings {
				if f.Code == "sector-size" && f.Severity == "info" {
					notes = append(notes, f)
				}
			}
			if c.says == "" {
				require.Empty(t, notes)
				return
			}
			require.Len(t, notes, 1, r.stdout)
			require.Contains(t, notes[0].Text, c.says)
			require.Contains(t, notes[0].Remedy, c.remedy)
		})
	}
}

// TestWrongSectorsAreNotMoved reads an MBR in sectors that it was not made with: its LBAs lead to other bytes than
// those of the file systems, which a copy would lose. Nothing is moved, so that a plain copy keeps all.
func TestWrongSectorsAreNotMoved(t *testing.T) {
	t.Parallel()
	raw := fourKDisk(t, "dos")
	dest := filepath.Join(t.TempDir(), "dest.raw")
	for _, args := range [][]string{{"plan", raw}, {"align", raw, dest}, {"align", "--allow-unbootable", raw, dest}} {
		r := trueup(t, args...)
		require.Equal(t, 4, r.code, r.stdout)
		require.Contains(t, r.stderr, "the partitions would be moved by sectors of 512 bytes")
		require.Contains(t, r.stderr, "--sector-size 4096")
	}
	require.NoFileExists(t, dest)
	require.Equal(t, 0, trueup(t, "convert", raw, dest).code)
	require.Equal(t, 0, trueup(t, "align", "--force", "--sector-size", "4096", raw, dest).code)
}

// TestNextCommandsKeepTheSectorSize runs what reports propose.
func TestNextCommandsKeepTheSectorSize(t *testing.T) {
	t.Parallel()
	raw := fourKDisk(t, "dos")
	dest := filepath.Join(t.TempDir(), "dest.raw")
	for _, c := range []struct {
		code int
		args []string
		says string
	}{
		{2, []string{"inspect", raw}, "trueup plan --sector-size 4096 "},
		{2, []string{"inspect", raw}, "trueup align --sector-size 4096 "},
		{0, []string{"plan", raw}, "trueup align --sector-size 4096 "},
		{0, []string{"align", raw, dest}, "trueup verify --sector-size 4096 "},
	} {
		r := trueup(t, append(c.args, "--sector-size", "4096")...)
		require.Equal(t, c.code, r.code, r.stderr)
		require.Contains(t, r.stdout, c.says)
	}
}

// TestWrongSectorSize refuses a size that the image contradicts.
func TestWrongSectorSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	raw, dest := fourKDisk(t, "dos"), filepath.Join(dir, "dest")
	big := filepath.Join(dir, "big.vhdx")
	require.Equal(t, 0, trueup(t, "convert", "--sector-size", "4096", "--to", "vhdx", raw, big).code)
	odd := filepath.Join(dir, "odd.raw")
	require.NoError(t, os.WriteFile(odd, make([]byte, 9*512), 0o644))
	require.Equal(t, 0, trueup(t, "inspect", odd).code)
	stream := filepath.Join(dir, "stream.vmdk")
	disktest.Run(t, "qemu-img", "convert", "-O", "vmdk", "-o", "subformat=streamOptimized", raw, stream)
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"a VHDX of 4096": {
			[]string{"inspect", "--sector-size", "512", big},
			"sector size 4096, want 512, as --sector-size says",
		},
		"plan of a VHDX of 4096": {[]string{"plan", "--sector-size", "512", big}, "sector size 4096, want 512"},
		"copy of a VHDX of 4096": {
			[]string{"convert", "--sector-size", "512", big, dest},
			"sector size 4096, want 512",
		},
		"a VMDK": {
			[]string{"inspect", "--sector-size", "4096", sampleDisk(t)},
			"sector size 512, want 4096",
		},
		"a VMDK to be aligned": {
			[]string{"align", "--sector-size", "4096", sampleDisk(t), dest},
			"sector size 512, want 4096",
		},
		"a raw image that ends odd": {
			[]string{"inspect", "--sector-size", "4096", odd},
			"its size (4608) is no multiple of 4096",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := trueup(t, append(c.args, "--json")...)
			require.Equal(t, 1, r.code, r.stdout)
			require.Equal(t, "format", errorCode(t, r))
			requireOneLine(t, r.stderr)
			require.Contains(t, r.stderr, c.says)
		})
	}
	r := trueup(t, "convert", "--sector-size", "4096", "--to", "qcow2", raw, filepath.Join(dir, "dest.qcow2"))
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "no qcow2 can say so")
}
