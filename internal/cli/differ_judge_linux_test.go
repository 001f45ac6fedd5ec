package cli

import (
	"fmt"
	"io"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/units"
)

// limits returns a function that reports what was used beyond the limits since.
func limits(t *testing.T) func() string {
	t.Helper()
	used := func() (uint64, time.Duration) {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		var u syscall.Rusage
		require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
		return m.TotalAlloc, time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	memory, processor := used()
	return func() string {
		m, p := used()
		if m > memory+mostMemory || p-processor > mostProcessor {
			return fmt.Sprintf("%d bytes of memory and %v of the processor", m-memory, p-processor)
		}
		return ""
	}
}

// differences compares how trueup and the tools read a mutant, and what the commands of trueup report.
func (m *mutant) differences(t *testing.T) (out []difference) {
	t.Helper()
	spent := limits(t)
	in, a := inspectJSON(t, m.path)
	add := func(kind, format string, args ...any) {
		out = append(out, difference{kind: kind, text: fmt.Sprintf(format, args...), inspect: a})
	}
	out = disagreements(t, m.path, in, a)
	if over := spent(); over != "" {
		add(badEnding, "%s", over)
	}
	for _, text := range badEnd(in, a) {
		add(badEnding, "%s", text)
	}
	s, err := OpenSource(m.path, realign.Reading{})
	if err != nil {
		return out
	}
	defer s.Close()
	m.damaged = realign.Broken(align.Relevant(s.Damage, nil)) != nil
	if !copies(s) {
		return out
	}
	format, size := qemuName(s.Image.Format), s.Image.Disk.Size()
	const most = 256 * units.MiB
	qemu, complaint := qemuRead(t, format, m.path, size > most)
	if complaint != "" {
		// Where the disk cannot be read here either, a copy fails too.
		if _, err := io.Copy(io.Discard, io.NewSectionReader(s.Image.Disk, 0, min(size, most))); err == nil {
			add(qemuSays, "%s", complaint)
		}
		return out
	}
	if qemu.size != size {
		add(inSize, "%d bytes, %d for qemu-img", size, qemu.size)
		return out
	}
	if text := differentBytes(t, s.Image.Disk, qemu.raw, min(size, qemu.read)); text != "" {
		if !strings.HasPrefix(text, "error") {
			add(inBytes, "%s", text)
		}
		return out
	}
	if a.Error == nil && size <= most {
		if want, got := readSfdisk(t, qemu.raw), tableOf(a, qemu.raw); !reflect.DeepEqual(want, got) {
			text := fmt.Sprintf("%v\nfor sfdisk %v", got, want)
			out = append(out, difference{kind: inTable, text: text, inspect: a, got: got, want: want})
		}
	}
	return out
}
