package journal_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
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
			require.True(t, s.Undo == "" || s.Drops || s.Resume == "" || s.Finish == "", "%s %q: a dead end", kind, p)
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

// plan is what the journals of exchanges and of moves hold of the names of files: names in base64, see package
// exchange, and as text, see package inplace.
type plan struct {
	Old, New []file   `json:",omitempty"`
	Files    []moving `json:",omitempty"`
}

type file struct {
	Name, Other []byte
	Inode       uint64
	Size        int64
	Modified    int64
}

type moving struct{ Name string }

// Each file that open work needs is known by its name, and an original also by its inode where it was renamed, unless
// another file has got that inode since.
func TestClaiming(t *testing.T) {
	disktest.OnUnix(t, "inodes")
	t.Parallel()
	dir := t.TempDir()
	d, err := gate.OpenFolder(dir)
	require.NoError(t, err)
	defer d.Close()
	old := func(name, other string) file {
		st, err := sys.Lstat(imagetest.Write(t, dir, other, []byte(other)))
		require.NoError(t, err)
		return file{[]byte(name), []byte(other), st.Inode, st.Size, st.Modified}
	}
	begin := func(disk, kind string, p plan) {
		b, err := json.Marshal(p)
		require.NoError(t, err)
		area := map[string]int64{journal.InPlace: 2 * journal.MaxPlan}[kind] // of which a claim reads nothing
		h, err := journal.Begin(d, disk, filepath.Join(dir, disk), kind, b, area)
		require.NoError(t, err)
		if kind == journal.Exchange {
			require.NoError(t, h.Enter(journal.Kept))
		}
		require.NoError(t, h.Close())
	}
	begin("a.vmdk", journal.Exchange, plan{
		Old: []file{old("a.vmdk", "a.orig.vmdk"), old("a-flat.vmdk", "a.orig-flat.vmdk"), old("data", "data.orig")},
		New: []file{
			{Name: []byte("a.vmdk"), Other: []byte(".a.vmdk.partial")},
			{Name: []byte("a-f001.vmdk"), Other: []byte(".a-f001.vmdk.partial")},
		},
	})
	begin("b.vmdk", journal.InPlace, plan{Files: []moving{{"b-f001.vmdk"}, {"b-f002.vmdk"}}})
	begin("c.raw", "other", plan{Files: []moving{{"source.raw"}}}) // of another version
	imagetest.Write(t, dir, "torn.raw.trueup", []byte("no journal"))

	for name, want := range map[string]string{
		"a.orig.vmdk":          `it is the kept original of "a.vmdk"`,
		"a.orig-flat.vmdk":     `it is the kept original of "a.vmdk"`,
		"data.orig":            `it is the kept original of "a.vmdk"`,
		"a-f001.vmdk":          `it is a file of the disk "a.vmdk": `,
		".a-f001.vmdk.partial": `it is a file of the disk "a.vmdk": `,
		"b-f002.vmdk":          `it is a file of the disk "b.vmdk": `,
		"a.vmdk":               "", "b.vmdk": "", "source.raw": "", "other.raw": "", "a.orig": "",
	} {
		c, err := journal.Claiming(d, "none", name)
		require.NoError(t, err)
		if want == "" {
			require.Nil(t, c, name)
			continue
		}
		require.NotNil(t, c, name)
		require.Contains(t, c.Text(), want)
		require.Equal(t, name, c.File)
	}
	c, err := journal.ClaimingAt(filepath.Join(dir, "data.orig"))
	require.NoError(t, err)
	require.ErrorContains(t, c.Refusal("DEST", filepath.Join(dir, "data.orig")),
		"trueup undo "+filepath.Join(dir, "a.vmdk"))

	renamed := filepath.Join(dir, "renamed")
	require.NoError(t, os.Rename(filepath.Join(dir, "data.orig"), renamed))
	c, err = journal.Claiming(d, "renamed")
	require.NoError(t, err)
	require.NotNil(t, c)
	require.NoError(t, os.Chtimes(renamed, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	c, err = journal.Claiming(d, "renamed")
	require.NoError(t, err)
	require.Nil(t, c, "a later file with the inode of a removed one")
	_, err = journal.ClaimingAt(filepath.Join(dir, "none", "x"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
