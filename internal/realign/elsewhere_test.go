package realign

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// An exchange and a move warn of overlays in folders where nobody looks, and are refused for one in a folder that is
// allowed.
func TestOverlaysElsewhere(t *testing.T) {
	t.Parallel()
	warned := func(notes []ondisk.Issue) (n int) {
		for _, i := range notes {
			if i.Code == "overlays-elsewhere" {
				require.Equal(t, ondisk.Warn, i.Effect)
				require.Contains(t, i.Remedy, "trueup plan --allow-folder DIR")
				n++
			}
		}
		return n
	}
	path := smallDisk(t)
	w, err := write(t.Context(), t, &Job{Jobs: 1}, Replace{}, path)
	require.NoError(t, err)
	require.Equal(t, 1, warned(w.Notes))
	_, err = goOn(t, &Job{}, path, GoOn{Command: Undo})
	require.NoError(t, err)
	w, err = write(t.Context(), t, &Job{Jobs: 1}, File{Path: filepath.Join(t.TempDir(), "copy.img")}, path)
	require.NoError(t, err)
	require.Zero(t, warned(w.Notes), "a copy changes no disk")

	vms := t.TempDir()
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", path, filepath.Join(vms, "o.qcow2"))
	s, err := Open(path, Reading{Allow: []string{vms}})
	require.NoError(t, err)
	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	require.ErrorContains(t, Acceptable(p, Goal{}), `o.qcow2" is a snapshot of this disk`)
	s.Close()

	s = open(t, path)
	p, err = s.Plan(Goal{})
	require.NoError(t, err)
	w, err = (&Job{Jobs: 1}).MoveInPlace(t.Context(), s, p, Move{})
	require.NoError(t, err)
	require.Equal(t, 1, warned(w.Notes))
}

// A disk that a program has open for writing is refused by the name of that program, where it was found when the run
// began, or by what the kernel says.
func TestDiskIsWritten(t *testing.T) {
	t.Parallel()
	path := smallDisk(t)
	refused := func(by Writers) error {
		s, err := Open(path, Reading{Writers: by})
		require.NoError(t, err)
		defer s.Close()
		p, err := s.Plan(Goal{})
		require.NoError(t, err)
		return Acceptable(p, Goal{})
	}
	require.NoError(t, refused(Writers{}))
	st, err := sys.Stat(path)
	require.NoError(t, err)
	err = refused(Writers{st.ID: {PID: 17, Program: "VBoxHeadless"}})
	require.ErrorContains(t, err, `"disk.img" is open for writing in process 17 ("VBoxHeadless")`)
	require.Equal(t, "busy", Code(err))

	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	if yes, _ := sys.Of(f).Written(); !yes { // this very descriptor counts
		t.Skip("the file system has no leases that count")
	}
	require.ErrorContains(t, refused(Writers{}), "is open for writing in another program")
	require.NoError(t, refused(nil), "nobody looked")
	_, err = write(t.Context(), t, &Job{Jobs: 1}, Replace{}, path)
	require.ErrorContains(t, err, "open for writing")
	s := open(t, path)
	p, err := s.Plan(Goal{})
	require.NoError(t, err)
	_, err = (&Job{Jobs: 1}).MoveInPlace(t.Context(), s, p, Move{})
	require.ErrorContains(t, err, "open for writing")
	require.Equal(t, []string{"disk.img"}, disktest.Names(t, filepath.Dir(path)))
}

// The hidden file of a run that was killed is named where the disk is not there. One of a run that is at work is not.
func TestLeftBehind(t *testing.T) {
	disktest.OnUnix(t, "locks")
	t.Parallel()
	path := smallDisk(t)
	require.NoError(t, os.Remove(path))
	require.Empty(t, LeftBehind(path))
	hidden := filepath.Join(filepath.Dir(path), ".disk.img.partial")
	require.NoError(t, os.WriteFile(hidden, []byte("half"), 0o600))
	require.Contains(t, LeftBehind(path), `".disk.img.partial"`)
	f, err := os.OpenFile(hidden, os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, sys.Of(f).Lock(sys.Exclusive))
	require.Empty(t, LeftBehind(path))
	require.NoError(t, f.Close())
	_, err = Open(path, Reading{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, `left the hidden file ".disk.img.partial"`)
}
