package driver

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

type memory []byte

func (m memory) WriteAt(p []byte, off int64) (int, error) { return copy(m[off:], p), nil }

func TestSlotsGiveEachReservationOnce(t *testing.T) {
	var s Slots
	m := make(memory, 100)
	s.Add(10, 3, 50)
	s.Add(13, 2, 80)
	s.Add(20, 1, 0)
	n, err := s.WriteAt(m, []byte("abcde"), 10)
	require.NoError(t, err)
	require.Equal(t, 5, n)
	require.Equal(t, "abc", string(m[50:53]), "a write goes to the places of all reservations that it covers")
	require.Equal(t, "de", string(m[80:82]))
	require.Panics(t, func() { _, _ = s.WriteAt(m, []byte("abc"), 10) }, "it is gone")
	require.Panics(t, func() { _, _ = s.WriteAt(m, []byte("x"), 21) }, "never reserved")
	s.Add(30, 4, 0)
	require.Panics(t, func() { _, _ = s.WriteAt(m, []byte("abc"), 30) }, "a part of a reservation is not a reservation")
	require.Len(t, s.open, 2)
}

// failing is a file whose calls all end with one error.
type failing struct{ err error }

func (f failing) WriteAt(p []byte, _ int64) (int, error) { return len(p), f.err }
func (f failing) Truncate(int64) error                   { return f.err }
func (f failing) Sync() error                            { return f.err }

// What the file of a target does not do is the error of the target.
func TestErrorsOfTargets(t *testing.T) {
	broken := failing{errors.New("broken")}
	_, err := NewFlat(broken, 0, 512)
	require.ErrorIs(t, err, broken.err)
	flat, err := NewFlat(failing{}, 0, 512)
	require.NoError(t, err)
	require.NoError(t, flat.Finish())
	flat.WriteFile = broken
	require.ErrorIs(t, flat.Finish(), broken.err)
	var s Slots
	s.Add(0, 4, 0)
	_, err = s.WriteAt(broken, []byte("data"), 0)
	require.ErrorIs(t, err, broken.err)
}

// A child has the issues of its parent that matter to a copy, and its check walks both.
func TestInherit(t *testing.T) {
	issues := func(text string) []ondisk.Issue {
		return []ondisk.Issue{{Effect: ondisk.Note, Text: "note " + text}, {Effect: ondisk.Warn, Text: text}}
	}
	check := func(text string, err error) func() ([]ondisk.Issue, error) {
		return func() ([]ondisk.Issue, error) { return issues(text), err }
	}
	errOwn, errParent := errors.New("own"), errors.New("parent")
	img := &Image{Issues: issues("a"), Check: check("b", nil)}
	img.Inherit(&Image{Issues: issues("c"), Check: check("d", nil)})
	require.True(t, img.Child)
	require.Equal(t, append(issues("a"), ondisk.Issue{Effect: ondisk.Warn, Text: "in the parent: c"}), img.Issues)
	found, err := img.Check()
	require.NoError(t, err)
	require.Equal(t, append(issues("b"), ondisk.Issue{Effect: ondisk.Warn, Text: "in the parent: d"}), found)

	img = &Image{Check: check("", errOwn)}
	img.Inherit(&Image{Check: check("", errParent)})
	_, err = img.Check()
	require.ErrorIs(t, err, errOwn)
	img = &Image{Check: check("", nil)}
	img.Inherit(&Image{Check: check("", errParent)})
	_, err = img.Check()
	require.ErrorIs(t, err, errParent)
	img = &Image{}
	img.Inherit(&Image{Check: check("e", nil)})
	found, err = img.Check()
	require.NoError(t, err)
	require.Len(t, found, 1)
	img = &Image{}
	img.Inherit(&Image{})
	require.Nil(t, img.Check)
}

// A unit ends as a file does.
func TestUnpackedUnitEnds(t *testing.T) {
	u := NewUnpacked(4, 4, func(b []byte, _ int64) error {
		copy(b, "data")
		return nil
	})
	for off, want := range map[int64]int{1: 3, 3: 1, 4: 0, 5: 0} {
		n, err := u.Unit(7).ReadAt(make([]byte, 4), off)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, want, n, "%d", off)
	}
}

func TestUnpackedReadsUnits(t *testing.T) {
	var calls atomic.Int64
	u := NewUnpacked(4*1000, 1000, func(dst []byte, key int64) error {
		calls.Add(1)
		for i := range dst {
			dst[i] = byte(int64(i) * key)
		}
		return nil
	})
	want := func(key int64) []byte {
		b := make([]byte, 1000)
		for i := range b {
			b[i] = byte(int64(i) * key)
		}
		return b
	}
	var wg sync.WaitGroup
	var wrong atomic.Int64
	for w := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for range 500 {
				key, off := rnd.Int64N(7), rnd.Int64N(1000)
				b := make([]byte, 1+rnd.Int64N(1000-off))
				if n, err := u.Unit(key).ReadAt(b, off); err != nil || n != len(b) ||
					!bytes.Equal(b, want(key)[off:off+int64(n)]) {
					wrong.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, wrong.Load())
	require.Len(t, u.units, 4, "the bound holds")

	calls.Store(0)
	for off := int64(0); off < 1000; off += 10 {
		_, err := u.Unit(99).ReadAt(make([]byte, 10), off)
		require.NoError(t, err)
	}
	require.Equal(t, int64(1), calls.Load(), "a unit that is read in pieces is unpacked once")
	_, err := u.Unit(99).ReadAt(make([]byte, 20), 990)
	require.ErrorIs(t, err, io.EOF)
}

func TestUnpackedReportsErrors(t *testing.T) {
	bad := errors.New("bad stream")
	u := NewUnpacked(1, 1000, func([]byte, int64) error { return bad })
	for range 2 {
		for _, n := range []int{10, 1000} {
			got, err := u.Unit(1).ReadAt(make([]byte, n), 0)
			require.ErrorIs(t, err, bad)
			require.Zero(t, got, "a disk takes as many bytes as it asked for without a look at the error")
		}
	}
}
