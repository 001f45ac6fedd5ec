package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// What a Windows remembers of a place where nothing is now, and where a partition goes: the copy is made and proved,
// and the user is told.
func TestWindowsRemembersThePlaceThatAPartitionGetsTo(t *testing.T) {
	t.Parallel()
	value := func(letter string, off int64) hiveforge.Value {
		return hiveforge.Value{Name: `\DosDevices\` + letter, Type: 3, Data: mountedValue(windowsSignature, off)}
	}
	hive := hiveforge.New(5, hiveforge.Key{Name: "ROOT", Keys: []hiveforge.Key{{
		Name: "MountedDevices", Values: []hiveforge.Value{
			value("C:", 63*sectorSize), value("D:", 1<<20),
			value("E:", 3<<20),
		},
	}}})
	raw := bootsFrom(t, "ntfs", map[string]string{"WINDOWS/System32/config/SYSTEM": hostFile(t, string(hive))})
	source := withChange(raw, func(forge.Bytes) {})(t, t.TempDir())
	dest := filepath.Join(t.TempDir(), "dest.raw")
	r := trueup(t, "align", source, dest)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	require.Contains(t, r.stdout, "drive letter D: in \"WINDOWS/System32/config/SYSTEM\"")
	require.NotContains(t, r.stdout, "drive letter E: in")
	require.Len(t, findingsOf(t, "plan", source, "stray-reference"), 1)
	r = trueup(t, "verify", source, dest)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	require.Equal(t, 0, trueup(t, "plan", dest).code)
}

// findingsOf are those of a command with a code.
func findingsOf(t *testing.T, command, path, code string) (out []jsonFinding) {
	t.Helper()
	f := parseFailure(t, trueup(t, command, "--json", path))
	for _, finding := range f.Findings {
		if finding.Code == code {
			out = append(out, finding)
		}
	}
	return out
}
