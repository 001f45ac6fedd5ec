package vmdk

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

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
