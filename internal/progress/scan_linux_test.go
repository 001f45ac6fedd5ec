package progress

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
)

// newScreen opens a terminal of so many columns.
func newScreen(t *testing.T, columns uint16) *screen {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	fd := int(outside.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}))
	t.Setenv("TERM", "xterm")
	s := &screen{ended: make(chan struct{})}
	s.program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	go func() {
		defer close(s.ended)
		defer outside.Close()
		for b := make([]byte, 4096); ; {
			n, err := outside.Read(b)
			s.mu.Lock()
			s.text.Write(b[:n])
			s.mu.Unlock()
			if err != nil { // the program's end is closed
				return
			}
		}
	}()
	return s
}

// On a terminal the line stays within it, and nothing is left at the end.
func TestScanBar(t *testing.T) {
	for _, columns := range []uint16{60, 120} {
		s := newScreen(t, columns)
		t.Setenv("TERM", "dumb")
		require.Nil(t, NewScan(Output{W: s.program, Kind: "auto"}).display)
		t.Setenv("TERM", "xterm")
		p := NewScan(Output{W: s.program, Kind: "auto"})
		require.NotNil(t, p.display)
		told(p)
		disktest.WaitFor(t, "the bar", func() bool { return strings.Contains(s.String(), "scan 5/8 [") })
		p.Stop()
		require.NoError(t, s.program.Close())
		<-s.ended
		out := s.String()
		require.True(t, strings.HasSuffix(out, "\r\x1b[J"), "%q", out)
		lines := strings.Split(strings.ReplaceAll(escapes.ReplaceAllString(out, "\n"), "\r", "\n"), "\n")
		bars := 0
		for _, l := range lines {
			require.Less(t, len(l), int(columns))
			require.LessOrEqual(t, len(strings.TrimRight(l, " ")), int(columns)-roomForKeys)
			if strings.HasPrefix(l, "scan 5/8 [") {
				bars++
				require.Contains(t, l, "1 below, 1 off, 1 failed")
			}
		}
		require.Positive(t, bars)
	}
}

// A bar whose work has not begun leaves the line to another one, and so does its end.
func TestBarsTakeTurns(t *testing.T) {
	s := newScreen(t, 80)
	o := Output{W: s.program, Kind: "auto"}
	idle := NewCopy(o, "verify", false)
	p := NewCopy(o, "verify", false)
	p.Begin("unpack", 100)
	p.Add(50)
	disktest.WaitFor(t, "the bar", func() bool { return strings.Count(s.String(), "unpack 50 of 100 B [") > 2 })
	idle.Stop()
	p.Stop()
	require.NoError(t, s.program.Close())
	<-s.ended
	for line := range strings.SplitSeq(escapes.ReplaceAllString(s.String(), ""), "\r") {
		line = strings.TrimRight(line, " ")
		require.True(t, line == "" || strings.HasPrefix(line, "unpack "), "%q", line)
	}
	require.Equal(t, 1, strings.Count(s.String(), "\x1b[J"), "one of the bars has an end to show")
}
