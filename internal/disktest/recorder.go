package disktest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/trueup/trueup/internal/disk"
)

// Recorder is the target of a copy that lists what it is told, and what of it breaks the rules that every real target
// relies on.
type Recorder struct {
	// Err, when set, is called before each call, which returns its error.
	Err func(op string, r disk.Range) error
	// Discard keeps the recorder from remembering bytes and calls, for copies larger than memory.
	Discard bool

	size, unit int64
	mu         sync.Mutex
	reserving  bool
	reserved   []disk.Range
	written    []disk.Range
	data       map[int64][]byte // by offset
	faults     []string
}

// NewRecorder returns a target for size bytes that allocates units of unit bytes.
func NewRecorder(size, unit int64) *Recorder {
	return &Recorder{size: size, unit: unit, data: map[int64][]byte{}}
}

// Unit returns the granularity of the target.
func (r *Recorder) Unit() int64 { return r.unit }

// Reserve records a range.
func (r *Recorder) Reserve(off, n int64) error {
	r.mu.Lock()
	if r.reserving {
		r.fault("Reserve(%#x, %d) while another Reserve runs", off, n)
	}
	r.reserving = true
	r.mu.Unlock()
	err := r.fail("reserve", off, n) // without the lock: it may wait
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserving = false
	if err != nil || r.Discard {
		return err
	}
	place := disk.Range{Off: off, Len: n}
	if k := len(r.reserved); k > 0 && r.reserved[k-1].End() > off {
		r.fault("Reserve(%#x, %d) after %+v: not in ascending order", off, n, r.reserved[k-1])
	}
	r.checkUnits("Reserve", place)
	r.reserved = append(r.reserved, place)
	return nil
}

// WriteAt records bytes.
func (r *Recorder) WriteAt(p []byte, off int64) (int, error) {
	place := disk.Range{Off: off, Len: int64(len(p))}
	if err := r.fail("write", off, place.Len); err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Discard {
		return len(p), nil
	}
	if !slices.Contains(r.reserved, place) {
		r.fault("WriteAt(%d bytes, %#x) was not reserved so", len(p), off)
	}
	for _, w := range r.written {
		if w.Overlaps(place) {
			r.fault("WriteAt(%d bytes, %#x) over %+v", len(p), off, w)
		}
	}
	r.checkUnits("WriteAt", place)
	r.written = append(r.written, place)
	r.data[off] = slices.Clone(p) // the buffer is the copier's
	return len(p), nil
}

func (r *Recorder) fail(op string, off, n int64) error {
	if r.Err == nil {
		return nil
	}
	return r.Err(op, disk.Range{Off: off, Len: n})
}

// checkUnits requires whole units, except at the end of the disk.
func (r *Recorder) checkUnits(op string, p disk.Range) {
	if p.Len <= 0 || p.Off < 0 || p.End() > r.size || p.Off%r.unit != 0 || (p.Len%r.unit != 0 && p.End() != r.size) {
		r.fault("%s of %+v on a disk of %d bytes in units of %d", op, p, r.size, r.unit)
	}
}

func (r *Recorder) fault(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// Reserved lists the reservations in the order in which they came.
func (r *Recorder) Reserved() []disk.Range { return slices.Clone(r.reserved) }

// Written lists the writes in the order of the disk: they come in the order of the scheduler.
func (r *Recorder) Written() []disk.Range {
	out := slices.Clone(r.written)
	slices.SortFunc(out, func(a, b disk.Range) int { return cmp.Compare(a.Off, b.Off) })
	return out
}

// Faults lists broken rules; a good copy breaks none.
func (r *Recorder) Faults() []string { return slices.Clone(r.faults) }

// Bytes returns the disk that was written: what no write covered is zero.
func (r *Recorder) Bytes() []byte {
	out := make([]byte, r.size)
	for off, b := range r.data {
		copy(out[off:], b)
	}
	return out
}
