package disktest

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/trueup/trueup/internal/disk"
)

// Limits of Check, so that it can check a disk of terabytes.
const (
	workers     = 4
	longestRead = 192 << 10 // bytes: crosses every grain and several runs
	maxWalk     = 1 << 16   // extents
	zeroSample  = 64 << 10  // bytes: maximum that is read at either end of a zero extent
)

// effort holds the number and the sizes of the reads by Check.
type effort struct {
	reads  int   // of each worker
	upTo   int64 // bytes: a disk up to this size is compared as a whole
	sample int64 // bytes read at either end of a zero extent
}

var (
	full = effort{reads: 100, upTo: 64 << 20, sample: zeroSample}
	// brief is for -short, and so for the race detector, which looks for shared data, not for wrong bytes.
	brief = effort{reads: 20, upTo: 1 << 20, sample: 4 << 10}
)

var zeros [zeroSample]byte

// Check tests d against the contract of disk.Disk. want has the expected bytes; if it has a size (like a bytes.Reader),
// that is compared too. Reads run concurrently, so that the race detector sees what the disk shares.
func Check(t testing.TB, d disk.Disk, want io.ReaderAt) {
	t.Helper()
	if err := check(d, want); err != nil {
		t.Fatalf("contract of disk.Disk: %v", err)
	}
}

// CheckBytes is Check for a disk with known bytes.
func CheckBytes(t testing.TB, d disk.Disk, want []byte) {
	t.Helper()
	Check(t, d, bytes.NewReader(want))
}

func check(d disk.Disk, want io.ReaderAt) error {
	if s, ok := want.(interface{ Size() int64 }); ok && s.Size() != d.Size() {
		return fmt.Errorf("size %d, want %d", d.Size(), s.Size())
	}
	if s := d.SectorSize(); s != 512 && s != 4096 {
		return fmt.Errorf("sector size %d, want 512 or 4096", s)
	}
	c := &contract{d: d, want: want, size: d.Size(), effort: full}
	if testing.Short() {
		c.effort = brief
	}
	for _, step := range []func() error{c.outside, c.atEnd, c.pastTheEnd, c.walk, c.whole, c.parallel} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// broken returns an error about a read. The error of the read itself, if any, is only part of the text.
func broken(format string, args ...any) error { return fmt.Errorf(format, args...) }

// contract is one run of Check.
type contract struct {
	effort
	d    disk.Disk
	want io.ReaderAt
	size int64
	// borders are places where the disk changes its state: reads across them find other errors than reads inside a run.
	borders []int64
	scratch sync.Pool // of *[]byte, for the expected bytes
}

// outside requests extents that cannot exist.
func (c *contract) outside() error {
	for _, r := range []disk.Range{
		{Off: -1, Len: 1},
		{Off: c.size, Len: 1},
		{Off: c.size + 1, Len: 1},
		{Off: 0, Len: 0},
		{Off: 0, Len: -1},
	} {
		if e, err := c.d.Extent(r.Off, r.Len); err == nil {
			return fmt.Errorf("Extent(%#x, %d) of a disk of %#x bytes gives %+v and no error", r.Off, r.Len, c.size, e)
		}
	}
	if n, err := c.d.ReadAt(make([]byte, 1), -1); err == nil || n != 0 {
		return broken("ReadAt(1 byte, -1) gives %d bytes and error %v, want an error", n, err)
	}
	return nil
}

// atEnd reads over the end of the disk. Spec: io.ReaderAt.
func (c *contract) atEnd() error {
	for _, tc := range []struct{ off, n int64 }{
		{max(c.size-1, 0), 2}, {max(c.size-512, 0), 513}, {max(c.size-700, 0), 1400}, {c.size, 1}, {c.size + 1000, 10},
	} {
		b := make([]byte, tc.n)
		left := max(c.size-tc.off, 0)
		n, err := c.d.ReadAt(b, tc.off)
		if int64(n) != left || !errors.Is(err, io.EOF) {
			return broken(
				"ReadAt(%d bytes, %#x) of a disk of %#x bytes gives %d bytes and error %v, want %d and io.EOF", tc.n,
				tc.off, c.size, n, err, left)
		}
		if err := c.compare(b[:left], tc.off); err != nil {
			return err
		}
	}
	if n, err := c.d.ReadAt(nil, 0); n != 0 || (err != nil && c.size > 0) {
		return broken("ReadAt(0 bytes, 0) gives %d bytes and error %v, want none", n, err)
	}
	return nil
}

// pastTheEnd requests extents that would pass the end: they stop there.
func (c *contract) pastTheEnd() error {
	for _, back := range []int64{1, 512, 700, 1 << 20} {
		if back <= c.size {
			if _, err := c.extent(c.size-back, 1<<40); err != nil {
				return err
			}
		}
	}
	return nil
}

// walk follows the extents from the start to the end and notes their borders.
func (c *contract) walk() error {
	for off, n := int64(0), 0; off < c.size; n++ {
		if n == maxWalk {
			return fmt.Errorf("%d extents reach only %#x of %#x bytes", n, off, c.size)
		}
		e, err := c.extent(off, c.size-off)
		if err != nil {
			return err
		}
		c.borders = append(c.borders, off)
		off = e.End()
	}
	return nil
}

// extent requests one extent and checks the answer.
func (c *contract) extent(off, limit int64) (disk.Extent, error) {
	e, err := c.d.Extent(off, limit)
	switch {
	case err != nil:
		return e, fmt.Errorf("Extent(%#x, %d): %w", off, limit, err)
	case e.Off != off || e.Len < 1 || e.Len > limit || e.End() > c.size:
		return e, fmt.Errorf("Extent(%#x, %d) of a disk of %#x bytes gives [%#x, %#x)", off, limit, c.size, e.Off,
			e.End())
	case !e.Zero:
		return e, nil
	}
	for _, at := range []int64{e.Off, max(e.End()-c.sample, e.Off)} {
		held := c.buffer()
		defer c.scratch.Put(held)
		b := (*held)[:min(c.sample, e.End()-at)]
		if err := c.read(b, at); err != nil {
			return e, err
		}
		if diff := firstDifference(zeros[:len(b)], b, at); diff != "" {
			return e, fmt.Errorf("Extent(%#x, %d) says that [%#x, %#x) is zero, but %s", off, limit, e.Off, e.End(),
				diff)
		}
	}
	return e, nil
}

// read fills b and compares it with the expected bytes.
func (c *contract) read(b []byte, off int64) error {
	n, err := c.d.ReadAt(b, off)
	if n != len(b) || (err != nil && !errors.Is(err, io.EOF)) {
		return broken("ReadAt(%d bytes, %#x) of a disk of %#x bytes gives %d bytes and error %v", len(b), off, c.size,
			n, err)
	}
	return c.compare(b, off)
}

func (c *contract) compare(b []byte, off int64) error {
	if len(b) == 0 {
		return nil
	}
	held := c.buffer()
	defer c.scratch.Put(held)
	want := (*held)[:len(b)]
	if n, err := c.want.ReadAt(want, off); n != len(want) {
		return fmt.Errorf("the expected bytes end at %#x: %w", off+int64(n), err)
	}
	if diff := firstDifference(want, b, off); diff != "" {
		return errors.New(diff)
	}
	return nil
}

func (c *contract) buffer() *[]byte {
	if b, ok := c.scratch.Get().(*[]byte); ok {
		return b
	}
	b := make([]byte, longestRead)
	return &b
}

// whole compares every byte of a disk if it is small enough.
func (c *contract) whole() error {
	if c.size > c.upTo {
		return nil
	}
	b := make([]byte, longestRead)
	for off := int64(0); off < c.size; off += int64(len(b)) {
		if err := c.read(b[:min(int64(len(b)), c.size-off)], off); err != nil {
			return err
		}
	}
	return nil
}

// parallel reads data and extents at random places from several goroutines. The seeds are fixed, so that a failure
// repeats.
func (c *contract) parallel() error {
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for i := range workers {
		wg.Go(func() { errs[i] = c.random(rand.New(rand.NewPCG(uint64(i), 63))) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (c *contract) random(rnd *rand.Rand) error {
	if c.size == 0 {
		return nil
	}
	buf := make([]byte, longestRead)
	for range c.reads {
		off := c.place(rnd)
		n := min(1+rnd.Int64N(longestRead), c.size-off)
		if rnd.IntN(4) == 0 {
			n = min(n, 1+rnd.Int64N(1024))
		}
		if err := c.read(buf[:n], off); err != nil {
			return err
		}
		off = c.place(rnd)
		if _, err := c.extent(off, 1+rnd.Int64N(c.size-off)); err != nil {
			return err
		}
		if _, err := c.extent(off, 1+rnd.Int64N(min(4096, c.size-off))); err != nil {
			return err
		}
	}
	return nil
}

// place returns an offset, half of the time just before a border.
func (c *contract) place(rnd *rand.Rand) int64 {
	if rnd.IntN(2) == 0 {
		return rnd.Int64N(c.size)
	}
	border := c.borders[rnd.IntN(len(c.borders))]
	return max(border-rnd.Int64N(2048), 0)
}

// T is the part of a test that EqualBytes needs; the T of a property test has it too.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// EqualBytes fails the test if got differs from want, and shows the first difference.
func EqualBytes(t T, want, got []byte) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%d bytes, want %d", len(got), len(want))
	}
	if diff := firstDifference(want, got, 0); diff != "" {
		t.Fatalf("%s", diff)
	}
}

// firstDifference shows 64 bytes of both slices, from the 16 bytes with the first difference on. It returns an empty
// string for equal slices. off is the position of the slices on their disk.
func firstDifference(want, got []byte, off int64) string {
	if bytes.Equal(want, got) {
		return ""
	}
	i := 0
	for want[i] == got[i] {
		i++
	}
	from := i - i%16
	to := min(from+64, len(want))
	return fmt.Sprintf("byte %#x (%d) is %#02x, want %#02x\nfrom %#x on there is\n%swant\n%s", off+int64(i),
		off+int64(i), got[i], want[i], off+int64(from), hex.Dump(got[from:to]), hex.Dump(want[from:to]))
}
