package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
)

// mountedValue is a value of MountedDevices for a volume of an MBR disk. Source: winreg-kb, Mounted-devices.md.
func mountedValue(signature uint32, off int64) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, signature), uint64(off))
}

// bcdDevice is a partition of an MBR disk in an element of a BCD, beginning with its type. Source: BCD-SYS,
// Linux/update_device.sh.
func bcdDevice(signature uint32, off int64) []byte {
	d := make(forge.Bytes, 0x48)
	d.U32(0, 6)
	d.U32(8, 0x48)
	d.U64(0x10, uint64(off))
	d.U32(0x24, 1)
	d.U32(0x28, signature)
	return d
}

// mountedText returns a mountedValue as in a .reg file, from the equal sign to the end of the line.
func mountedText(signature uint32, off int64) string {
	return "=hex(3):" + hexBytes(mountedValue(signature, off)) + "\n"
}

func bcdText(signature uint32, off int64) string { return hexBytes(bcdDevice(signature, off)) }

// storedIn is a file whose positions an align must rewrite.
type storedIn struct {
	partition int
	file      string
	key       string                                   // part of the hive to export; all if it is long
	text      func(signature uint32, off int64) string // a position, in the format of hivexregedit
	want      int                                      // positions
}

// windowsCase is an align of a disk with a bootable Windows.
type windowsCase struct {
	disk   windowsDisk
	flags  []string
	stored []storedIn
}

// starts are the bytes at which partitions start, by number.
func (d windowsDisk) starts() map[int]int64 {
	out := map[int]int64{}
	for _, v := range d.volumes {
		out[v.number] = v.start * sectorSize
	}
	return out
}

func (d windowsDisk) volume(number int) windowsVolume {
	for _, v := range d.volumes {
		if v.number == number {
			return v
		}
	}
	panic("no such partition")
}

// run aligns the disk, and requires that the files of the result differ from the source only in references to moved
// partitions. It returns the positions of the partitions, and the copy.
func (c windowsCase) run(t *testing.T) (now map[int]int64, dest string) {
	t.Helper()
	source := c.disk.make(t)
	goldenPlan(t, t.Name(), source, c.flags...)
	dest = filepath.Join(t.TempDir(), "aligned.raw")
	answer := trueupJSON[jsonAlign](t, 0, append([]string{"align", source, dest}, c.flags...)...)
	requireSameView(t, source, dest, c.flags...)
	now = c.disk.starts()
	require.NotEmpty(t, answer.Disks[0].Moves)
	for _, m := range answer.Disks[0].Moves {
		require.Equal(t, now[m.Partition], m.FromBytes)
		now[m.Partition] = m.ToBytes
	}
	for _, s := range c.stored {
		c.check(t, s, dest, now)
	}
	return now, dest
}

// check compares a hive before and after, byte for byte and with two programs.
func (c windowsCase) check(t *testing.T, s storedIn, dest string, now map[int]int64) {
	t.Helper()
	v := c.disk.volume(s.partition)
	before, after := v.files[s.file], readGuestFile(t, dest, v, now[s.partition], s.file)
	text, want := exportHive(t, before, s.key), 0
	var pairs []string
	for number, was := range c.disk.starts() {
		if now[number] == was || c.disk.volume(number).kind == "" {
			continue
		}
		old := s.text(c.disk.signature, was)
		want += strings.Count(text, old)
		pairs = append(pairs, old, s.text(c.disk.signature, now[number]))
	}
	require.Equal(t, s.want, want, "positions in %s", s.file)
	require.Equal(t, strings.NewReplacer(pairs...).Replace(text), exportHive(t, after, s.key), "hivex")

	a, b := disktest.ReadFile(t, before), disktest.ReadFile(t, after)
	require.Len(t, b, len(a))
	bytesDiffer := 0
	for i := range a {
		if a[i] != b[i] {
			bytesDiffer++
		}
	}
	require.Positive(t, bytesDiffer)
	require.LessOrEqual(t, bytesDiffer, 8*s.want)

	// libregf shares no code with hivex: it finds the same keys and values, and data of values differ in a few lines.
	read := func(hive string) []string {
		args := []string{hive}
		if s.key != `\` {
			args = []string{"-K", strings.TrimPrefix(s.key, `\`), hive}
		}
		return strings.Split(disktest.Output(t, "regfexport", args...), "\n")
	}
	oldLines, newLines := read(before), read(after)
	require.Greater(t, len(oldLines), 20)
	require.Len(t, newLines, len(oldLines))
	linesDiffer := 0
	for i := range oldLines {
		if oldLines[i] == newLines[i] {
			continue
		}
		require.Regexp(t, hexDumpLine, oldLines[i])
		require.Regexp(t, hexDumpLine, newLines[i])
		linesDiffer++
	}
	require.GreaterOrEqual(t, linesDiffer, s.want)
	require.LessOrEqual(t, linesDiffer, 2*s.want, "a position of 8 bytes is in two lines at most")
}

// hexDumpLine matches a line of data in the output of regfexport.
var hexDumpLine = regexp.MustCompile(`^[0-9a-f]{8}: `)

// reg is a key of a .reg file with binary values; names are as in the file.
func reg(key string, values ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "[%s]\n", key)
	for i := 0; i < len(values); i += 2 {
		fmt.Fprintf(&b, "\"%s\"=hex(3):%s\n", values[i], values[i+1])
	}
	return b.String() + "\n"
}

const windowsSignature = 0x1b2c3d4e

// letters is a MountedDevices with drive letters for these offsets, from C: on, and data that no move changes.
func letters(offs ...int64) string {
	var values []string
	for i, off := range offs {
		hex := hexBytes(mountedValue(windowsSignature, off))
		values = append(values, fmt.Sprintf(`\\DosDevices\\%c:`, 'C'+i), hex,
			fmt.Sprintf(`\\??\\Volume{a08efec%d-a076-11e5-824f-806e6f6e6963}`, i), hex)
	}
	return reg(`\MountedDevices`, append(values,
		`\\DosDevices\\X:`, hexBytes(mountedValue(windowsSignature, 77*sectorSize)),
		`\\DosDevices\\Y:`, hexBytes(mountedValue(0x99999999, offs[0])),
		`\\DosDevices\\Z:`, hexBytes(append(mountedValue(windowsSignature, offs[0]), 0)))...)
}

// Windows XP: NTFS from the second track on, a FAT32 and a logical drive, all of which have letters.
func TestWindowsXPKeepsItsDriveLetters(t *testing.T) {
	t.Parallel()
	hive := disktest.Corpus(t, "regipy/SYSTEM_2.xz")
	const cylinder = 16065
	d := windowsDisk{signature: windowsSignature, sectors: 20 * cylinder, volumes: []windowsVolume{
		{number: 1, kind: "ntfs", typ: "7", start: 63, sectors: 5*cylinder - 63, loads: "NTLDR"},
		{number: 2, kind: "fat32", typ: "c", start: 5 * cylinder, sectors: 5 * cylinder},
		{number: 3, typ: "f", start: 10 * cylinder, sectors: 5 * cylinder},
		{number: 5, kind: "fat16", typ: "6", start: 10*cylinder + 63, sectors: 5*cylinder - 63},
	}}
	was := d.starts()
	saved := make(forge.Bytes, 512) // the boot sector of another system, with its hidden sectors
	saved.Put(0, []byte{0xeb, 0x3c, 0x90})
	saved.U16(0x0b, 512)
	saved.U32(hiddenSectorsAt, 63)
	saved.U16(510, 0xaa55)
	const system = "WINDOWS/system32/config/system"
	d.volumes[0].files = map[string]string{
		system:         mergeHive(t, hive, letters(was[1], was[2], was[5])),
		"BOOTSECT.DOS": hostFile(t, string(saved)),
		"boot.ini": hostFile(t, "[boot loader]\r\ndefault=multi(0)disk(0)rdisk(0)partition(1)\\WINDOWS\r\n"+
			"[operating systems]\r\n"+
			"multi(0)disk(0)rdisk(0)partition(1)\\WINDOWS=\"XP\" /fastdetect\r\nC:\\=\"MS-DOS\"\r\n"),
	}
	c := windowsCase{disk: d, stored: []storedIn{{1, system, `\`, mountedText, 6}}}
	now, dest := c.run(t)
	require.ElementsMatch(t, []int{1, 2, 5}, differing(was, now))
	after := disktest.ReadFile(t, readGuestFile(t, dest, d.volumes[0], now[1], "BOOTSECT.DOS"))
	require.Equal(t, now[1]/sectorSize, int64(binary.LittleEndian.Uint32(after[hiddenSectorsAt:])))
}

func differing(was, now map[int]int64) []int {
	var out []int
	for number, off := range was {
		if now[number] != off {
			out = append(out, number)
		}
	}
	return out
}

// The objects of the corpus's BCD, and their partitions, named by GPT GUIDs.
const (
	bcdLoader   = `\Objects\{733b62e4-f608-11eb-825c-c112f60133ab}\Elements\`
	bcdRecovery = `\Objects\{733b62e6-f608-11eb-825c-c112f60133ab}\Elements\`
	bcdManager  = `\Objects\{9dea862c-5cdd-4e70-acc1-f32b344d4795}\Elements\`
)

// bcdOnMBR changes the BCD of the corpus to partitions of an MBR disk: the boot manager is on the first, Windows on the
// second, and the recovery system is a file on the first, in an element that is otherwise unchanged.
func bcdOnMBR(t testing.TB, first, second int64) string {
	t.Helper()
	store := disktest.Corpus(t, "regipy/BCD.xz")
	plain := func(off int64) string { return hexBytes(append(make([]byte, 16), bcdDevice(windowsSignature, off)...)) }
	nested := match(t, exportHive(t, store, bcdRecovery+"21000001"), `"Element"=hex\(3\):(.*)`)
	const gpt = "06,00,00,00,00,00,00,00,48,00,00,00,00,00,00,00"
	at := strings.Index(nested, gpt)
	require.Positive(t, at)
	nested = nested[:at] + hexBytes(bcdDevice(windowsSignature, first)) + nested[at+3*0x48-1:]
	return mergeHive(t, store, reg(bcdManager+"11000001", "Element", plain(first))+
		reg(bcdLoader+"11000001", "Element", plain(second))+reg(bcdLoader+"21000001", "Element", plain(second))+
		reg(bcdRecovery+"21000001", "Element", nested)+
		reg(`\Objects\{733b62e2-f608-11eb-825c-c112f60133ab}\Elements\11000001`, "Element",
			hexBytes(append(make([]byte, 16), bcdDevice(0x99999999, second)...))))
}

// Windows 7, moved from a disk of 255 heads and 63 sectors: \Boot\BCD on the boot partition, Windows on the next.
func TestWindows7FindsItsPartitions(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"ntfs", "fat32"} {
		t.Run("boots from "+kind, func(t *testing.T) {
			c := windows7(t, kind)
			now, dest := c.run(t)
			after := disktest.ReadFile(t, readGuestFile(t, dest, c.disk.volume(2), now[2], recoveryFile))
			require.Equal(t, recoveryText(now[1], " "), string(after), "two digits more")
		})
	}
}

const recoveryFile = "Windows/System32/Recovery/ReAgent.xml"

func windows7(t *testing.T, kind string) windowsCase {
	t.Helper()
	hive := disktest.Corpus(t, "regipy/SYSTEM_2.xz")
	d := windowsDisk{signature: windowsSignature, sectors: 400_000, volumes: []windowsVolume{
		{
			number: 1, kind: kind, typ: map[string]string{"ntfs": "7", "fat32": "c"}[kind], start: 63, sectors: 100_000,
			loads: "BOOTMGR",
		},
		{number: 2, kind: "ntfs", typ: "7", start: 100_063, sectors: 200_000},
	}}
	was := d.starts()
	d.volumes[0].files = map[string]string{"Boot/BCD": bcdOnMBR(t, was[1], was[2])}
	d.volumes[1].files = map[string]string{
		"Windows/System32/config/SYSTEM": mergeHive(t, hive, letters(was[2])),
		recoveryFile:                     hostFile(t, recoveryText(was[1], "\n  ")),
	}
	return windowsCase{disk: d, stored: []storedIn{
		{1, "Boot/BCD", `\`, bcdText, 4}, {2, "Windows/System32/config/SYSTEM", `\MountedDevices`, mountedText, 2},
	}}
}

// recoveryText is a ReAgent.xml that is long enough for a cluster, with space before the tag of a position.
func recoveryText(off int64, space string) string {
	return "<?xml version='1.0' encoding='utf-8'?>\n\n<WindowsRE version=\"2.0\">\n" +
		"  <WinreBCD id=\"{733b62e6-f608-11eb-825c-c112f60133ab}\"/>" + space +
		fmt.Sprintf(
			`<WinreLocation path="\Recovery\WindowsRE" id="%d" offset="%d" `+
				`guid="{00000000-0000-0000-0000-000000000000}"/>`, windowsSignature, off) +
		strings.Repeat("\n  <PBRImageLocation path=\"\" id=\"0\" offset=\"0\" "+
			"guid=\"{00000000-0000-0000-0000-000000000000}\" index=\"0\"/>", 12) + "\n</WindowsRE>\n"
}

// Windows 10 from the corpus, with its own signature and offsets. It was copied while running, so hivex has to recover
// the hive.
func TestWindows10OfTheCorpus(t *testing.T) {
	t.Parallel()
	const system = "Windows/System32/config/SYSTEM"
	hive := mergeHive(t, disktest.Corpus(t, "regipy/SYSTEM_WIN_10_1709.xz"), "")
	c := windowsCase{
		disk: windowsDisk{signature: 0xdf4546ae, sectors: 0x22e1858000/sectorSize + 100_000, volumes: []windowsVolume{
			{number: 1, kind: "ntfs", typ: "7", start: 0x100000 / sectorSize, sectors: 50_000, loads: "BOOTMGR"},
			{
				number: 2, kind: "ntfs", typ: "7", start: 0x1f500000 / sectorSize, sectors: 150_000,
				files: map[string]string{system: hive},
			},
			{number: 3, kind: "ntfs", typ: "7", start: 0x18e1858000 / sectorSize, sectors: 50_000},
			{number: 4, kind: "ntfs", typ: "7", start: 0x22e1858000 / sectorSize, sectors: 50_000},
		}},
		stored: []storedIn{{2, system, `\MountedDevices`, mountedText, 2}},
	}
	now, _ := c.run(t)
	require.ElementsMatch(t, []int{3, 4}, differing(c.disk.starts(), now), "the first two are aligned")
}

// The other hive of the corpus, whose two partitions are aligned to 1 MiB and move for a larger boundary. It was copied
// from a running Windows: no byte of it may be changed, and hivex recovers it.
func TestWindowsOfTheCorpusOnFAT(t *testing.T) {
	t.Parallel()
	dirty := disktest.Corpus(t, "regipy/SYSTEM_2.xz")
	c := windowsOnFAT(dirty)
	source := c.disk.make(t)
	r := trueup(t, "align", source, filepath.Join(t.TempDir(), "dest.raw"), "--boundary", "2M")
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "sequence numbers 205 and 204 differ, and no log fits: Windows was not shut down "+
		"cleanly")
	now, _ := windowsOnFAT(mergeHive(t, dirty, "")).run(t)
	require.Equal(t, map[int]int64{1: 2 << 20, 2: 352 << 20}, now)
}

// windowsOnFAT is the disk of that hive, in FAT and with the folder name of Windows 2000.
func windowsOnFAT(file string) windowsCase {
	const system = "WINNT/System32/config/SYSTEM"
	return windowsCase{
		flags: []string{"--boundary", "2M"},
		disk: windowsDisk{signature: 0x273e4cfe, sectors: 0x15f00000/sectorSize + 120_000, volumes: []windowsVolume{
			{number: 1, kind: "fat16", typ: "6", start: 0x100000 / sectorSize, sectors: 100_000, loads: "NTLDR"},
			{
				number: 2, kind: "fat32", typ: "c", start: 0x15f00000 / sectorSize, sectors: 100_000,
				files: map[string]string{system: file},
			},
		}},
		stored: []storedIn{{2, system, `\MountedDevices`, mountedText, 3}},
	}
}

// TestDirtyFAT aligns a Windows in a FAT that was not unmounted, and checks it like Linux at its start: the check finds
// only the flag. If the two FATs differ in the clusters of a file, a check can choose either.
func TestDirtyFAT(t *testing.T) {
	t.Parallel()
	c := windowsOnFAT(mergeHive(t, disktest.Corpus(t, "regipy/SYSTEM_2.xz"), ""))
	v, source := c.disk.volumes[1], c.disk.make(t)
	const flag = 0x41
	at := v.start * sectorSize
	disktest.WriteAt(t, source, at+flag, []byte{1})
	dest := filepath.Join(t.TempDir(), "dest.raw")
	r := trueup(t, "align", source, dest, "--boundary", "2M")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, "the FAT is marked dirty")

	moved := windowOf(t, dest, 2)
	require.NotEqual(t, v.start, moved.start)
	part := filepath.Join(t.TempDir(), "part")
	want := readAt(t, dest, moved.start*sectorSize, moved.size*sectorSize)
	require.NoError(t, os.WriteFile(part, want, 0o600))
	// it ends with 1 if it repairs anything
	out, _ := exec.Command(disktest.Tool(t, "fsck.fat"), "-a", part).CombinedOutput()
	require.Contains(t, string(out), "Dirty bit is set")
	want[flag] = 0
	got := disktest.ReadFile(t, part)
	require.True(t, bytes.Equal(want, got), "fsck.fat changes no other byte")

	boot := readAt(t, source, at, 64)
	word := func(off int) int64 { return int64(boot[off]) | int64(boot[off+1])<<8 }
	second := at + (word(0x0e)+word(0x24))*sectorSize
	disktest.WriteAt(t, source, second+4*2, []byte{9, 9}) // the root folder, in cluster 2
	r = trueup(t, "align", source, filepath.Join(t.TempDir(), "none.raw"), "--boundary", "2M")
	require.Equal(t, 4, r.code, r.stdout)
	require.Contains(t, r.stderr, "FAT is marked dirty, and a check may change the file: fat")
	require.Contains(t, r.stderr, "entry of cluster 2 in FAT 2")
}

// Windows NT 4 keeps its drive letters: hivex and libregf read the new positions of both partitions, and no other
// change.
func TestWindowsNT4KeepsItsDriveLetters(t *testing.T) {
	t.Parallel()
	// Source of the offsets: ntddft.h and ntdskreg.h.
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
		value.U32(at, 4) // no member of a set
		value.U64(at+8, uint64(start))
		value.U8(at+40, 'C'+byte(number-1))
		value.U8(at+41, 1)
	}
	hive := mergeHive(t, disktest.Corpus(t, "regipy/SYSTEM_2.xz"),
		"[\\DISK]\n\"Information\"=hex:"+hexBytes(value)+"\n")
	d.volumes[0].files = map[string]string{system: hive}
	// A partition in a .reg file: not a member of a set, healthy, and its start.
	text := func(_ uint32, start int64) string {
		return hexBytes(binary.LittleEndian.AppendUint64([]byte{4, 0, 0, 0, 0, 0, 0, 0}, uint64(start)))
	}
	c := windowsCase{disk: d, stored: []storedIn{{1, "WINNT/system32/config/SYSTEM", `\`, text, 2}}}
	now, _ := c.run(t)
	require.ElementsMatch(t, []int{1, 2}, differing(d.starts(), now))
}
