package windows_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/boottest"
)

// A second Windows in a partition has a folder of another name, and so has one that its owner named. A folder with
// something else in it is not one.
func TestWindowsInOtherFolders(t *testing.T) {
	hive := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)))
	r := boottest.Read(t, windowsDisk(t, map[string][]byte{
		"WINDOWS/SYSTEM32/CONFIG/SYSTEM": hive, "WINDOWS.0/SYSTEM32/CONFIG/SYSTEM": hive,
		"My Windows/System32/config/SYSTEM": hive,
		"Programs/System32/SYSTEM":          hive, "Old/config/SYSTEM": hive,
	}))
	var folders []string
	for _, ref := range stored(r) {
		require.True(t, ref.Follows())
		folders = append(folders, ref.File)
	}
	require.ElementsMatch(t, []string{
		"WINDOWS/SYSTEM32/CONFIG/SYSTEM", "WINDOWS.0/SYSTEM32/CONFIG/SYSTEM", "My Windows/System32/config/SYSTEM",
	}, folders)
	require.Contains(t, links(r), `1 partition 1 holds a Windows in \My Windows`)
}
