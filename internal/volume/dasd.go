package volume

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// dasd finds the label of an IBM mainframe disk. It has no mark in the head, since most labels lie behind it.
var dasd = Prober{
	Kinds: []Traits{{Kind: DASD, Slices: "IBM DASD label", Foreign: true, NeverStale: true}},
	Probe: probeDASD,
}

// Labels of an IBM mainframe disk, big-endian. Spec: Linux, arch/s390/include/uapi/asm/vtoc.h, and
// block/partitions/ibm.c, which reads them so.
type (
	dasdCDL struct { // compatible disk layout: a table of contents
		Key, Label [4]byte
		Name       [6]byte
		_          byte
		VTOC       dasdTrack
		Block      byte // of the track, from 1
	}
	dasdLDL struct { // Linux disk layout: one partition
		Label   [4]byte
		Name    [6]byte
		_       [69]byte
		Version byte
		Blocks  uint64 // formatted, in version 2 of EBCDIC
	}
	dasdCMS struct { // CMS: one partition
		Label     [4]byte
		Name      [6]byte
		_         uint16
		BlockSize uint32
		_         [3]uint32
		Blocks    uint32
		_         [3]uint32
		_         [8]byte
		Offset    uint32 // blocks, of a reserved minidisk; else 0
	}
	// dasdEntry is a DSCB of format 1 or 8, up to its first extent.
	dasdEntry struct {
		Name   [44]byte
		Format byte
		_      [60]byte
		_      [2]byte
		First  dasdTrack
		Last   dasdTrack
	}
	// dasdTrack is cylinder and head; the upper 12 bits of the head are those of large cylinders.
	dasdTrack struct{ Cylinder, Head uint16 }
)

// A 3390, by which every DASD of Linux counts, has 15 tracks in a cylinder and 12 blocks of 4096 bytes in a track. An
// image does not say so.
const (
	dasdWhat   = "dasd label"
	dasdBlock  = 4096
	dasdTracks = 15
	dasdTrackB = 12 * dasdBlock // bytes
)

// Formats of a DSCB, and versions, are digits of EBCDIC.
const (
	ebcdic1 = 0xf1
	ebcdic2 = 0xf2
	ebcdic4 = 0xf4
	ebcdic5 = 0xf5
	ebcdic7 = 0xf7
	ebcdic8 = 0xf8
	ebcdic9 = 0xf9
)

func (t dasdTrack) bytes() int64 {
	cylinder := int64(t.Head&0xfff0)<<12 | int64(t.Cylinder)
	return (cylinder*dasdTracks + int64(t.Head&0x000f)) * dasdTrackB
}

// probeDASD looks where Linux does without the device: in sector 1, block 1 and block 2, of blocks of 512 and 4096
// bytes.
func probeDASD(d disk.Disk) (*Volume, error) {
	for _, at := range []struct{ off, block int64 }{
		{512, 512},
		{1024, 512},
		{4096, dasdBlock},
		{2 * dasdBlock, dasdBlock},
	} {
		b, err := ReadBlock(d, at.off, 4)
		switch {
		case err != nil:
			return nil, err // a smaller disk has none of the places behind
		case ebcdic(b) == "VOL1" && at.off == 2*dasdBlock:
			return probeCDL(d)
		case ebcdic(b) == "LNX1":
			return probeLDL(d, at.off, at.block)
		case ebcdic(b) == "CMS1":
			return probeCMS(d, at.off)
		}
	}
	return nil, ondisk.ErrNoMatch
}

// probeCDL lists the data sets of the table of contents, which begins with a DSCB of format 4.
func probeCDL(d disk.Disk) (*Volume, error) {
	var l dasdCDL
	if _, err := Superblock(d, 2*dasdBlock, binary.BigEndian, &l); err != nil {
		return nil, err
	}
	if ebcdic(l.Label[:]) != "VOL1" {
		return nil, ondisk.ErrNoMatch
	}
	v := newDASD(d, "CDL (VOL1)", l.Name[:])
	first := l.VTOC.bytes() + (int64(l.Block)-1)*dasdBlock
	for i := range int64(maxEntries) {
		var e dasdEntry
		at := first + i*dasdBlock
		_, err := Superblock(d, at, binary.BigEndian, &e)
		switch {
		case i == 0 && (errors.Is(err, ondisk.ErrNoMatch) || (err == nil && e.Format != ebcdic4)):
			return v, ondisk.Field(dasdWhat, "place of the table of contents", 2*dasdBlock+15,
				fmt.Sprintf("byte %d", at), "a DSCB of format 4, by the geometry of a 3390 with blocks of 4096 bytes")
		case errors.Is(err, ondisk.ErrNoMatch):
			return v, nil
		case err != nil:
			return nil, err
		case e.Format == ebcdic4 || e.Format == ebcdic5 || e.Format == ebcdic7 || e.Format == ebcdic9:
			continue
		case e.Format != ebcdic1 && e.Format != ebcdic8:
			return v, nil
		}
		start := e.First.bytes()
		dataset(v, at+107, ebcdic(e.Name[:]), start, e.Last.bytes()+dasdTrackB-start)
	}
	return v, nil
}

func probeLDL(d disk.Disk, at, block int64) (*Volume, error) {
	var l dasdLDL
	if _, err := Superblock(d, at, binary.BigEndian, &l); err != nil {
		return nil, err
	}
	v := newDASD(d, "LDL (LNX1)", l.Name[:])
	end := d.Size()
	if l.Version == ebcdic2 {
		if err := BlocksWithin(dasdWhat, "formatted blocks", at+80, l.Blocks, block, d.Size()); err != nil {
			return v, err
		}
		end = ondisk.I64(l.Blocks) * block
	}
	dataset(v, at+80, "", at+block, end-at-block)
	return v, nil
}

func probeCMS(d disk.Disk, at int64) (*Volume, error) {
	var l dasdCMS
	if _, err := Superblock(d, at, binary.BigEndian, &l); err != nil {
		return nil, err
	}
	v := newDASD(d, "CMS (CMS1)", l.Name[:])
	block := int64(l.BlockSize)
	if !PowerBetween(block, 512, dasdBlock) {
		return v, ondisk.Field(dasdWhat, "block size", at+12, l.BlockSize, "512, 1024, 2048 or 4096")
	}
	start, blocks := at+block, int64(l.Blocks)
	switch {
	case l.Offset != 0:
		start, blocks = int64(l.Offset)*block, blocks-1
	case at == units.SectorSize:
		start = 2 * block
	}
	dataset(v, at+28, "", start, blocks*block-start)
	return v, nil
}

func newDASD(d disk.Disk, layout string, name []byte) *Volume {
	v := newTable(DASD, d)
	v.Label = ebcdic(name)
	v.Addf("layout", "%s", layout)
	return v
}

// dataset adds a partition, numbered as Linux does. Its place stands at byte off.
func dataset(v *Volume, off int64, name string, start, size int64) {
	entry(v, dasdWhat, off, Part{Name: strconv.Itoa(len(v.Parts) + 1), Kind: name, Start: start, Size: size})
}

// ebcdic returns a name in capitals, digits and the marks that data sets have; other characters are question marks.
func ebcdic(b []byte) string {
	marks := map[byte]byte{0x40: ' ', 0x4b: '.', 0x5b: '$', 0x60: '-', 0x7b: '#', 0x7c: '@', 0x00: ' '}
	out := make([]byte, len(b))
	for i, c := range b {
		low := c & 0x0f
		switch mark, ok := marks[c]; {
		case ok:
			out[i] = mark
		case c >= 0xf0 && low <= 9:
			out[i] = '0' + low
		case c >= 0xe0 && c < 0xf0 && low >= 2 && low <= 9:
			out[i] = 'S' + low - 2
		case c >= 0xd0 && c < 0xe0 && low >= 1 && low <= 9:
			out[i] = 'J' + low - 1
		case c >= 0xc0 && c < 0xd0 && low >= 1 && low <= 9:
			out[i] = 'A' + low - 1
		default:
			out[i] = '?'
		}
	}
	return strings.TrimRight(string(out), " ")
}
