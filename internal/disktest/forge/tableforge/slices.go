package tableforge

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Places in a BSD disklabel. Spec: FreeBSD, sys/sys/disk/bsd.h.
const (
	BSDSectorSize = 40
	BSDVersion    = 114 // OpenBSD
	BSDChecksum   = 136
	BSDCount      = 138
	BSDMap        = 148
)

// Slice is one entry of a disklabel or of a VTOC, in sectors. An unused one has no sectors.
type Slice struct {
	Start, Sectors uint32
	Type           uint8
}

// PutDisklabel writes a BSD disklabel at a byte offset.
func PutDisklabel(f forge.Bytes, at int64, slices ...Slice) {
	l := f[at:]
	l.U32(0, 0x82564557)
	l.U32(BSDSectorSize, 512)
	l.U32(132, 0x82564557)
	l.U16(BSDCount, uint16(len(slices)))
	for i, s := range slices {
		e := l[BSDMap+16*i:]
		e.U32(0, s.Sectors)
		e.U32(4, s.Start)
		e.U8(12, s.Type)
	}
	SealDisklabel(l)
}

// SealDisklabel makes the checksum right, as far as the count leads into the image.
func SealDisklabel(f forge.Bytes) {
	f.U16(BSDChecksum, 0)
	n := BSDMap + 16*int(binary.LittleEndian.Uint16(f[BSDCount:]))
	f.U16(BSDChecksum, xor16(f[:min(n, len(f))], binary.LittleEndian))
}

func xor16(b []byte, order binary.ByteOrder) uint16 {
	sum := uint16(0)
	for ; len(b) >= 2; b = b[2:] {
		sum ^= order.Uint16(b)
	}
	return sum
}

// Places in the disk label of Solaris on a PC. Spec: illumos, usr/src/uts/common/sys/dklabel.h.
const (
	VTOCSlices   = 30
	VTOCMap      = 72
	VTOCChecksum = 510
)

// PutVTOC writes the disk label of Solaris x86 into sector 1 of a partition.
func PutVTOC(f forge.Bytes, lba int64, slices ...Slice) {
	l := f[(lba+1)*512:]
	l.U32(12, 0x600ddeee)
	l.U32(16, 1)
	l.U16(28, 512)
	l.U16(VTOCSlices, uint16(len(slices)))
	for i, s := range slices {
		e := l[VTOCMap+12*i:]
		e.U16(0, uint16(s.Type))
		e.U32(4, s.Start)
		e.U32(8, s.Sectors)
	}
	l.Text(328, "DEFAULT cyl 3 alt 2 hd 255 sec 63")
	l.U16(508, 0xdabe)
	SealVTOC(l)
}

// SealVTOC makes the checksum right.
func SealVTOC(f forge.Bytes) {
	f.U16(VTOCChecksum, 0)
	f.U16(VTOCChecksum, xor16(f[:512], binary.LittleEndian))
}
