package main

import (
	"os"
	"path/filepath"

	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
)

// The signatures of a machine of two disks.
const (
	sysSignature = 0xa1a1a1a1
	datSignature = 0xb2b2b2b2
)

// lettersFile is where the Windows of such a machine keeps its letters.
const lettersFile = "WINDOWS/system32/config/SYSTEM"

// machine SYS DAT writes two raw disks: a Windows whose registry maps C: to its own disk and D: to the second one.
func (s *script) machine(args []string) {
	if len(args) != 2 {
		s.Fatalf("usage: machine SYS DAT")
	}
	empty := filepath.Join(s.t.TempDir(), "empty")
	hive := hiveforge.New(3, hiveforge.Key{Name: "SYSTEM", Keys: []hiveforge.Key{{Name: "Select"}}})
	s.Check(os.WriteFile(empty, hive, 0o600))
	text := reg(`\MountedDevices`, `\\DosDevices\\C:`, hexBytes(mountedValue(sysSignature, 63*sectorSize)),
		`\\DosDevices\\D:`, hexBytes(mountedValue(datSignature, 63*sectorSize)))
	system := windowsDisk{signature: sysSignature, sectors: 40960, volumes: []windowsVolume{
		{
			number: 1, kind: "fat16", typ: "6", start: 63, sectors: 32700, loads: "NTLDR",
			files: map[string]string{lettersFile: mergeHive(s.t, empty, text)},
		},
	}}
	data := windowsDisk{
		signature: datSignature, sectors: 20480,
		volumes: []windowsVolume{{number: 1, kind: "ntfs", typ: "7", start: 63, sectors: 16000}},
	}
	s.Check(os.Rename(system.make(s.t), s.place(args[0])))
	s.Check(os.Rename(data.make(s.t), s.place(args[1])))
}
