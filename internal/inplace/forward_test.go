package inplace

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// A move that was ended before it moved anything is no success of a resume that goes forward: it is refused and changes
// nothing, and an undo removes the journal.
func TestResumeBeforeTheMove(t *testing.T) {
	t.Parallel()
	f := newOnFiles(t, false).middle()
	h, err := journal.Hold(f.path, "")
	require.NoError(t, err)
	blob := bytes.Clone(h.Plan())
	require.NoError(t, errors.Join(h.Remove(), h.Close()))
	f.put("vm.img", f.old) // the same file
	p, err := decodePlan(blob)
	require.NoError(t, err)
	d, err := gate.OpenFolder(f.dir)
	require.NoError(t, err)
	defer d.Close()
	h, err = journal.Begin(d, "vm.img", f.path, journal.InPlace, blob, p.area())
	require.NoError(t, err)
	require.NoError(t, h.Close())

	was := f.disk()
	err = f.again("resume", func(a *Again) { a.Forward = true })
	r, ok := errors.AsType[*ondisk.Refusal](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "unfinished", r.Code)
	require.Contains(t, r.Remedy, "trueup undo "+f.path)
	require.True(t, bytes.Equal(was, f.disk()))
	require.FileExists(t, f.path+journal.Suffix)
	require.NoError(t, f.again("undo", nil))
	require.True(t, bytes.Equal(f.old, f.disk()))
	require.NoFileExists(t, f.path+journal.Suffix)
}
