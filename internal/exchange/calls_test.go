package exchange_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
)

// manners are file systems that lack calls of an exchange.
var manners = map[string]oddfs.Manners{
	"no links":                oddfs.Failing("link", syscall.EPERM),
	"neither links nor flags": oddfs.Failing("link", syscall.EPERM, "rename2", syscall.EINVAL),
	"no folders are synced":   oddfs.Failing("fsyncdir", syscall.EINVAL),
	"no locks":                oddfs.Failing("lock", syscall.ENOLCK),
	"calls are interrupted":   {Interrupted: true},
	"case does not count":     {Caseless: true},
}

// step runs a step in a process on the mounted folder, and returns the text of its error.
func step(t *testing.T, name, kind, dir string) string {
	t.Helper()
	said, _ := stepWithNotes(t, name, kind, dir)
	return said
}

// stepWithNotes is step that also returns the codes of the warnings, one per line.
func stepWithNotes(t *testing.T, name, kind, dir string) (said, notes string) {
	t.Helper()
	cmd := child(name, kind, dir)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		require.NotEmpty(t, stderr.String(), "%v", err)
	}
	return stderr.String(), stdout.String()
}

// An exchange and its undo work on file systems that lack calls.
func TestOddFileSystems(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	for name, m := range manners {
		for _, kind := range []string{"raw", "split", "ovf", "raw by", "split by"} {
			t.Run(kind+", "+name, func(t *testing.T) {
				t.Parallel()
				k := kinds[kind]
				behind, before := k.fresh(t)
				dir := oddfs.Mount(t, behind, m)
				notes, err := child("publish", kind, dir).Output()
				require.NoError(t, err)
				bare := strings.Contains(name, "links") && (kind[:3] != "raw" || strings.Contains(name, "neither"))
				require.Equal(t, bare, strings.Contains(string(notes), "replaced-no-links"), "%s", notes)
				k.requireExchanged(t, behind)
				require.Empty(t, step(t, "undo", kind, dir))
				require.Equal(t, before, sums(t, behind))
			})
		}
	}
}

// TestEveryCallOfAnExchangeFails fails each call of an exchange in turn. The path leads to one of the two disks, whole,
// and if the exchange has begun, a resume and an undo complete it.
func TestEveryCallOfAnExchangeFails(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-img")
	if disktest.Raced {
		t.Skip("its processes have one goroutine each, and take a second to end")
	}
	for _, kind := range []string{"raw", "flat", "ovf", "raw by", "split by"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			k, j := kinds[kind], oddfs.Journal{}
			behind, before := k.fresh(t)
			dir := oddfs.Mount(t, behind, oddfs.Manners{Journal: &j})
			n := 0
			every, call := 2, 0
			if disktest.Exhaustive || os.Getenv(everyKill) != "" {
				every = 1
			}
			usual := "" // warnings of a run without a fault
			j.EachFails(func(fails bool) {
				if call++; fails && call%every != 0 {
					return
				}
				for _, name := range disktest.Names(t, behind) {
					require.NoError(t, os.Remove(filepath.Join(behind, name)))
				}
				require.NoError(t, k.write(behind))
				said, notes := stepWithNotes(t, "publish", kind, dir)
				failed := j.Failed()
				if !fails {
					require.Empty(t, said)
					usual = notes
					return
				}
				if said == "" && notes == usual {
					j.Ignored()
				}
				require.Contains(t, []string{"old", "new"}, shows(t, filepath.Join(behind, k.main)), "%s: %s", failed,
					said)
				j.End()
				n++
				next := []string{"resume", "undo"}[n%2]
				if !slices.Contains(disktest.Names(t, behind), k.main+".trueup") {
					require.NotEmpty(t, said, failed)
					now := sums(t, behind)
					for name, sum := range before {
						require.Equal(t, sum, now[name], "%s: %s", failed, said)
					}
					return
				}
				if said == "" {
					next = "undo"
				}
				require.Empty(t, step(t, next, kind, dir), "%s after %s: %s", next, failed, said)
				if next == "resume" {
					k.requireExchanged(t, behind)
				} else {
					require.Equal(t, before, sums(t, behind), "%s: %s", failed, said)
				}
			})
			// A file system of unknown kind counts as one without leases, which show writers: source and copy are
			// checked in seven places.
			most := map[string]int{"lock": 2, "open": 4, "read": 4, "statfs": 7, "unlink": 2}
			if kind == "ovf" { // a new file that cannot be compared with the old one counts as different
				most["open"], most["read"] = 5, 9
			}
			j.RequireNoticed(t, most)
		})
	}
}
