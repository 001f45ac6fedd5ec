package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// The signatures of a machine of two disks.
const (
	sysSignature = 0xa1a1a1a1
	datSignature = 0xb2b2b2b2
)

// lettersFile is where the Windows of twoDiskMachine keeps its letters.
const lettersFile = "WINDOWS/system32/config/SYSTEM"

// twoDiskMachine makes the disk of a Windows that knows its own C: and the letter D: of a second disk, and that disk.
// Both are raw files.
func twoDiskMachine(t testing.TB) (sys, dat string) {
	t.Helper()
	empty := filepath.Join(t.TempDir(), "empty")
	hive := hiveforge.New(3, hiveforge.Key{Name: "SYSTEM", Keys: []hiveforge.Key{{Name: "Select"}}})
	require.NoError(t, os.WriteFile(empty, hive, 0o600))
	text := reg(`\MountedDevices`, `\\DosDevices\\C:`, hexBytes(mountedValue(sysSignature, 63*sectorSize)),
		`\\DosDevices\\D:`, hexBytes(mountedValue(datSignature, 63*sectorSize)))
	system := windowsDisk{signature: sysSignature, sectors: 40960, volumes: []windowsVolume{
		{
			number: 1, kind: "fat16", typ: "6", start: 63, sectors: 32700, loads: "NTLDR",
			files: map[string]string{lettersFile: mergeHive(t, empty, text)},
		},
	}}
	data := windowsDisk{
		signature: datSignature, sectors: 20480,
		volumes: []windowsVolume{{number: 1, kind: "ntfs", typ: "7", start: 63, sectors: 16000}},
	}
	return system.make(t), data.make(t)
}
