package windows

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/guestfile"
)

// LogOpen judges a file of a FAT as the log of an NTFS.
func LogOpen(t *testing.T, d disk.Disk, off int64, name string) (bool, error) {
	t.Helper()
	files, err := fat.Open(guestfile.NewBudget(), disk.Section(d, disk.Range{Off: off, Len: 40000 * 512}))
	require.NoError(t, err)
	file, err := files.Open(name)
	require.NoError(t, err)
	return logOpen(file)
}
