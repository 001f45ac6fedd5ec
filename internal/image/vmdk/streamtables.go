package vmdk

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

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
