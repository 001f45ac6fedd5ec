package main

import (
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
)

// ntDisk is a disk of Windows NT 4 with two FATs and the registry value DISK\Information. Source of the offsets:
// ntddft.h and ntdskreg.h.
func ntDisk(t *testing.T, kind uint32) windowsDisk {
	t.Helper()
	const cylinder, system = 16065, "WINNT/system32/config/SYSTEM"
	d := windowsDisk{signature: windowsSignature, sectors: 10 * cylinder, volumes: []windowsVolume{
		{number: 1, kind: "fat16", typ: "6", start: 63, sectors: 5*cylinder - 63, loads: "NTLDR"},
		{number: 2, kind: "fat16", typ: "6", start: 5 * cylinder, sectors: 4 * cylinder},
	}}
	starts := d.starts()
	value := make(forge.Bytes, 44+4+8+52*len(starts))
	value.U32(0, 3)
	value.U32(12, 44)
	value.U32(16, uint32(len(value)-44))
	value.U32(20, uint32(len(value)))
	value.U16(44, 1)
	value.U16(48, uint16(len(starts)))
	value.U32(52, windowsSignature)
	for number, start := range starts {
		at := 56 + 52*int64(number-1)
		value.U32(at, kind)
		value.U64(at+8, uint64(start))
		value.U8(at+40, 'C'+byte(number-1))
		value.U8(at+41, 1)
	}
	hive := mergeHive(t, disktest.Corpus(t, "regipy/SYSTEM_2.xz"),
		"[\\DISK]\n\"Information\"=hex:"+hexBytes(value)+"\n")
	d.volumes[0].files = map[string]string{system: hive}
	return d
}

// Windows NT 4 keeps its drive letters: hivex and libregf read the new places of both partitions, and nothing else new.
func TestWindowsNT4KeepsItsDriveLetters(t *testing.T) {
	t.Parallel()
	d := ntDisk(t, 4)
	// A partition as a .reg file has it: no member of a set, healthy, and its start.
	text := func(_ uint32, start int64) string {
		return hexBytes(binary.LittleEndian.AppendUint64([]byte{4, 0, 0, 0, 0, 0, 0, 0}, uint64(start)))
	}
	c := windowsCase{disk: d, stored: []storedIn{{1, "WINNT/system32/config/SYSTEM", `\`, text, 2}}}
	now, _ := c.run(t)
	require.ElementsMatch(t, []int{1, 2}, differing(d.starts(), now))
}

// A mirror set of Windows NT 4 is refused by its name.
func TestWindowsNT4WithSets(t *testing.T) {
	t.Parallel()
	source, dest := ntDisk(t, 0).make(t), filepath.Join(t.TempDir(), "dest.raw")
	r := trueup(t, "align", source, dest)
	require.Equal(t, 4, r.code, "%s%s", r.stdout, r.stderr)
	require.Contains(t, r.stderr, "a member of a fault-tolerant set")
	require.NoFileExists(t, dest)
}
