package filetest

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/guestfile"
)

// ManyNames is the number of names in the large folders. Tools take minutes to make such a folder, so a file gets its
// contents, and then the type of a folder.
const ManyNames = 50_000

// Cheap limits the cost of looking up the last name, and an absent one, to three times the size of the folder: a few
// milliseconds.
func Cheap(t *testing.T, g guestfile.FS, m guestfile.Metered, folder int64, last string) {
	t.Helper()
	before := m.Budget.Spent()
	f, err := g.Open(last)
	require.NoError(t, err)
	require.Equal(t, last, f.Path)
	require.Less(t, m.Budget.Spent()-before, 3*folder)
	before = m.Budget.Spent()
	_, err = g.Open("large/nothing")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.Less(t, m.Budget.Spent()-before, 3*folder)
	list, err := g.List("large")
	require.NoError(t, err)
	require.Len(t, list, ManyNames)
}
