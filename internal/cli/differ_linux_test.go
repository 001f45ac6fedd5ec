package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// reasoned counts the copies that were compared with what JSON says of them, beside the rows of accepted.
const reasoned = -1

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
// and wants a reason in JSON for each byte in which an aligned copy of them differs from the moved disk.
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
