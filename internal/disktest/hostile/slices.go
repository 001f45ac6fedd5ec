//go:build linux || windows

package hostile

import (
	"fmt"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// labelAt is the offset of a disklabel or a VTOC in a partition of these tests.
const labelAt = 512

// sliced is a disk with one partition divided by a label. Offsets of change are relative to the label.
func sliced(kind byte, put func(disk forge.Bytes), change func(label forge.Bytes)) Writer {
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

func brokenDisklabels() []Row {
	row := func(name string, at int64, change func(forge.Bytes), says ...string) Row {
		return brokenVolume("T66 "+name, "bsd disklabel", labelAt+at, sliced(0xa5, putFreeBSD, change), says...)
	}
	var out []Row
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
		out = append(out, kept("T66 "+name, "unsupported",
			sliced(0xa5, putFreeBSD, func(l forge.Bytes) { change(l); tableforge.SealDisklabel(l) }),
			"slice a of the disklabel", "is not inside"))
	}
	return append(out, kept("T66 sectors of 4096 bytes", "unsupported",
		sliced(0xa5, putFreeBSD, func(l forge.Bytes) { // c exceeds the slice
			l.U32(tableforge.BSDSectorSize, 4096)
			tableforge.SealDisklabel(l)
		}), "0xa5", "disklabel whose offsets are absolute"), kept("T66 offsets of 48 bits", "unsupported",
		sliced(0xa5, putFreeBSD, func(l forge.Bytes) {
			l.U16(tableforge.BSDVersion, 1)
			l.U32(tableforge.BSDSectorSize, 4096)
			for i := range int64(3) {
				l.Put(tableforge.BSDMap+16*i, []byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x07"))
			}
			tableforge.SealDisklabel(l)
		}), "0xa5", "disklabel whose offsets are absolute"))
}

func brokenVTOCs() []Row {
	row := func(name string, at int64, change func(forge.Bytes), says ...string) Row {
		return brokenVolume("T66 "+name, "solaris disk label", labelAt+at, sliced(0x83, putSolaris, change), says...)
	}
	return []Row{
		row("VTOC of 17 slices", tableforge.VTOCSlices,
			func(l forge.Bytes) { l.U16(tableforge.VTOCSlices, 17); tableforge.SealVTOC(l) }, "slice count 17",
			"want at most 16"),
		row("VTOC of 65535 slices", tableforge.VTOCSlices,
			func(l forge.Bytes) { l.U16(tableforge.VTOCSlices, 65535); tableforge.SealVTOC(l) }, "slice count 65535"),
		row("VTOC with a wrong checksum", tableforge.VTOCChecksum,
			func(l forge.Bytes) { l.U16(tableforge.VTOCChecksum, 0x1234) }, "checksum 0x1234", "want 0x"),
		row("VTOC without the magic number", 508, func(l forge.Bytes) { l.U16(508, 0) }, "magic 0x00", "want 0xdabe"),
		kept("T66 VTOC slice beyond 2^32", "unsupported", sliced(0x83, putSolaris, func(l forge.Bytes) {
			l.U32(tableforge.VTOCMap+4, 1<<32-1)
			l.U32(tableforge.VTOCMap+8, 1<<32-1)
			tableforge.SealVTOC(l)
		}), "Solaris"),
	}
}
