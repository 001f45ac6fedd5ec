package exchange_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/journal"
)

// A guest can be started from a disk in the middle of an exchange, which is complete at every moment. Its writes are
// not replaced by a copy without them.
func TestGuestWroteInTheMiddle(t *testing.T) {
	t.Parallel()
	strace := disktest.Tool(t, "strace")
	disktest.Tool(t, "qemu-img")
	for _, c := range []struct {
		kind, step string
		at         point
		command    string
		do         func(t *testing.T, dir string)
		says       string
	}{
		{"raw", "publish", point{"linkat", 1}, "resume", guestWrites("vm.img"), "trueup undo"},
		{"raw", "publish", point{"renameat", 1}, "resume", guestWrites("vm.img"), "trueup undo"},
		{"flat", "publish", point{"linkat", 1}, "resume", guestWrites("vm-flat.vmdk"), "trueup undo"},
		{"split", "publish", point{"renameat", 3}, "resume", guestWrites("vm.orig-f003.vmdk"), "trueup undo"},
		{"flat", "publish", point{"linkat", 1}, "resume", snapshotOf("vm.vmdk"), `"vm-000001.vmdk" needs the disk`},
		{"flat", "publish", point{"linkat", 1}, "resume", machineRuns("vm.vmdk"), "has the disk open"},
		{"raw", "undo", point{"renameat", 1}, "undo", guestWrites("vm.img"), "--force"},
		{"flat", "undo", point{"renameat", 1}, "undo", guestWrites("vm-flat.vmdk"), "--force"},
		{"flat", "undo", point{"renameat", 1}, "undo", snapshotOf("vm.vmdk"), `"vm-000001.vmdk" needs the disk`},
	} {
		k := kinds[c.kind]
		dir, _ := k.fresh(t)
		if c.step == "undo" {
			k.published(t, dir)
		}
		killAt(t, strace, c.step, c.kind, dir, c.at)
		c.do(t, dir)
		before := disktest.Names(t, dir)
		err := k.command(dir, c.command, false)
		require.ErrorContains(t, err, c.says, "%s of %s at %v", c.step, c.kind, c.at)
		require.Equal(t, before, disktest.Names(t, dir), "%s of %s at %v", c.step, c.kind, c.at)
	}
}

// guestWrites writes to a file of a disk.
func guestWrites(name string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		path := filepath.Join(dir, name)
		disktest.WriteAt(t, path, 1, []byte("guest"))
		require.NoError(t, os.Chtimes(path, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	}
}

// snapshotOf makes a snapshot of a disk.
func snapshotOf(name string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", "-F", "vmdk", "-b", filepath.Join(dir, name),
			filepath.Join(dir, "vm-000001.vmdk"))
	}
}

// machineRuns leaves the lock file of a running machine.
func machineRuns(name string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		require.NoError(t, os.Mkdir(filepath.Join(dir, name+".lck"), 0o700))
	}
}

// If the user has removed the original, an undo, which could never end, is not begun, and a finish removes the journal.
func TestOriginalWasRemoved(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw", "flat", "ova", "ovf"} {
		k := kinds[name]
		dir, _ := k.fresh(t)
		k.published(t, dir)
		for _, n := range k.old {
			require.NoError(t, os.Remove(filepath.Join(dir, k.kept(n))))
		}
		err := k.command(dir, "undo", false)
		require.ErrorContains(t, err, "trueup finish --force")
		err = k.command(dir, "finish", false)
		require.ErrorContains(t, err, "is missing")
		h, err := journal.Hold(filepath.Join(dir, k.main), "")
		require.NoError(t, err)
		require.Equal(t, journal.Kept, h.Work.Phase)
		done, err := exchange.Finish(t.Context(), h, exchange.Options{Force: true})
		require.NoError(t, err)
		require.NoError(t, h.Close())
		require.Empty(t, done.Removed)
		require.Contains(t, done.Text, "no file of the original was left")
		require.ElementsMatch(t, k.new, disktest.Names(t, dir))
	}
}

// A removed or moved disk has nothing that an undo could lose.
func TestCopyWasRemoved(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw", "flat", "ova", "ovf"} {
		k := kinds[name]
		dir, before := k.fresh(t)
		k.published(t, dir)
		for _, n := range k.new {
			require.NoError(t, os.Remove(filepath.Join(dir, n)))
		}
		err := k.command(dir, "finish", false)
		require.ErrorContains(t, err, "the original is the only copy", name)
		err = k.command(dir, "undo", false)
		require.NoError(t, err, name)
		require.Equal(t, before, sums(t, dir), name)
	}
}

// A finish removes only the kept descriptor, not another one.
func TestKeptDescriptorWasReplaced(t *testing.T) {
	t.Parallel()
	k := kinds["flat"]
	dir, _ := k.fresh(t)
	k.published(t, dir)
	imagetest.Write(t, dir, "vm.orig.vmdk", []byte("a file of the user's"))
	err := k.command(dir, "finish", false)
	require.ErrorContains(t, err, "was written after the exchange")
	require.FileExists(t, filepath.Join(dir, "vm.orig.vmdk"))
}

// A journal that was copied with its folder identifies no file there by inode. A forced finish removes only the
// journal.
func TestFinishOfAnotherDisk(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw", "flat", "ova", "ovf"} {
		k := kinds[name]
		from, _ := k.fresh(t)
		k.published(t, from)
		dir := filepath.Join(t.TempDir(), "copy")
		require.NoError(t, os.CopyFS(dir, os.DirFS(from)))
		before := sums(t, dir)
		err := k.command(dir, "undo", false)
		require.ErrorContains(t, err, "is not the file that was kept", name)
		err = k.command(dir, "finish", false)
		require.ErrorContains(t, err, "is not the file that was kept; add --force", name)
		h, err := journal.Hold(filepath.Join(dir, k.main), "")
		require.NoError(t, err)
		done, err := exchange.Finish(t.Context(), h, exchange.Options{Force: true})
		require.NoError(t, err, name)
		require.NoError(t, h.Close())
		require.Empty(t, done.Removed, name)
		require.NotContains(t, done.Text, "the original is removed", name)
		require.Len(t, done.Notes, len(k.old), name)
		delete(before, journal.PathOf(k.main))
		require.Equal(t, before, sums(t, dir), name)
	}
}
