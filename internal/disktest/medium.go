package disktest

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
)

// ErrPower is the error of every call on a Medium without power.
var ErrPower = errors.New("the power is gone")

// Medium is a storage with a volatile cache, which loses its power at a call that a test chooses. Flushed data stays;
// of the rest, each sector of 512 bytes stays or not.
type Medium struct {
	// Power is the number of writing calls that still succeed; the next one and all after it fail. Negative: all
	// succeed.
	Power int
	// Lie ignores flushes of a file, like a program that forgot them.
	Lie func(name string) bool
	// Fail is the number of the only writing call, from 1 on, that fails with ErrFault. A failing write has written
	// half of its sectors. After a failing flush, the cache considers its data clean, like Linux: the next flush
	// succeeds without it, and a power cut loses it.
	Fail int
	// Calls is the number of writing calls: WriteAt, Truncate and Sync.
	Calls int
	// FailRead is the number of the read, from 1 on, that fails with ErrFault. Reads is the number of reads.
	FailRead, Reads int

	files map[string]*MediumFile
}

// MediumFile is a file on a Medium.
type MediumFile struct {
	on      *Medium
	name    string
	now     []byte         // data for readers
	durable []byte         // flushed data
	dirty   map[int64]bool // offsets of unflushed sectors
}

const mediumSector = 512

// NewMedium returns a medium with power for all calls and no file.
func NewMedium() *Medium { return &Medium{Power: -1, files: map[string]*MediumFile{}} }

// File returns the file of a name. The first call makes an empty one.
func (m *Medium) File(name string) *MediumFile {
	f := m.files[name]
	if f == nil {
		f = &MediumFile{on: m, name: name, dirty: map[int64]bool{}}
		m.files[name] = f
	}
	return f
}

// Remove removes a file, durably.
func (m *Medium) Remove(name string) { delete(m.files, name) }

// AfterCrash returns the storage after a power cut: all flushed data, and the unflushed sectors selected by keep. The
// sizes of files are the last ones.
func (m *Medium) AfterCrash(keep func(name string, off int64) bool) *Medium {
	after := NewMedium()
	for _, name := range slices.Sorted(maps.Keys(m.files)) {
		f := m.files[name]
		b := make([]byte, len(f.now))
		copy(b, f.durable)
		for _, off := range slices.Sorted(maps.Keys(f.dirty)) {
			if off < int64(len(b)) && keep(name, off) {
				copy(b[off:], f.now[off:min(off+mediumSector, int64(len(f.now)))])
			}
		}
		after.File(name).now, after.File(name).durable = b, bytes.Clone(b)
	}
	return after
}

// Some returns a selection for AfterCrash: about the given share of the sectors, from 0 to 1.
func Some(r *rand.Rand, share float64) func(string, int64) bool {
	return func(string, int64) bool { return r.Float64() < share }
}

// call counts a writing call. It returns an error if the power is off, or if the call is to fail.
func (m *Medium) call() error {
	if m.Power == 0 {
		return ErrPower
	}
	if m.Power > 0 {
		m.Power--
	}
	if m.Calls++; m.Calls == m.Fail {
		return ErrFault
	}
	return nil
}

// Bytes returns the present content, including data that are not yet flushed.
func (f *MediumFile) Bytes() []byte { return f.now }

// Size returns the size, bytes.
func (f *MediumFile) Size() int64 { return int64(len(f.now)) }

// ReadAt reads the most recently written data, flushed or not.
func (f *MediumFile) ReadAt(b []byte, off int64) (int, error) {
	if f.on.Power == 0 {
		return 0, ErrPower
	}
	if f.on.Reads++; f.on.Reads == f.on.FailRead {
		return 0, ErrFault
	}
	if off >= f.Size() {
		return 0, io.EOF
	}
	n := copy(b, f.now[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt writes to the cache. A crash right after it leaves any of its sectors.
func (f *MediumFile) WriteAt(b []byte, off int64) (int, error) {
	err := f.on.call()
	if errors.Is(err, ErrPower) {
		return 0, err
	}
	if err != nil {
		b = b[:len(b)/2/mediumSector*mediumSector]
	}
	if end := off + int64(len(b)); end > f.Size() {
		f.now = append(f.now, make([]byte, end-f.Size())...)
	}
	copy(f.now[off:], b)
	f.touch(off, off+int64(len(b)))
	return len(b), err
}

// touch marks the sectors of a range as unflushed.
func (f *MediumFile) touch(from, end int64) {
	for s := from - from%mediumSector; s < end; s += mediumSector {
		f.dirty[s] = true
	}
}

// Truncate sets the size.
func (f *MediumFile) Truncate(size int64) error {
	if err := f.on.call(); err != nil {
		return err
	}
	if size <= f.Size() {
		f.now = f.now[:size]
		return nil
	}
	f.touch(f.Size(), size)
	f.now = append(f.now, make([]byte, size-f.Size())...)
	return nil
}

// Sync makes written data durable.
func (f *MediumFile) Sync() error {
	if err := f.on.call(); err != nil {
		if errors.Is(err, ErrFault) {
			clear(f.dirty)
		}
		return err
	}
	if f.on.Lie != nil && f.on.Lie(f.name) {
		return nil
	}
	f.durable = append(f.durable[:min(len(f.durable), len(f.now))], make([]byte, max(0, len(f.now)-len(f.durable)))...)
	for off := range f.dirty {
		if off < f.Size() {
			copy(f.durable[off:], f.now[off:min(off+mediumSector, f.Size())])
		}
	}
	clear(f.dirty)
	return nil
}

// Close does nothing.
func (f *MediumFile) Close() error { return nil }
