package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/units"
)

// limits returns a function that reports the memory and CPU time used since this call if one of them exceeds its limit.
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
	refuses := func(f align.Finding) bool { return f.Effect >= ondisk.Refuse }
	if slices.ContainsFunc(align.Relevant(s.Issues(), nil), refuses) {
		return out
	}
	format, size := qemuName(s.Image.Format), s.Image.Disk.Size()
	const most = 256 * units.MiB
	qemu, complaint := qemuRead(t, format, m.path, size > most)
	if complaint != "" {
		// If the disk cannot be read here either, a copy fails too.
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

// reasoned counts the copies compared with their JSON, beside the rows of accepted.
const reasoned = -1

// differSeed makes the disk of a seed, and its mutants. Some are mutants of trueup's own output.
func differSeed(t *testing.T, seed, mutants uint64, seen map[int]int) {
	t.Helper()
	d, from, to := drawDifferDisk(seed), t.TempDir(), t.TempDir()
	raw := d.make(t, t.TempDir())
	path := d.image(t, raw, from)
	t.Logf("%s of %d sectors:\n%s", path, d.sectors, d.script(""))
	requireRead(t, d, raw, path)
	written := filepath.Join(to, "disk")
	convert := trueup(t, "convert", "--to", differTargets[d.rng.IntN(len(differTargets))], "--json", path, written)
	require.Zero(t, convert.code, convert.stderr)
	var made struct {
		Disks []jsonAnswer `json:"disks"`
	}
	require.NoError(t, json.Unmarshal([]byte(convert.stdout), &made))
	format := made.Disks[0].Format
	disktest.Run(t, "qemu-img", "compare", "-f", qemuName(d.format.name), "-F", qemuName(format), path, written)
	seen[reasoned] += requireReasons(t, path)
	for i := range mutants {
		t.Run(fmt.Sprint("mutant ", i), func(t *testing.T) {
			rng := differRand("mutant ", seed, " ", i)
			parent := path
			switch rng.IntN(4) {
			case 0:
				parent = corpusParent(t, rng, path)
			case 1:
				parent = written
			}
			m := mutate(t, rng, parent)
			seen[reasoned] += requireReasons(t, m.path)
			for _, x := range m.differences(t) {
				if row := acceptedBy(m, x); row >= 0 {
					seen[row]++
					continue
				}
				t.Errorf("%s: %s\nof %s: %s", x.kind, x.text, m.parent, strings.Join(m.done, "; "))
			}
		})
	}
}

// TestDifferential compares what is read of random disks, and of mutants of them, with what qemu-img and sfdisk read,
// and requires a reason in JSON for each byte in which an aligned copy of them differs from the moved disk.
// TRUEUP_DIFFER is the number of disks, TRUEUP_DIFFER_SEED the first seed, TRUEUP_DIFFER_MUTANTS the mutants of each.
func TestDifferential(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs outside tools")
	}
	for _, tool := range []string{
		"qemu-img", "sfdisk", "sgdisk", "mkfs.fat", "fsck.fat", "mke2fs", "mkswap", "mkntfs",
	} {
		disktest.Tool(t, tool)
	}
	first, count, mutants := differNumber(t, "_SEED", 1), differNumber(t, "", 20), differNumber(t, "_MUTANTS", 3)
	seen := map[int]int{} // differences by row of accepted
	for seed := first; seed < first+count; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Logf("to repeat it: TRUEUP_DIFFER=1 TRUEUP_DIFFER_SEED=%d TRUEUP_DIFFER_MUTANTS=%d "+
				"go test -count=1 -run '^TestDifferential$' ./internal/cli", seed, mutants)
			differSeed(t, seed, mutants, seen)
		})
	}
	require.Positive(t, seen[reasoned])
	t.Logf("compared %d aligned copies with what JSON says of them", seen[reasoned])
	delete(seen, reasoned)
	for row, n := range seen {
		t.Logf("accepted %d times: %s: %s", n, accepted[row].kind, accepted[row].reason)
	}
}
