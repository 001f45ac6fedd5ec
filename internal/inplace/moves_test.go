package inplace

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
)

// onFiles is a disk in one file, or in a descriptor and two files, that is moved inside a new folder.
type onFiles struct {
	t         *testing.T
	dir, path string
	journal   string          // for a later run, if it is not beside the disk
	far       bool            // no piece overlaps its new place, so the journal is small
	old, want []byte          // of the disk
	ctx       context.Context //nolint:containedctx // of the move
}

// newOnFiles writes a disk of 96 sectors, of which two pieces move.
func newOnFiles(t *testing.T, split bool) *onFiles {
	t.Helper()
	return (&onFiles{t: t}).write(split)
}

func (f *onFiles) write(split bool) *onFiles {
	f.t.Helper()
	f.dir = f.t.TempDir()
	c := simCase{plan: f.plan()}.simulate(f.t)
	f.old, f.want = c.old, c.want
	if !split {
		f.path = f.put("vm.img", f.old)
		return f
	}
	f.put("vm-f001.vmdk", f.old[:40*sector])
	f.put("vm-f002.vmdk", f.old[40*sector:])
	f.path = f.put("vm.vmdk", []byte("# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n"+
		"createType=\"twoGbMaxExtentFlat\"\nRW 40 FLAT \"vm-f001.vmdk\" 0\nRW 56 FLAT \"vm-f002.vmdk\" 0\n"+
		"ddb.geometry.cylinders = \"1\"\nddb.geometry.heads = \"16\"\nddb.geometry.sectors = \"63\"\n"))
	return f
}

func (f *onFiles) plan() *plan.Plan {
	pieces := []disk.Shift{shift(0, 0, 3), shift(3, 8, 30), shift(50, 56, 40)}
	if f.far {
		pieces = []disk.Shift{shift(0, 0, 3), shift(3, 34, 30), shift(50, 82, 22)}
	}
	return &plan.Plan{OldSize: 96 * sector, Size: 104 * sector, Pieces: pieces}
}

func (f *onFiles) put(name string, b []byte) string {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	require.NoError(f.t, os.WriteFile(path, b, 0o600))
	return path
}

// disk returns the bytes of the disk.
func (f *onFiles) disk() (out []byte) {
	f.t.Helper()
	names := []string{f.path}
	if filepath.Ext(f.path) == ".vmdk" {
		names = []string{filepath.Join(f.dir, "vm-f001.vmdk"), filepath.Join(f.dir, "vm-f002.vmdk")}
	}
	for _, n := range names {
		b := disktest.ReadFile(f.t, n)
		out = append(out, b...)
	}
	return out
}

// begin moves the disk, and is interrupted after some stretches, or with a negative number not at all.
func (f *onFiles) begin(stretches int) error {
	f.t.Helper()
	img, err := image.Open(f.path, image.Options{})
	if err != nil {
		return err
	}
	defer img.Close()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	m := &Move{Image: img, Plan: f.plan(), Path: f.path, Options: Options{
		Jobs: 1, Progress: &interrupting{left: stretches, cancel: cancel},
	}}
	return m.Run(ctx)
}

// quiet are options of a move without progress.
var quiet = Options{Jobs: 1, Progress: diskcopy.Unwatched{}}

// interrupting interrupts a move after some stretches. It cancels in a phase too, if that has a name.
type interrupting struct {
	left   int
	copies bool
	at     string
	cancel func()
}

func (p *interrupting) Begin(phase string, _ int64) {
	p.copies = phase == diskcopy.PhaseCopy
	if phase == p.at {
		p.cancel()
	}
}

func (p *interrupting) Add(int64) {
	if p.copies {
		if p.left--; p.left == 0 {
			p.cancel()
		}
	}
}

// middle leaves the disk in the middle of the move.
func (f *onFiles) middle() *onFiles {
	f.t.Helper()
	err := f.begin(1)
	require.ErrorIs(f.t, err, ErrMiddle)
	require.ErrorIs(f.t, err, context.Canceled)
	require.NotContains(f.t, err.Error(), context.Canceled.Error(), "in other words")
	require.FileExists(f.t, f.path+journal.Suffix)
	return f
}

// again resumes or undoes the interrupted move, after change has modified its Again.
func (f *onFiles) again(command string, change func(a *Again)) error {
	f.t.Helper()
	h, err := journal.Hold(f.path, f.journal)
	if err != nil {
		return err
	}
	defer h.Close()
	a := &Again{Held: h, Options: quiet}
	if change != nil {
		change(a)
	}
	if command == "resume" {
		_, err = a.Resume(f.t.Context())
	} else {
		_, err = a.Undo(f.t.Context())
	}
	return err
}

// TestMovesOnFiles moves disks on real files, with and without an interrupt, and resumes and undoes them.
func TestMovesOnFiles(t *testing.T) {
	t.Parallel()
	for _, split := range []bool{false, true} {
		f := newOnFiles(t, split)
		require.NoError(t, f.begin(-1))
		require.True(t, bytes.Equal(f.want, f.disk()))
		for command, want := range map[string]func(f *onFiles) []byte{
			"resume": func(f *onFiles) []byte { return f.want }, "undo": func(f *onFiles) []byte { return f.old },
		} {
			f := newOnFiles(t, split)
			text := disktest.ReadFile(t, f.path)
			f.middle()
			if split {
				require.NoFileExists(t, f.path)
			}
			require.NoError(t, f.again(command, nil))
			require.True(t, bytes.Equal(want(f), f.disk()), "%s, split %v", command, split)
			require.NoFileExists(t, f.path+journal.Suffix)
			require.NoFileExists(t, f.path+hidden)
			now := disktest.ReadFile(t, f.path)
			require.Equal(t, command == "resume", string(now) != string(text))
			if split && command == "resume" {
				require.Contains(t, string(now), `RW 64 FLAT "vm-f002.vmdk" 0`)
			}
		}
	}
}

// TestOtherDisksAreNotMoved continues a move whose disk has changed: nothing is written to it, and a forced undo
// removes the journal only if no disk is in the middle of the move.
func TestOtherDisksAreNotMoved(t *testing.T) {
	t.Parallel()
	other := func(f *onFiles) { // a copy restored from a backup
		f.put("backup", f.old)
		require.NoError(f.t, os.Rename(filepath.Join(f.dir, "backup"), f.path))
	}
	for name, c := range map[string]struct {
		change func(f *onFiles)
		says   string
		free   bool
	}{
		"brought back": {other, "another one of this name", true},
		"another copy of the middle": {func(f *onFiles) {
			middle := f.disk()
			require.NoError(f.t, os.Rename(f.path, filepath.Join(f.dir, "moved.img")))
			f.put("vm.img", middle)
		}, `"moved.img" is in the middle of a move`, false},
		"another beside it that is in the middle": {func(f *onFiles) {
			require.NoError(f.t, os.Rename(f.path, filepath.Join(f.dir, "moved.img")))
			f.put("vm.img", f.old)
		}, `"moved.img" is in the middle of a move`, false},
		"cut": {func(f *onFiles) {
			require.NoError(f.t, os.Truncate(f.path, 90*sector))
		}, "has 46080 bytes", false},
		"longer": {func(f *onFiles) {
			require.NoError(f.t, os.Truncate(f.path, 200*sector))
		}, "ends at byte 102400", false},
		"without its mark": {func(f *onFiles) {
			require.NoError(f.t, os.WriteFile(f.path, append(bytes.Clone(f.old), make([]byte, 8*sector)...), 0o600))
		}, "another program wrote the sector", true},
	} {
		for _, command := range []string{"resume", "undo", "forced"} {
			f := newOnFiles(t, false).middle()
			c.change(f)
			before := f.disk()
			err := f.again(command, func(a *Again) { a.Force = command == "forced" })
			require.True(t, bytes.Equal(before, f.disk()), "%s, %s", name, command)
			if command == "forced" && c.free {
				require.NoError(t, err, name)
				require.NoFileExists(t, f.path+journal.Suffix)
				continue
			}
			require.ErrorContains(t, err, c.says, "%s, %s", name, command)
			require.FileExists(t, f.path+journal.Suffix)
		}
	}
}

// TestMovesOnOtherStorage continues a move whose files and journal were copied to another folder: the mark identifies
// them. A journal that was left behind belongs to the disk beside it, and a disk whose bytes do not match is refused.
func TestMovesOnOtherStorage(t *testing.T) {
	t.Parallel()
	for _, split := range []bool{false, true} {
		f := newOnFiles(t, split).middle()
		for command, want := range map[string][]byte{"resume": f.want, "undo": f.old} {
			c := f.copied()
			require.NoError(t, c.again(command, nil))
			require.True(t, bytes.Equal(want, c.disk()), "%s, split %v", command, split)
			require.NoFileExists(t, c.path+journal.Suffix)
			require.NoFileExists(t, c.path+hidden)

			c = f.copied()
			require.NoError(t, os.Remove(c.path+journal.Suffix))
			before := c.disk()
			c.journal = f.path + journal.Suffix
			require.ErrorContains(t, c.again(command, nil), "another one of this name")
			require.True(t, bytes.Equal(before, c.disk()))
		}
	}
	f := newOnFiles(t, false).middle()
	c := f.copied()
	other := f.disk()
	other[10*sector]++ // in a piece that is yet to move
	c.put("vm.img", other)
	for _, command := range []string{"resume", "undo"} {
		require.ErrorIs(t, c.again(command, nil), errDiffers)
		require.True(t, bytes.HasPrefix(c.disk(), []byte(MarkText)))
		require.FileExists(t, c.path+journal.Suffix)
	}
}

// TestDiskMovedAway requires that the journal stays if its disk was moved to another folder: the disk is unusable
// without it.
func TestDiskMovedAway(t *testing.T) {
	t.Parallel()
	f := newOnFiles(t, false).middle()
	away := filepath.Join(t.TempDir(), "vm.img")
	require.NoError(t, os.Rename(f.path, away))
	for _, command := range []string{"resume", "undo", "forced"} {
		err := f.again(command, func(a *Again) { a.Force = command == "forced" })
		require.ErrorContains(t, err, `"vm.img" is missing`)
		require.ErrorContains(t, err,
			"move it back here, then run trueup resume "+shell.Quote(f.path))
		require.FileExists(t, f.path+journal.Suffix)
	}
	require.NoError(t, os.Rename(away, f.path))
	require.NoError(t, f.again("resume", nil))
	require.True(t, bytes.Equal(f.want, f.disk()))
}

// copied returns a copy of the folder.
func (f *onFiles) copied() *onFiles {
	f.t.Helper()
	c := *f
	c.dir = filepath.Join(f.t.TempDir(), "copy")
	c.path = filepath.Join(c.dir, filepath.Base(f.path))
	require.NoError(f.t, os.CopyFS(c.dir, os.DirFS(f.dir)))
	return &c
}

// device is a block device of which only the path is used.
type device struct{ Device }

func (device) Path() string { return "/dev/other" }

func (f *onFiles) inode(name string) uint64 {
	f.t.Helper()
	st, err := sys.Lstat(filepath.Join(f.dir, name))
	require.NoError(f.t, err)
	return st.Inode
}

// TestDisksInUseAreNotMoved requires that a move is refused while another run, or QEMU, holds a file of the disk.
func TestDisksInUseAreNotMoved(t *testing.T) {
	disktest.OnUnix(t, "locks")
	t.Parallel()
	for _, split := range []bool{false, true} {
		for name, hold := range map[string]func(f *sys.File) error{
			"another run": func(f *sys.File) error { return f.Lock(sys.Exclusive) },
			"QEMU":        func(f *sys.File) error { return f.LockByte(sys.Shared, 101) },
		} {
			f := newOnFiles(t, split)
			last := f.path
			if split {
				last = filepath.Join(f.dir, "vm-f002.vmdk")
			}
			file, err := os.OpenFile(last, os.O_RDWR, 0)
			require.NoError(t, err)
			require.NoError(t, hold(sys.FromOS(file)))
			require.ErrorContains(t, f.begin(-1), name)
			require.NoError(t, file.Close())
			require.True(t, bytes.Equal(f.old, f.disk()))
			require.NoError(t, f.begin(-1))
		}
	}
}

// TestMovesThatAreRefused requires that a move is refused for a disk without a file of its own, for a changing disk,
// and for one that cannot be moved.
func TestMovesThatAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(f *onFiles, m *Move)
		says   string
	}{
		"a snapshot": {func(_ *onFiles, m *Move) { m.Image.Child = true }, "it is a snapshot"},
		"a chain":    {func(_ *onFiles, m *Move) { m.Image.Chain = make([]image.Link, 1) }, "it is a snapshot"},
		"a format that stores in another order": {
			func(_ *onFiles, m *Move) { m.Image.Around, m.Image.Format = nil, "qcow2" }, "byte for byte",
		},
		"a raw image that ends within a sector": {
			func(_ *onFiles, m *Move) { m.Image.Around = nil }, "its file ends within a sector",
		},
		"a name that is not UTF-8": {func(_ *onFiles, m *Move) { m.Image.Base = "vm\xff.img" }, "is not UTF-8"},
		"a name without room for that of a journal": {func(_ *onFiles, m *Move) {
			m.Image.Base = strings.Repeat("n", journal.MaxName-6)
		}, "create nnn"},
		"another user": {func(f *onFiles, _ *Move) {
			f.put("user.vmdk", []byte("# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n"+
				"createType=\"monolithicFlat\"\nRW 96 FLAT \"vm.img\" 0\n"))
		}, "refers to a file of this disk"},
		"written meanwhile": {func(f *onFiles, _ *Move) {
			f.put("vm.img", append(bytes.Clone(f.old), make([]byte, sector)...))
		}, "changed"},
		"written while it is read": {func(f *onFiles, m *Move) {
			m.Progress = &interrupting{at: diskcopy.PhaseDigest, cancel: func() { f.put("vm.img", f.old) }}
		}, "changed"},
		"a second name": {func(f *onFiles, m *Move) {
			m.Image.Handles[0].Info.Links = 2
		}, "hard links"},
		"places that change": {func(_ *onFiles, m *Move) {
			m.Plan.Pieces = []disk.Shift{shift(0, 0, 2), shift(20, 2, 10), shift(2, 20, 10)}
		}, "trade places"},
		"interrupted": {func(f *onFiles, m *Move) {
			ctx, cancel := context.WithCancel(f.t.Context())
			m.Progress = &interrupting{at: diskcopy.PhaseDigest, cancel: cancel}
			f.ctx = ctx
		}, "context canceled"},
		"an open move": {func(f *onFiles, _ *Move) {
			d, err := gate.OpenFolder(f.dir)
			require.NoError(f.t, err)
			h, err := journal.Begin(d, "vm.img", f.path, journal.InPlace, nil, 0)
			require.NoError(f.t, err)
			require.NoError(f.t, h.Close())
			require.NoError(f.t, d.Close())
		}, "was interrupted"},
		"a result that is refused": {func(_ *onFiles, m *Move) {
			m.Look = func(disk.Disk, disk.Disk) error { return ondisk.ErrLimit }
		}, "limit"},
	} {
		if sys.DeniesWriting && name == "written while it is read" {
			continue // which refuses other writers
		}
		f := newOnFiles(t, false)
		img, err := image.Open(f.path, image.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { _ = img.Close() }) // otherwise Windows could not remove its folder
		m := &Move{Image: img, Plan: f.plan(), Path: f.path, Options: quiet}
		f.ctx = t.Context()
		c.change(f, m)
		before := f.disk()
		require.ErrorContains(t, m.Run(f.ctx), c.says, name)
		img.Close()
		if m.Look == nil {
			require.True(t, bytes.Equal(before, f.disk()), name)
		} else {
			require.NotErrorIs(t, f.again("undo", nil), ErrMiddle, name)
		}
	}
}
