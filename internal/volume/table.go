package volume

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Probers lists the probers of volumes whose files are not read. Package identify adds the others in front.
var Probers = []Prober{
	exFAT.prober(),
	refs.prober(),
	xfs.prober(),
	btrfs.prober(),
	jfs.prober(),
	hpfs.prober(),
	reiserFS.prober(),
	f2fs.prober(),
	ufs.prober(),
	hfs.prober(),
	hfsPlus.prober(),
	apfs.prober(),
	iso9660.prober(),
	SwapArea,
	luks.prober(),
	bitLocker,
	lvm.prober(),
	md,
	bcache.prober(),
	zfs,
	vmfs.prober(),
	bsd.prober(),
	vtoc.prober(),
}

// row describes a superblock: its offsets, detection, legal field values, and conversion to a volume.
type row struct {
	kinds []Traits
	what  string  // name in errors
	at    []int64 // byte offsets in the volume; the first with a magic number counts
	size  int64   // bytes
	order binary.ByteOrder
	magic []Mark // offsets from the start of the superblock, which has one of them

	matches func(s *super) bool    // further evidence if the magic number is weak; may be nil
	checks  func(s *super)         // may be nil
	volume  func(s *super) *Volume // called after the checks
}

// check is a field of a superblock with a rule for its legal values.
type check struct {
	name  string // name in the specification
	off   int64  // from the start of the superblock
	bytes int64
	rule
}

// rule defines the legal values of a field.
type rule struct {
	ok   func(n uint64) bool
	want string // text of the legal values
	got  any    // printed instead of the value
	// value replaces the value of the field, if not nil.
	value *uint64
	// sum computes the only legal value, a checksum. It runs after the earlier checks have passed.
	sum func() uint64
}

// says replaces the text of the legal values.
func (r rule) says(format string, args ...any) rule {
	r.want = fmt.Sprintf(format, args...)
	return r
}

// of checks a computed value in place of the field.
func (r rule) of(n uint64) rule {
	r.value = &n
	return r
}

func within(low, high uint64) rule {
	return rule{ok: func(n uint64) bool { return n >= low && n <= high }}.says("%d to %d", low, high)
}

func atLeast(low uint64) rule {
	return rule{ok: func(n uint64) bool { return n >= low }}.says("%d or more", low)
}

func below(limit uint64) rule {
	return rule{ok: func(n uint64) bool { return n < limit }}.says("less than %d", limit)
}

func equal(want uint64) rule {
	return rule{ok: func(n uint64) bool { return n == want }}.says("%d", want)
}

func power(low, high int64) rule {
	return rule{ok: func(n uint64) bool {
		return n <= 1<<62 && PowerBetween(ondisk.I64(n), low, high)
	}}.says("a power of two from %d to %d", low, high)
}

// and adds a condition, which has no text of its own.
func (r rule) and(condition bool) rule {
	ok := r.ok
	r.ok = func(n uint64) bool { return condition && ok(n) }
	return r
}

// holds checks a condition on several fields. got is the value to print.
func holds(condition bool, got any, format string, args ...any) rule {
	return rule{ok: func(uint64) bool { return condition }, got: got}.says(format, args...)
}

// or accepts one more value, which the text omits.
func (r rule) or(value uint64) rule {
	ok := r.ok
	r.ok = func(n uint64) bool { return n == value || ok(n) }
	return r
}

func sum(of func() uint64) rule { return rule{sum: of} }

// super is a superblock in memory. Offsets are bytes from its start. It keeps the first error.
type super struct {
	*row
	d     disk.Disk
	at    int64
	order binary.ByteOrder
	b     []byte
	err   error
}

func (s *super) u8(off int64) uint8   { return s.b[off] }
func (s *super) u16(off int64) uint16 { return s.order.Uint16(s.b[off:]) }
func (s *super) u32(off int64) uint32 { return s.order.Uint32(s.b[off:]) }
func (s *super) u64(off int64) uint64 { return s.order.Uint64(s.b[off:]) }
func (s *super) uuid(off int64) string {
	return UUID([16]byte(s.b[off:]))
}

// i64 returns a 32-bit field for arithmetic.
func (s *super) i64(off int64) int64 { return int64(s.u32(off)) }

// text returns the text of a field of fixed size.
func (s *super) text(off, n int64) string { return Text(s.b[off : off+n]) }

// label returns the text of a field of fixed size, without trailing blanks.
func (s *super) label(off, n int64) string { return Label(s.b[off : off+n]) }

func (s *super) number(off, n int64) uint64 {
	switch n {
	case 1:
		return uint64(s.b[off])
	case 2:
		return uint64(s.u16(off))
	case 4:
		return uint64(s.u32(off))
	case 8:
		return s.u64(off)
	}
	return 0 // the rule has its own value
}

// read returns n bytes at an offset of the volume, or nil on error.
func (s *super) read(off, n int64) (b []byte) {
	if s.err == nil {
		b, s.err = ondisk.Bytes(s.d, off, n)
	}
	return b
}

// blocks limits a number of blocks by the size of the partition.
func (s *super) blocks(block int64) rule {
	if block <= 0 {
		block = s.d.Size() + 1
	}
	return within(1, ondisk.U64(s.d.Size()/block)).says("1 to %d, the size of the partition", s.d.Size()/block)
}

// crc32 returns a rule for a CRC-32 of n bytes from the start of the superblock, with the checksum in them zeroed.
func (s *super) crc32(n, atSum int64, crc func(b []byte) uint32) rule {
	return sum(func() uint64 {
		b := s.read(s.at, n)
		if s.err != nil {
			return 0
		}
		clear(b[atSum:min(atSum+4, n)])
		return uint64(crc(b))
	})
}

func crc32c(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// check keeps the error of the first field with an illegal value.
func (s *super) check(checks ...check) {
	for _, c := range checks {
		if s.err != nil {
			return
		}
		n := s.number(c.off, c.bytes)
		if c.value != nil {
			n = *c.value
		}
		switch {
		case c.sum != nil:
			hex := func(n uint64) string { return fmt.Sprintf("%#0*x", 2*c.bytes, n) }
			if want := c.sum(); s.err == nil && n != want {
				s.err = s.field(c.name, c.off, hex(n), hex(want))
			}
		case c.ok(n):
		case c.got != nil:
			s.err = s.field(c.name, c.off, c.got, c.want)
		default:
			s.err = s.field(c.name, c.off, n, c.want)
		}
	}
}

// field returns the error for a field.
func (s *super) field(name string, off int64, got, want any) error {
	return ondisk.Field(s.what, name, s.at+off, got, want)
}

// load reads the superblock at an offset. It returns nil if the volume ends before it, or the row does not match.
func (r *row) load(d disk.Disk, at int64) (*super, error) {
	for _, m := range r.magic {
		// Read the magic number alone first: a table can list thousands of volumes, most of them without it.
		b, err := ReadBlock(d, at+int64(m.Off), int64(len(m.Bytes)))
		if err != nil {
			return nil, orNil(err)
		}
		if string(b) != m.Bytes {
			continue
		}
		if b, err = ReadBlock(d, at, r.size); err != nil {
			return nil, orNil(err)
		}
		s := &super{row: r, d: d, at: at, order: r.order, b: b}
		if r.matches == nil || r.matches(s) {
			return s, nil
		}
		return nil, s.err
	}
	return nil, nil
}

func (r *row) probe(d disk.Disk) (*Volume, error) {
	for _, at := range r.at {
		if v, err := r.probeAt(d, at); !errors.Is(err, ondisk.ErrNoMatch) {
			return v, err
		}
	}
	return nil, ondisk.ErrNoMatch
}

// probeAt probes a single offset.
func (r *row) probeAt(d disk.Disk, at int64) (*Volume, error) {
	s, err := r.load(d, at)
	switch {
	case err != nil:
		return nil, err
	case s == nil:
		return nil, ondisk.ErrNoMatch
	case r.checks != nil:
		r.checks(s)
	}
	if s.err != nil {
		return nil, s.err
	}
	v := r.volume(s)
	return v, s.err
}

// HeadSize is the size of the head of a volume in bytes. All marks of probers lie in it.
const HeadSize = 8 << 10

// prober converts the row to a prober. The prober has marks if all of them lie in the head of the volume.
func (r *row) prober() Prober {
	p := Prober{Kinds: r.kinds, Probe: r.probe}
	for _, at := range r.at {
		for _, m := range r.magic {
			if at+int64(m.Off+len(m.Bytes)) > HeadSize {
				p.Marks = nil
				return p
			}
			p.Marks = append(p.Marks, Mark{int(at) + m.Off, m.Bytes})
		}
	}
	return p
}

// BootMagic is the magic number in the last two bytes of a boot sector.
const BootMagic = 0xaa55

// Superblock decodes the fixed-size struct v at off, and returns its bytes. It returns ErrNoMatch if the disk ends
// before them.
func Superblock(d disk.Disk, off int64, order binary.ByteOrder, v any) ([]byte, error) {
	b, err := ReadBlock(d, off, int64(binary.Size(v)))
	if err != nil {
		return nil, err
	}
	ondisk.Fill(b, order, v)
	return b, nil
}

// PowerBetween reports whether n is a power of two within both limits.
func PowerBetween(n, low, high int64) bool { return n >= low && n <= high && units.IsPowerOfTwo(n) }

// Hex formats a number at its full width for a message.
func Hex[T uint16 | uint32 | uint64](n T) string {
	return fmt.Sprintf("%#0*x", 2*binary.Size(n), n)
}

// Label returns the text of a field of fixed size, without trailing blanks.
func Label(b []byte) string { return strings.TrimRight(Text(b), " \t\r\n") }

// Text returns the text of a field of fixed size, up to the first zero.
func Text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// UUID formats a UUID like libblkid. It returns "" for all zeros.
func UUID(b [16]byte) string {
	if b == [16]byte{} {
		return ""
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// ReadBlock reads n bytes at off. It returns ErrNoMatch if the disk ends before them.
func ReadBlock(d disk.Disk, off, n int64) ([]byte, error) {
	if off < 0 || off > d.Size()-n {
		return nil, ondisk.ErrNoMatch
	}
	return ondisk.Bytes(d, off, n)
}

// orNil drops ErrNoMatch for an optional structure.
func orNil(err error) error {
	if errors.Is(err, ondisk.ErrNoMatch) {
		return nil
	}
	return err
}

// DOSLabel returns a text without its padding. It returns "" for "NO NAME", which formatters write for an empty label.
func DOSLabel(b []byte) string {
	if s := strings.TrimRight(Text(b), " "); s != "NO NAME" {
		return s
	}
	return ""
}
