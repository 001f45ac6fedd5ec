package vmdk

import (
	"bufio"
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

const (
	maxDirectory = 16 << 20 // bytes of a directory: 128 TiB of disk in grains of 64 KiB
	maxFront     = 4 << 20  // bytes in front of the first grain where they hold no tables
	maxPadding   = maxGrain * units.SectorSize
)

// stream reads a streamOptimized file from front to back. There are two kinds of it. Those that were written to a
// pipe have their tables behind the grains and a footer at the end. Those that were written to a file (by
// vmware-vdiskmanager, qemu-img and open-vmdk) have them in front, and no footer.
type stream struct {
	in   *bufio.Reader
	at   int64 // byte offset of the next byte of in
	h    sparseHeader
	text *descriptor
	gd   int64 // sector of the directory, 0 until it has been read

	head   [units.SectorSize]byte // of the piece in work: it begins with a marker
	unpack *inflater
	grain  []byte // the last grain, unpacked
	last   int64  // its number, -1 before the first
	footer bool   // has been read

	tables   tables
	named    tally // grains that tables in front name
	seen     tally // grains that were read
	finished error // what every further call gives
}

// openStream begins to read what comes through a pipe.
func openStream(r io.Reader) (*driver.Stream, error) {
	s := &stream{
		in: bufio.NewReaderSize(r, 256<<10), last: -1, unpack: newInflater(), named: newTally(), seen: newTally(),
	}
	if err := s.readHeader(); err != nil {
		return nil, err
	}
	if err := s.readFront(); err != nil {
		return nil, err
	}
	img, err := s.h.image(s.text, nil)
	if err != nil {
		return nil, err
	}
	s.grain = make([]byte, s.h.grainBytes())
	return &driver.Stream{Image: *img, Size: ondisk.I64(s.h.Capacity) * units.SectorSize, Next: s.next}, nil
}

func (s *stream) readHeader() error {
	n, err := io.ReadFull(s.in, s.head[:])
	s.at = int64(n)
	head := s.head[:n]
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if !bytes.HasPrefix(head, []byte(magicSparse)) {
		return notStreamed(otherKind(head))
	}
	if err != nil {
		return s.early("the header")
	}
	if _, err := binary.Decode(head, binary.LittleEndian, &s.h); err != nil {
		return fmt.Errorf("decode %T: %w", s.h, err)
	}
	if !s.h.packed() && s.h.GDOffset != gdAtEnd {
		return notStreamed("a sparse VMDK that is not compressed")
	}
	return s.h.check(math.MaxInt64)
}

// otherKind names what begins with other bytes than a sparse file.
func otherKind(head []byte) string {
	switch {
	case bytes.HasPrefix(head, []byte(magicCOWD)):
		return "a vmfsSparse VMDK (COWD)"
	case isSESparse(head):
		return "an seSparse VMDK"
	case isDescriptor(head):
		return "a VMDK descriptor, whose data are in other files"
	}
	return fmt.Sprintf("no VMDK (it begins with the bytes % x)", head[:min(len(head), 4)])
}

func notStreamed(kind string) error {
	return fmt.Errorf("the input is %s: %w from a pipe, only a streamOptimized VMDK can be read front to back; write "+
		"it to a file first",
		kind, ondisk.ErrUnsupported)
}

// early returns the error of an input that ends where more must follow.
func (s *stream) early(where string) error {
	return ondisk.In(ondisk.ErrFormat, "vmdk stream ends early, at %#x in %s: %w", s.at, where, io.ErrUnexpectedEOF)
}

// full fills b with the next bytes.
func (s *stream) full(b []byte, where string) error {
	n, err := io.ReadFull(s.in, b)
	s.at += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return s.early(where)
	}
	return err
}

// skipTo passes over what stands in front of a sector.
func (s *stream) skipTo(sector uint64, where string) error {
	to := ondisk.I64(sector) * units.SectorSize
	if to < s.at {
		return fmt.Errorf("the stream has %s at %#x, in front of what leads there: %w from a pipe; write it to a "+
			"file first", where, to, ondisk.ErrUnsupported)
	}
	n, err := io.CopyN(io.Discard, s.in, to-s.at)
	s.at += n
	if errors.Is(err, io.EOF) {
		return s.early("front of " + where)
	}
	return err
}

// readFront reads what stands in front of the first grain: the descriptor, and tables if they are here.
func (s *stream) readFront() error {
	const most = math.MaxInt64 / uint64(units.SectorSize)
	switch {
	case s.h.gdBytes() > maxDirectory:
		return fmt.Errorf("vmdk stream of %d sectors: %w: its directory has more than %d bytes; write it to a file "+
			"first", s.h.Capacity, ondisk.ErrLimit, maxDirectory)
	case s.h.OverHead == 0 || s.h.OverHead > most:
		return field("overHead", atOverHead, s.h.OverHead, fmt.Sprintf("1 to %d sectors", most))
	case !s.front() && s.h.OverHead > maxFront/uint64(units.SectorSize):
		return field("overHead", atOverHead, s.h.OverHead,
			fmt.Sprintf("at most %d sectors where the tables are at the end", maxFront/units.SectorSize))
	case s.h.DescriptorOffset == 0:
		return ondisk.Field(what, "text", 0, 0, "a descriptor inside of the stream")
	}
	if err := s.skipTo(s.h.DescriptorOffset, "the descriptor"); err != nil {
		return err
	}
	text := make([]byte, ondisk.I64(s.h.DescriptorSize)*units.SectorSize) // check holds it below maxText
	err := s.full(text, "the descriptor")
	if err != nil {
		return err
	}
	if s.text, err = parseDescriptor(text); err != nil {
		return err
	}
	if err := s.h.checkText(s.text); err != nil {
		return err
	}
	if err := s.refuseParent(); err != nil {
		return err
	}
	if s.front() {
		if err := s.readTables(); err != nil {
			return err
		}
	}
	return s.skipTo(s.h.OverHead, "the first grain")
}

// refuseParent wants a complete disk: a pipe has no folder in which a parent could be.
func (s *stream) refuseParent() error {
	ref, err := s.text.parentRef()
	if err == nil && ref != nil {
		err = fmt.Errorf("the input is a snapshot child of %.256q: %w from a pipe; write it to a file beside its "+
			"parent first", ref.Names[0], ondisk.ErrUnsupported)
	}
	return err
}

// front reports whether the tables stand in front of the grains.
func (s *stream) front() bool { return s.h.GDOffset != gdAtEnd }

// readTables sums up what the tables in front name, to know later whether all of it came.
func (s *stream) readTables() error {
	if err := s.skipTo(s.h.GDOffset, "the grain directory"); err != nil {
		return err
	}
	gd := make([]byte, s.h.gdBytes())
	if err := s.full(gd, "the grain directory"); err != nil {
		return err
	}
	var table [gtBytes]byte
	for i := range s.h.tables() {
		sector := binary.LittleEndian.Uint32(gd[4*i:])
		if sector == 0 {
			continue
		}
		if uint64(sector)+gtBytes/uint64(units.SectorSize) > s.h.OverHead {
			return ondisk.Field("vmdk grain directory", "entry", ondisk.I64(s.h.GDOffset)*units.SectorSize+4*i, sector,
				fmt.Sprintf("0, or the sector of a grain table in front of the first grain at sector %d", s.h.OverHead))
		}
		if err := s.skipTo(uint64(sector), "a grain table"); err != nil {
			return err
		}
		if err := s.full(table[:], "a grain table"); err != nil {
			return err
		}
		for j := range min(gtes, s.h.grains()-i*gtes) {
			if e := binary.LittleEndian.Uint32(table[4*j:]); !s.h.isZero(e) {
				s.named.add(i*gtes+j, e)
			}
		}
	}
	return nil
}

// next returns the next grain.
func (s *stream) next() (int64, []byte, error) {
	if s.finished != nil {
		return 0, nil, s.finished
	}
	n, err := s.step()
	for err == nil && n == nil {
		n, err = s.step()
	}
	if err != nil {
		s.finished = err
		return 0, nil, err
	}
	return s.last * s.h.grainBytes(), n, nil
}

// step reads a marker and what belongs to it; a grain is the only thing that it gives.
func (s *stream) step() ([]byte, error) {
	if s.front() {
		if _, err := s.in.Peek(1); errors.Is(err, io.EOF) {
			return nil, s.end() // qemu-img writes no end of its own
		}
	}
	at := s.at
	if err := s.full(s.head[:], "front of the marker of the end"); err != nil {
		return nil, err
	}
	m := decodeMarker(s.head[:])
	switch {
	case m.Size > 0:
		return s.readGrain(m, at)
	case m.Type == markerEnd && m.Val == 0 && (s.front() || s.footer):
		return nil, s.end()
	case s.front() || s.footer:
		return nil, markerErr(at, "type", m.Type,
			"the end of the stream (value, size and type 0), or a grain where the tables are in front")
	case m.Type == markerTable && s.gd == 0:
		return nil, s.readTable(m, at)
	case m.Type == markerDirectory && s.gd == 0:
		return nil, s.readDirectory(m, at)
	case m.Type == markerFooter && s.gd != 0:
		return nil, s.readFooter(m, at)
	}
	return nil, markerErr(at, "type", m.Type,
		"grains and their tables (1), one directory (2), a footer (3), and the end (0), in this order")
}

// readGrain unpacks a grain whose marker has been read at a byte offset.
func (s *stream) readGrain(m marker, at int64) ([]byte, error) {
	switch {
	case s.gd != 0:
		return nil, markerErr(at, "size", m.Size, "0: behind the directory there is no grain")
	case m.Val%s.h.GrainSize != 0 || m.Val >= s.h.Capacity:
		return nil, markerErr(at, "lba", m.Val,
			fmt.Sprintf("a multiple of the %d sectors of a grain below the capacity of %d", s.h.GrainSize,
				s.h.Capacity))
	case ondisk.I64(m.Val/s.h.GrainSize) <= s.last:
		return nil, markerErr(at, "lba", m.Val,
			fmt.Sprintf("more than the %d of the grain before", ondisk.U64(s.last)*s.h.GrainSize))
	}
	if err := s.h.checkSize(m.Size, at+8); err != nil {
		return nil, err
	}
	b := s.unpack.buffer(units.AlignUp(grainMarker+int64(m.Size), units.SectorSize))
	if err := s.full(b[copy(b, s.head[:]):], "a grain"); err != nil {
		return nil, err
	}
	s.last = ondisk.I64(m.Val / s.h.GrainSize)
	cut := s.h.cut(s.last)
	if err := s.unpack.inflate(s.grain, b[grainMarker:grainMarker+int64(m.Size)], cut, at+grainMarker); err != nil {
		return nil, err
	}
	return s.grain[:cut], s.note(at)
}

// note remembers where the last grain lies, for the tables.
func (s *stream) note(at int64) error {
	sector, err := sectorOf(at)
	if err != nil {
		return err
	}
	if s.front() {
		s.seen.add(s.last, sector)
		return nil
	}
	return s.tables.grain(s.last, sector, at)
}

// marker stands in front of each grain, and of all else that follows the first grain of a streamOptimized file. Spec:
// Virtual Disk Format 1.1, "Stream-Optimized Compressed Sparse Extents".
type marker struct {
	Val  uint64 // of a grain: its first sector on the disk; else the number of sectors that follow the marker's own
	Size uint32 // of a grain: bytes of compressed data; else 0
	Type uint32 // a grain has none: its data begin here
}

// Types of markers that are no grain's.
const (
	markerEnd       = 0
	markerTable     = 1
	markerDirectory = 2
	markerFooter    = 3
)

const (
	grainMarker   = 12      // bytes of a grain's marker
	unpackedCache = 4 << 20 // bytes of unpacked grains kept in memory
	endSectors    = 3       // a footer's marker, the footer, and the end of the stream
)

func markerErr(off int64, name string, got, want any) error {
	return ondisk.Field("vmdk marker", name, off, got, want)
}

func decodeMarker(b []byte) marker {
	return marker{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}
}

// checkSize bounds the compressed data of a grain. Deflate adds a few bytes to what it cannot make smaller, so twice
// the grain is far more than any program writes.
func (h *sparseHeader) checkSize(size uint32, off int64) error {
	if most := 2 * h.grainBytes(); size == 0 || int64(size) > most {
		return markerErr(off, "size", size, fmt.Sprintf("1 to %d bytes for a grain of %d", most, h.grainBytes()))
	}
	return nil
}

// cut returns how many bytes of a grain lie on the disk: less than a whole one only for the last.
func (h *sparseHeader) cut(grain int64) int64 {
	return min(h.grainBytes(), ondisk.I64(h.Capacity)*units.SectorSize-grain*h.grainBytes())
}

// checkFooter checks the footer, a copy of the header that knows where the directory is, against the header.
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

// inflater unpacks one grain at a time.
type inflater struct {
	packed []byte // buffer for compressed data
	in     bytes.Reader
	out    io.ReadCloser
}

// inflaters are kept, since each has tables of some 40 KiB.
var inflaters = sync.Pool{New: func() any { return newInflater() }}

func newInflater() *inflater {
	// The stream of no bytes: a reader can only be made of a valid one.
	r, err := zlib.NewReader(bytes.NewReader([]byte{0x78, 0x9c, 3, 0, 0, 0, 0, 1}))
	if err != nil {
		panic(err)
	}
	return &inflater{out: r}
}

// buffer has room for n bytes of compressed data.
func (i *inflater) buffer(n int64) []byte {
	i.packed = slices.Grow(i.packed[:0], int(n))[:n]
	return i.packed
}

var errTooLong = errors.New("more bytes than a grain has")

// atEnd returns io.EOF when there is no further byte and the checksum is right. It never unpacks more than one byte.
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

// inflate fills dst, which is a whole grain, with what packed holds. The last grain of a disk may come without what
// lies behind the end of the disk: cut bytes. off is where packed begins in the file.
func (i *inflater) inflate(dst, packed []byte, cut, off int64) error {
	bad := func(field string, got any) error {
		return ondisk.Field("vmdk grain", field, off, got,
			fmt.Sprintf("zlib data of %d bytes that end in their checksum", len(dst)))
	}
	i.in.Reset(packed)
	err := i.out.(zlib.Resetter).Reset(&i.in, nil) // as zlib.NewReader promises
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

// readFooter takes the places of the directories from the footer, where the header says that they are at the end. The
// file ends with three sectors: a marker, the footer, and the marker of the end.
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
	if _, err := binary.Decode(b[units.SectorSize:], binary.LittleEndian, &foot); err != nil {
		return fmt.Errorf("decode %T: %w", foot, err)
	}
	if err := x.h.checkFooter(&foot, start+units.SectorSize); err != nil {
		return err
	}
	x.h.GDOffset, x.h.RGDOffset = foot.GDOffset, foot.RGDOffset
	return x.h.checkPlaces(size)
}

// unpack fills dst with a grain of a streamOptimized file.
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
	i := inflaters.Get().(*inflater) // there is nothing else in it
	defer inflaters.Put(i)
	packed := i.buffer(size)
	if err := ondisk.ReadFull(x.file, packed, off+grainMarker); err != nil {
		return err
	}
	return i.inflate(dst, packed, x.h.cut(grain), off+grainMarker)
}

// grainAt reads the marker of a grain at a byte offset of the file and gives the size of its data.
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
