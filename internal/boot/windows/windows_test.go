package windows_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/windows"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// The disk of these tests: a boot partition with FAT, and a partition after it.
const (
	signature   = 0x1b2c3d4e
	fatStart    = 63 * 512
	secondStart = 40063 * 512
	nowhere     = 12345 * 512
	elsewhere   = 0x55667788 // another disk
)

// windowsDisk makes the disk with files in its FAT. Path elements are separated by "/".
func windowsDisk(t testing.TB, files map[string][]byte) forge.Bytes {
	t.Helper()
	f := tableforge.NewMBR(60000, tableforge.Slot{Type: 6, Start: 63, Sectors: 40000},
		tableforge.Slot{Type: 7, Start: 40063, Sectors: 10000})
	f.U32(440, signature)
	f.U8(tableforge.MBREntries, 0x80)
	volume := filepath.Join(t.TempDir(), "fat")
	require.NoError(t, os.WriteFile(volume, make([]byte, 40000*512), 0o600))
	disktest.Run(t, "mkfs.fat", "-F", "16", "-h", "63", volume)
	made := map[string]bool{".": true}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		makeFolders(t, volume, path.Dir(name), made)
		source := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(source, files[name], 0o600))
		disktest.Run(t, "mcopy", "-i", volume, source, "::/"+name)
	}
	b := disktest.ReadFile(t, volume)
	f.Put(fatStart, b)
	return f
}

func makeFolders(t testing.TB, volume, dir string, made map[string]bool) {
	t.Helper()
	if made[dir] {
		return
	}
	makeFolders(t, volume, path.Dir(dir), made)
	disktest.Run(t, "mmd", "-i", volume, "::/"+dir)
	made[dir] = true
}

// stored are the references in files.
func stored(r *boot.Result) []boot.Ref {
	return slices.DeleteFunc(slices.Clone(r.Refs), func(r boot.Ref) bool { return r.File == "" })
}

// fates returns references with their outcomes.
func fates(refs []boot.Ref) []string {
	out := []string{}
	for _, r := range refs {
		fate := fmt.Sprintf("follows %d", r.Target)
		switch {
		case r.Disk != 0:
			fate = fmt.Sprintf("of disk %#x", r.Disk)
		case !r.Follows():
			fate = "stays"
		}
		out = append(out, fmt.Sprintf("%s: %d %s", r.Kind, r.Points, fate))
	}
	return out
}

func links(r *boot.Result) string {
	var b strings.Builder
	for _, l := range r.Chain {
		fmt.Fprintf(&b, "%d %s\n", l.Partition, l.Text)
	}
	return b.String()
}

// mounted is a value of MountedDevices. Source: winreg-kb, docs/sources/system-keys/Mounted-devices.md.
func mounted(signature uint32, off uint64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, signature), off)
}

// systemHive is a SYSTEM with these values in MountedDevices.
func systemHive(values ...hiveforge.Value) forge.Bytes {
	return hiveforge.New(3, hiveforge.Key{Name: "$$$PROTO.HIV", Keys: []hiveforge.Key{
		{Name: "ControlSet001"}, {Name: "MountedDevices", Values: values}, {Name: "Select"},
	}})
}

func binaryValue(name string, data []byte) hiveforge.Value {
	return hiveforge.Value{Name: name, Type: 3, Data: data}
}

// Only values of 12 bytes with the disk's signature are positions.
func TestMountedDevices(t *testing.T) {
	twelve := mounted(signature, fatStart)
	hive := systemHive(binaryValue(`\DosDevices\C:`, twelve), binaryValue(`\DosDevices\A:`, []byte(`\??\FDC#GENERIC`)),
		binaryValue(`\??\Volume{a08efec2-a076-11e5-824f-806e6f6e6963}`, mounted(signature, secondStart)),
		binaryValue(`#{46686113-4e39-11ea-bd05-784f439fa657}`, mounted(signature, nowhere)),
		binaryValue(`\DosDevices\E:`, mounted(elsewhere, fatStart)),
		binaryValue(`\DosDevices\F:`, append([]byte("DMIO:ID:"), make([]byte, 16)...)),
		binaryValue(`\dosdevices\g:`, mounted(signature, 1<<63)), binaryValue("zero", nil),
		binaryValue("eleven", twelve[:11]), binaryValue("thirteen", append(twelve, 0)),
		binaryValue("million", make([]byte, 1_000_000)),
		hiveforge.Value{Name: "odd", Type: 3, Data: mounted(signature, secondStart), Wide: true},
		hiveforge.Value{Name: "a text", Type: 1, Data: twelve})
	for _, folder := range []string{"WINDOWS", "Winnt"} {
		disk := windowsDisk(t, map[string][]byte{folder + "/system32/CONFIG/system": hive})
		r := boottest.Read(t, disk)
		got := stored(r)
		require.Equal(t, []string{
			"drive letter C:: 32256 follows 1", "mounted volume: 20512256 follows 2", "mounted volume: 6320640 stays",
			"drive letter E:: 32256 of disk 0x55667788", "drive letter G:: 9223372036854775807 stays",
			"mounted volume: 20512256 follows 2",
		}, fates(got))
		for i, name := range []string{`\DosDevices\C:`, "", "", `\DosDevices\E:`, `\dosdevices\g:`} {
			require.Equal(t, 1, got[i].Partition, name)
			require.Equal(t, []byte(hive[got[i].Off:got[i].Off+8]), got[i].Raw, "the place in the file")
			require.Equal(t, []byte(disk[got[i].At[0].Off:got[i].At[0].Off+8]), got[i].Raw, "the place on the disk")
		}
		b, err := got[0].Encode(got[0].Raw, 1<<20)
		require.NoError(t, err)
		require.Equal(t, mounted(signature, 1<<20)[4:], b)
		stored, _, _ := strings.Cut(got[0].File, "/")
		require.Contains(t, links(r), "1 partition 1 holds Windows in \\"+stored)
	}
}

// If the hive may change before Windows reads it, no byte of it is changed here.
func TestDirtyHives(t *testing.T) {
	const file = "WINDOWS/SYSTEM32/CONFIG/SYSTEM"
	c := binaryValue(`\DosDevices\C:`, mounted(signature, fatStart))
	d := binaryValue(`\DosDevices\D:`, mounted(signature, secondStart))
	dirty := systemHive(c, d)
	dirty.U32(hiveforge.Sequence2, 6)
	hiveforge.Seal(dirty)
	unsealed := systemHive(c, d)
	unsealed.U32(hiveforge.Checksum, 1)
	log := systemHive()[:512]
	log.U32(hiveforge.Sequence1, 9)
	log.U32(hiveforge.Sequence2, 9)
	log.U32(hiveforge.FileType, 1)
	hiveforge.Seal(log)
	for name, files := range map[string]map[string][]byte{
		"sequence numbers": {file: dirty},
		"checksum":         {file: unsealed},
		"newer log":        {file: systemHive(c, d), file + ".LOG1": log},
	} {
		t.Run(name, func(t *testing.T) {
			r := boottest.Read(t, windowsDisk(t, files))
			require.Equal(t, []string{"drive letter C:: 32256 stays", "drive letter D:: 20512256 stays"},
				fates(stored(r)))
			got := boottest.Issues(r, "mounted-devices")
			require.Len(t, got, 2)
			for i, issue := range got {
				require.Equal(t, i+1, issue.Partition, "the partition that is named")
				require.Equal(t, ondisk.Unbootable, issue.Effect)
				require.True(t, issue.OnMove)
				require.Contains(t, issue.Remedy, "shut Windows down cleanly, without fast startup")
			}
		})
	}
	t.Run("names nothing", func(t *testing.T) {
		dirty := systemHive(binaryValue(`\DosDevices\C:`, mounted(elsewhere, fatStart)))
		dirty.U32(hiveforge.Sequence2, 6)
		hiveforge.Seal(dirty)
		r := boottest.Read(t, windowsDisk(t, map[string][]byte{file: dirty}))
		require.Equal(t, ondisk.Warn, boottest.Issues(r, "mounted-devices")[0].Effect,
			"the log may name partitions of the disk")
	})
}

// A hive stores no offsets of GPT partitions, only of other disks, which can have an MBR.
func TestHivesOfGPTDisks(t *testing.T) {
	disk := windowsDisk(t, map[string][]byte{
		"WINDOWS/SYSTEM32/CONFIG/SYSTEM": systemHive(
			binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)), binaryValue(`\DosDevices\D:`,
				mounted(elsewhere, fatStart)),
		),
		"hiberfil.sys": []byte("wake"),
	})
	g := boottest.GuestOf(t, disk)
	g.Scheme = table.GPT
	r, err := layout.ReadBoot(g)
	require.NoError(t, err)
	require.Equal(t, []string{"drive letter D:: 32256 of disk 0x55667788"}, fates(stored(r)))
	require.Empty(t, r.Issues)
}

// Windows reads a hybrid MBR as the table of the disk.
func TestHivesOfHybridMBRs(t *testing.T) {
	disk := windowsDisk(t, map[string][]byte{
		"WINDOWS/SYSTEM32/CONFIG/SYSTEM": systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart))),
	})
	d := boottest.Disk(disk)
	tab, parts := boottest.Partitions(t, d)
	g := boottest.Guest(d, tab, parts)
	want := fates(stored(boottest.ReadGuest(t, boottest.Guest(d, tab, parts))))
	g.Scheme = table.GPT
	require.Empty(t, stored(boottest.ReadGuest(t, g)))
	g = boottest.Guest(d, tab, parts)
	g.Scheme, g.Partitions[0].Kind, g.Partitions[0].Slot = table.GPT, table.Entry, 2
	require.Len(t, want, 1)
	require.Equal(t, want, fates(stored(boottest.ReadGuest(t, g))))
}

// Unreadable files are judged by their loader. A volume of another kind, or an unreadable one, has no files of Windows.
func TestFilesThatCannotBeRead(t *testing.T) {
	made := func(loads string) forge.Bytes {
		f := tableforge.NewMBR(8192, tableforge.Slot{Type: 7, Start: 63, Sectors: 3000},
			tableforge.Slot{Type: 0x83, Start: 4096, Sectors: 3000})
		f.U8(tableforge.MBREntries, 0x80)
		fsforge.PutNTFS(f, 63, 3000) // nothing but a boot sector
		fsforge.PutExt(f, 4096, 3000)
		f.Text(63*512+0x100, loads)
		return f
	}
	for loads, code := range map[string]string{"BOOTMGR": "bcd", "NTLDR": "mounted-devices", "": "files-unread"} {
		r := boottest.Read(t, made(loads))
		issues := boottest.Issues(r, code)
		require.Len(t, issues, 1, loads)
		require.Equal(t, loads != "", issues[0].Effect == ondisk.Unbootable, loads)
		require.Equal(t, loads != "", issues[0].OnMove && issues[0].Partition == 0, "a move of any partition")
		require.Equal(t, loads != "", len(boottest.Issues(r, "files-unread")) == 0, loads)
	}
	d := boottest.Disk(made(""))
	tab, parts := boottest.Partitions(t, d)
	parts[0].Volume = &volume.Volume{Kind: volume.NTFS}
	require.Empty(t, boottest.Issues(boottest.ReadGuest(t, boottest.Guest(d, tab, parts)), "files-unread"))
}

// A BitLocker volume whose metadata do not show whether it has a system is judged by the rest of the disk.
func TestBitLockerVolumes(t *testing.T) {
	g := &boot.Guest{Partitions: []boot.Partition{{Volume: &volume.Volume{Kind: volume.BitLocker}}}}
	g.Partitions[0].Number = 3
	for code, want := range map[*boot.Code]ondisk.Effect{boot.Unknown: ondisk.Unbootable, boot.Empty: ondisk.Note} {
		g.Code = code
		var r boot.Result
		windows.BitLocker(g, &r)
		require.Len(t, r.Issues, 1)
		require.Equal(t, want, r.Issues[0].Effect)
		require.Equal(t, 3, r.Issues[0].Partition)
		require.True(t, r.Issues[0].OnMove)
	}
}

// An unreadable sector in the boot chain of Windows is never mistaken for data.
func TestBadSectorsUnderWindows(t *testing.T) {
	letters := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, fatStart)))
	logged := systemHive(binaryValue(`\DosDevices\C:`, mounted(signature, secondStart)))
	store := bootStore(
		element{"11000001", plain(mbrDevice(signature, fatStart))},
		element{"21000001", ramDisk(mbrDevice(signature, secondStart))})
	const system = "WINDOWS/SYSTEM32/CONFIG/SYSTEM"
	for name, files := range map[string]map[string][]byte{
		"Windows 10": {
			system: hiveforge.Dirty(letters, 7), system + ".LOG1": hiveforge.Log(letters, 6, logged),
			"HIBERFIL.SYS": []byte("wake"), "Boot/BCD": store,
			recoveryFile: []byte(agent(location("\n  ", "WinreLocation", fmt.Sprint(signature), "32256"))),
		},
		"Windows NT": {
			ntSystem:          hiveforge.Dirty(ntHive(twoDisks()), 7),
			ntSystem + ".LOG": hiveforge.OldLog(ntHive(make(forge.Bytes, len(twoDisks()))), 2, ntHive(twoDisks())),
			"BOOT.INI":        menu(`MULTI(0)DISK(0)RDISK(0)PARTITION(2)\WINNT="Windows"`, `C:\linux.bin="Linux"`),
			"BOOTSECT.DOS":    saved(63),
			"linux.bin":       saved(40063),
		},
	} {
		t.Run(name, func(t *testing.T) {
			boottest.EveryBadSector(t, boottest.GuestOf(t, windowsDisk(t, files)))
		})
	}
}

// A second Windows in a partition has a folder of another name, and so has one named by its owner. A folder with other
// content is not one.
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
	require.Contains(t, links(r), `1 partition 1 holds Windows in \My Windows`)
}

// The state of a Windows shows in its hives and in the hibernation file.
func TestStateOfWindows(t *testing.T) {
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

// A hibernation file that only refers to another one says nothing by itself: the other file decides. If that file is
// not on the disk, the state is unknown.
func TestLinkToHibernation(t *testing.T) {
	for name, tc := range map[string]struct {
		second string // beginning of that file on the other partition; empty: none
		want   []ondisk.Effect
		state  boot.State
	}{
		"to another disk":  {"", []ondisk.Effect{ondisk.Unbootable}, boot.NotKnown},
		"to one awake":     {"wake", nil, boot.ShutDown},
		"to one asleep":    {"hibr", []ondisk.Effect{ondisk.Refuse}, boot.Hibernated},
		"to another of it": {"link", []ondisk.Effect{ondisk.Unbootable, ondisk.Unbootable}, boot.NotKnown},
	} {
		t.Run(name, func(t *testing.T) {
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

// A resuming kernel has the old positions of all partitions in memory. ntfs-3g also refuses the volumes of a hibernated
// system. It supports only two signatures, and refuses all short files.
func TestHibernationAgreesWithNTFS3G(t *testing.T) {
	probe := disktest.Tool(t, "ntfs-3g.probe")
	asleep, unknown := []ondisk.Effect{ondisk.Refuse}, []ondisk.Effect{ondisk.Unbootable}
	for name, tc := range map[string]struct {
		head    string // beginning of the file
		length  int    // of what is after that
		want    []ondisk.Effect
		differs string // reason for the difference from ntfs-3g
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
