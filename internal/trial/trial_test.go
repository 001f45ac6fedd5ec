package trial_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/trial"
)

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
	if m.Firmware == "" {
		m.Firmware = trial.BIOS
	}
	f, err := m.Run(context.Background(), trial.Watch{Settle: time.Second / 2})
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
