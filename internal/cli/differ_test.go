package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/units"
)

// TestDifferential compares what is read of random disks, and of mutants of them, with what qemu-img and sfdisk read.
// TRUEUP_DIFFER is the number of disks, TRUEUP_DIFFER_SEED the first seed, TRUEUP_DIFFER_MUTANTS the mutants of each.
func TestDifferential(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs outside tools")
	}
	for _, tool := range []string{"qemu-img", "sfdisk", "sgdisk", "mkfs.fat", "mke2fs", "mkswap", "mkntfs"} {
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
	for row, n := range seen {
		t.Logf("accepted %d times: %s: %s", n, accepted[row].kind, accepted[row].reason)
	}
}

func differNumber(t *testing.T, name string, usual uint64) uint64 {
	t.Helper()
	text := os.Getenv("TRUEUP_DIFFER" + name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 63)
	require.NoError(t, err, name)
	return n
}

// differSeed makes the disk of a seed, and its mutants. Some are mutants of what trueup itself has written.
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
	var made jsonAnswer
	require.NoError(t, json.Unmarshal([]byte(convert.stdout), &made))
	disktest.Run(t, "qemu-img", "compare", "-f", qemuName(d.format.name), "-F", qemuName(made.Format), path, written)
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

var differTargets = []string{
	"raw", "vmdk:monolithicSparse", "vmdk:streamOptimized", "vhd:dynamic", "vhd:fixed", "vhdx:dynamic", "vhdx:fixed",
	"qcow2:v2", "qcow2:v3", "qcow2:compressed",
}

// inspect is what inspect says, and its exit code.
func inspectJSON(t *testing.T, path string) (ended, *jsonAnswer) {
	t.Helper()
	end := trueup(t, "inspect", "--json", path)
	a := &jsonAnswer{}
	require.NoError(t, json.Unmarshal([]byte(end.stdout), a), end.stdout)
	return end, a
}

// requireRead requires that a sound disk is read as the tools read it.
func requireRead(t *testing.T, d *differDisk, raw, path string) {
	t.Helper()
	end, a := inspectJSON(t, path)
	if d.label != "" { // what mkfs makes of a whole disk may be small enough to be unknown
		want := readSfdisk(t, raw)
		require.Equal(t, want.Label, d.label)
		require.Len(t, want.Partitions, len(d.parts))
		require.Equal(t, want, tableOf(a, raw))
		require.Equal(t, verdictOf(want), end.code, end.stderr)
	}
	var info struct {
		Size int64 `json:"virtual-size"`
	}
	out := disktest.Output(t, "qemu-img", "info", "--output=json", "-f", qemuName(d.format.name), path)
	require.NoError(t, json.Unmarshal([]byte(out), &info))
	require.Equal(t, info.Size, a.Image.Size)
	require.Equal(t, d.format.name, a.Image.Format)
	s, err := command.OpenSource(path, realign.Reading{})
	require.NoError(t, err)
	defer s.Close()
	require.Empty(t, differentBytes(t, s.Image.Disk, raw, info.Size))
}

// verdictOf is the exit code that the starts of partitions ask for.
func verdictOf(d differTable) int {
	code := 0
	for _, p := range d.Partitions {
		switch {
		case (differPart{typ: p.Type}).extended() || p.Start%128 == 0:
		case p.Start%8 != 0:
			return 3
		default:
			code = 2
		}
	}
	return code
}

// differentBytes compares the first n bytes of a disk with those of a file, which is zero behind its end, and returns
// where they differ.
func differentBytes(t *testing.T, got io.ReaderAt, raw string, n int64) string {
	t.Helper()
	f, err := os.Open(raw)
	require.NoError(t, err)
	defer f.Close()
	a, b := make([]byte, units.MiB), make([]byte, units.MiB)
	for off := int64(0); off < n; off += units.MiB {
		k := min(units.MiB, n-off)
		if _, err := got.ReadAt(a[:k], off); err != nil && err != io.EOF {
			return "error: " + err.Error()
		}
		m, err := f.ReadAt(b[:k], off)
		if err != io.EOF {
			require.NoError(t, err)
		}
		clear(b[m:k])
		if !bytes.Equal(a[:k], b[:k]) {
			for i := range k {
				if a[i] != b[i] {
					return fmt.Sprintf("byte %#x is %#x, not %#x", off+i, a[i], b[i])
				}
			}
		}
	}
	return ""
}
