package realign

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// A Windows drive path can only be a SOURCE.
func TestDrivesOfWindows(t *testing.T) {
	const drive = `\\.\PhysicalDrive0`
	require.Empty(t, Folders([]string{drive, "//./physicaldrive7"}))
	for _, work := range []string{"trueup move", "trueup replace", "trueup view", "trueup serve", "trueup report"} {
		require.ErrorContains(t, Local(drive, work), work+" needs a file, and this is a device of Windows; write it")
	}
	_, err := OpenPackage(drive)
	require.ErrorIs(t, err, ondisk.ErrNoMatch)
	_, err = Open(drive, Reading{Allow: []string{t.TempDir()}})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	_, err = Open(`\\.\PhysicalDrive65000`, Reading{})
	require.ErrorIs(t, err, ErrOpen)
	require.ErrorContains(t, err, `\\.\PhysicalDrive65000: `)
}
