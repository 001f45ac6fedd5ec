package exchange_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/sys"
)

// The copy gets owner, permissions and attributes of the original. Before it has its name, it is writable.
func TestCopyIsLikeTheOriginal(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root for another owner")
	}
	k := kinds["raw"]
	prepared := func(copies func(dir string) string) (dir string, s *exchange.Source, c *copied) {
		dir, _ = k.fresh(t)
		path := filepath.Join(dir, k.main)
		require.NoError(t, unix.Setxattr(path, "user.note", []byte("kept"), 0))
		require.NoError(t, os.Chown(path, 1234, 1235))
		require.NoError(t, os.Chmod(path, 0o404))
		s, done, err := k.source(path)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, done()) })
		c = &copied{dir: copies(dir), names: k.new}
		require.NoError(t, s.Prepare(c))
		return dir, s, c
	}
	dir, s, c := prepared(func(dir string) string { return dir })
	like := func(name string, mode os.FileMode) {
		t.Helper()
		st, err := sys.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, mode, st.Mode)
		var raw unix.Stat_t
		require.NoError(t, unix.Stat(filepath.Join(dir, name), &raw))
		require.Equal(t, [2]uint32{1234, 1235}, [2]uint32{raw.Uid, raw.Gid})
		b := make([]byte, 16)
		n, err := unix.Getxattr(filepath.Join(dir, name), "user.note", b)
		require.NoError(t, err)
		require.Equal(t, "kept", string(b[:n]))
	}
	like(partial(k.main), 0o604)
	r, err := s.Publish(c)
	require.NoError(t, err)
	require.Empty(t, r.Notes)
	like(k.main, 0o404)

	dir, s, _ = prepared(func(dir string) string { return oddfs.Mount(t, dir, oddfs.Manners{}) })
	r, err = s.Publish(&copied{dir: dir, names: k.new})
	require.NoError(t, err)
	require.Len(t, r.Notes, 1)
	require.Equal(t, "the file system does not store these attributes of the original: user.note", r.Notes[0].Text)
}

// The bytes of the original and the other files of the folder keep their times, owners and permissions.
func TestOthersKeepTheirTimes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw", "flat"} {
		k := kinds[name]
		dir, _ := k.fresh(t)
		data := k.old[len(k.old)-1]
		was := map[string]unix.Stat_t{"other": {}, data: {}}
		look := func(name string) (st unix.Stat_t) {
			require.NoError(t, unix.Stat(filepath.Join(dir, name), &st))
			st.Ctim, st.Atim = unix.Timespec{}, unix.Timespec{} // changes of its names, and of its last access
			return st
		}
		imagetest.Write(t, dir, "other", []byte("a file of the user's"))
		for name := range was {
			require.NoError(t, os.Chtimes(filepath.Join(dir, name), time.Unix(1e9, 0), time.Unix(1e9, 5)))
			was[name] = look(name)
		}
		k.published(t, dir)
		require.Equal(t, was["other"], look("other"), name)
		require.Equal(t, was[data], look(k.kept(data)), name)
		require.NoError(t, k.command(dir, "undo", false))
		require.Equal(t, was["other"], look("other"), name)
		require.Equal(t, was[data], look(data), name)
	}
}

// TestGuestRunsFromTheOriginal has the kept original open for writing in a program that has not written yet: no command
// judges or removes it.
func TestGuestRunsFromTheOriginal(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"raw", "flat", "ova", "ovf"} {
		k := kinds[name]
		dir, _ := k.fresh(t)
		k.published(t, dir)
		last := k.old[len(k.old)-1]
		if name == "ovf" {
			last = "vm-disk1.img"
		}
		f, err := os.OpenFile(filepath.Join(dir, k.kept(last)), os.O_RDWR, 0)
		require.NoError(t, err)
		if _, known := sys.FromOS(f).Written(); !known {
			t.Skip("the file system has no leases that count")
		}
		before := sums(t, dir)
		for _, command := range []string{"undo", "finish"} {
			for _, force := range []bool{false, true} {
				require.ErrorContains(t, k.command(dir, command, force), "is open for writing", "%s of %s", command,
					name)
				require.Equal(t, before, sums(t, dir))
			}
		}
		require.NoError(t, f.Close())
		require.NoError(t, k.command(dir, "undo", false))
	}
}

// TestFoldersThatAreNotSearched closes a subfolder beside the disk: the commands name it, and continue.
func TestFoldersThatAreNotSearched(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"undo", "finish"} {
		dir := exchanged(t, "raw")
		closed := filepath.Join(dir, "sub", "closed")
		require.NoError(t, os.MkdirAll(closed, 0o755))
		require.NoError(t, os.Chmod(closed, 0))
		for _, n := range disktest.Names(t, dir) {
			if n != "sub" {
				require.NoError(t, os.Chmod(filepath.Join(dir, n), 0o666))
			}
		}
		require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
		t.Run(command, func(t *testing.T) {
			disktest.OrdinaryUser(t, dir)
			d, err := made["raw"].goOn(dir, command, exchange.Options{})
			require.NoError(t, err)
			require.Len(t, d.Notes, 2)
			require.Equal(t, "overlays-unseen", d.Notes[1].Code)
			require.Contains(t, d.Notes[1].Text, closed+": permission denied")
		})
	}
}
