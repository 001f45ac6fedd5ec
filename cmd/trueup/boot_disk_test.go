package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

const (
	trackSectors = 63       // sectors per track of every BIOS geometry here
	bootDiskSize = 64 << 20 // room for FAT32, which needs 65525 clusters
	booted       = "trueup: the guest is up"
	dataText     = "the second partition is whole\n"
)

// bootDisk describes the setup of a disk.
type bootDisk struct {
	code      func(testing.TB) []byte // the MBR code
	fat       int                     // 16 or 32, bits of the first partition's FAT
	heads     int64                   // of the BIOS that partitioned the disk
	data      bool                    // adds a second partition, which is inactive
	subformat string                  // of a VMDK; raw if empty
}

// window is a partition, in sectors.
type window struct{ start, size int64 }

// windows returns the partitions in the layout of old DOS and Windows: the first one after one track, each ending at a
// cylinder.
func (d bootDisk) windows() []window {
	cylinder := d.heads * trackSectors
	cylinders := bootDiskSize / sectorSize / cylinder
	if !d.data {
		return []window{{trackSectors, cylinders*cylinder - trackSectors}}
	}
	second := cylinders / 2 * cylinder
	return []window{
		{trackSectors, second - trackSectors},
		// at a cylinder, its clusters would be on 4 KiB, and it would stay
		{second + 1, cylinders*cylinder - second - 1},
	}
}

// build makes the disk's image in dir and returns its path.
func (d bootDisk) build(t testing.TB, dir string) string {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "disk.raw")
	if d.subformat == "" {
		raw = filepath.Join(dir, "disk.raw")
	}
	disktest.MakeBlank(t, raw, bootDiskSize)
	d.partition(t, raw)
	d.fillBoot(t, raw, d.windows()[0])
	if d.data {
		d.format(t, raw, d.windows()[1], 16)
		disktest.Run(t, "mcopy", "-i", drive(raw, d.windows()[1]), hostFile(t, dataText), "::data.txt")
	}
	code := d.code(t)
	require.LessOrEqual(t, len(code), codeSize)
	disktest.WriteAt(t, raw, 0, code)
	if d.subformat == "" {
		return raw
	}
	image := filepath.Join(dir, "disk.vmdk")
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk", "-o", "subformat="+d.subformat, raw, image)
	return image
}

// raw makes the disk in a new folder.
func (d bootDisk) raw(t testing.TB) string { t.Helper(); return d.build(t, t.TempDir()) }

// partition writes the table with fdisk, with the types of Windows since 95B: FAT with LBA.
func (d bootDisk) partition(t testing.TB, raw string) {
	t.Helper()
	types, all := map[int]string{16: "e", 32: "c"}, d.windows()
	end := func(w window) string { return decimal(w.start + w.size - 1) }
	commands := []string{"n\np\n1", decimal(all[0].start), end(all[0]), "t", types[d.fat], "a"}
	if d.data {
		commands = append(commands, "n\np\n2", decimal(all[1].start), end(all[1]), "t\n2", types[16])
	}
	fdisk(t, raw, d.heads, trackSectors, commands...)
	require.Equal(t, all, tableOf(t, raw))
}

// fdisk writes a table like DOS. It uses fdisk, since sfdisk has no option for the heads; QEMU's BIOS takes its
// geometry from the end CHS.
func fdisk(t testing.TB, raw string, heads, track int64, commands ...string) {
	t.Helper()
	disktest.RunInput(t, "o\n"+strings.Join(commands, "\n")+"\nw\n", "fdisk", "--compatibility=dos", "--units=sectors",
		"--heads", decimal(heads), "--sectors", decimal(track), raw)
}

// blankDisk returns a disk with the table of a script of sfdisk.
func blankDisk(t testing.TB, size int64, script string) string {
	t.Helper()
	raw := disktest.Blank(t, "disk.raw", size)
	disktest.RunInput(t, script, "sfdisk", "--quiet", raw)
	return raw
}

// fillBoot puts a FAT with syslinux into a partition. Syslinux prints the marker as soon as it has read its
// configuration. Without a kernel it stays at its prompt.
func (d bootDisk) fillBoot(t testing.TB, raw string, w window) {
	t.Helper()
	d.format(t, raw, w, d.fat)
	config := "SAY " + booted + "\nPROMPT 1\n"
	disktest.Run(t, "mcopy", "-i", drive(raw, w), hostFile(t, config), "::syslinux.cfg")
	disktest.Run(t, "syslinux", "--install", "--offset", strconv.FormatInt(w.start*sectorSize, 10), raw)
}

func (d bootDisk) format(t testing.TB, raw string, w window, fat int) {
	t.Helper()
	geometry := fmt.Sprintf("%d/%d", d.heads, trackSectors)
	args := []string{"-F", strconv.Itoa(fat), "--offset", decimal(w.start), "-h", decimal(w.start), "-g", geometry}
	if fat == 32 {
		args = append(args, "-s", "1") // otherwise there are too few clusters for FAT32
	}
	kibibytes := w.size * sectorSize / 1024
	disktest.Run(t, "mkfs.fat", append(args, raw, decimal(kibibytes))...)
}

// tableOf returns the partitions that sfdisk reads in a raw disk.
func tableOf(t testing.TB, raw string) (all []window) {
	t.Helper()
	parts := numbered(t, raw)
	for _, number := range slices.Sorted(maps.Keys(parts)) {
		all = append(all, parts[number])
	}
	return all
}

// numbered returns them by number.
func numbered(t testing.TB, raw string) map[int]window {
	t.Helper()
	var dump struct {
		PartitionTable struct {
			Partitions []struct {
				Node        string
				Start, Size int64
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(disktest.Output(t, "sfdisk", "--json", raw)), &dump))
	all := map[int]window{}
	for _, p := range dump.PartitionTable.Partitions {
		all[int(disktest.Number(t, strings.TrimPrefix(strings.TrimPrefix(p.Node, raw), "p")))] = window{p.Start, p.Size}
	}
	return all
}

// drive names a FAT inside a raw disk for mtools.
func drive(raw string, w window) string { return fmt.Sprintf("%s@@%d", raw, w.start*sectorSize) }

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// hostFile writes a text to a file, for a tool to copy into a guest.
func hostFile(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// escapes matches terminal sequences of firmware, and sequences that the BIOS inserts when a timer tick comes between a
// character and the cursor of the guest while it mirrors the screen to the serial port. They can be within a word.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?=]*[A-Za-z]|\r`)

// Console texts of failed boots, by their source.
var (
	ownCHSFailed  = []string{"CHS:N", "CHS:R", "CHS:B"}
	ownLBAFailed  = []string{"LBA:N", "LBA:R", "LBA:B"}
	windowsFailed = []string{"Invalid partition table", "Error loading operating system", "Missing operating system"}
	vbrFailed     = []string{"Boot error"} // the boot sector of syslinux
	gptFailed     = []string{"Missing OS"} // syslinux's code for a GPT
)

// verdicts lists all texts that end a boot.
var verdicts = slices.Concat([]string{booted, staleShown}, ownCHSFailed, ownLBAFailed, windowsFailed, vbrFailed,
	gptFailed)

// UEFI firmware: EDK2 for QEMU, as packaged by Debian. It includes the UEFI shell.
const (
	ovmfCode = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// pc is a computer that boots from an image without changing it.
type pc struct {
	image  string
	heads  int64  // of its BIOS
	disk   string // options of the disk, such as its geometry
	memory int    // in MiB; 64 when 0
	ahci   bool   // use AHCI: a BIOS reads it with DMA, in half the time of IDE
	nvram  string // variables of the UEFI firmware, which replaces the BIOS; they hold the boot entries
}

// boot starts a PC from the image and returns the first verdict on its console.
func boot(t testing.TB, image string, heads int64) string {
	t.Helper()
	return pc{image: image, heads: heads}.watch(t, anyOf(verdicts...))
}

// anyOf waits for the first of these texts.
func anyOf(texts ...string) func(console string) string {
	return func(console string) string {
		for _, text := range texts {
			if strings.Contains(console, text) {
				return text
			}
		}
		return ""
	}
}

// watch runs the PC until verdict returns a text for the console output, and returns that text. The test fails if
// verdict never does.
func (p pc) watch(t testing.TB, verdict func(console string) string) string {
	t.Helper()
	text, shown := p.start(t, verdict)
	require.NotEmpty(t, text, "the console of %s shows nothing that was waited for, but %q", p.image, shown)
	return text
}

// start starts the PC, and switches it off when verdict returns a text for the console output so far. It returns the
// text, empty if the PC switched itself off, and the output.
func (p pc) start(t testing.TB, verdict func(console string) string) (text, shown string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), disktest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, disktest.Tool(t, "qemu-system-x86_64"), p.args(t)...)
	var errs, all bytes.Buffer
	cmd.Stderr = &errs
	console, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { cancel(); _ = cmd.Wait() }() // after a kill, the error has no information
	buf := make([]byte, 4096)
	for {
		n, err := console.Read(buf)
		all.Write(buf[:n])
		shown = escapes.ReplaceAllString(all.String(), "")
		if text = verdict(shown); text != "" {
			return text, shown
		}
		if err != nil {
			require.NoError(t, ctx.Err(), "the console of %s shows %q\n%s", p.image, shown, errs.String())
			return "", shown + errs.String()
		}
	}
}

// args returns QEMU options for a PC without a screen: with graphics=off the BIOS mirrors INT 10h output to the serial
// port, so that error messages of all MBR codes can be read.
func (p pc) args(t testing.TB) []string {
	t.Helper()
	format := "raw"
	if filepath.Ext(p.image) == ".vmdk" {
		format = "vmdk"
	}
	machine, device, more := "pc,accel=tcg,graphics=off", "ide-hd", []string(nil)
	switch {
	case p.nvram != "":
		machine, device = "q35,accel=tcg", "virtio-blk-pci"
		more = []string{
			"-drive", "if=pflash,format=raw,readonly=on,file=" + disktest.DataFile(t, ovmfCode),
			"-drive", "if=pflash,format=raw,file=" + p.nvram,
		}
	case p.ahci:
		device, more = "ide-hd,bus=ahci.0", []string{"-device", "ahci,id=ahci"}
	}
	if p.heads > 16 {
		// A BIOS reports more than 16 heads for much larger disks. With 16 or fewer, QEMU takes the geometry from the
		// table's end CHS, which is part of the test.
		device += fmt.Sprintf(",lcyls=1024,lheads=%d,lsecs=%d", p.heads, trackSectors)
	}
	return slices.Concat([]string{
		"-machine", machine, "-m", strconv.Itoa(cmp.Or(p.memory, 64)), "-nodefaults",
		"-no-user-config", "-no-reboot", "-display", "none", "-vga", "none", "-serial", "stdio",
	}, more, []string{
		"-drive", "if=none,id=disk,snapshot=on,format=" + format + ",file=" + strings.ReplaceAll(p.image, ",", ",,"),
		"-device", device + p.disk + ",drive=disk",
	})
}

// Our own MBR code, to test a boot without Windows. The sources are in testdata; the bytes are here because the machine
// may have no assembler. They are made by
//
//	as --32 -o NAME.o testdata/NAME.S
//	ld -m elf_i386 -Ttext=0x600 --oformat=binary -e start -o NAME.bin NAME.o
//	xxd -p -c 32 NAME.bin
const (
	// ownCHSCode is testdata/chs-mbr.S: it reads the start CHS of the active entry and nothing else.
	ownCHSCode = "" +
		"fa31c08ed0bc007c8ed88ec0fbfc89e6bf0006b90001f3a5ea1d060000bebe07" +
		"b90400f60480750983c610e2f6b04eeb218a74018b4c02b80102bb007ccd13b0" +
		"52720f813efe7d55aab0427505ea007c0000a26d06be6906bb0700ac84c07406" +
		"b40ecd10ebf5f4ebfd4348533a0000"

	// ownLBACode is testdata/lba-mbr.S: it reads the start LBA and passes nothing to the boot sector.
	ownLBACode = "" +
		"fa31c08ed0bc007c8ed88ec0fbfc89e6bf0006b90001f3a5ea1d060000bdbe07" +
		"b90400f6460080750983c510e2f5b04eeb25668b460866a37c06be7406b442cd" +
		"13b0527212813efe7d55aab0427508be8406ea007c0000a27206be6e06bb0700" +
		"ac84c07406b40ecd10ebf5f4ebfd4c42413a000010000100007c000000000000" +
		"0000000000000000000000000000000000000000"

	// markerCode is testdata/marker.S: it prints the text after it and halts, at any load address.
	markerCode = "" +
		"fae800005e81c6210031c08ed88ed0bc0070fcfbac84c07409bb0700b40ecd10" +
		"ebf2f4ebfd"
)

// codeSize is the room for code in an MBR: the disk signature follows at 0x1B8.
const codeSize = 0x1B8

// assembled returns MBR code from this file.
func assembled(code string) func(testing.TB) []byte {
	return func(t testing.TB) []byte {
		t.Helper()
		bytes, err := hex.DecodeString(code)
		require.NoError(t, err)
		return bytes
	}
}

// windowsCode returns the MBR code of a real Windows Server 2003. It reads the start CHS if the start LBA is in the CHS
// range of the BIOS.
func windowsCode(t testing.TB) []byte {
	t.Helper()
	return readAt(t, disktest.Corpus(t, "libldm/ldm-2003r2-simple-1.img.xz"), 0, codeSize)
}

func TestBootCodeIsItsSource(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]string{
		"chs-mbr": ownCHSCode, "lba-mbr": ownLBACode, "marker": markerCode, "dos-drives": dosDrivesCode,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			object, flat := filepath.Join(dir, "o"), filepath.Join(dir, "bin")
			disktest.Run(t, "as", "--32", "-o", object, filepath.Join("testdata", name+".S"))
			disktest.Run(t, "ld", "-m", "elf_i386", "-Ttext=0x600", "--oformat=binary", "-e", "start", "-o", flat,
				object)
			got := disktest.ReadFile(t, flat)
			require.Equal(t, code, hex.EncodeToString(got))
		})
	}
}

// staleShown is the console output of a loader that read the old sectors of its next stage.
const staleShown = "trueup: a stale sector"

// marker is a boot sector that prints a text.
func marker(t testing.TB, text string) []byte {
	t.Helper()
	sector := make([]byte, sectorSize)
	n := copy(sector, assembled(markerCode)(t))
	require.Less(t, n+len(text), sectorSize-2)
	copy(sector[n:], text)
	sector[510], sector[511] = 0x55, 0xaa
	return sector
}
