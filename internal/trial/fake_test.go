package trial_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/trial"
)

// TestMain is the fake QEMU where the program is called by the name of a fake, and trueup where it is called as a
// trial calls that.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[2] == "--json" {
		fakeTrueup(os.Args[1], os.Args[len(os.Args)-1])
		return
	}
	if act, ok := fakes[filepath.Base(os.Args[0])]; ok {
		act(&fake{in: bufio.NewScanner(os.Stdin), out: os.Stdout})
		return
	}
	os.Exit(m.Run())
}

// fakeTrueup moves a partition of a disk, and serves it at a socket until it is told to end.
func fakeTrueup(command, socket string) {
	if command == "plan" {
		fmt.Fprintln(os.Stdout, `{"moved": 1, "result": {"size_bytes": 16777216},
			"bios_geometry": {"result": {"heads": 4, "sectors_per_track": 17}}}`)
		return
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, sys.Terminate)
	fmt.Fprintf(os.Stdout, "{\"uri\": \"nbd+unix:///?socket=%s\"}\n", socket)
	<-end
}

// fake speaks QMP as QEMU does, but for what a test makes of it.
type fake struct {
	in  *bufio.Scanner
	out io.Writer
}

func (f *fake) say(text string) { fmt.Fprintln(f.out, text) }

// serve answers commands until the end. other returns the answer to a command as JSON; empty: the usual one.
func (f *fake) serve(other func(command, line string) string) {
	f.say(`{"QMP": {"version": {}}}`)
	for f.in.Scan() {
		var c struct {
			Execute   string
			Arguments map[string]any
			ID        int
		}
		if json.Unmarshal(f.in.Bytes(), &c) != nil {
			return
		}
		line, _ := c.Arguments["command-line"].(string)
		answer := other(c.Execute, line)
		if answer == "" {
			answer = usual(c.Execute, line)
		}
		f.say(fmt.Sprintf(`{"id": %d, "return": %s}`, c.ID, answer))
	}
}

// usual is the answer of a machine with a blank text screen.
func usual(command, line string) string {
	switch command {
	case "query-status":
		return `{"status": "running"}`
	case "query-blockstats":
		return `[{"device": "disk", "stats": {"rd_bytes": 0}, "parent": {"stats": {"wr_highest_offset": 0}}}]`
	case "ringbuf-read":
		return `""`
	case "human-monitor-command":
		if n := 0; strings.HasPrefix(line, "xp") {
			_, err := fmt.Sscanf(line, "xp /%dhx", &n)
			if err != nil {
				panic(err)
			}
			return cells(n, "0x0741")
		}
		for port, value := range map[string]string{
			"0x3ce.6": "0x0e", "0x3cc": "0x67", "0x3d4.1": "0x4f", "0x3d4.7": "0x1f", "0x3d4.9": "0x4f",
			"0x3d4.18": "0x8f", "0x3d4.19": "0x28",
		} {
			if line == "i /b "+port {
				return fmt.Sprintf("%q", "portb[0x0000] = "+value+"\r\n")
			}
		}
		if line == "info registers" {
			return `"EFL=00000202 [-------] CPL=0 II=0 A20=1 SMM=0 HLT=1\r\n"`
		}
		return `"portb[0x03d4] = 0x00\r\n"`
	}
	return "{}"
}

func cells(n int, value string) string {
	return fmt.Sprintf("%q", "00000000000b8000:"+strings.Repeat(" "+value, n)+"\r\n")
}

// answering returns a fake with one odd answer.
func answering(command, prefix, answer string) func(*fake) {
	return func(f *fake) {
		f.serve(func(c, line string) string {
			if c == command && strings.HasPrefix(line, prefix) {
				return answer
			}
			return ""
		})
	}
}

// kvmThat returns a fake that works under emulation, and with KVM does what another one does.
func kvmThat(acts func(*fake)) func(*fake) {
	return func(f *fake) {
		if !slices.Contains(os.Args, "kvm") {
			answering("", "", "")(f)
			return
		}
		acts(&fake{in: f.in, out: kvmEnabled{f.out}})
	}
}

// kvmEnabled has the first answer of a command say that KVM is used.
type kvmEnabled struct{ io.Writer }

func (w kvmEnabled) Write(p []byte) (int, error) {
	_, err := io.WriteString(w.Writer, strings.ReplaceAll(string(p), `"id": 2, "return": {}`,
		`"id": 2, "return": {"enabled": true}`))
	return len(p), err
}

func hang() { _, _ = io.Copy(io.Discard, os.Stdin) }

var fakes = map[string]func(*fake){
	"fake-plain":     answering("", "", ""),
	"fake-kvm-blank": kvmThat(answering("human-monitor-command", "xp", cells(2000, "0x0700"))),
	"fake-kvm-off":   kvmThat(answering("query-status", "", `{"status": "shutdown"}`)),
	"fake-kvm-stuck": kvmThat(func(*fake) { hang() }),
	"fake-kvm-second": kvmThat(func(f *fake) {
		if strings.Contains(strings.Join(os.Args, " "), "lheads=4") { // of the result of the plan
			hang()
		}
		answering("", "", "")(f)
	}),
	"fake-silent":  func(*fake) { hang() },
	"fake-garbage": func(f *fake) { f.say("Segmentation fault"); hang() },
	"fake-long":    func(f *fake) { _, _ = io.Copy(f.out, io.LimitReader(zeros{}, 64<<20)) },
	"fake-refuses": func(*fake) { fmt.Fprintln(os.Stderr, "qemu: -sandbox \x1b[2J: no such option"); os.Exit(1) },
	"fake-dies": func(f *fake) {
		f.serve(func(c, _ string) string {
			if c == "stop" {
				fmt.Fprintln(os.Stderr, "qemu: assertion failed")
				os.Exit(3)
			}
			return ""
		})
	},
	"fake-stalls": func(f *fake) {
		f.serve(func(c, _ string) string {
			if c == "stop" {
				hang()
			}
			return ""
		})
	},
	"fake-floods": func(f *fake) {
		f.serve(func(c, _ string) string {
			for c == "stop" {
				f.say(`{"event": "RESET", "data": {"guest": false}}`)
			}
			return ""
		})
	},
	"fake-cells":    answering("human-monitor-command", "xp", cells(40000, "0x0741")),
	"fake-few":      answering("human-monitor-command", "xp", cells(3, "0x0741")),
	"fake-no-cells": answering("human-monitor-command", "xp", cells(80, "0x1ffff")),
	"fake-port":     answering("human-monitor-command", "i /b 0x3ce", `"i: no such port"`),
	"fake-serial":   answering("ringbuf-read", "", `"***"`),
	"fake-no-disk":  answering("query-blockstats", "", `[]`),
	"fake-types":    answering("query-status", "", `{"status": 7}`),
	"fake-huge":     dumping("P6\n65535 65535\n255\n"),
	"fake-endless":  dumping("P6\n2000 3000\n255\n" + strings.Repeat("x", 18_000_000)),
	"fake-no-dump":  dumping(""),
	"fake-writes": answering("query-blockstats", "",
		`[{"device": "disk", "parent": {"stats": {"wr_highest_offset": 3000000000}}}]`),
	"fake-io-error": answering("query-status", "", `{"status": "io-error"}`),
	"fake-off":      answering("query-status", "", `{"status": "shutdown"}`),
	"fake-slow":     slow,
	"fake-crashed":  answering("query-status", "", `{"status": "internal-error"}`),
	"fake-resets": func(f *fake) {
		f.serve(func(c, _ string) string {
			if c == "stop" {
				f.say(`{"event": "RESET", "data": {"guest": true}}`)
			}
			return ""
		})
	},
}

// slow is a machine under load: its answers take long, and its guest waits for the disk until it powers off.
func slow(f *fake) {
	asked := 0
	f.serve(func(c, _ string) string {
		if c != "query-status" {
			return ""
		}
		time.Sleep(700 * time.Millisecond)
		if asked++; asked > 3 {
			return `{"status": "shutdown"}`
		}
		return ""
	})
}

// dumping returns a fake in graphics whose pictures are these bytes.
func dumping(ppm string) func(*fake) {
	picture := os.NewFile(3, "picture")
	return func(f *fake) {
		f.serve(func(c, line string) string {
			switch {
			case c == "screendump":
				_, _ = picture.WriteString(ppm)
			case line == "i /b 0x3ce.6":
				return `"portb[0x03cf] = 0x05\r\n"`
			}
			return ""
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// fakeQEMU returns the path of a fake for the user that QEMU gets, and a socket that listens.
func fakeQEMU(t *testing.T, name string) (program, socket string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "trueup-fake-") //nolint:usetesting // another user runs the program
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	program, socket = filepath.Join(dir, name), filepath.Join(dir, "nbd")
	disktest.Run(t, "cp", self, program)
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	return program, socket
}

// hanging are fakes that do not answer at some time.
var hanging = []string{"fake-silent", "fake-stalls", "fake-floods", "fake-kvm-stuck", "fake-kvm-second"}

// patiently calls a function with a time for answers until it reports success. A fake that hangs has little time
// first, and more where the machine is so busy that other answers are late, too.
func patiently(name string, try func(patience time.Duration) bool) {
	const most = 10 * time.Minute
	patience := most
	if slices.Contains(hanging, name) {
		patience = 3 * time.Second
	}
	for !try(patience) && patience < most {
		patience *= 4
	}
}

// runFake starts a fake, and requires that nothing is left of it. The expected end has words in its note or error.
func runFake(t *testing.T, name, words string) (f trial.Film, err error) {
	t.Helper()
	program, socket := fakeQEMU(t, name)
	m := trial.Machine{
		QEMU: program, Disk: "nbd+unix:///?socket=" + socket, Firmware: trial.BIOS, Accel: "tcg",
		Limit: 10 * time.Minute, Settle: time.Second,
	}
	patiently(name, func(patience time.Duration) bool {
		m.Patience = patience
		f, err = m.Run(t.Context())
		require.False(t, running(t, program))
		return strings.Contains(fmt.Sprint(err, f.Note), words)
	})
	return f, err
}

func TestOddQEMU(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		end   trial.End
		words string // of the note; of the error if end is empty
	}{
		"fake-plain":    {trial.Settled, ""},
		"fake-silent":   {"", "no greeting in "},
		"fake-garbage":  {"", `"Segmentation fault"`},
		"fake-long":     {"", "too long"},
		"fake-refuses":  {"", "exit status 1; qemu: -sandbox"},
		"fake-dies":     {trial.Broken, "exit status 3; qemu: assertion failed"},
		"fake-stalls":   {trial.Broken, "stop took "},
		"fake-floods":   {trial.Broken, "stop took "},
		"fake-cells":    {trial.Broken, "violates its monitor protocol: xp"},
		"fake-few":      {trial.Broken, "3 cells"},
		"fake-no-cells": {trial.Broken, "violates its monitor protocol: xp"},
		"fake-port":     {trial.Broken, "no such port"},
		"fake-serial":   {trial.Broken, "ringbuf-read"},
		"fake-no-disk":  {trial.Broken, "knows no disk"},
		"fake-types":    {trial.Broken, "query-status"},
		"fake-huge":     {trial.Broken, "PPM picture"},
		"fake-endless":  {trial.Broken, "a picture of more than"},
		"fake-no-dump":  {trial.Broken, "PPM picture"},
		"fake-writes":   {trial.DiskFull, ""},
		"fake-io-error": {trial.DiskFailed, ""},
		"fake-off":      {trial.PoweredOff, ""},
		"fake-slow":     {trial.PoweredOff, ""},
		"fake-crashed":  {trial.Broken, `"internal-error"`},
		"fake-resets":   {trial.ResetLoop, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := runFake(t, name, want.words)
			if want.end == "" {
				require.ErrorContains(t, err, want.words)
				return
			}
			require.NoError(t, err)
			require.Equal(t, want.end, f.Ended, "%+v", f)
			require.Contains(t, f.Note, want.words)
		})
	}
}

// tried makes both runs of a trial with a fake, and returns what was said of them.
func tried(t *testing.T, name, accel string) (p *trial.Pair, said []string, err error) {
	t.Helper()
	program, socket := fakeQEMU(t, name)
	patiently(name, func(patience time.Duration) bool {
		said = nil
		p = &trial.Pair{
			Machine: trial.Machine{
				QEMU: program, Firmware: trial.BIOS, Bus: "ide", Accel: accel, Patience: patience,
			},
			Seconds: 20, Settle: 1, Source: socket,
			Say: func(text string) { said = append(said, text) },
		}
		err = p.Run(t.Context(), io.Discard)
		return err == nil || accel == "kvm"
	})
	return p, said, err
}

// A KVM that shows nothing, or does not begin, is replaced by emulation where that is not what the user has asked for,
// also in the second run alone: then both are made again. One that shows an end is believed.
func TestKVMThatHangs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		by  string
		end trial.End
	}{
		"fake-kvm-blank":  {"tcg", trial.Settled},
		"fake-kvm-stuck":  {"tcg", trial.Settled},
		"fake-kvm-second": {"tcg", trial.Settled},
		"fake-kvm-off":    {"kvm", trial.PoweredOff},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, said, err := tried(t, name, trial.Auto)
			require.NoError(t, err)
			for _, f := range []trial.Film{p.Before, *p.After} {
				require.Equal(t, want.by, f.Accel, "%q", said)
				require.Equal(t, want.end, f.Ended, "%+v", f)
			}
			p, said, err = tried(t, name, "kvm")
			if name == "fake-kvm-stuck" || name == "fake-kvm-second" {
				require.ErrorContains(t, err, "no greeting")
				return
			}
			require.NoError(t, err)
			require.Equal(t, "kvm", p.Before.Accel, "the user's choice: %q", said)
		})
	}
}

// A machine that fails in the first run leaves nothing to compare, so the second run is omitted.
func TestSecondRunIsLeftOut(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]trial.End{
		"fake-crashed": "", "fake-io-error": "", "fake-off": trial.PoweredOff, "fake-resets": trial.ResetLoop,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, said, err := tried(t, name, "tcg")
			require.NoError(t, err)
			require.Equal(t, want == "", p.After == nil, "%q", said)
			require.Equal(t, want == "", strings.Contains(said[len(said)-1], "skipped"), "%q", said)
			if want != "" {
				require.Equal(t, want, p.After.Ended)
			}
		})
	}
}

func TestInterruptedRunLeavesNothing(t *testing.T) {
	t.Parallel()
	program, socket := fakeQEMU(t, "fake-plain")
	ctx, cancel := context.WithCancel(t.Context())
	m := trial.Machine{QEMU: program, Disk: "nbd+unix:///?socket=" + socket, Firmware: trial.BIOS, Accel: "tcg"}
	m.Settle = time.Hour
	ended := make(chan error)
	go func() {
		_, err := m.Run(ctx)
		ended <- err
	}()
	disktest.WaitFor(t, "the guest", func() bool { return running(t, program) })
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.False(t, running(t, program))
}

// No QEMU runs if root cannot give its folder to another user.
func TestFolderThatIsNotGiven(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("QEMU runs as the same user")
	}
	program, socket := fakeQEMU(t, "fake-plain")
	folder := oddfs.Mount(t, t.TempDir(), oddfs.Failing("truncate", syscall.EPERM)) // and other changes of a file
	require.NoError(t, errors.Join(os.Chmod(filepath.Dir(folder), 0o755),
		os.Chmod(filepath.Dir(filepath.Dir(folder)), 0o755)))
	t.Setenv("TMPDIR", folder)
	m := trial.Machine{QEMU: program, Disk: "nbd+unix:///?socket=" + socket, Firmware: trial.BIOS, Accel: "tcg"}
	_, err := m.Run(t.Context())
	require.ErrorIs(t, err, syscall.EPERM)
	require.False(t, running(t, program))
}

// running reports whether a process runs a program.
func running(t *testing.T, program string) bool {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*/exe")
	require.NoError(t, err)
	return slices.ContainsFunc(processes, func(p string) bool {
		exe, err := os.Readlink(p)
		return err == nil && exe == program
	})
}

// bootSector prints a text through the BIOS, runs some code, and waits for ever.
func bootSector(text string, code ...byte) []byte {
	//   mov si,text; mov ah,0eh; next: lodsb; test al,al; jz done; int 10h; jmp next; done: code; halt: hlt; jmp halt
	b := []byte{
		0xFC, 0x31, 0xC0, 0x8E, 0xD8, 0xBE, 0, 0, 0xB4, 0x0E, 0xAC, 0x84, 0xC0, 0x74, 0x04, 0xCD, 0x10, 0xEB, 0xF7,
	}
	b = append(b, code...)
	b = append(b, 0xF4, 0xEB, 0xFD)
	at := 0x7C00 + len(b)
	b[6], b[7] = byte(at), byte(at>>8)
	b = append(b, text...)
	b = append(b, make([]byte, 512-len(b))...)
	b[510], b[511] = 0x55, 0xAA
	return b
}

// serve returns the URI of a disk with these first sectors, served by qemu-nbd.
func serve(t testing.TB, content []byte) string {
	t.Helper()
	dir := t.TempDir()
	raw, socket := filepath.Join(dir, "disk.raw"), filepath.Join(dir, "nbd")
	require.NoError(t, os.WriteFile(raw, content, 0o600))
	require.NoError(t, os.Truncate(raw, 16<<20))
	cmd := exec.Command(disktest.Tool(t, "qemu-nbd"), "--read-only", "--persistent", "--format=raw", "--socket="+socket,
		raw)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	disktest.WaitFor(t, "qemu-nbd to listen", func() bool {
		c, err := net.Dial("unix", socket)
		return err == nil && c.Close() == nil
	})
	return "nbd+unix:///?socket=" + socket
}

// run starts a machine under emulation.
func run(t testing.TB, m trial.Machine) trial.Film {
	t.Helper()
	m.QEMU = disktest.Tool(t, "qemu-system-x86_64")
	m.Accel, m.Memory, m.Clock = "tcg", 64, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	m.Settle = time.Second / 2
	if m.Firmware == "" {
		m.Firmware = trial.BIOS
	}
	f, err := m.Run(context.Background())
	require.NoError(t, err)
	return f
}

func last(t testing.TB, f trial.Film) trial.Frame {
	t.Helper()
	frame, ok := f.Last()
	require.True(t, ok, "no frame: %+v", f)
	return frame
}

func TestRunReadsTheTextScreen(t *testing.T) {
	t.Parallel()
	for _, bus := range trial.Buses() {
		t.Run(bus, func(t *testing.T) {
			t.Parallel()
			f := run(t, trial.Machine{Disk: serve(t, bootSector("the guest is \x82\xb3 up")), Bus: bus})
			require.Equal(t, trial.Settled, f.Ended, "%+v", f)
			require.Equal(t, "tcg", f.Accel)
			screen := last(t, f)
			require.Len(t, screen.Text, 25)
			require.Condition(t, func() bool { return slices.Contains(screen.Text, "the guest is é│ up") }, "%q",
				screen.Text)
		})
	}
}
