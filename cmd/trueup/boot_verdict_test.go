package main

import (
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/trial"
	"github.com/trueup/trueup/internal/trial/film"
	"github.com/trueup/trueup/internal/trial/judge"
)

// filmed is what a guest shows that starts from a raw disk, served by qemu-nbd.
func filmed(t testing.TB, raw string, m trial.Machine) *film.Film {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "nbd")
	server := exec.Command(disktest.Tool(t, "qemu-nbd"), "--read-only", "--persistent", "--format=raw", "--socket="+socket, raw)
	require.NoError(t, server.Start())
	defer func() { _, _ = server.Process.Kill(), server.Wait() }()
	disktest.WaitFor(t, "qemu-nbd to listen", func() bool {
		c, err := net.Dial("unix", socket)
		return err == nil && c.Close() == nil
	})
	m.Disk, m.QEMU, m.Accel = "nbd+unix:///?socket="+socket, disktest.Tool(t, "qemu-system-x86_64"), "tcg"
	m.Clock, m.Limit = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), linuxLimit
	if m.Firmware == "" {
		m.Firmware, m.Bus, m.Memory = trial.BIOS, "ide", max(m.Memory, 64)
	}
	f, err := m.Run(t.Context(), trial.Watch{Settle: 2 * time.Second})
	require.NoError(t, err)
	return &f
}

// judged compares the boot of a source with that of its copy, and of the copy with one position after the other as it was
// before the move: each says something in the reason, or only differs.
type judged struct {
	machine trial.Machine
	source  string
	comes   string // to what the boot comes
	stale   []staleField
}

type staleField struct {
	at    int64
	bytes []byte
	says  string
}

func (j judged) run(t *testing.T) {
	t.Helper()
	dest := filepath.Join(t.TempDir(), "aligned.raw")
	got := trueup(t, "align", j.source, dest)
	require.Equal(t, 0, got.code, "%s%s", got.stdout, got.stderr)
	before := filmed(t, j.source, j.machine)
	v := judge.Compare(before, filmed(t, dest, j.machine))
	require.Equal(t, judge.Same, v.Verdict, "%+v", v)
	require.Contains(t, v.Reason, j.comes)
	for _, s := range j.stale {
		was := readAt(t, dest, s.at, int64(len(s.bytes)))
		writeAt(t, dest, s.at, s.bytes)
		broken := filmed(t, dest, j.machine)
		v := judge.Compare(before, broken)
		require.Equal(t, judge.Differs, v.Verdict, "stale %x at %#x: %+v", s.bytes, s.at, v)
		require.Contains(t, v.Reason, s.says)
		require.NotEmpty(t, v.Differences)
		require.NotEqual(t, judge.Same, judge.Compare(broken, broken).Verdict, "a disk that fails, twice: %+v", broken)
		writeAt(t, dest, s.at, was)
	}
}

func sector32(lba int64) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(lba)) }

// TestVerdictOnBoots films real boots. make boots has all of them.
func TestVerdictOnBoots(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		quick bool
		disk  func(t *testing.T) judged
	}{
		"syslinux by hidden sectors": {true, func(t *testing.T) judged {
			t.Helper()
			d := bootDisk{code: assembled(ownLBACode), fat: 16, heads: 16}
			return judged{source: d.build(t, t.TempDir()), comes: `"boot:"`, stale: []staleField{
				{alignedLBA*sectorSize + 0x1C, sector32(63), "Boot error"},
			}}
		}},
		"grub legacy by a block list": {false, func(t *testing.T) judged {
			t.Helper()
			d := legacyDisks[1]
			raw := d.build(t)
			first := wordAt(t, raw, atStage1Sector)
			moved := first - trackSectors + alignedLBA
			return judged{source: raw, comes: booted, stale: []staleField{
				{atStage1Sector, sector32(first), ""}, {moved*sectorSize + atBlockList, sector32(first + 1), ""},
			}}
		}},
		"grub 2 by the table": {false, func(t *testing.T) judged {
			t.Helper()
			raw, _ := oldGrubDisk.build(t)
			installGrub(t, raw, 0, oldGrubDisk.core(t), []grubExtent{{1, oldGrubDisk.coreSectors(t)}})
			return judged{source: raw, machine: trial.Machine{Memory: 256}, comes: grubLoaded, stale: []staleField{
				{446 + 8, sector32(63), "unknown filesystem"},
			}}
		}},
		"uefi by the table": {false, func(t *testing.T) judged {
			t.Helper()
			return judged{
				source: uefiDisk(t, [2]string{"EFI/BOOT/BOOTX64.EFI", efiProgram(t)}), comes: "pixels",
				machine: trial.Machine{Firmware: trial.UEFI, Bus: "sata", Memory: 256},
			}
		}},
		"linux in text":     {false, func(t *testing.T) judged { t.Helper(); return restingLinux(t, "normal", `"`+booted) }},
		"linux in graphics": {false, func(t *testing.T) judged { t.Helper(); return restingLinux(t, "785", "640 x 480 pixels") }},
	} {
		t.Run(name, func(t *testing.T) {
			if !c.quick && os.Getenv(bootsEnv) == "" {
				t.Skip("a long boot; see make boots")
			}
			c.disk(t).run(t)
		})
	}
}

// restingLinux is Debian's kernel on a FAT with syslinux. vga is the mode of its console.
func restingLinux(t *testing.T, vga, comes string) judged {
	t.Helper()
	d := bootDisk{code: assembled(ownLBACode), fat: 16, heads: 16}
	raw := d.build(t, t.TempDir())
	kernel, release := linuxKernel(t)
	initrd := linuxInitrd(t, release, "linux-stay", nil, nil)
	config := "DEFAULT linux\nPROMPT 0\nLABEL linux\nKERNEL vmlinuz\nAPPEND initrd=initrd.img console=tty0 quiet vga=" + vga + "\n"
	for name, path := range map[string]string{
		"vmlinuz": kernel, "initrd.img": hostFile(t, string(initrd)), "syslinux.cfg": hostFile(t, config),
	} {
		disktest.Run(t, "mcopy", "-o", "-i", drive(raw, d.windows()[0]), path, "::"+name)
	}
	return judged{source: raw, machine: trial.Machine{Memory: 256}, comes: comes, stale: []staleField{
		{alignedLBA*sectorSize + 0x1C, sector32(63), "Boot error"},
	}}
}
