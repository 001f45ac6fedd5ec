package trial

import (
	"encoding/json"
	"image"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
)

const bios = "SeaBIOS (version 1.16.2-debian-1.16.2-1)\n\n\niPXE (http://ipxe.org) 00:03.0 CA00 PCI2.10 PnP " +
	"PMM+0EFD1030+0EF31030 CA00\n\n\n" +
	"Booting from Hard Disk...\n"

// shown is a film of text screens, which settled at the last.
func shown(screens ...string) *Film {
	f := &Film{Ended: Settled, Took: time.Duration(len(screens)) * 10 * time.Second}
	for n, s := range screens {
		f.Frames = append(f.Frames, Frame{At: time.Duration(n) * time.Second, Text: strings.Split(s, "\n")})
	}
	return f
}

// paced is shown with so much time between the screens.
func paced(between time.Duration, screens ...string) *Film {
	f := shown(screens...)
	for n := range f.Frames {
		f.Frames[n].At = time.Duration(n) * between
	}
	return f
}

// said is a film of a machine whose screen stays as the BIOS left it.
func said(serial string) *Film {
	f := shown(bios)
	f.Serial = serial
	return f
}

// cut is a film whose time was over a second after its last screen came.
func cut(f *Film) *Film {
	f.Ended, f.Took = TimeOver, f.Frames[len(f.Frames)-1].At+time.Second
	return f
}

func emulated(f *Film) *Film {
	f.Accel = "tcg"
	return f
}

func ended(f *Film, end End) *Film {
	f.Ended = end
	return f
}

const kernelLog = "[    0.000000] Linux version 6.1.0-56-amd64 (debian-kernel@lists.debian.org)\n" +
	"[    0.912345] ata1.00: 131072 sectors, multi 16: LBA48\n" +
	"[    1.034567] sd 0:0:0:0: [sda] 131072 512-byte logical blocks: (67.1 MB/64.0 MiB)\n" +
	"[    1.101234]  sda: sda1\n[    1.201234] random: crng init done\n[    1.301234] EXT4-fs (sda1): mounted " +
	"filesystem\n" +
	"Debian GNU/Linux 12 debian ttyS0\n\ndebian login: "

var kernelLogAgain = strings.NewReplacer("0.9123", "2.0001", "1.03", "2.13", "131072", "133120", " 1.101234",
	"12.000001",
	"[    1.201234] random: crng init done\n", "", "67.1 MB/64.0 MiB", "68.2 MB/65.0 MiB").Replace(kernelLog)

const menu = bios + " GNU GRUB  version 2.06\n *Debian GNU/Linux\n  Advanced options\n" +
	"  The highlighted entry will be executed automatically in 5s."

// comparedRuns are two runs and their comparison.
type comparedRuns struct {
	name          string
	before, after *Film
	want          Verdict
	says          string // in the reason
	at            Difference
}

// compared returns the cases of TestCompare. Screens are painted for them, which takes long with the race detector.
var compared = sync.OnceValue(func() []comparedRuns {
	return []comparedRuns{
		{
			name: "a prompt", before: shown(bios, bios+"boot:"), after: shown(bios + "boot:"), want: Same,
			says: `the line "boot:"`,
		}, {
			name: "a login with another log above it", before: said(kernelLog), after: said(kernelLogAgain), want: Same,
			says: "debian login:",
		}, {name: "a countdown", before: shown(menu), after: shown(strings.Replace(menu, "5s", "3s", 1)), want: Same}, {
			name: "a message of the kernel's clock that fills more than a row",
			before: shown("[    0.004000] clocksource: tsc-early: mask: 0xffffffffffffffff max_cycles: 0x23f3\n" +
				"[    0.1] a\nlogin:"),
			after: shown("[    0.004000] clocksource: tsc-early: mask: 0xffffffffffffffff max_cycles: 0x24\n" +
				"8c7, max_idle_ns: 440795285103 ns\n" +
				"[    0.1] a\nlogin:"), want: Same,
		}, {
			name:   "a line of a kernel's log that fills its row",
			before: shown("[    0.1] " + strings.Repeat("x", 64) + " 99 usecs\n[    0.2] y\nlogin:"),
			after:  shown("[    0.1] " + strings.Repeat("x", 64) + " 1 usecs\n[    0.2] y\nlogin:"), want: Same,
		}, {
			name: "timers of a slow machine", before: shown("[    0.100000] a\nlogin:"),
			after: shown("[    0.100000] a\n[    0.110000] ..MP-BIOS bug: 8254 timer not connected to IO-APIC\n" +
				"[    0.120000] ...trying to set up timer (IRQ0) through the 8259A ...\n" +
				"[    0.130000] ..... (found apic 0 pin 2) ...\n" +
				"[    0.140000] ....... works.\n[    0.150000] TSC found unstable after boot, most likely due to " +
				"broken " +
				"BIOS.\nlogin:"), want: Same,
		}, {
			name: "an emulation that is too slow", before: emulated(said(kernelLog)), want: Unclear,
			says: "too slow for the guest's timers",
			after: emulated(said("[    0.068000] Kernel panic - not syncing: IO-APIC + timer doesn't work!  Boot " +
				"with " +
				"apic=debug\n" + kernelLog)),
		}, {
			name: "the same panic of a processor that is not emulated", before: said(kernelLog), want: Differs,
			says: "IO-APIC",
			after: said("[    0.068000] Kernel panic - not syncing: IO-APIC + timer doesn't work!  Boot " +
				"with apic=debug\n"),
		}, {
			name:   "a log of systemd of which messages are missing",
			before: said("[    1.100000] systemd[1]: Starting a...\nx\nlogin:"),
			after:  said("x\nlogin:"), want: Same,
		}, {
			name:   "a log of systemd with a file system that fails",
			before: said("[    1.100000] systemd[1]: Mounting /home...\nx\nlogin:"),
			after: said("[    1.100000] systemd[1]: Mounting /home...\n[    1.200000] systemd[1]: Failed to mount " +
				"/home.\nx\nlogin:"),
			want: Differs, says: "but differ before it",
		}, {
			name: "a timer that fails", before: shown("[    0.100000] a\nlogin:"),
			after: shown("[    0.100000] a\n[    0.140000] ....... failed :(.\nlogin:"), want: Differs,
		}, {
			name: "a line that fills more than a row", before: shown(strings.Repeat("x", 80) + "\nyz\nlogin:"),
			after: shown(strings.Repeat("x", 80) + "\nyy\nlogin:"), want: Differs,
		}, {
			name: "a clock, a spinner and a progress", before: shown(bios + "Setup 12:03:59 /\n45% done"),
			after: shown(bios + "Setup 12:04:11 |\n45% done"), want: Same,
		}, {
			name:   "a systemd that starts its units in another order",
			before: shown("[  OK  ] Started A.\n[  OK  ] Started B.\nhost login:"),
			after:  shown("[  OK  ] Started B.\n[  OK  ] Started A.\nhost login:"),
			want:   Same,
		}, {
			name: "another error", before: shown(bios + "boot:"), after: shown(bios + "Boot error"), want: Differs,
			says: "aligned view stops: \"Boot error\"",
			at:   Difference{Where: OnScreen, Line: 8, Before: "boot:", After: "Boot error"},
		}, {
			name: "another number of an error", before: shown(bios + "GRUB Error 17"),
			after: shown(bios + "GRUB Error 15"),
			want:  Differs,
			at:    Difference{Where: OnScreen, Line: 8, Before: "GRUB Error 17", After: "GRUB Error 15"},
		}, {
			name: "a boot that stops early", before: shown(bios+"GRUB loading.",
				bios+"GRUB loading.\nWelcome\nhost login:"),
			after: shown(bios + "GRUB loading."), want: Differs,
		}, {
			name:   "a boot that may only be slower",
			before: paced(5*time.Second, bios+"GRUB loading.", bios+"GRUB loading.\nhost login:"),
			after:  shown(bios + "GRUB loading."), want: Unclear, says: "needs more time, or hangs there",
		}, {
			name: "a source that may only be slower", before: shown(bios+"a", bios+"a\nb"),
			after: paced(9*time.Second, bios+"a", bios+"a\nb", bios+"a\nb\nlogin:"), want: Unclear,
			says: `the source stopped at the line "b", but the aligned view continued to the line "login:"`,
		}, {
			name: "a serial port that stops early", before: said(kernelLog), after: said(kernelLog[:200]),
			want: Unclear,
			says: "the aligned view stopped at",
		}, {
			name: "another way than that of the source", before: shown(bios+"a", bios+"a\nlogin:"),
			after: shown(bios+"a", bios+"a\nstopped"), want: Differs,
		}, {
			name: "a source that only begins, and an error", before: cut(shown(bios)),
			after: shown(bios + "Boot error"),
			want:  Unclear, says: "time ran out",
		}, {
			name: "a boot that goes on only after", before: shown(bios + "Missing operating system"),
			after: shown(bios + "host login:"), want: Differs,
		}, {
			name: "a partition that the kernel lost", before: said(kernelLog),
			after: said(strings.Replace(kernelLogAgain, "sda: sda1", "sda:", 1)),
			want:  Differs, at: Difference{
				Where: Serial, Line: 4, Before: "[    1.101234]  sda: sda1",
				After: "[   12.000001]  sda:",
			},
		}, {
			name: "a kernel that panics", before: said(kernelLog),
			after: said(strings.Split(kernelLogAgain, "EXT4")[0] +
				"Kernel panic - not syncing: VFS: Unable to mount root fs"),
			want: Differs, says: "Kernel panic",
		}, {
			name: "an error that passes", before: shown("menu", "host login:"),
			after: shown("error: no such device: 1234.",
				"menu", "host login:"), want: Differs,
			at: Difference{Where: Passing, After: "error: no such device"},
		}, {
			name: "a guest that goes off", before: shown("host login:"), after: ended(shown("host login:"),
				PoweredOff), want: Differs,
			says: `"settled"`, at: Difference{Where: AtEnd, Before: "settled", After: "powered off"},
		}, {
			name: "both go off", before: ended(shown("done", ""), PoweredOff),
			after: ended(shown("done"), PoweredOff), want: Same,
		}, {
			name: "a reset loop", before: shown("host login:"), after: ended(shown("host login:"), ResetLoop),
			want: Differs, says: "resets repeatedly",
		}, {
			name: "no disk that boots", before: shown(bios + "Boot failed: not a bootable disk\n\nNo bootable device."),
			after: shown(bios + "Boot failed: not a bootable disk\n\nNo bootable device."), want: Neither,
			says: "no system was found",
		}, {
			name: "no operating system", before: shown(bios + "Missing operating system"),
			after: shown(bios + "Missing operating system"), want: Neither,
		}, {
			name: "the same error of GRUB", before: shown(bios +
				"error: no such partition.\nEntering rescue mode...\ngrub rescue>"),
			after: shown(bios + "error: no such partition.\nEntering rescue mode...\ngrub rescue>"), want: Neither,
			says: "the same failure",
		}, {
			name: "the same panic", before: said(kernelLog[:200] + "\n[    3.100000] Kernel panic - not syncing: x"),
			after: said(kernelLog[:200] + "\n[    3.200000] Kernel panic - not syncing: x"), want: Neither,
			says: "the same failure",
		}, {
			name: "both loop", before: ended(shown("hello"), ResetLoop), after: ended(shown("hello"), ResetLoop),
			want: Neither,
		}, {name: "nothing but the BIOS", before: shown(bios), after: shown(bios), want: Neither, says: "firmware"}, {
			name: "nothing at all", before: &Film{Ended: Settled}, after: &Film{
				Ended: Settled,
			}, want: Neither,
		}, {
			name: "a kernel that is loading", before: shown(bios + "Loading initial ramdisk ..."),
			after: shown(bios + "Loading initial ramdisk ..."), want: Unclear, says: "not the end of a boot",
		}, {
			name:   "an empty screen behind a system, and behind a BIOS",
			before: shown(bios, bios+"Starting Windows", ""),
			after:  shown(bios, ""), want: Unclear, says: "both runs end with an empty screen after others",
		}, {
			name: "an empty screen behind a BIOS that was seen in the middle of a line", want: Unclear,
			before: shown(bios, ""), after: shown(bios[:len(bios)-len("m Hard Disk...\n")], bios, ""),
		}, {
			name: "a black screen in graphics behind a system, and in text behind a BIOS",
			want: Unclear, says: "empty screen",
			before: painted(desktop(320, 240), black(320, 240)), after: shown(bios, ""),
		}, {
			name: "an empty screen behind the same system", before: shown(bios, "Starting Windows", ""),
			after: shown(bios, "Starting Windows", ""), want: Unclear,
		}, {
			name: "nothing in time", before: cut(shown(bios)), after: cut(shown(bios)), want: Unclear,
			says: "time ran out",
		}, {
			name: "one slower than the other", before: shown(bios+"a", bios+"a\nb", bios+"a\nb\nlogin:"),
			after: cut(shown(bios+"a", bios+"a\nb")), want: Unclear, says: "time ran out",
		}, {
			name: "one is late, and fails", before: shown(bios+"a", bios+"a\nlogin:"),
			after: cut(shown(bios+"a", bios+"a\nKernel panic - not syncing: x")),
			want:  Unclear, says: "time ran out before both runs settled",
		}, {
			name: "one rests by the clock of a busy host", before: shown(bios+"a", bios+"a\nlogin:"), want: Unclear,
			after: resting(0), says: "time ran out",
		}, {
			name: "one rests for time of its processor", before: shown(bios+"a", bios+"a\nlogin:"), want: Differs,
			after: resting(9 * time.Second),
		}, {
			name:   "an error that only one run survives",
			before: shown(bios + "error: no such device: 1234.\nhost login:"),
			after:  shown(bios + "error: no such device: 1234.\nLoading"), want: Differs,
		}, {
			name:   "an error of both, and one more of one",
			before: shown(bios + "error: no such device: 1234.\nhost login:"),
			after:  shown(bios + "error: no such device: 1234.\ngrub rescue>"), want: Differs,
		}, {
			name: "a panic with other addresses", before: said(kernelLog[:200] +
				"\nRIP: 1f2\n---[ end Kernel panic - not syncing: x"),
			after: said(kernelLog[:200] + "\nRIP: 3a4\n---[ end Kernel panic - not syncing: x"), want: Neither,
		}, {
			name: "a countdown when time is over", before: counting(), after: counting(), want: Unclear,
			says: "time ran out",
		}, {
			name: "a logo with a bar that moves when time is over", before: loadingGRUB(0), after: loadingGRUB(3),
			want: Unclear, says: "time ran out",
		}, {
			name: "a serial port that still sends when time is over", before: said("Linux\nhost login:"), want: Unclear,
			says: "time ran out",
			after: func() *Film {
				f := cut(said("Linux\nudev"))
				f.Took, f.Work, f.Heard = 20*time.Second, 20*time.Second, 19*time.Second
				return f
			}(),
		}, {
			name: "text and graphics", before: shown("host login:"), after: painted(desktop(320, 240)),
			want: Differs,
		}, {
			name: "QEMU failed", before: shown("host login:"), after: &Film{Ended: Broken, Note: "out of memory"},
			want: Unclear, says: "out of memory",
		}, {
			name: "the server failed", before: ended(shown("host login:"), DiskFailed), after: shown("host login:"),
			want: Unclear, says: "source",
		}, {
			name: "a desktop", before: filmed(desktop(320, 240)), after: filmed(desktop(320, 240)), want: Same,
			says: "320 x 240",
		}, {
			name: "a desktop with another time", before: filmed(desktop(320, 240)),
			after: filmed(with(desktop(320, 240), image.Rect(276, 224, 318, 236), white)), want: Same,
		}, {
			name: "a desktop with another window", before: filmed(desktop(320, 240)),
			after: filmed(with(desktop(320, 240), image.Rect(80, 80, 200, 160), white)), want: Differs,
			at: Difference{Where: Picture, Area: &Area{80, 80, 120, 80}, Share: float64(120*80) / (320 * 240)},
		}, {
			name: "another resolution", before: filmed(desktop(320, 240)), after: filmed(desktop(400, 300)),
			want: Differs,
		}, {
			name: "only the firmware's picture", before: painted(desktop(400, 300)), after: painted(desktop(400, 300)),
			want: Neither, says: "firmware",
		}, {name: "a black screen", before: painted(black(320, 240)), after: painted(black(320, 240)), want: Neither},
	}
})

// resting is a film of which nothing changes for a minute, in which its processor had so much time.
func resting(work time.Duration) *Film {
	f := cut(shown(bios+"a", bios+"b", bios+"c"))
	f.Took, f.Work = f.Took+time.Minute, work
	return f
}

// counting is a film of a menu whose time is over while it counts.
func counting() *Film {
	f := shown(menu)
	for n := range 20 {
		left := strings.Replace(menu, "5s", strconv.Itoa(30-n)+"s", 1)
		f.Frames = append(f.Frames, Frame{At: time.Duration(n+1) * time.Second, Text: strings.Split(left, "\n")})
	}
	return cut(f)
}

// loading is a film of a logo with a bar that moves until time is over.
func loadingGRUB(offset int) *Film {
	screens := []*image.RGBA{black(320, 240)}
	for n := range 20 {
		x := 40 + 4*((n+offset)%8)
		screens = append(screens, with(desktop(320, 240), image.Rect(x, 200, x+20, 208), white))
	}
	f := painted(screens...)
	f.Frames[0] = shown(bios).Frames[0]
	return cut(f)
}

func TestCompare(t *testing.T) {
	t.Parallel()
	for _, c := range compared() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := Compare(c.before, c.after)
			require.Equal(t, c.want, j.Verdict, "%+v", j)
			require.Contains(t, j.Reason, c.says)
			if c.at.Where != "" {
				require.Equal(t, c.at, j.Differences[0])
			}
			require.Equal(t, c.want == Differs, c.want == Differs && len(j.Differences) > 0)
			// A comparison has no direction, but for its words.
			require.Equal(t, c.want, Compare(c.after, c.before).Verdict)
		})
	}
}

// A run alone has the verdict of two like it, in words for one.
func TestCompareOne(t *testing.T) {
	t.Parallel()
	for _, c := range compared() {
		j := Compare(c.before, nil)
		require.Equal(t, Compare(c.before, c.before).Verdict, j.Verdict, c.name)
		require.Empty(t, j.Differences, c.name)
		require.NotRegexp(t, "both|either|neither", j.Reason, c.name)
	}
}

// A run that is moot decides the verdict, whatever the other run shows. A guest that fails is not moot.
func TestMoot(t *testing.T) {
	t.Parallel()
	found := 0
	for _, c := range compared() {
		if !moot(c.before) {
			continue
		}
		found++
		want := Compare(c.before, nil)
		require.Equal(t, Unclear, want.Verdict, c.name)
		for _, other := range compared() {
			require.Equal(t, want, Compare(c.before, other.after), "%s, and %s", c.name, other.name)
		}
	}
	require.NotZero(t, found)
	for _, end := range []End{Panicked, ResetLoop, PoweredOff, TimeOver} {
		require.False(t, moot(&Film{Ended: end}), end)
	}
}

// Each failure that is known makes a difference where one run has it, and judges nothing where both have it.
func TestKnownFailures(t *testing.T) {
	t.Parallel()
	known := []string{"GRUB Loading stage1.5.\n\nError 15", "L 99 99 99 99", "LI", "grub>"}
	for _, m := range messages() {
		known = append(known, m.Texts...)
	}
	for _, text := range known {
		fails, boots := bios+text, bios+"host login:"
		require.Equal(t, Neither, Compare(shown(fails), shown(fails)).Verdict, text)
		require.Equal(t, Differs, Compare(shown(boots), shown(fails)).Verdict, text)
		require.Equal(t, Differs, Compare(said(boots), said(fails)).Verdict, text)
	}
}

// Every change of a letter of a screen is one, and so is every digit of what is not a time.
func TestEveryCharacterCounts(t *testing.T) {
	t.Parallel()
	text := bios + "A disk read took place at sector 4711 of drive 80h\nC:\\> type readme.1st\nC:\\>"
	for at := len(bios); at < len(text); at++ {
		if strings.ContainsRune(" \n", rune(text[at])) {
			continue
		}
		other := text[:at] + "~" + text[at+1:]
		require.Equal(t, Differs, Compare(shown(text), shown(other)).Verdict, other[len(bios):])
	}
}

func FuzzCompare(f *testing.F) {
	f.Add([]byte(bios+"boot:"), []byte(kernelLog), painted(desktop(16, 16)).Frames[0].Picture)
	f.Add([]byte("boot:"), []byte{}, painted(typed(160, 64, "[    0.5] a", "xy_")).Frames[0].Picture)
	f.Add([]byte("\x1b[2J\x1b[1;1Hx\r\ny\rz"), []byte("\xff\x00[    1.2] a"), []byte("\x89PNG\r\n\x1a\n"))
	f.Fuzz(func(t *testing.T, screen, serial, picture []byte) {
		one := shown(string(screen))
		one.Serial = string(serial)
		two := shown(bios+"host login:", string(screen))
		two.Frames = append(two.Frames, Frame{At: time.Minute, Picture: picture})
		for _, a := range []*Film{one, two} {
			require.NotEqual(t, Differs, Compare(a, a).Verdict)
			for _, b := range []*Film{one, two} {
				require.Equal(t, Compare(a, b).Verdict, Compare(b, a).Verdict)
			}
		}
	})
}

// A terminal wraps a line in its last column, also where that holds the blank between two words.
func TestWrappedRows(t *testing.T) {
	long := "[    1.234567] clocksource: " + strings.Repeat("x", 51) // 79 columns
	for name, tc := range map[string]struct{ rows, want []string }{
		"a word that is cut": {[]string{long + "a", "bcd", ""}, []string{long + "abcd", "", ""}},
		"a blank at the end": {[]string{long, "next word", "[    1.3] y"}, []string{
			long + " next word", "",
			"[    1.3] y",
		}},
		"the log goes on": {[]string{long, "[    1.3] y"}, []string{long, "[    1.3] y"}},
		"nothing comes":   {[]string{long, "", "login:"}, []string{long, "", "login:"}},
		"no row of a log": {[]string{strings.Repeat("x", 79), "login:"}, []string{
			strings.Repeat("x", 79),
			"login:",
		}},
		"a row that is short": {[]string{long[:78], "login:"}, []string{long[:78], "login:"}},
		"three rows of a line": {
			[]string{long + "a", strings.Repeat("y", 80), "z"},
			[]string{long + "a" + strings.Repeat("y", 80) + "z", "", ""},
		},
	} {
		require.Equal(t, tc.want, whole(tc.rows), name)
	}
}

// What FreeDOS 1.3 shows of its drives: the kernel 2043 prints the place of each partition, which a move changes, and
// its size, which it does not.
const freeDOS = bios + "FreeDOS kernel 2043 (build 2043 OEM:0xfd)\n" +
	"C: HD1, Pri[ 1], CHS=    0-1-1, start=     0 MB, size=    33 MB\n" +
	"D: HD1, Pri[ 2], CHS=   68-0-1, start=    33 MB, size=    33 MB\n" +
	"C:\\>"

// Places of partitions that the plan moves are not difference, in every form that guests print; another place is.
func TestPlacesOfPartitions(t *testing.T) {
	t.Parallel()
	moves := []Move{
		{Start{63, 16, 63}, Start{128, 16, 63}},        // C/H/S 0-1-1 and 0-2-3
		{Start{68544, 16, 63}, Start{69632, 16, 63}},   // 68-0-1 and 69-1-18; 33 and 34 MiB
		{Start{137088, 16, 63}, Start{139264, 0, 0}},   // no geometry
		{Start{2097152, 16, 63}, Start{2099200, 0, 0}}, // 200000h and 200800h, 1 GiB and 1 MiB
	}
	aligned := strings.NewReplacer(
		"0-1-1", "0-2-3", "68-0-1", "69-1-18", "start=    33", "start=    34").Replace(freeDOS)
	for _, c := range []struct {
		name          string
		before, after string
		want          Verdict
	}{
		{"FreeDOS", freeDOS, aligned, Same},
		{"another cylinder", freeDOS, strings.Replace(aligned, "69-1-18", "70-1-18", 1), Differs},
		{"a size", freeDOS, strings.Replace(aligned, "size=    33 MB\nC:", "size=    35 MB\nC:", 1), Differs},
		{"back", aligned, freeDOS, Differs},
		{"sectors", "root at 68544\nlogin:", "root at 69632\nlogin:", Same},
		{"hexadecimal", "root at 0x200000\nlogin:", "root at 0x200800\nlogin:", Same},
		{"bytes", "offset 32256\nlogin:", "offset 65536\nlogin:", Same},
		{"slashes", "boot 0/1/1\nlogin:", "boot 0/2/3\nlogin:", Same},
		{"two forms", "root at 68544\nlogin:", "root at 34\nlogin:", Differs},
		{"two partitions", "root at 68544\nlogin:", "root at 128\nlogin:", Differs},
		{"other words", "root at 68544\nlogin:", "home at 69632\nlogin:", Differs},
		{"the last line", "start= 63", "start= 128", Same},
	} {
		got := Compare(shown(c.before), shown(c.after), moves...)
		require.Equal(t, c.want, got.Verdict, "%s: %s", c.name, got.Reason)
		if c.before != c.after {
			require.NotEqual(t, Same, Compare(shown(c.before), shown(c.after)).Verdict, "%s, without a plan", c.name)
		}
	}
}

// recorded is a film of a real machine in testdata: QEMU 7.2 with SeaBIOS or OVMF, recorded by a script of its own from
// disks of the tests in cmd/trueup. A broken disk is an aligned one whose one position has the old value. The kernel
// logs are Debian's kernel on a framebuffer of 640 by 480, of which the first pictures are omitted; the panic has no
// initrd.
func recorded(t testing.TB, name string) *Film {
	t.Helper()
	b := disktest.ReadFile(t, filepath.Join("testdata", name+".json"))
	var f Film
	require.NoError(t, json.Unmarshal(b, &f))
	return &f
}

func TestRecordedBoots(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before, after string
		want          Verdict
		says          string // in the reason
		sees          string // what the first difference shows of the aligned view
	}{
		{"sys-chs", "sys-chs-aligned", Same, `"boot:"`, ""},
		{"sys-chs", "sys-chs-broken", Differs, "", "CHS:B"},
		{"sys-win", "sys-win-aligned", Same, `"boot:"`, ""},
		{"sys-win", "sys-win-broken", Differs, "Missing operating system", "Missing operating system"},
		{"sys-ownlba", "sys-ownlba-aligned", Same, `"boot:"`, ""},
		{"sys-ownlba", "sys-ownlba-broken", Differs, "Boot error", "Boot error"},
		{"legacy-list", "legacy-list-aligned", Same, "the guest is up", ""},
		{"legacy-list", "legacy-list-broken-list", Differs, "GRUB Loading stage2", ""},
		{"legacy-list", "legacy-list-broken-stage1", Differs, "GRUB GRUB", ""},
		{"grub2", "grub2-aligned", Same, "trueup: loaded", ""},
		{"grub2", "grub2-broken", Differs, "unknown filesystem", "error: unknown filesystem."},
		{"uefi", "uefi-aligned", Same, "the guest is up", ""},
		{"uefi", "uefi-empty", Differs, "Shell", ""},
		{"blank", "blank", Neither, "not a bootable disk", ""},
		{"uefi-empty", "uefi-empty", Neither, "Shell", ""},
		{"sys-win-broken", "sys-win-broken", Neither, "Missing operating system", ""},
		{"grub2-broken", "grub2-broken", Neither, "unknown filesystem", ""},
		{"legacy-list-broken-list", "legacy-list-broken-list", Unclear, "GRUB Loading stage2", ""},
		{"kernel-log", "kernel-log-aligned", Same, `both runs reach the line "trueup: the guest is up"`, ""},
		{"kernel-log", "kernel-panic", Differs, "aligned view stops: \"[    4.476313] Kernel panic", ""},
		{"kernel-panic", "kernel-panic", Neither, "Kernel panic", ""},
	} {
		j := Compare(recorded(t, c.before), recorded(t, c.after))
		require.Equal(t, c.want, j.Verdict, "%s, %s: %+v", c.before, c.after, j)
		require.Contains(t, j.Reason, c.says, c.after)
		if c.sees != "" {
			require.Equal(t, c.sees, j.Differences[0].After)
		}
	}
}

// Any two boots of different disks differ, and each is the same as itself, unless it failed.
func TestRecordedBootsAgainstEachOther(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	kinds := map[string]string{}
	films := map[string]*Film{}
	for _, path := range files {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		films[name] = recorded(t, name)
		kind := strings.TrimSuffix(name, "-aligned")
		if kind == "sys-chs" || kind == "sys-win" {
			kind = "sys-ownlba" // the same syslinux
		}
		kinds[name] = kind
	}
	for x := range films {
		for y := range films {
			got := Compare(films[x], films[y]).Verdict
			require.Equal(t, kinds[x] != kinds[y], got == Differs, "%s, %s: %s", x, y, got)
		}
	}
}

// Each run has the geometry that its container states; one that states none has that of the table.
func TestGeometryOfTheContainer(t *testing.T) {
	t.Parallel()
	var p report.Plan
	require.NoError(t, json.Unmarshal([]byte(`{
		"bios_geometry": {"source": {"cylinders": 1023, "heads": 4, "sectors_per_track": 17}},
		"result": {"size_bytes": 36665344, "table": {"heads": 16, "sectors_per_track": 63}}
	}`), &p))
	m := Machine{}
	m.fit(p.Result)
	disk := func(m Machine) string { return strings.Join(m.disk(), " ") }
	require.Contains(t, disk(m.with(p.BIOS.Source)), ",lcyls=1024,lheads=4,lsecs=17")
	require.Contains(t, disk(m.with(p.BIOS.Result)), ",lcyls=71,lheads=16,lsecs=63")
}
