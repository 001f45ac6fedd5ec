package report

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A copy of a disk that Windows has a name for goes into the current folder.
func TestNamesOfCopiesOfDrives(t *testing.T) {
	require.Equal(t, "PhysicalDrive0-aligned.img", CopyName(`\\.\PhysicalDrive0`))
	require.Equal(t, "physicaldrive1-aligned.img", CopyName("//./physicaldrive1"))
}
