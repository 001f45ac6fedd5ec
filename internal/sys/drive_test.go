package sys

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Source: Naming Files, Paths, and Namespaces, and CreateFile (Microsoft): physical drives.
func TestNamesOfDrives(t *testing.T) {
	for path, want := range map[string]string{
		`\\.\PhysicalDrive0`: "PhysicalDrive0", `\\.\PHYSICALDRIVE12`: "PhysicalDrive12",
		"//./physicaldrive3": "PhysicalDrive3", `\/./PhysicalDrive3`: "PhysicalDrive3",
	} {
		name, ok := driveName(path)
		require.True(t, ok, path)
		require.Equal(t, want, name)
		require.Equal(t, runtime.GOOS == "windows", IsDrive(path), path)
	}
	for _, path := range []string{
		"", `\\.\`, `\\.\PhysicalDrive`, `\\.\PhysicalDrive-1`, `\\.\PhysicalDrive+1`, `\\.\PhysicalDrive01`,
		`\\.\PhysicalDrive0\`, `\\.\PhysicalDrive0\a`, `\\.\PhysicalDrive0:a`, `\\.\PhysicalDrive99999999999`,
		"PhysicalDrive0", `C:\PhysicalDrive0`, `\\server\PhysicalDrive0`, `\\.\a\PhysicalDrive0`, `\\.\C:`,
		`\\.\CdRom0`,
	} {
		_, ok := driveName(path)
		require.False(t, ok, path)
		require.False(t, IsDrive(path), path)
	}
}
