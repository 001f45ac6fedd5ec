package driver

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// failing is a file whose calls all end with one error.
type failing struct{ err error }

func (f failing) WriteAt(p []byte, _ int64) (int, error) { return len(p), f.err }
func (f failing) Truncate(int64) error                   { return f.err }
func (f failing) Sync() error                            { return f.err }
func (f failing) Share(_ File, _, _, _ int64) error      { return f.err }

// What the file of a target does not do is the error of the target.
func TestErrorsOfTargets(t *testing.T) {
	t.Parallel()
	broken := failing{errors.New("broken")}
	_, err := NewFlat(broken, 512)
	require.ErrorIs(t, err, broken.err)
	flat, err := NewFlat(failing{}, 512)
	require.NoError(t, err)
	require.NoError(t, flat.Finish())
	require.NoError(t, flat.Share(nil, 0, 512, 0))
	flat.WriteFile = broken
	require.ErrorIs(t, flat.Finish(), broken.err)
	require.ErrorIs(t, flat.Share(nil, 0, 512, 0), broken.err)
	flat.WriteFile = struct{ WriteFile }{broken}
	require.ErrorIs(t, flat.Share(nil, 0, 512, 0), errors.ErrUnsupported)
	var s Slots
	s.Add(0, 4, 0)
	_, err = s.WriteAt(broken, []byte("data"), 0)
	require.ErrorIs(t, err, broken.err)
}
