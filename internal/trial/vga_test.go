package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// replies is a monitor whose commands get these answers in turn.
func replies(t testing.TB, texts []string) *QMP {
	t.Helper()
	var b bytes.Buffer
	for n, text := range texts {
		quoted, err := json.Marshal(text)
		require.NoError(t, err)
		fmt.Fprintf(&b, `{"id": %d, "return": %s}`+"\n", n+1, quoted)
	}
	return NewQMP(t.Context(), io.Discard, &b)
}

// registersOf are the answers to the questions of a screen: index and register of the graphics controller, the index
// again, the miscellaneous register, and those of the CRTC with its index around them.
func registersOf(graphics int, crtc ...int) (texts []string) {
	port := func(n int) string { return fmt.Sprintf("portb[0x0000] = %#02x\r\n", n) }
	texts = []string{port(5), port(graphics), port(0), port(0x67), port(15)}
	for _, n := range crtc {
		texts = append(texts, port(n))
	}
	return append(texts, port(0))
}

// The CRTC's registers of 80 columns and 25 rows, as the BIOS sets mode 3: columns, overflow, cell, start, last line,
// pitch. Spec: IBM VGA, mode 3+.
func mode3(start int) []string {
	return registersOf(0x0E, 0x4F, 0x1F, 0x4F, start>>8, start&0xFF, 0x8F, 0x28)
}

func TestTextScreen(t *testing.T) {
	t.Parallel()
	memory := slices.Repeat([]string{"0x0720"}, textWindow/2)
	for i, c := range []byte("top \xc4\x01") {
		memory[(80*24+5+i)%len(memory)] = fmt.Sprintf("%#04x", 0x4F00|int(c))
	}
	for _, start := range []int{0, 80, textWindow/2 - 40} {
		first, count := start, 80*25+80
		if first+count > len(memory) {
			first, count = 0, len(memory)
		}
		v := vga{monitor: replies(t, append(mode3(start), "b8000: "+strings.Join(memory[first:first+count], " ")))}
		lines, err := v.screen(t.Context())
		require.NoError(t, err)
		require.Len(t, lines, 25)
		row := (80*24 - start) / 80
		if start > 80*25 {
			require.Equal(t, "top ─☺", strings.TrimSpace(strings.Join(lines, "")), "start %d", start)
			continue
		}
		require.Equal(t, "     top ─☺", lines[row], "start %d", start)
	}
}

// In graphics no memory is read: that would change the latches.
func TestGraphicsAreNotText(t *testing.T) {
	t.Parallel()
	for graphics := range 16 {
		v := vga{monitor: replies(t, registersOf(graphics, 0x4F, 0x1F, 0x4F, 0, 0, 0x8F, 0x28))}
		_, isText := v.text(t.Context())
		require.Equal(t, graphics == 0 || graphics&1 == 0 && graphics >= 8, isText, "register %#x", graphics)
	}
}

func FuzzTextScreen(f *testing.F) {
	f.Add(strings.Join(append(mode3(0), "000b8000: 0x0741"), "\x00"))
	f.Fuzz(func(t *testing.T, said string) {
		lines, err := (&vga{monitor: replies(t, strings.Split(said, "\x00"))}).screen(t.Context())
		require.LessOrEqual(t, len(lines), maxRows)
		for _, line := range lines {
			require.NoError(t, err)
			require.LessOrEqual(t, utf8.RuneCountInString(line), maxColumns)
		}
	})
}

func FuzzMonitor(f *testing.F) {
	f.Add([]byte(`{"QMP": {}}` + "\n" + `{"id": 1, "return": {}}` + "\n" + `{"id": 2, "return": {"status": "x"}}` +
		"\n"))
	f.Add([]byte(`{"event": "RESET", "data": {"guest": true}}`))
	f.Fuzz(func(t *testing.T, said []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), disktest.Patience)
		defer cancel()
		m := NewQMP(ctx, io.Discard, bytes.NewReader(said))
		if m.Greet(ctx) == nil {
			var status struct{ Status string }
			_ = m.Call(ctx, "query-status", nil, &status)
		}
		require.NoError(t, ctx.Err(), "hangs")
	})
}

func TestHalves(t *testing.T) {
	t.Parallel()
	var h halves
	for range 3 * maxSerial / 4 {
		h.add([]byte("abcd"))
	}
	s := h.String()
	require.Equal(t, strings.Repeat("abcd", maxSerial/8)+"\n[...]\n"+strings.Repeat("abcd", maxSerial/8), s)
}

// A busy host takes time from a guest that computes, and not from one that waits.
func TestTimeThatCounts(t *testing.T) {
	t.Parallel()
	const clock = 10 * time.Second
	for _, c := range []struct {
		work     time.Duration
		computes bool
		want     time.Duration
	}{
		{clock, true, clock},
		{3 * time.Second, true, 3 * time.Second},
		{0, true, time.Second},
		{2 * clock, true, clock},
		{0, false, clock},
		{3 * time.Second, false, clock},
	} {
		require.Equal(t, c.want, charged(clock, c.work, c.computes), c)
	}
}
