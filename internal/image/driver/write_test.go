package driver

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
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
	t.Parallel()
	broken := failing{errors.New("broken")}
	_, err := NewFlat(broken, 512)
	require.ErrorIs(t, err, broken.err)
	flat, err := NewFlat(failing{}, 512)
	require.NoError(t, err)
	require.NoError(t, flat.Finish())
	flat.WriteFile = broken
	require.ErrorIs(t, flat.Finish(), broken.err)
	var s Slots
	s.Add(0, 4, 0)
	_, err = s.WriteAt(broken, []byte("data"), 0)
	require.ErrorIs(t, err, broken.err)
}
