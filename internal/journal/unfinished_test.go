package journal_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// begin makes the journal of a disk in a folder of its own.
func begin(t *testing.T, kind string) (held *journal.Held, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "vm.vmdk")
	require.NoError(t, os.WriteFile(path, []byte("disk"), 0o600))
	d, err := gate.OpenFolder(filepath.Dir(path))
	require.NoError(t, err)
	defer d.Close()
	held, err = journal.Begin(d, "vm.vmdk", path, kind, []byte("plan"), 0)
	require.NoError(t, err)
	return held, path
}

// Each phase of a kind refuses the disk or not, and names the commands that apply.
func TestPhases(t *testing.T) {
	t.Parallel()
	held, path := begin(t, journal.Exchange)
	require.NoError(t, held.Close())
	for _, c := range []struct {
		phase    journal.Phase
		blocks   bool
		commands []string
	}{
		{journal.Begun, true, []string{"resume", "undo"}},
		{journal.Kept, false, []string{"undo", "finish"}},
		{journal.Undoing, true, []string{"undo"}},
		{journal.Finishing, false, []string{"finish"}},
		{'?', true, nil},
	} {
		held, err := journal.Hold(path, "")
		require.NoError(t, err)
		require.Equal(t, "plan", string(held.Plan()))
		if c.phase != journal.Begun {
			require.NoError(t, held.Enter(c.phase))
		}
		require.Equal(t, c.blocks, held.Work.Blocks)
		require.NoError(t, held.Close())
		w, err := journal.At(path)
		require.NoError(t, err)
		require.Equal(t, c.phase, w.Phase)
		require.Equal(t, c.commands, w.Commands())
		require.Equal(t, c.blocks, w.Refusal() != nil)
		for _, name := range c.commands {
			require.Contains(t, w.Issue().Remedy, "trueup "+name+" ")
		}
	}
}

// A journal that a run holds keeps others out, and one whose run is missing does not.
func TestHeldByAnother(t *testing.T) {
	t.Parallel()
	held, path := begin(t, journal.Exchange)
	w, err := journal.At(path)
	require.NoError(t, err)
	require.Contains(t, w.Refusal().Error(), "is working on it")
	_, err = journal.Hold(path, "")
	require.ErrorIs(t, err, ondisk.ErrBusy)
	require.NoError(t, held.Close())
	again, err := journal.Hold(path, "")
	require.NoError(t, err)
	require.NoError(t, again.Remove())
	require.NoError(t, again.Close())
	_, err = journal.Hold(path, "")
	require.ErrorIs(t, err, fs.ErrNotExist)
	w, err = journal.At(path)
	require.NoError(t, err)
	require.Nil(t, w)
	require.NoError(t, w.Refusal())
}

// A second journal is refused, also where the disk may be read, such as beside a kept original, but for one of a run
// that had not begun.
func TestBeginTwice(t *testing.T) {
	t.Parallel()
	held, path := begin(t, journal.Exchange)
	require.NoError(t, held.Close())
	d, err := gate.OpenFolder(filepath.Dir(path))
	require.NoError(t, err)
	defer d.Close()
	for _, phase := range []journal.Phase{journal.Begun, journal.Kept} {
		held, err := journal.Hold(path, "")
		require.NoError(t, err)
		require.NoError(t, errors.Join(held.Enter(phase), held.Close()))
		held, err = journal.Begin(d, "vm.vmdk", path, journal.InPlace, nil, 0)
		require.Nil(t, held)
		r, refused := errors.AsType[*ondisk.Refusal](err)
		require.True(t, refused, "%v", err)
		require.Equal(t, "unfinished", r.Code)
		require.Contains(t, r.Remedy, path)
	}
	require.NoError(t, os.Truncate(path+journal.Suffix, 0))
	w, err := journal.At(path)
	require.NoError(t, err)
	require.Equal(t, []string{"undo"}, w.Commands())
	require.Contains(t, w.Issue().Remedy, "removes the journal")
	require.False(t, w.Blocks)
	held, err = journal.Begin(d, "vm.vmdk", path, journal.Exchange, nil, 0)
	require.NoError(t, err)
	require.NoError(t, held.Close())
}

// A file that has the name of a journal and no format of one keeps the disk from being used, as one of another version.
func TestOddJournals(t *testing.T) {
	disktest.OnUnix(t, "links")
	t.Parallel()
	refused := func(path string) {
		t.Helper()
		_, err := journal.At(path)
		r, ok := errors.AsType[*ondisk.Refusal](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "unfinished", r.Code)
	}
	path := filepath.Join(t.TempDir(), "vm.img")
	require.NoError(t, os.WriteFile(path, []byte("disk"), 0o600))
	require.NoError(t, os.Symlink("vm.img", path+journal.Suffix))
	refused(path)
	_, err := journal.Hold(path, "")
	require.Error(t, err)
	require.NoError(t, os.Remove(path+journal.Suffix))
	require.NoError(t, os.WriteFile(path+journal.Suffix, make([]byte, 4096), 0o600))
	w, err := journal.At(path)
	require.NoError(t, err)
	require.False(t, w.Blocks, "zeros: its head was not written")
	require.NoError(t, os.WriteFile(path+journal.Suffix, bytes.Repeat([]byte("x"), 600), 0o600))
	refused(path)

	held, path := begin(t, "not yet known")
	require.NoError(t, held.Close())
	w, err = journal.At(path)
	require.NoError(t, err)
	require.Empty(t, w.Commands())
	require.Contains(t, w.Refusal().Error(), "version")
}

// Every state reports the reason a command does not apply, or that it does.
func TestKindsAreWhole(t *testing.T) {
	t.Parallel()
	for kind, states := range journal.States() {
		require.LessOrEqual(t, len(kind), 16)
		require.Contains(t, states, journal.Begun)
		for p, s := range states {
			require.NotEmpty(t, s.Text)
			require.True(t, s.Undo == "" || s.Resume == "" || s.Finish == "", "%s %q: a dead end", kind, p)
		}
	}
}

// The refusal of a partial file names the commands that continue with its journal.
func TestIncomplete(t *testing.T) {
	t.Parallel()
	held, path := begin(t, journal.InPlace)
	require.NoError(t, held.Close())
	d, err := gate.OpenFolder(filepath.Dir(path))
	require.NoError(t, err)
	defer d.Close()
	dir := filepath.Dir(path) + string(filepath.Separator)
	for base, want := range map[string]string{
		".vm.vmdk.partial": "trueup resume " + path, ".other.partial": "remove it by hand",
		"vm.vmdk": "", "vm.vmdk.partial": "", ".partial": "", "..partial": "", ".vm.vmdk.replaced": "",
	} {
		err := journal.Incomplete(d, base, dir+base)
		require.Equal(t, want != "", err != nil, base)
		if want != "" {
			require.ErrorContains(t, err, want)
		}
	}
}
