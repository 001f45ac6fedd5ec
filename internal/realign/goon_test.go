package realign

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/verify"
)

// smallDisk is a raw disk in a new folder, with a partition at LBA 63.
func smallDisk(t *testing.T) string {
	t.Helper()
	f := tableforge.NewMBR(8192, tableforge.Slot{Type: 0xda, Start: 63, Sectors: 3000})
	for i := range int64(3000) {
		f.U32((63+i)*sector, uint32(i)|1<<31)
	}
	path := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(path, f, 0o644))
	return path
}

func content(t *testing.T, path string) string {
	t.Helper()
	b := disktest.ReadFile(t, path)
	return string(b)
}

// requireMoved requires that the partition of a small disk is at LBA 2048, with its old bytes.
func requireMoved(t *testing.T, path, was string) {
	t.Helper()
	require.Equal(t, [][2]int64{{2048, 3000}}, starts(t, path))
	require.Equal(t, was[63*sector:3063*sector], content(t, path)[2048*sector:5048*sector])
}

// goOn returns a command for the unfinished work on a disk.
func goOn(t *testing.T, j *Job, path string, g GoOn) (journal.Done, error) {
	t.Helper()
	w, err := journal.Hold(path, "")
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	return j.GoOn(t.Context(), w, g)
}

// write plans the disk at path, and runs a job that writes the planned disk to a destination.
func write(ctx context.Context, t *testing.T, j *Job, to Dest, path string) (Written, error) {
	t.Helper()
	s := open(t, path)
	defer s.Close()
	p := mustPlan(t, s)
	return j.Write(ctx, s, p, to)
}

// An exchange is undone, resumed, or finished; the file of a loop device stays unchanged.
func TestGoOnWithAnExchange(t *testing.T) {
	t.Parallel()
	path := smallDisk(t)
	was := content(t, path)
	dir := filepath.Dir(path)
	exchanged := func() {
		w, err := write(t.Context(), t, &Job{Jobs: 1}, Replace{}, path)
		require.NoError(t, err)
		require.NotNil(t, w.Replaced)
		requireMoved(t, path, was)
		require.Len(t, disktest.Names(t, dir), 3, "with the original and the journal")
	}
	interrupted := func() {
		w, err := journal.Hold(path, "")
		require.NoError(t, err)
		require.NoError(t, errors.Join(w.Enter(journal.Begun), w.Close()))
	}
	undone := func() {
		_, err := goOn(t, &Job{}, path, GoOn{Command: Undo})
		require.NoError(t, err)
		require.Equal(t, was, content(t, path))
		require.Equal(t, []string{"disk.img"}, disktest.Names(t, dir))
	}
	final := func() {
		requireMoved(t, path, was)
		require.Equal(t, []string{"disk.img"}, disktest.Names(t, dir))
		require.NoError(t, os.WriteFile(path, []byte(was), 0o644))
	}
	exchanged()
	_, err := goOn(t, &Job{}, path, GoOn{Command: Resume})
	require.ErrorContains(t, err, "the exchange is complete; undo restores the original, finish removes it")
	st, err := sys.Stat(path)
	require.NoError(t, err)
	for _, command := range []string{Undo, Finish} {
		_, err = goOn(t, &Job{}, path, GoOn{Command: command, Looped: Loops{st.ID: "/dev/loop7"}})
		require.ErrorContains(t, err, "/dev/loop7")
	}
	undone()

	exchanged()
	_, err = goOn(t, &Job{}, path, GoOn{Command: Finish})
	require.NoError(t, err)
	final()
	exchanged()
	interrupted()
	_, err = goOn(t, &Job{}, path, GoOn{Command: Resume, KeepNone: true})
	require.NoError(t, err)
	final()
	exchanged()
	interrupted()
	_, err = goOn(t, &Job{}, path, GoOn{Command: Resume})
	require.NoError(t, err)
	undone()
	exchanged()
	interrupted()
	require.NoError(t, os.Rename(path, path+".away"))
	require.NoError(t, os.WriteFile(path, []byte("another"), 0o644))
	_, err = goOn(t, &Job{}, path, GoOn{Command: Resume, KeepNone: true})
	require.ErrorContains(t, err, "the exchange is not complete: trueup resume "+path)
	_, err = goOn(t, &Job{}, path, GoOn{Command: Undo})
	require.ErrorContains(t, err, "move it away; add --force to discard it")
	require.Equal(t, "another", content(t, path))
	require.Len(t, disktest.Names(t, dir), 4)
	_, err = goOn(t, &Job{}, path, GoOn{Command: Undo, Force: true})
	require.NoError(t, err)
	require.NotEqual(t, "another", content(t, path))
}

// An interrupted move in place is resumed or undone.
func TestGoOnWithAMove(t *testing.T) {
	t.Parallel()
	for _, command := range []string{Undo, Resume} {
		path := smallDisk(t)
		was := content(t, path)
		s := open(t, path)
		p := mustPlan(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := (&Job{Jobs: 1}).MoveInPlace(ctx, s, p, Move{Moves: cancel})
		require.ErrorIs(t, err, context.Canceled)
		require.True(t, Middle(err))
		require.NoError(t, s.Image.Dir.CloseFiles())
		_, err = goOn(t, &Job{Jobs: 1}, path, GoOn{Command: Finish})
		require.Error(t, err)
		_, err = goOn(t, &Job{Jobs: 1}, path, GoOn{Command: command, Device: &store.Device{}})
		require.ErrorContains(t, err, "read back")
		_, err = goOn(t, &Job{Jobs: 1}, path, GoOn{Command: command})
		require.NoError(t, err)
		require.Equal(t, []string{"disk.img"}, disktest.Names(t, filepath.Dir(path)))
		if command == Undo {
			require.Equal(t, was, content(t, path))
			continue
		}
		requireMoved(t, path, was)
		require.NoError(t, os.WriteFile(path, []byte(was), 0o644))
		s = open(t, path)
		p = mustPlan(t, s)
		w, err := (&Job{Jobs: 1}).MoveInPlace(t.Context(), s, p, Move{})
		require.NoError(t, err)
		require.Equal(t, []string{"disk.img"}, w.Files)
		require.EqualValues(t, 3000*sector, w.Copied)
		requireMoved(t, path, was)
	}
}

// A disk other than the planned one is not moved.
func TestMovesThatAreRefused(t *testing.T) {
	disktest.OnUnix(t, "devices")
	t.Parallel()
	path := smallDisk(t)
	was := content(t, path)
	s := open(t, path)
	p := mustPlan(t, s)
	_, err := (&Job{}).MoveInPlace(t.Context(), s, p, Move{Device: &store.Device{}})
	require.ErrorIs(t, err, ondisk.ErrUsage)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = (&Job{Jobs: 1}).MoveInPlace(ctx, s, p, Move{})
	require.ErrorIs(t, err, context.Canceled)
	p.Patches[0].Old = append([]byte{^p.Patches[0].Old[0]}, p.Patches[0].Old[1:]...)
	_, err = (&Job{Jobs: 1}).MoveInPlace(t.Context(), s, p, Move{})
	require.ErrorIs(t, err, verify.ErrDifferent)
	require.Equal(t, was, content(t, path))
	require.Equal(t, []string{"disk.img"}, disktest.Names(t, filepath.Dir(path)))

	good := open(t, path).Image.Disk
	blank := disk.New(good.Size(), sector, func(off int64) (disk.Run, error) {
		return disk.Run{Len: good.Size() - off}, nil
	})
	unread := unread(good.Size())
	view, err := s.View(mustPlan(t, s))
	require.NoError(t, err)
	require.NoError(t, promised(good, view))
	require.ErrorIs(t, promised(unread, view), disktest.ErrFault)
	require.ErrorIs(t, promised(good, unread), disktest.ErrFault)
	require.ErrorIs(t, promised(good, blank), verify.ErrDifferent)
	require.ErrorIs(t, promised(disktest.NewBadExtents(good), view), disktest.ErrFault)
	require.ErrorIs(t, s.keeps(mustPlan(t, s), unread), disktest.ErrFault)
	unreadable := &Source{Image: &image.Image{Image: &driver.Image{Disk: unread}}}
	require.ErrorIs(t, unreadable.midMove(), disktest.ErrFault)
}

// unread is an unreadable disk.
func unread(size int64) disk.Disk { return disk.New(size, sector, disk.Whole(bad{}, size)) }

// A disk on a device is moved only if the device was claimed.
func TestDisksOnDevices(t *testing.T) {
	loop := disktest.LoopDevice(t, smallDisk(t))
	s := open(t, loop)
	require.ErrorContains(t, s.onDevice(nil), "it is on a block device; name the device itself, with --journal FILE")
	require.ErrorContains(t, s.onDevice(&store.Device{}), "the disk is not the device")
	d, err := store.Open(loop)
	require.NoError(t, err)
	require.NoError(t, s.onDevice(d))
	p := mustPlan(t, s)
	_, err = Device{Device: d}.create(t.Context(), s, disk.Range{Len: p.Size})
	require.ErrorContains(t, err, "is SOURCE")
	leaveFolder(t)
	d.Path = "x"
	_, err = (&Job{Jobs: 1}).MoveInPlace(t.Context(), s, p, Move{Device: d})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, d.Close())
}

// leaveFolder runs the test in a removed folder.
func leaveFolder(t *testing.T) {
	t.Helper()
	disktest.OnUnix(t, "folders that are gone")
	gone := filepath.Join(t.TempDir(), "gone")
	require.NoError(t, os.Mkdir(gone, 0o755))
	t.Chdir(gone)
	require.NoError(t, os.Remove(gone))
}

// The journal of a move must be a file other than the disk. Relative paths are meaningless in a removed folder.
func TestJournalFiles(t *testing.T) {
	path := smallDisk(t)
	dir := filepath.Dir(path)
	for journal, want := range map[string]string{
		"": "", filepath.Join(dir, "new"): filepath.Join(dir, "new"),
	} {
		got, err := JournalFile(journal, path)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for journal, says := range map[string]string{path: "is the disk itself", dir: "is a folder"} {
		_, err := JournalFile(journal, path)
		require.ErrorIs(t, err, ondisk.ErrUsage)
		require.ErrorContains(t, err, says)
	}
	leaveFolder(t)
	_, err := JournalFile("x", path)
	require.ErrorIs(t, err, ondisk.ErrUsage)
}

// A resumable copy begun by an earlier version is refused and unchanged.
func TestCopiesOfEarlierVersions(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"df2a663f", "77f090bd"} {
		dest := filepath.Join(t.TempDir(), "dest.vmdk")
		packed, err := os.Open(filepath.Join("testdata", "copy-"+version+".trueup.gz"))
		require.NoError(t, err)
		defer packed.Close()
		z, err := gzip.NewReader(packed)
		require.NoError(t, err)
		old, err := io.ReadAll(z)
		require.NoError(t, err)
		partial := filepath.Join(filepath.Dir(dest), ".dest.vmdk.partial")
		require.NoError(t, errors.Join(os.WriteFile(journal.PathOf(dest), old, 0o600),
			os.WriteFile(partial, []byte("written"), 0o600)))
		requireRefused := func(err error) {
			t.Helper()
			var refusal *ondisk.Refusal
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, "unfinished", refusal.Code)
			require.ErrorContains(t, err, "another version of trueup left unfinished work on it")
			require.ErrorContains(t, err, "use that version")
		}
		for _, command := range []string{Undo, Resume, Finish} {
			_, err = goOn(t, &Job{}, dest, GoOn{Command: command, Force: true})
			requireRefused(err)
		}
		_, err = write(t.Context(), t, &Job{Jobs: 1}, File{Path: dest, Format: "vmdk", Force: true}, smallDisk(t))
		requireRefused(err)
		require.Equal(t, string(old), content(t, journal.PathOf(dest)))
		require.Equal(t, "written", content(t, partial))
		require.Len(t, disktest.Names(t, filepath.Dir(dest)), 2)
	}
}

// begun leaves unfinished work of a kind on a disk, in a phase.
func begun(t *testing.T, path, kind string, plan []byte, phase journal.Phase) {
	t.Helper()
	d, err := gate.OpenFolder(filepath.Dir(path))
	require.NoError(t, err)
	w, err := journal.Begin(d, filepath.Base(path), path, kind, plan, 0)
	require.NoError(t, err)
	require.NoError(t, errors.Join(w.Enter(phase), w.Close(), d.Close()))
}

// Of work that was not begun, only the journal is removed. A copy that is left of it is named.
func TestJournalThatWasNotBegun(t *testing.T) {
	t.Parallel()
	path := smallDisk(t)
	undo := func() journal.Done {
		require.NoError(t, os.WriteFile(journal.PathOf(path), nil, 0o600))
		d, err := goOn(t, &Job{}, path, GoOn{Command: Undo})
		require.NoError(t, err)
		require.Contains(t, d.Text, "nothing was changed")
		return d
	}
	require.Empty(t, undo().Notes)
	require.Equal(t, []string{"disk.img"}, disktest.Names(t, filepath.Dir(path)))
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), ".disk.img.partial"), nil, 0o600))
	require.Contains(t, undo().Notes[0].Text, ".disk.img.partial, the unfinished copy of that run, remains")
	require.Equal(t, []string{".disk.img.partial", "disk.img"}, disktest.Names(t, filepath.Dir(path)))
	require.Len(t, content(t, path), 8192*sector)
}
