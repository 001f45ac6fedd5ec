package filetest

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/guestfile"
)

// ManyNames is the number of names in the large folders. Tools take minutes to make such a folder. Here a file gets its
// contents, and then the kind of a folder.
const ManyNames = 50_000

// Cheap bounds the cost of a lookup of the last name, and of an absent one, by three times the size of the folder. That
// is a few milliseconds.
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
