package vmdk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/klauspost/compress/zlib"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// streamTarget writes a streamOptimized file in the order of ovftool: header and descriptor, grains with each table
// behind the last of its grains, directory, footer. Memory holds the table in work and the directory, which has 8 MiB
// for 64 TiB.
//
// Grains have 64 KiB whatever those of the source: others are not written, and small ones compress badly.
type streamTarget struct {
	f         driver.WriteFile
	h         sparseHeader
	text      []byte
	next      int64 // sector of the next free place
	table     int64 // number of the table in work, -1 before the first
	work      [gtBytes]byte
	directory []uint32 // sectors of tables, up to the last that is written
	slots     driver.Slots
}

// maxDirectory is the largest directory that is written, in bytes: 128 TiB of disk in grains of 64 KiB.
const maxDirectory = 16 << 20

// packLevel compresses within 2 % of the best level at four times its speed.
const packLevel = 6

func newStreamTarget(f driver.WriteFile, size int64, text []byte) (*streamTarget, error) {
	h := sparseHeader{
		// Version 3 is what VMware and qemu-img write for this subformat.
		Version: 3, Flags: flagNewLine | flagCompressed | flagMarkers, CompressAlgo: deflate, GDOffset: gdAtEnd,
		Capacity: ondisk.U64(size / units.SectorSize), GrainSize: defaultGrain,
		DescriptorOffset: 1, NumGTEsPerGT: gtes, NewLine: [4]byte{'\n', ' ', '\r', '\n'},
	}
	copy(h.Magic[:], magicSparse)
	h.DescriptorSize = ondisk.U64(max(descriptorSectors, sectorsFor(int64(len(text)))))
	h.OverHead = ondisk.U64(units.AlignUp(ondisk.I64(h.DescriptorOffset+h.DescriptorSize), defaultGrain))
	if h.gdBytes() > maxDirectory {
		return nil, fmt.Errorf("streamOptimized of %d bytes: %w: its directory would have more than %d bytes", size,
			ondisk.ErrLimit, maxDirectory)
	}
	return &streamTarget{f: f, h: h, text: text, next: ondisk.I64(h.OverHead), table: -1}, nil
}

// Unit returns the grain.
func (t *streamTarget) Unit() int64 { return t.h.grainBytes() }

// packer compresses one grain at a time.
type packer struct {
	z   *zlib.Writer
	out bytes.Buffer
}

// packers are kept, since each has some 800 KiB.
var packers = sync.Pool{New: func() any {
	p := &packer{}
	z, err := zlib.NewWriterLevel(&p.out, packLevel)
	if err != nil {
		panic(err)
	}
	p.z = z
	return p
}}

// zeros fill up the last grain of a disk.
var zeros [defaultGrain * units.SectorSize]byte

// Pack makes of a grain what the file holds of it: marker, compressed data, and zeros to the end of a sector. A last
// grain that the end of the disk cuts is made whole: qemu-img and VMware take it cut too, others do not.
func (t *streamTarget) Pack(unit []byte, off int64) ([]byte, error) {
	p := packers.Get().(*packer) // there is nothing else in it
	defer packers.Put(p)
	p.out.Reset()
	p.z.Reset(&p.out)
	for _, b := range [][]byte{unit, zeros[:t.Unit()-int64(len(unit))]} {
		_, _ = p.z.Write(b) // Close returns its error
	}
	if err := p.z.Close(); err != nil {
		return nil, err
	}
	size := int64(p.out.Len())
	b := make([]byte, units.AlignUp(grainMarker+size, units.SectorSize))
	binary.LittleEndian.PutUint64(b, ondisk.U64(off/units.SectorSize))
	binary.LittleEndian.PutUint32(b[8:], ondisk.U32(size))
	copy(b[grainMarker:], p.out.Bytes())
	return b, nil
}

// Reserve gives a packed grain the next place of the file.
func (t *streamTarget) Reserve(off, n int64) error {
	grain := off / t.Unit()
	if grain/gtes != t.table {
		if err := t.flush(); err != nil {
			return err
		}
		t.table = grain / gtes
	}
	place := t.next
	if err := t.advance(n); err != nil {
		return err
	}
	t.slots.Add(off, n, place*units.SectorSize)
	binary.LittleEndian.PutUint32(t.work[4*(grain%gtes):], ondisk.U32(place))
	return nil
}

// advance takes n bytes, rounded up to sectors, from the free end of the file.
func (t *streamTarget) advance(n int64) error {
	t.next += sectorsFor(n)
	if t.next > math.MaxUint32 {
		return fmt.Errorf("streamOptimized: %w: more than 2 TiB of compressed data; choose --to vmdk:monolithicFlat "+
			"or raw", ondisk.ErrLimit)
	}
	return nil
}

// WriteAt writes a packed grain.
func (t *streamTarget) WriteAt(p []byte, off int64) (int, error) { return t.slots.WriteAt(t.f, p, off) }

// flush writes the table in work behind its grains. Only a table with a grain is ever in work.
func (t *streamTarget) flush() error {
	if t.table < 0 {
		return nil
	}
	place, err := t.metadata(markerTable, t.work[:])
	if err != nil {
		return err
	}
	for int64(len(t.directory)) < t.table {
		t.directory = append(t.directory, 0)
	}
	t.directory = append(t.directory, ondisk.U32(place))
	clear(t.work[:])
	return nil
}

// metadata writes a marker and what follows it, and gives the sector of the latter.
func (t *streamTarget) metadata(kind uint32, b []byte) (int64, error) {
	n := sectorsFor(int64(len(b)))
	out := make([]byte, (1+n)*units.SectorSize)
	binary.LittleEndian.PutUint64(out, ondisk.U64(n))
	binary.LittleEndian.PutUint32(out[12:], kind)
	copy(out[units.SectorSize:], b)
	place := t.next
	if err := t.advance(int64(len(out))); err != nil {
		return 0, err
	}
	_, err := t.f.WriteAt(out, place*units.SectorSize)
	return place + 1, err
}

// Finish ends the stream, and writes the header last: before that the file is no VMDK.
func (t *streamTarget) Finish() error {
	if err := t.flush(); err != nil {
		return err
	}
	gd := make([]byte, t.h.gdBytes())
	for i, sector := range t.directory {
		binary.LittleEndian.PutUint32(gd[4*i:], sector)
	}
	place, err := t.metadata(markerDirectory, gd)
	if err != nil {
		return err
	}
	foot := t.h
	foot.GDOffset = ondisk.U64(place)
	if _, err := t.metadata(markerFooter, foot.encode()); err != nil {
		return err
	}
	if _, err := t.metadata(markerEnd, nil); err != nil {
		return err
	}
	return t.h.seal(t.f, t.text)
}

// seal writes the descriptor, if there is one, and the header when all else is on the disk.
func (h *sparseHeader) seal(f driver.WriteFile, text []byte) error {
	if text != nil {
		if _, err := f.WriteAt(text, ondisk.I64(h.DescriptorOffset)*units.SectorSize); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if _, err := f.WriteAt(h.encode(), 0); err != nil {
		return err
	}
	return f.Sync()
}

func (h *sparseHeader) encode() []byte { return ondisk.Encode(binary.LittleEndian, h) }
