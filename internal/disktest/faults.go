package disktest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
)

// ErrFault is the error of an operation that a test fails.
var ErrFault = errors.New("input/output error, made by a test")

// Faults makes one operation of a run fail.
type Faults struct{ left atomic.Int64 }

// Next counts an operation, and returns ErrFault if it is the one to fail. A nil Faults fails none.
func (f *Faults) Next() error {
	if f != nil && f.left.Add(-1) == -1 {
		return ErrFault
	}
	return nil
}

// EveryFault repeats a run, and makes the next of its operations fail each time, until a run ends without a fault. A
// run must return the error of its fault.
func EveryFault(t testing.TB, what string, run func(f *Faults) error) {
	t.Helper()
	for n := int64(0); ; n++ {
		f := &Faults{}
		f.left.Store(n)
		err := run(f)
		if f.left.Load() >= 0 {
			require.NoError(t, err, what)
			require.Positive(t, n, "%s: no operation", what)
			return
		}
		require.ErrorIs(t, err, ErrFault, "%s: operation %d fails", what, n)
	}
}

// Blind is a writable file that keeps no bytes. It lists its calls, each of which can fail.
type Blind struct {
	*Faults
	Calls []string
}

func (b *Blind) call(name string) error {
	b.Calls = append(b.Calls, name)
	return b.Next()
}

// WriteAt writes nothing.
func (b *Blind) WriteAt(p []byte, off int64) (int, error) {
	return len(p), b.call(fmt.Sprintf("write at %d", off))
}

// Truncate sets no size.
func (b *Blind) Truncate(int64) error { return b.call("truncate") }

// Sync flushes nothing.
func (b *Blind) Sync() error { return b.call("sync") }

// EveryBadSector repeats a run on a disk, each time with one unreadable sector among those that the run reads. A run
// must return the error, a text that contains it, or the result of the first run: then it has read more than it needs.
func EveryBadSector(t testing.TB, d disk.Disk, run func(d disk.Disk) (string, error)) {
	t.Helper()
	seen := &badDisk{Disk: d, read: map[int64]bool{}, bad: -1}
	want, err := run(seen)
	require.NoError(t, err)
	for _, off := range slices.Sorted(maps.Keys(seen.read)) {
		got, err := run(NewBadDisk(d, off))
		requireNotTaken(t, want, got, err, fmt.Sprintf("the sector at %#x", off))
	}
}

// EveryBadRead is EveryBadSector for reads and extent requests, each of which fails once; after the first ones, fewer
// and fewer are tried.
func EveryBadRead(t testing.TB, d disk.Disk, run func(d disk.Disk) (string, error)) {
	t.Helper()
	want, err := run(d)
	require.NoError(t, err)
	for n := int64(0); ; n += 1 + n/32 {
		f := &Faults{}
		f.left.Store(n)
		got, err := run(faultyDisk{d, f})
		if f.left.Load() >= 0 {
			return
		}
		requireNotTaken(t, want, got, err, fmt.Sprintf("read %d", n))
	}
}

// EveryReadCounts fails each read and each extent request of a disk in turn, and requires that run returns the error.
func EveryReadCounts(t testing.TB, d disk.Disk, run func(d disk.Disk) error) {
	t.Helper()
	EveryFault(t, "reads", func(f *Faults) error { return run(faultyDisk{d, f}) })
}

// requireNotTaken requires that unreadable data was not mistaken for other data.
func requireNotTaken(t testing.TB, want, got string, err error, what string) {
	t.Helper()
	if err != nil {
		require.ErrorIs(t, err, ErrFault, what)
	} else if !strings.Contains(got, ErrFault.Error()) {
		require.Equal(t, want, got, what)
	}
}

// faultyDisk is a disk whose reads and extent requests are operations.
type faultyDisk struct {
	disk.Disk
	faults *Faults
}

func (d faultyDisk) ReadAt(p []byte, off int64) (int, error) {
	if err := d.faults.Next(); err != nil {
		return 0, err
	}
	return d.Disk.ReadAt(p, off)
}

func (d faultyDisk) Extent(off, most int64) (disk.Extent, error) {
	if err := d.faults.Next(); err != nil {
		return disk.Extent{}, err
	}
	return d.Disk.Extent(off, most)
}

// badDisk has an unreadable sector.
type badDisk struct {
	disk.Disk
	bad int64

	mu   sync.Mutex
	read map[int64]bool // first and last sectors of reads
}

func (d *badDisk) ReadAt(p []byte, off int64) (int, error) {
	const sector = 512
	d.mu.Lock()
	d.read[off-off%sector] = true
	if last := off + int64(len(p)) - 1; last > off {
		d.read[last-last%sector] = true
	}
	d.mu.Unlock()
	if d.bad >= 0 && (disk.Range{Off: off, Len: int64(len(p))}).Overlaps(disk.Range{Off: d.bad, Len: sector}) {
		return 0, ErrFault
	}
	return d.Disk.ReadAt(p, off)
}

// NewBadDisk returns d with an unreadable sector.
func NewBadDisk(d disk.Disk, bad int64) disk.Disk {
	return &badDisk{Disk: d, bad: bad, read: map[int64]bool{}}
}

// NewBadExtents returns d with failing extent requests.
func NewBadExtents(d disk.Disk) disk.Disk { return badExtents{d} }

type badExtents struct{ disk.Disk }

func (badExtents) Extent(int64, int64) (disk.Extent, error) { return disk.Extent{}, ErrFault }
