package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
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
func twoDiskMachine(t testing.TB) (sys windowsDisk, sysRaw, datRaw string) {
	t.Helper()
	empty := filepath.Join(t.TempDir(), "empty")
	hive := hiveforge.New(3, hiveforge.Key{Name: "SYSTEM", Keys: []hiveforge.Key{{Name: "Select"}}})
	require.NoError(t, os.WriteFile(empty, hive, 0o600))
	text := reg(`\MountedDevices`, `\\DosDevices\\C:`, hexBytes(mountedValue(sysSignature, 63*sectorSize)),
		`\\DosDevices\\D:`, hexBytes(mountedValue(datSignature, 63*sectorSize)))
	sys = windowsDisk{signature: sysSignature, sectors: 40960, volumes: []windowsVolume{
		{
			number: 1, kind: "fat16", typ: "6", start: 63, sectors: 32700, loads: "NTLDR",
			files: map[string]string{lettersFile: mergeHive(t, empty, text)},
		},
	}}
	dat := windowsDisk{
		signature: datSignature, sectors: 20480,
		volumes: []windowsVolume{{number: 1, kind: "ntfs", typ: "7", start: 63, sectors: 16000}},
	}
	return sys, sys.make(t), dat.make(t)
}

// lettersOf exports the letters of an aligned system disk with hivex.
func lettersOf(t testing.TB, sys windowsDisk, raw string) string {
	t.Helper()
	return exportHive(t, readGuestFile(t, raw, sys.volumes[0], 1<<20, lettersFile), "MountedDevices")
}

// machinePackage packs the two disks; systems are the virtual systems that the OVF names, one of all disks without
// them.
func machinePackage(t testing.TB, sysRaw, datRaw string, systems ...string) (ova string) {
	t.Helper()
	p := &madePackage{
		order: []string{"disk1.vmdk", "disk2.vmdk", "vm.nvram"},
		files: map[string]string{"vm.nvram": hostFile(t, "nvram")},
	}
	p.text = strings.NewReplacer("CAPACITY1", "20", "UNITS1", "byte * 2^20", "8388608",
		fmt.Sprint(20480*sectorSize)).Replace(ovfText)
	if len(systems) > 0 {
		p.text = strings.Replace(p.text, "</Envelope>", "<VirtualSystemCollection>"+strings.Join(systems,
			"")+"</VirtualSystemCollection></Envelope>", 1)
		p.text = strings.Replace(p.text, `<VirtualSystem ovf:id="vm"><Info>ovf:capacity="8"</Info></VirtualSystem>`, "",
			1)
	}
	for name, raw := range map[string]string{"disk1.vmdk": sysRaw, "disk2.vmdk": datRaw} {
		p.files[name] = filepath.Join(t.TempDir(), name)
		disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", raw, p.files[name])
	}
	return p.ova(t)
}

// In a package the letters of a second disk follow it, and verify repeats that.
func TestLettersOfAMachineInAPackage(t *testing.T) {
	t.Parallel()
	sys, sysRaw, datRaw := twoDiskMachine(t)
	source, dest := machinePackage(t, sysRaw, datRaw), filepath.Join(t.TempDir(), "out.ova")
	answer := trueupJSON[jsonPackageAlign](t, 0, "align", source, dest)
	require.Equal(t, 2, answer.Moved)
	is, _ := unpack(t, dest)
	raw := filepath.Join(t.TempDir(), "sys.raw")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", filepath.Join(is, "disk1.vmdk"), raw)
	got := lettersOf(t, sys, raw)
	require.Contains(t, got, mountedText(sysSignature, 1<<20))
	require.Contains(t, got, mountedText(datSignature, 1<<20))
	require.Contains(t, disktest.Run(t, "sfdisk", "--dump", raw), "start=        2048")
	require.True(t, trueupJSON[jsonPackageVerify](t, 0, "verify", source, dest).Equal)
}

// Two machines in one package can be copies of each other: a letter means no disk of another machine.
func TestLettersOfAnotherMachineStay(t *testing.T) {
	t.Parallel()
	sys, sysRaw, datRaw := twoDiskMachine(t)
	system := func(disk string) string {
		return "<VirtualSystem><Item><HostResource>ovf:/disk/" + disk + "</HostResource></Item></VirtualSystem>"
	}
	source, dest := machinePackage(t, sysRaw, datRaw, system("vmdisk1"), system("vmdisk2")),
		filepath.Join(t.TempDir(), "out.ova")
	require.Equal(t, 2, trueupJSON[jsonPackageAlign](t, 0, "align", source, dest).Moved)
	is, _ := unpack(t, dest)
	got := lettersOf(t, sys, formatSparse.rawOf(t, filepath.Join(is, "disk1.vmdk")))
	require.Contains(t, got, mountedText(sysSignature, 1<<20))
	require.Contains(t, got, mountedText(datSignature, 63*sectorSize))
	require.True(t, trueupJSON[jsonPackageVerify](t, 0, "verify", source, dest).Equal)
	require.Contains(t, trueup(t, "inspect", "--json", source).stdout, "names-other-disks")
}

// What inspect and scan say of the disks of a package knows the other disks; what they say of one disk does not.
func TestInspectionOfAMachine(t *testing.T) {
	t.Parallel()
	_, sysRaw, datRaw := twoDiskMachine(t)
	ova := machinePackage(t, sysRaw, datRaw)
	for _, args := range [][]string{{"inspect", "--json", ova}, {"scan", "--json", ova}} {
		out := trueup(t, args...).stdout
		require.Contains(t, out, `"misaligned"`)
		require.NotContains(t, out, "names-other-disks", args[0])
		require.NotContains(t, out, "known-elsewhere", args[0])
		require.Contains(t, trueup(t, args[0], "--json", sysRaw).stdout, "names-other-disks")
		require.Contains(t, trueup(t, args[0], "--json", datRaw).stdout, "known-elsewhere")
	}
	for _, disks := range [][2]string{{sysRaw, datRaw}, {datRaw, sysRaw}} {
		r := trueup(t, "inspect", "--with", disks[1], disks[0])
		require.Equal(t, 3, r.code, r.stderr)
		require.NotContains(t, r.stdout, "of the machine")
		require.Contains(t, r.stdout, "trueup align --with "+disks[1]+" "+disks[0])
	}
	require.Equal(t, 64, trueup(t, "inspect", "--with", datRaw, ova).code)
	require.Equal(t, 64, trueup(t, "verify", "--with", datRaw, ova, ova).code)
}

// A disk that align refuses, since a snapshot beside it needs it, stays where it is: no letter may follow it.
func TestLettersStayWithADiskThatIsRefused(t *testing.T) {
	t.Parallel()
	sys, sysRaw, datRaw := twoDiskMachine(t)
	child := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", "-b", filepath.Base(datRaw), "-F", "raw",
		"child.qcow2")
	child.Dir = filepath.Dir(datRaw)
	require.NoError(t, child.Run())
	require.Equal(t, 4, trueup(t, "plan", datRaw).code)
	dest := filepath.Join(t.TempDir(), "sys.raw")
	r := trueup(t, "align", "--json", "--with", datRaw, sysRaw, dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "with-refused")
	require.Contains(t, lettersOf(t, sys, dest), mountedText(datSignature, 63*sectorSize))
}

// requireExactLetters has verify hold the letters of another disk to where that disk goes. A place where it could have
// gone is no proof.
func requireExactLetters(t *testing.T, sys windowsDisk, sysRaw, sysCopy, datRaw, dir string) {
	t.Helper()
	verify := func(args ...string) int {
		return trueup(t, append([]string{"verify", "--with", datRaw}, args...)...).code
	}
	require.Equal(t, 0, verify(sysRaw, sysCopy))
	require.Equal(t, 5, verify("--boundary", "64K", sysRaw, sysCopy), "align had another boundary")
	other := filepath.Join(dir, "other.raw")
	require.Equal(t, 0, trueup(t, "align", "--with", datRaw, "--boundary", "64K", sysRaw, other).code)
	letters := exportHive(t, readGuestFile(t, other, sys.volumes[0], 64<<10, lettersFile), "MountedDevices")
	require.Contains(t, letters, mountedText(datSignature, 64<<10))
	require.Equal(t, 0, trueup(t, "verify", sysRaw, other).code, "it can be right")
	require.Equal(t, 5, verify(sysRaw, other))
	require.Equal(t, 0, verify("--boundary", "64K", sysRaw, other))
	require.Equal(t, 64, trueup(t, "verify", "--boundary", "64K", sysRaw, other).code, "of which disks?")
	require.Equal(t, 4, verify("--with", datRaw, sysRaw, sysCopy), "one signature twice")
}

// Each disk is aligned with the other: the letter in the copy of the system disk names the place in the copy of the
// data disk.
func TestLettersOfAMachineByWith(t *testing.T) {
	t.Parallel()
	sys, sysRaw, datRaw := twoDiskMachine(t)
	dir := t.TempDir()
	sysCopy, datCopy := filepath.Join(dir, "sys.raw"), filepath.Join(dir, "dat.raw")
	answer := trueupJSON[struct {
		References []struct {
			Disk    string `json:"disk"`
			Becomes int64  `json:"becomes_bytes"`
		} `json:"references"`
	}](t, 0, "plan", "--with", datRaw, sysRaw)
	require.Contains(t, fmt.Sprint(answer.References), "{0xb2b2b2b2 1048576}")
	require.Equal(t, 0, trueup(t, "align", "--with", datRaw, sysRaw, sysCopy).code)
	dat := trueup(t, "align", "--with", sysRaw, datRaw, datCopy)
	require.Equal(t, 0, dat.code)
	require.Contains(t, strings.Join(strings.Fields(dat.stdout), " "), "drive letter D: means partition 1")
	got := lettersOf(t, sys, sysCopy)
	require.Contains(t, got, mountedText(sysSignature, 1<<20))
	require.Contains(t, got, mountedText(datSignature, 1<<20))
	require.Contains(t, disktest.Run(t, "sfdisk", "--dump", datCopy), "start=        2048")
	require.Equal(t, 0, trueup(t, "verify", sysRaw, sysCopy).code)
	require.Equal(t, 0, trueup(t, "verify", datRaw, datCopy).code)
	requireExactLetters(t, sys, sysRaw, sysCopy, datRaw, dir)

	require.Equal(t, 4, trueup(t, "align", "--with", datRaw, "--with", datCopy, sysRaw, filepath.Join(dir, "no")).code,
		"one signature twice")
	require.Equal(t, 64, trueup(t, "align", "--force", "--with", datRaw, sysRaw, datRaw).code,
		"DEST is a disk of the machine")
	require.Equal(t, 64, trueup(t, "align", "--with", datRaw, "--partition", "1", sysRaw,
		filepath.Join(dir, "no")).code)
	require.NoFileExists(t, filepath.Join(dir, "no"))
}
