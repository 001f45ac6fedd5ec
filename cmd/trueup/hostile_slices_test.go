package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// labelAt is where a disklabel or a VTOC of the volume of these tests stands, from the start of its partition.
const labelAt = 512

// sliced is a disk with one partition that a label divides. Offsets of change count from the label.
func sliced(kind byte, put func(disk forge.Bytes), change func(label forge.Bytes)) func(testing.TB, string) string {
	return writeForged("disk.raw", volumeDisk(kind, func(disk forge.Bytes) {
		put(disk)
		change(disk[volumeAt+labelAt:])
	}))
}

func putFreeBSD(disk forge.Bytes) {
	tableforge.PutDisklabel(disk, volumeAt+labelAt, tableforge.Slice{Start: 16, Sectors: 4000, Type: 7},
		tableforge.Slice{Start: 4016, Sectors: 1000, Type: 1}, tableforge.Slice{Sectors: volumeSectors})
}

func putSolaris(disk forge.Bytes) {
	tableforge.PutVTOC(disk, volumeStart, tableforge.Slice{Start: 16, Sectors: 4000, Type: 2},
		tableforge.Slice{Start: 4016, Sectors: 1000, Type: 3})
}

// TestHostileSlices is about tables inside of partitions.
func TestHostileSlices(t *testing.T) {
	t.Parallel()
	runHostile(t, brokenDisklabels(), brokenVTOCs())
}

func brokenDisklabels() []hostile {
	row := func(name string, at int64, change func(forge.Bytes), says ...string) hostile {
		return brokenVolume("T66 "+name, "bsd disklabel", labelAt+at, sliced(0xa5, putFreeBSD, change), says...)
	}
	var out []hostile
	for _, n := range []uint16{23, 512, 65535} {
		out = append(out, row(fmt.Sprintf("%d slices", n), tableforge.BSDCount, func(l forge.Bytes) {
			l.U16(tableforge.BSDCount, n)
			tableforge.SealDisklabel(l)
		}, fmt.Sprintf("partition count %d", n), "want at most 22"))
	}
	for _, n := range []uint32{0, 3, 256, 8192, 1<<32 - 1} {
		out = append(out, row(fmt.Sprintf("sectors of %d bytes", n), tableforge.BSDSectorSize, func(l forge.Bytes) {
			l.U32(tableforge.BSDSectorSize, n)
			tableforge.SealDisklabel(l)
		}, fmt.Sprintf("sector size %d", n), "want 512, 1024, 2048 or 4096"))
	}
	out = append(out, row("checksum", tableforge.BSDChecksum,
		func(l forge.Bytes) { l.U16(tableforge.BSDChecksum, 0x1234) }, "checksum 0x1234", "want 0x"))
	for name, change := range map[string]func(forge.Bytes){
		"start and size of 2^32-1": func(l forge.Bytes) {
			l.U32(tableforge.BSDMap, 1<<32-1)
			l.U32(tableforge.BSDMap+4, 1<<32-1)
		},
		"start before the slice": func(l forge.Bytes) { l.U32(tableforge.BSDMap+2*16+4, 18) },
	} {
		out = append(out, hostile{
			name: "T66 " + name, code: "unsupported", inspect: 3, copy: 4, report: true,
			says:  []string{"slice a of the disklabel", "does not lie inside"},
			image: sliced(0xa5, putFreeBSD, func(l forge.Bytes) { change(l); tableforge.SealDisklabel(l) }),
		})
	}
	return append(out, hostile{
		name: "T66 sectors of 4096 bytes", code: "unsupported", inspect: 3, copy: 4, report: true,
		says: []string{"0xa5", "disklabel whose offsets are absolute"},
		// c passes the slice
		image: sliced(0xa5, putFreeBSD, func(l forge.Bytes) {
			l.U32(tableforge.BSDSectorSize, 4096)
			tableforge.SealDisklabel(l)
		}),
	}, hostile{
		name: "T66 offsets of 48 bits", code: "unsupported", inspect: 3, copy: 4, report: true,
		says: []string{"0xa5", "disklabel whose offsets are absolute"},
		image: sliced(0xa5, putFreeBSD, func(l forge.Bytes) {
			l.U16(tableforge.BSDVersion, 1)
			l.U32(tableforge.BSDSectorSize, 4096)
			for i := range int64(3) {
				l.Put(tableforge.BSDMap+16*i, []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x07"))
			}
			tableforge.SealDisklabel(l)
		}),
	})
}

func brokenVTOCs() []hostile {
	row := func(name string, at int64, change func(forge.Bytes), says ...string) hostile {
		return brokenVolume("T66 "+name, "solaris disk label", labelAt+at, sliced(0x83, putSolaris, change), says...)
	}
	return []hostile{
		row("VTOC of 17 slices", tableforge.VTOCSlices,
			func(l forge.Bytes) { l.U16(tableforge.VTOCSlices, 17); tableforge.SealVTOC(l) }, "slice count 17",
			"want at most 16"),
		row("VTOC of 65535 slices", tableforge.VTOCSlices,
			func(l forge.Bytes) { l.U16(tableforge.VTOCSlices, 65535); tableforge.SealVTOC(l) }, "slice count 65535"),
		row("VTOC with a wrong checksum", tableforge.VTOCChecksum,
			func(l forge.Bytes) { l.U16(tableforge.VTOCChecksum, 0x1234) }, "checksum 0x1234", "want 0x"),
		row("VTOC without the magic number", 508, func(l forge.Bytes) { l.U16(508, 0) }, "magic 0x00", "want 0xdabe"),
		{
			name: "T66 VTOC slice beyond 2^32", code: "unsupported", inspect: 3, copy: 4, report: true,
			says: []string{"Solaris"},
			image: sliced(0x83, putSolaris, func(l forge.Bytes) {
				l.U32(tableforge.VTOCMap+4, 1<<32-1)
				l.U32(tableforge.VTOCMap+8, 1<<32-1)
				tableforge.SealVTOC(l)
			}),
		},
	}
}

// TestFreeBSDMoves moves a FreeBSD whose label counts from the slice, and nothing in it changes. A sound Solaris is
// refused.
func TestFreeBSDMoves(t *testing.T) {
	t.Parallel()
	path := sliced(0xa5, putFreeBSD, func(forge.Bytes) {})(t, t.TempDir())
	dest := filepath.Join(t.TempDir(), "dest.raw")
	r := measure(t, []string{"align", path, dest})[0]
	require.Equal(t, 0, r.code, r.stderr)
	const size = volumeSectors * 512
	require.Equal(t, readAt(t, path, volumeAt, size), readAt(t, dest, 1<<20, size))
	require.Equal(t, partx(t, path, volumeStart), partx(t, dest, 2048))

	solaris := sliced(0xbf, putSolaris, func(forge.Bytes) {})(t, t.TempDir())
	require.Equal(t, 4, measure(t, []string{"align", solaris, dest + "2"})[0].code)
}

// partx is what libblkid finds inside of a partition, counted from its start.
func partx(t *testing.T, path string, start int64) []string {
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
