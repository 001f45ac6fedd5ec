package vmdk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"

	"github.com/klauspost/compress/zlib"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// marker precedes each grain and all later metadata of a streamOptimized file. Spec: Virtual Disk Format 1.1,
// "Stream-Optimized Compressed Sparse Extents".
type marker struct {
	Val  uint64 // of a grain: its first sector on the disk; otherwise the number of sectors behind the marker
	Size uint32 // of a grain: bytes of compressed data; otherwise 0
	Type uint32 // absent for a grain, whose data begin here
}

// Types of metadata markers.
const (
	markerEnd       = 0
	markerTable     = 1
	markerDirectory = 2
	markerFooter    = 3
)

const (
	grainMarker   = 12      // bytes of a grain's marker
	unpackedCache = 4 << 20 // bytes of decompressed grains kept in memory
	endSectors    = 3       // footer marker, footer, and end-of-stream marker
)

func markerErr(off int64, name string, got, want any) error {
	return ondisk.Field("vmdk marker", name, off, got, want)
}

func decodeMarker(b []byte) marker {
	return marker{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}
}

// checkSize limits the compressed size of a grain. Deflate adds only a few bytes to incompressible data, so twice the
// grain is far above the output of any program.
func (h *sparseHeader) checkSize(size uint32, off int64) error {
	if most := 2 * h.grainBytes(); size == 0 || int64(size) > most {
		return markerErr(off, "size", size, fmt.Sprintf("1 to %d bytes for a grain of %d", most, h.grainBytes()))
	}
	return nil
}

// cut returns the number of bytes of a grain on the disk, less than a whole grain only for the last.
func (h *sparseHeader) cut(grain int64) int64 {
	return min(h.grainBytes(), ondisk.I64(h.Capacity)*units.SectorSize-grain*h.grainBytes())
}

// checkFooter compares the footer with the header. The footer is a copy of the header with the offset of the directory.
func (h *sparseHeader) checkFooter(foot *sparseHeader, off int64) error {
	bad := func(name string, at int64, got, want any) error {
		return ondisk.Field("vmdk footer", name, off+at, got, want)
	}
	switch {
	case foot.Magic != h.Magic:
		return bad("magic", 0, foot.Magic[:], fmt.Sprintf("% x", h.Magic))
	case foot.Version != h.Version:
		return bad("version", atVersion, foot.Version, fmt.Sprintf("%d, as in the header", h.Version))
	case foot.Flags != h.Flags:
		return bad("flags", atFlags, fmt.Sprintf("%#x", foot.Flags), fmt.Sprintf("%#x, as in the header", h.Flags))
	case foot.Capacity != h.Capacity:
		return bad("capacity", atCap, foot.Capacity, fmt.Sprintf("%d, as in the header", h.Capacity))
	case foot.GrainSize != h.GrainSize:
		return bad("grain size", atGrain, foot.GrainSize, fmt.Sprintf("%d, as in the header", h.GrainSize))
	case foot.NumGTEsPerGT != h.NumGTEsPerGT:
		return bad("numGTEsPerGT", atGTEs, foot.NumGTEsPerGT, fmt.Sprintf("%d, as in the header", h.NumGTEsPerGT))
	case foot.CompressAlgo != h.CompressAlgo:
		return bad("compressAlgorithm", atCompress, foot.CompressAlgo,
			fmt.Sprintf("%d, as in the header", h.CompressAlgo))
	case foot.GDOffset == gdAtEnd:
		return bad("grain directory offset", atGD, foot.GDOffset,
			"the sector of the directory: there is nothing behind the footer")
	}
	return nil
}

// inflater decompresses one grain at a time.
type inflater struct {
	packed []byte // buffer for compressed data
	in     bytes.Reader
	out    io.ReadCloser
}

// inflaters reuses inflaters, with tables of some 40 KiB each.
var inflaters = sync.Pool{New: func() any {
	// Use an empty stream: NewReader requires a valid one.
	r, err := zlib.NewReader(bytes.NewReader([]byte{0x78, 0x9c, 3, 0, 0, 0, 0, 1}))
	if err != nil {
		panic(err)
	}
	return &inflater{out: r}
}}

var errTooLong = errors.New("more bytes than a grain has")

// atEnd returns io.EOF at the end of the stream if the checksum is right. It never decompresses more than one byte.
func (i *inflater) atEnd() error {
	var more [1]byte
	for {
		n, err := i.out.Read(more[:])
		if n > 0 {
			return errTooLong
		}
		if err != nil {
			return err
		}
	}
}

// inflate decompresses packed into dst, a whole grain. The last grain of a disk may end at the end of the disk instead:
// cut is then its size in bytes. off is the file offset of packed.
func (i *inflater) inflate(dst, packed []byte, cut, off int64) error {
	bad := func(field string, got any) error {
		return ondisk.Field("vmdk grain", field, off, got,
			fmt.Sprintf("zlib data of %d bytes that end in their checksum", len(dst)))
	}
	i.in.Reset(packed)
	err := i.out.(zlib.Resetter).Reset(&i.in, nil) // guaranteed by zlib.NewReader
	n := 0
	for n < len(dst) && err == nil {
		var m int
		m, err = i.out.Read(dst[n:])
		n += m
	}
	if err == nil {
		err = i.atEnd()
	}
	if !errors.Is(err, io.EOF) {
		return bad("compressed data", err)
	}
	if n < len(dst) && int64(n) != cut {
		return bad("unpacked size", n)
	}
	clear(dst[n:])
	rest := packed[len(packed)-i.in.Len():]
	if len(rest) >= int(units.SectorSize) || !ondisk.IsZero(rest) {
		return bad("bytes behind the data", len(rest))
	}
	return nil
}

// readFooter reads the directory offsets from the footer if the header refers to it. The file ends with three sectors:
// footer marker, footer, end-of-stream marker.
func (x *sparse) readFooter() error {
	if x.h.GDOffset != gdAtEnd {
		return nil
	}
	size := x.file.Size()
	start := size - endSectors*units.SectorSize
	if size%units.SectorSize != 0 || start < units.SectorSize {
		return field("file size", 0, size, "whole sectors that end in a footer: the file is cut short")
	}
	b, err := ondisk.Bytes(x.file, start, endSectors*units.SectorSize)
	if err != nil {
		return err
	}
	if m := decodeMarker(b); m != (marker{1, 0, markerFooter}) {
		return markerErr(start, "footer", b[:16],
			"the marker of a footer (value 1, size 0, type 3) 1536 bytes before the end: the file is cut short or "+
				"has something behind its end")
	}
	last := size - units.SectorSize
	if m := decodeMarker(b[last-start:]); m != (marker{}) {
		return markerErr(last, "end of stream", b[last-start:][:16], "zeros in the last sector")
	}
	var foot sparseHeader
	ondisk.Fill(b[units.SectorSize:], binary.LittleEndian, &foot)
	if err := x.h.checkFooter(&foot, start+units.SectorSize); err != nil {
		return err
	}
	x.h.GDOffset, x.h.RGDOffset = foot.GDOffset, foot.RGDOffset
	return x.h.checkPlaces(size)
}

// unpack decompresses a grain of a streamOptimized file into dst.
func (x *sparse) unpack(dst []byte, grain int64) error {
	loc, _, err := x.table(grain / gtes)
	if err != nil {
		return err
	}
	at := loc + 4*(grain%gtes)
	sector, err := x.tabs.U32(at)
	if err != nil {
		return err
	}
	if err := x.checkGrain(uint64(sector), grain, at); err != nil {
		return err
	}
	off := int64(sector) * units.SectorSize
	size, err := x.grainAt(off, grain)
	if err != nil {
		return err
	}
	i := inflaters.Get().(*inflater) // the pool holds nothing else
	defer inflaters.Put(i)
	i.packed = slices.Grow(i.packed[:0], int(size))[:size]
	if err := ondisk.ReadFull(x.file, i.packed, off+grainMarker); err != nil {
		return err
	}
	return i.inflate(dst, i.packed, x.h.cut(grain), off+grainMarker)
}

// grainAt checks the marker of a grain at byte offset off of the file, and returns the size of its data.
func (x *sparse) grainAt(off, grain int64) (int64, error) {
	var b [grainMarker]byte
	if err := ondisk.ReadFull(x.file, b[:], off); err != nil {
		return 0, err
	}
	lba, size := binary.LittleEndian.Uint64(b[:]), binary.LittleEndian.Uint32(b[8:])
	if want := ondisk.U64(grain) * x.h.GrainSize; lba != want {
		return 0, markerErr(off, "lba", lba, fmt.Sprintf("%d, as the grain table says", want))
	}
	if err := x.h.checkSize(size, off+8); err != nil {
		return 0, err
	}
	if rest := x.file.Size() - off - grainMarker; int64(size) > rest {
		return 0, markerErr(off+8, "size", size, fmt.Sprintf("at most the %d bytes to the end of the file", rest))
	}
	return int64(size), nil
}

// streamTarget writes a streamOptimized file in the order of ovftool: header and descriptor, grains with each table
// behind its last grain, directory, footer. Memory holds the current table and the directory, 8 MiB for 64 TiB.
//
// Grains have 64 KiB for every source: no other size is in use, and small grains compress badly.
type streamTarget struct {
	f         driver.WriteFile
	h         sparseHeader
	text      []byte
	next      int64 // first free sector
	table     int64 // current table, -1 before the first
	work      [gtBytes]byte
	directory []uint32 // sectors of the tables written so far
	slots     driver.Slots
}

// maxDirectory limits the directory of a new file, in bytes: 128 TiB of disk in grains of 64 KiB.
const maxDirectory = 16 << 20

// packLevel compresses within 2 % of the best level, at four times its speed.
const packLevel = 6

func newStreamTarget(f driver.WriteFile, size int64, text []byte) (*streamTarget, error) {
	h := sparseHeader{
		// VMware and qemu-img write version 3 for this subformat.
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

// Unit returns the grain size.
func (t *streamTarget) Unit() int64 { return t.h.grainBytes() }

// packer compresses one grain at a time.
type packer struct {
	z   *zlib.Writer
	out bytes.Buffer
}

// packers reuses packers, of some 800 KiB each.
var packers = sync.Pool{New: func() any {
	p := &packer{}
	z, err := zlib.NewWriterLevel(&p.out, packLevel)
	if err != nil {
		panic(err)
	}
	p.z = z
	return p
}}

// zeros pads the last grain of a disk.
var zeros [defaultGrain * units.SectorSize]byte

// Pack encodes a grain: marker, compressed data, and zeros to the end of a sector. It pads a last grain that is cut by
// the end of the disk: qemu-img and VMware also read it cut, other programs do not.
func (t *streamTarget) Pack(unit []byte, off int64) ([]byte, error) {
	p := packers.Get().(*packer) // the pool holds nothing else
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

// Reserve assigns the next place in the file to a packed grain.
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

// advance allocates n bytes, rounded up to sectors, at the end of the file.
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

// flush writes the current table behind its grains. The current table always has a grain.
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

// metadata writes a marker and its data b, and returns the sector of the data.
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

// Finish writes directory, footer and end marker, and the header last: before that the file is no VMDK.
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

// seal writes the descriptor, if any, syncs the file, and then writes the header.
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
