package windows_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// How a Windows was left shows in its hives and in the file of hibernation.
func TestStateOfWindows(t *testing.T) {
	t.Parallel()
	const file = "WINDOWS/system32/config/SYSTEM"
	closed := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)))
	log := hiveforge.Log(closed, 6, systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, secondStart))))
	for name, tc := range map[string]struct {
		files map[string][]byte
		want  boot.State
		sign  string // of that state
	}{
		"closed": {
			map[string][]byte{file: closed},
			boot.ShutDown,
			`the registry hive \WINDOWS\system32\config\SYSTEM of partition 1 is closed`,
		},
		"open, with its log": {
			map[string][]byte{file: hiveforge.Dirty(closed, 7), file + ".LOG1": log},
			boot.Running,
			`SYSTEM of partition 1 is open, and Windows will update it from ` +
				`\WINDOWS\system32\config\SYSTEM.LOG1 (pending log entries: 1)`,
		},
		"open, without": {
			map[string][]byte{file: hiveforge.Dirty(closed, 7)},
			boot.Running,
			"SYSTEM of partition 1 is open: sequence numbers 7 and 6 differ, and no log fits",
		},
		"no hive": {
			map[string][]byte{file: []byte(strings.Repeat("text", 2000))},
			boot.NotKnown,
			"SYSTEM of partition 1 cannot be read",
		},
		"asleep": {
			map[string][]byte{file: hiveforge.Dirty(closed, 7), "hiberfil.sys": []byte("hibr")},
			boot.Hibernated, `\hiberfil.sys of partition 1 holds a hibernated system (HIBR)`,
		},
		"awake": {
			map[string][]byte{file: closed, "hiberfil.sys": []byte("wake")},
			boot.ShutDown,
			`\hiberfil.sys of partition 1 holds no hibernated system`,
		},
		"a riddle": {
			map[string][]byte{file: closed, "hiberfil.sys": []byte("what")},
			boot.NotKnown,
			"begins with 77 68 61 74",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := boottest.Read(t, windowsDisk(t, tc.files))
			require.Equal(t, tc.want, r.State, r.Signs)
			var of []string
			for _, s := range r.Signs {
				if s.State == tc.want {
					of = append(of, s.Text)
				}
			}
			require.Contains(t, strings.Join(of, "\n"), tc.sign)
		})
	}
}

// A file that only names the real one says nothing by itself. Without that one on the disk, it is elsewhere.
func TestLinkToHibernation(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		second string // what the file of the other partition begins with; empty: no such file
		want   []ondisk.Effect
		state  boot.State
	}{
		"to another disk":  {"", []ondisk.Effect{ondisk.Unbootable}, boot.NotKnown},
		"to one awake":     {"wake", nil, boot.ShutDown},
		"to one asleep":    {"hibr", []ondisk.Effect{ondisk.Refuse}, boot.Hibernated},
		"to another of it": {"link", []ondisk.Effect{ondisk.Unbootable, ondisk.Unbootable}, boot.NotKnown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := windowsDisk(t, map[string][]byte{"hiberfil.sys": []byte("link and a path")})
			if tc.second != "" {
				small := filepath.Join(t.TempDir(), "fat")
				require.NoError(t, os.WriteFile(small, make([]byte, 10000*512), 0o600))
				// DOS marks a FAT16 that is open
				disktest.Run(t, "mkfs.fat", "-F", "16", "-s", "1", "-h", "40063", small)
				source := filepath.Join(t.TempDir(), "file")
				require.NoError(t, os.WriteFile(source, []byte(tc.second), 0o600))
				disktest.Run(t, "mcopy", "-i", small, source, "::/hiberfil.sys")
				disk.Put(secondStart, disktest.ReadFile(t, small))
			}
			r := boottest.Read(t, disk)
			require.Equal(t, tc.want, boottest.Effects(boottest.Issues(r, "hibernated")))
			require.Equal(t, tc.state, r.State)
		})
	}
}

// A kernel that wakes up has the old places of all partitions in memory. ntfs-3g refuses the volumes that hold a
// hibernated system too. It knows two signatures only, and refuses all short files.
func TestHibernationAgreesWithNTFS3G(t *testing.T) {
	t.Parallel()
	probe := disktest.Tool(t, "ntfs-3g.probe")
	asleep, unknown := []ondisk.Effect{ondisk.Refuse}, []ondisk.Effect{ondisk.Unbootable}
	for name, tc := range map[string]struct {
		head    string // what the file begins with
		length  int    // of what is behind that
		want    []ondisk.Effect
		differs string // why ntfs-3g does otherwise
	}{
		"hibr":          {"hibr", 8000, asleep, ""},
		"HIBR":          {"HIBR", 8000, asleep, ""},
		"zeros":         {"\x00\x00\x00\x00", 8000, nil, ""},
		"wake":          {"wake", 8000, nil, ""},
		"WAKE":          {"WAKE", 8000, nil, ""},
		"RSTR":          {"RSTR", 8000, asleep, "ntfs-3g mounts it, and the system is on its way up"},
		"HORM":          {"HORM", 8000, asleep, "ntfs-3g mounts it, and each start wakes it"},
		"a riddle":      {"what", 8000, unknown, "ntfs-3g mounts what it does not know"},
		"link":          {"link", 100, unknown, ""},
		"wake, a short": {"wake", 0, nil, "ntfs-3g takes each short file for a link"},
		"empty":         {"", 0, nil, "ntfs-3g takes each short file for a link"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			volume, source := filepath.Join(t.TempDir(), "ntfs"), filepath.Join(t.TempDir(), "file")
			require.NoError(t, os.WriteFile(volume, make([]byte, 10000*512), 0o600))
			require.NoError(t, os.WriteFile(source, append([]byte(tc.head), make([]byte, tc.length)...), 0o600))
			disktest.Run(t, "mkntfs", "-F", "-q", "-p", "40063", "-H", "255", "-S", "63", volume)
			disktest.Run(t, "ntfscp", "-f", volume, source, "hiberfil.sys")
			err := exec.Command(probe, "--readwrite", volume).Run()
			var exit *exec.ExitError
			if err != nil {
				require.ErrorAs(t, err, &exit)
				require.Equal(t, 14, exit.ExitCode(), "it is hibernated")
			}
			require.Equal(t, len(tc.want) > 0, (err != nil) == (tc.differs == ""))

			disk := windowsDisk(t, nil)
			disk.Put(secondStart, disktest.ReadFile(t, volume))
			issues := boottest.Issues(boottest.Read(t, disk), "hibernated")
			require.Equal(t, tc.want, boottest.Effects(issues))
			for _, i := range issues {
				require.True(t, i.OnMove)
				require.Zero(t, i.Partition, "its kernel knows all partitions")
			}
		})
	}
}
