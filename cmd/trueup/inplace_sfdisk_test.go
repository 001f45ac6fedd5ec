package main

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// sfdiskCase is a disk whose partitions sfdisk moves to where trueup would.
type sfdiskCase struct {
	made, path string
	old, new   map[int]window
	data       map[int][32]byte // SHA-256 of each partition
	order      []int            // from the end of the disk on
}

func newSfdiskCase(t testing.TB, raw string) *sfdiskCase {
	t.Helper()
	c := &sfdiskCase{made: raw, path: filepath.Join(t.TempDir(), "disk.raw")}
	dest := filepath.Join(t.TempDir(), "copy.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", raw, dest).code)
	c.old, c.new, c.data = numbered(t, raw), numbered(t, dest), sumsOfPartitions(t, raw)
	require.NoError(t, os.Truncate(raw, disktest.Stat(t, dest).Size()))
	if strings.Contains(disktest.Run(t, "sfdisk", "-d", raw), "label: gpt") {
		disktest.Run(t, "sfdisk", "-q", "--relocate", "gpt-bak-std", raw)
	}
	for number, w := range c.old {
		if w.start != c.new[number].start {
			c.order = append(c.order, number)
		}
	}
	slices.SortFunc(c.order, func(a, b int) int { return int(c.old[b].start - c.old[a].start) })
	return c
}

// sumsOfPartitions returns the SHA-256 of what lies where the table has partitions.
func sumsOfPartitions(t testing.TB, path string) map[int][32]byte {
	t.Helper()
	b, sums := disktest.ReadFile(t, path), map[int][32]byte{}
	size := int64(len(b))
	for number, p := range numbered(t, path) {
		sums[number] = sha256.Sum256(b[min(p.start*sectorSize, size):min((p.start+p.size)*sectorSize, size)])
	}
	return sums
}

// move is the command that moves a partition, below a program with arguments.
func (c *sfdiskCase) move(t testing.TB, number int, below ...string) result {
	t.Helper()
	script := fmt.Sprintf(`echo %d, | "$@" --no-reread --no-tell-kernel --move-data -N %d '%s'`, c.new[number].start,
		number, c.path)
	return run(t, "sh", append([]string{"-c", script, "sh"}, append(below, "sfdisk")...)...)
}

// whole reports whether the table leads to all data.
func (c *sfdiskCase) whole(t testing.TB) bool {
	t.Helper()
	return run(t, "sfdisk", "-d", c.path).code == 0 && maps.Equal(sumsOfPartitions(t, c.path), c.data)
}

// TestKilledSfdisk kills sfdisk --move-data as TestKilledMoves kills a move, on the same disks: in front of each call
// that writes or flushes. It counts after how many of the kills the table does not lead to the data any more, and how
// often a second run of the same command does not mend it. make torture runs the test, which is no test of trueup.
func TestKilledSfdisk(t *testing.T) {
	t.Parallel()
	if os.Getenv("TRUEUP_KILLS") == "" {
		t.Skip("make torture runs it: it kills another program")
	}
	strace := disktest.Tool(t, "strace")
	disktest.Tool(t, "sfdisk")
	// What sync(2) does is of no use here, and takes long on a machine with other work.
	traced := []string{strace, "-qq", "-e", "trace=write,pwrite64,fsync,sync", "-e", "inject=sync:retval=0"}
	for _, name := range []string{"two ntfs and a hive", "gpt"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newSfdiskCase(t, moveDisks[name](t))
			kills, lost, again := 0, 0, 0
			for k, i := range c.order {
				ready := func() {
					disktest.Run(t, "cp", "--sparse=always", c.made, c.path)
					for _, before := range c.order[:k] {
						require.Equal(t, 0, c.move(t, before, append(traced, "-o", os.DevNull)...).code)
					}
				}
				ready()
				log := filepath.Join(t.TempDir(), "all")
				r := c.move(t, i, append(traced, "-o", log)...)
				require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
				require.True(t, c.whole(t), "sfdisk by itself")
				b := disktest.ReadFile(t, log)
				for _, x := range []string{"write", "pwrite64", "fsync"} {
					for n := 1; n <= strings.Count("\n"+string(b), "\n"+x+"("); n++ {
						ready()
						inject := fmt.Sprintf("inject=%s:signal=KILL:when=%d", x, n)
						c.move(t, i, append(traced, "-o", os.DevNull, "-e", inject)...)
						kills++
						if c.whole(t) {
							continue
						}
						lost++
						c.move(t, i, append(traced, "-o", os.DevNull)...)
						if !c.whole(t) {
							again++
						}
					}
				}
			}
			t.Logf("%d kills; after %d of them the table does not lead to the data, after %d of these neither "+
				"when it is given again", kills, lost, again)
			require.Positive(t, lost)
		})
	}
}
