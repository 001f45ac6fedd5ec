package journal

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
)

// folder opens a new folder, and returns the path of a disk there that does not exist.
func folder(t *testing.T) (d *gate.Folder, path string) {
	t.Helper()
	dir := t.TempDir()
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	return d, filepath.Join(dir, "vm")
}

func held(t *testing.T) (h *Held, d *gate.Folder, path string) {
	t.Helper()
	d, path = folder(t)
	h, err := Begin(d, "vm", path, Exchange, nil, 0)
	require.NoError(t, err)
	return h, d, path
}

// A journal needs its folder, and not its disk.
func TestWhereJournalsAre(t *testing.T) {
	t.Parallel()
	h, _, path := held(t)
	require.NoError(t, h.Close())
	w, err := At(path)
	require.NoError(t, err)
	require.Equal(t, Exchange, w.Kind)
	h, err = Hold(path, "")
	require.NoError(t, err)
	require.NoError(t, h.Close())
	for _, at := range []func(path string) error{
		func(path string) error { _, err := At(path); return err },
		func(path string) error { _, err := Hold(path, ""); return err },
	} {
		require.ErrorIs(t, at(filepath.Join(path+".absent", "vm")), fs.ErrNotExist)
	}
}

// A run begins nothing where another is at work, and leaves no journal when it cannot begin.
func TestBeginFails(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	h, d, path := held(t)
	_, err := Begin(d, "vm", path, Exchange, nil, 0)
	require.ErrorContains(t, err, "is working on it")
	require.FileExists(t, path+Suffix)
	require.NoError(t, h.Close())

	d, path = folder(t)
	_, err = Begin(d, "vm", path, "a kind with a long name", nil, 0)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.NoFileExists(t, path+Suffix)
	require.NoError(t, os.Remove(filepath.Dir(path)))
	_, err = Begin(d, "vm", path, Exchange, nil, 0)
	require.ErrorContains(t, err, "create vm.trueup")
}

// What a run does with its journal is done, or an error.
func TestCallsOfAHeldJournalFail(t *testing.T) {
	disktest.OnUnix(t, "names of open files")
	t.Parallel()
	h, _, path := held(t)
	require.NoError(t, os.Rename(path+Suffix, path))
	require.ErrorIs(t, h.lock(), ondisk.ErrBusy, "its name leads nowhere")
	require.NoError(t, os.Mkdir(path+Suffix, 0o700))
	require.ErrorContains(t, h.Remove(), "remove vm.trueup")
	require.NoError(t, h.file.Close())
	require.ErrorIs(t, h.Enter(Kept), ondisk.ErrOutput)
	require.Equal(t, Begun, h.Work.Phase)
	require.ErrorContains(t, h.lock(), "lock vm.trueup")
	require.ErrorIs(t, h.Close(), fs.ErrClosed)

	h, _, _ = held(t)
	require.NoError(t, h.Dir.Close())
	require.ErrorContains(t, h.SyncFolder(), "sync folder")
	require.Error(t, h.Close())
}

// What the file system does not do with a journal, or with its folder, is an error that reports it.
func TestCallsOnTheFolderFail(t *testing.T) {
	t.Parallel()
	behind := t.TempDir()
	on := func(op string) (d *gate.Folder, path string) {
		dir := oddfs.Mount(t, behind, oddfs.Manners{Fail: map[string]syscall.Errno{op: syscall.EIO}})
		d, err := gate.OpenFolder(dir)
		require.NoError(t, err)
		t.Cleanup(func() { d.Close() })
		return d, filepath.Join(dir, "vm")
	}
	file := filepath.Join(behind, "vm"+Suffix)
	d, unsynced := on("fsyncdir")
	_, err := Begin(d, "vm", unsynced, Exchange, nil, 0)
	require.ErrorContains(t, err, "sync folder")
	require.NoFileExists(t, file)

	require.NoError(t, os.WriteFile(file, nil, 0o600))
	d, path := on("unlink")
	_, err = Begin(d, "vm", path, Exchange, nil, 0)
	require.ErrorContains(t, err, "left of a run that changed nothing")

	good, path := on("none")
	h, err := Begin(good, "vm", path, Exchange, nil, 0)
	require.NoError(t, err)
	require.NoError(t, h.Close())
	_, path = on("read")
	_, err = At(path)
	require.ErrorContains(t, err, "is unknown")
	h, err = Hold(unsynced, "")
	require.NoError(t, err)
	require.ErrorContains(t, h.Remove(), "sync folder")
	require.NoError(t, h.in.Close())
	require.ErrorIs(t, h.mayEnd(), ondisk.ErrOutput)
	require.Error(t, h.Close())
	require.NoError(t, good.Close())
	_, err = Beside(good, "vm")
	require.ErrorContains(t, err, "is unknown")
}

// Zeros are the journal of a run that had not begun only under the name of one.
func TestZerosAreNoJournal(t *testing.T) {
	t.Parallel()
	_, path := folder(t)
	require.NoError(t, os.WriteFile(path+".other", make([]byte, 4096), 0o600))
	_, err := Hold(path, path+".other")
	require.ErrorContains(t, err, "begins with zeros")
}
