package vmdk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
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

// tally sums up grains in the order of the disk. Two tallies of the same grains at the same places are equal.
type tally struct {
	n   int64
	sum hash.Hash
}

func newTally() tally { return tally{sum: sha256.New()} }

func (t *tally) add(grain int64, sector uint32) {
	var b [12]byte
	binary.LittleEndian.PutUint64(b[:], ondisk.U64(grain))
	binary.LittleEndian.PutUint32(b[8:], sector)
	t.sum.Write(b[:])
	t.n++
}

func (t *tally) equal(o *tally) bool {
	return t.n == o.n && string(t.sum.Sum(nil)) == string(o.sum.Sum(nil))
}

// tables checks the tables of a stream against the grains in front of them. Each table stands behind the last of its
// grains.
type tables struct {
	work    [gtBytes]byte // what the next table must hold
	pending int64         // grains in work
	number  int64         // of the table in work
	places  []uint32      // sectors of the tables that were read, by number; 0 if absent
	empty   []uint32      // sectors of tables without a grain, which a directory may name or not
}

// grain takes note of a grain at a sector. at is the byte offset of its marker.
func (t *tables) grain(grain int64, sector uint32, at int64) error {
	n := grain / gtes
	if int64(len(t.places)) > n || t.pending > 0 && n != t.number {
		return fmt.Errorf("vmdk marker at %#x: a grain table that does not follow the last of its grains: %w from a "+
			"pipe; write it to a file first", at, ondisk.ErrUnsupported)
	}
	binary.LittleEndian.PutUint32(t.work[4*(grain%gtes):], sector)
	t.number = n
	t.pending++
	return nil
}

// metadata checks the length that a marker at a byte offset gives for n bytes that follow it.
func (s *stream) metadata(m marker, at, n int64) error {
	if want := ondisk.U64(sectorsFor(n)); m.Val != want {
		return markerErr(at, "number of sectors", m.Val, fmt.Sprintf("%d behind a marker of type %d", want, m.Type))
	}
	return nil
}

// readTable compares a table with the grains that came before it.
func (s *stream) readTable(m marker, at int64) error {
	if err := s.metadata(m, at, gtBytes); err != nil {
		return err
	}
	at = s.at
	var b [gtBytes]byte
	if err := s.full(b[:], "a grain table"); err != nil {
		return err
	}
	t := &s.tables
	for i := int64(0); i < gtBytes; i += 4 {
		got, want := binary.LittleEndian.Uint32(b[i:]), binary.LittleEndian.Uint32(t.work[i:])
		if got != want && (want != 0 || !s.h.isZero(got)) {
			return ondisk.Field("vmdk grain table", "entry", at+i, got,
				fmt.Sprintf("%d, where the grain lies that came before this table", want))
		}
	}
	sector, err := sectorOf(at)
	if err != nil {
		return err
	}
	return t.read(sector, at, s.h.tables())
}

// sectorOf returns the number of a sector as tables and directories have it.
func sectorOf(at int64) (uint32, error) {
	if at/units.SectorSize > math.MaxUint32 {
		return 0, markerErr(at, "place", at, "one below 2 TiB, which tables can name")
	}
	return ondisk.U32(at / units.SectorSize), nil
}

// read takes note of a table at a sector that agrees with its grains. most is how many tables there can be.
func (t *tables) read(sector uint32, at, most int64) error {
	if t.pending == 0 {
		if t.empty = append(t.empty, sector); int64(len(t.empty)) > most {
			return markerErr(at, "tables without a grain", len(t.empty),
				fmt.Sprintf("at most %d, the entries of the directory", most))
		}
		return nil
	}
	for int64(len(t.places)) < t.number {
		t.places = append(t.places, 0)
	}
	t.places = append(t.places, sector)
	clear(t.work[:])
	t.pending = 0
	return nil
}

// readDirectory compares the directory with the tables that were read.
func (s *stream) readDirectory(m marker, at int64) error {
	if err := s.metadata(m, at, s.h.gdBytes()); err != nil {
		return err
	}
	t := &s.tables
	if t.pending > 0 {
		return markerErr(at, "type", m.Type, fmt.Sprintf("the table (type 1) of the %d grains before", t.pending))
	}
	at = s.at
	s.gd = at / units.SectorSize
	var b [units.SectorSize]byte
	for i := range s.h.tables() {
		e := 4 * i % units.SectorSize
		if e == 0 {
			if err := s.full(b[:], "the grain directory"); err != nil {
				return err
			}
		}
		if err := t.entry(i, binary.LittleEndian.Uint32(b[e:]), at+4*i); err != nil {
			return err
		}
	}
	return nil
}

// entry checks what the directory says about table i. at is its byte offset.
func (t *tables) entry(i int64, got uint32, at int64) error {
	want := uint32(0)
	if i < int64(len(t.places)) {
		want = t.places[i]
	}
	if got == want {
		return nil
	}
	if _, ok := slices.BinarySearch(t.empty, got); ok && want == 0 {
		return nil
	}
	return ondisk.Field("vmdk grain directory", "entry", at, got, fmt.Sprintf("%d, where the grain table was", want))
}

// readFooter checks the footer against the header and the place of the directory.
func (s *stream) readFooter(m marker, at int64) error {
	if err := s.metadata(m, at, units.SectorSize); err != nil {
		return err
	}
	at = s.at
	if err := s.full(s.head[:], "the footer"); err != nil {
		return err
	}
	var foot sparseHeader
	if _, err := binary.Decode(s.head[:], binary.LittleEndian, &foot); err != nil {
		return fmt.Errorf("decode %T: %w", foot, err)
	}
	if err := s.h.checkFooter(&foot, at); err != nil {
		return err
	}
	if foot.GDOffset != ondisk.U64(s.gd) {
		return ondisk.Field("vmdk footer", "grain directory offset", at+atGD, foot.GDOffset,
			fmt.Sprintf("%d, where the directory was", s.gd))
	}
	s.footer = true
	return nil
}

// end returns io.EOF when all came that must, and nothing follows. qemu-img fills the file up with zeros.
func (s *stream) end() error {
	if s.front() && !s.seen.equal(&s.named) {
		return ondisk.In(ondisk.ErrFormat,
			"vmdk stream ends at %#x with %d grains, and its tables name %d, or other places: %w", s.at, s.seen.n,
			s.named.n, io.ErrUnexpectedEOF)
	}
	for padding := int64(0); ; padding++ {
		b, err := s.in.ReadByte()
		if err != nil {
			return err
		}
		if !s.front() || b != 0 || padding == maxPadding {
			return markerErr(s.at+padding, "data behind the end of the stream", []byte{b}, "nothing")
		}
	}
}
