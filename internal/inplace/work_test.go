package inplace

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
)

// simDevice is a block device on a medium.
type simDevice struct {
	simDisk

	path, id string
	rereads  int
	broken   bool // it rejects writes
}

func (d *simDevice) WriteAt(b []byte, off int64) (int, error) {
	if d.broken {
		return 0, disktest.ErrFault
	}
	return d.simDisk.WriteAt(b, off)
}

func (d *simDevice) Sync() error {
	if d.broken {
		return disktest.ErrFault
	}
	return d.simDisk.Sync()
}

func (d *simDevice) End() int64   { return d.Size() }
func (d *simDevice) Path() string { return d.path }
func (d *simDevice) ID() string   { return d.id }
func (d *simDevice) Reread()      { d.rereads++ }

// onDeviceMove is a disk on a simulated device, with its journal in a file.
type onDeviceMove struct {
	t       *testing.T
	c       simCase
	on      *disktest.Medium
	dev     *simDevice
	img     string // source of reads of the device
	journal string
}

func newOnDevice(t *testing.T) *onDeviceMove {
	t.Helper()
	m := &onDeviceMove{t: t, on: disktest.NewMedium(), c: simCase{plan: &plan.Plan{
		OldSize: 96 * sector, Size: 96 * sector,
		Pieces:  []disk.Shift{shift(0, 0, 3), shift(3, 34, 30), shift(50, 74, 22)},
		Patches: []disk.Patch{patch(446, "entry")},
	}}.simulate(t)}
	dir := t.TempDir()
	m.img, m.journal = filepath.Join(dir, "device"), filepath.Join(dir, "journal")
	require.NoError(t, os.WriteFile(m.img, m.c.old, 0o600))
	m.dev = &simDevice{simDisk: simDisk{m.on.File("disk")}, path: m.img}
	_, err := m.dev.WriteAt(m.c.old, 0)
	require.NoError(t, errors.Join(err, m.dev.Sync()))
	m.on.Calls = 0
	return m
}

// begin moves the disk. An error of look interrupts the move before the first sector is written.
func (m *onDeviceMove) begin(look func(disk.Disk, disk.Disk) error) error {
	m.t.Helper()
	img, err := image.Open(m.img, image.Options{})
	require.NoError(m.t, err)
	defer img.Close()
	o := quiet
	o.Look = look
	return (&Move{
		Image: img, Plan: m.c.plan, Path: m.img, Device: m.dev, Journal: m.journal, Options: o,
	}).Run(m.t.Context())
}

// middle leaves the disk in the middle of the move.
func (m *onDeviceMove) middle() *onDeviceMove {
	m.t.Helper()
	require.ErrorIs(m.t, m.begin(func(disk.Disk, disk.Disk) error { return disktest.ErrFault }), ErrMiddle)
	return m
}

// again continues with the journal.
func (m *onDeviceMove) again(do func(a *Again) error) error {
	m.t.Helper()
	h, err := journal.Hold(m.img, m.journal)
	require.NoError(m.t, err)
	defer h.Close()
	return do(&Again{Held: h, Device: m.dev, Options: quiet})
}

func (m *onDeviceMove) resume(a *Again) error {
	_, err := a.Resume(m.t.Context())
	return err
}

// forced is an undo that removes the journal of a disk that is not in the middle of the move.
func (m *onDeviceMove) forced(a *Again) error {
	a.Force = true
	_, err := a.Undo(m.t.Context())
	return err
}

// TestMovesOnADevice moves a disk on a device. The kernel rereads its table when the mark is written, and at the end.
func TestMovesOnADevice(t *testing.T) {
	t.Parallel()
	m := newOnDevice(t)
	require.NoError(t, m.begin(nil))
	require.Equal(t, 2, m.dev.rereads)
	require.True(t, bytes.Equal(m.c.want, m.dev.Bytes()))
	require.NoFileExists(t, m.journal)

	m = newOnDevice(t).middle()
	m.dev.path += ".other" // marked, so that it is the device under any name
	require.NoError(t, m.again(m.resume))
	require.True(t, bytes.Equal(m.c.want, m.dev.Bytes()))

	for name, c := range map[string]struct {
		first string // sector
		do    func(a *Again) error
		says  string // empty: the journal is removed
	}{
		"as it was":                     {string(m.c.old[:sector]), m.resume, "is the old one"},
		"as it was, forced":             {string(m.c.old[:sector]), m.forced, ""},
		"marked by another move":        {MarkText, m.resume, "is in the middle of a move"},
		"marked by another one, forced": {MarkText, m.forced, "is in the middle of a move"},
	} {
		m := newOnDevice(t).middle()
		b := make([]byte, sector)
		copy(b, c.first)
		_, err := m.dev.WriteAt(b, 0)
		require.NoError(t, err)
		before := bytes.Clone(m.dev.Bytes())
		if err = m.again(c.do); c.says == "" {
			require.NoError(t, err, name)
			require.NoFileExists(t, m.journal)
		} else {
			require.ErrorContains(t, err, c.says, name)
		}
		require.True(t, bytes.Equal(before, m.dev.Bytes()), name)
	}
	m = newOnDevice(t).middle()
	_, err := m.dev.WriteAt(m.c.old[:sector], 0)
	require.NoError(t, err)
	m.dev.path += ".other"
	require.ErrorIs(t, m.again(m.resume), ondisk.ErrUsage)
}

// TestJournalsThatStay requires that the journal is kept if the disk may be in the middle of a move, or is in another
// folder.
func TestJournalsThatStay(t *testing.T) {
	t.Parallel()
	m := newOnDevice(t).middle()
	for why, change := range map[string]func(a *Again){
		"the device is not read": func(*Again) { m.on.Power = 0 },
		"the folder is closed":   func(a *Again) { require.NoError(t, a.Held.Dir.Close()) },
		"another folder":         func(a *Again) { a.plan.Device, a.plan.Files = "", []Part{{Name: "absent"}} },
	} {
		h, err := journal.Hold(m.img, m.journal)
		require.NoError(t, err)
		a := &Again{Held: h, Device: m.dev}
		a.plan, err = decodePlan(h.Plan())
		require.NoError(t, err)
		change(a)
		free, err := a.refuseMissing(ondisk.ErrChanged)
		require.ErrorContains(t, err, ondisk.ErrChanged.Error(), why)
		require.False(t, free, why)
		_ = h.Close() // its folder may be closed
		m.on.Power = -1
	}
}

// TestDevicesThatBreak fails each call on a device, and all after it. The error tells the state of the disk: unchanged,
// or in the middle of the move, which continues when the device works again.
func TestDevicesThatBreak(t *testing.T) {
	t.Parallel()
	whole := newOnDevice(t)
	require.NoError(t, whole.begin(nil))
	for cut := 1; cut < whole.on.Calls; cut++ {
		m := newOnDevice(t)
		m.on.Power = cut
		err := m.begin(nil)
		require.ErrorIs(t, err, ErrMiddle, "call %d", cut)
		require.ErrorIs(t, err, disktest.ErrPower, "call %d", cut)
		m.on.Power = -1
		require.NoError(t, m.again(m.resume), "call %d", cut)
		require.True(t, bytes.Equal(m.c.want, m.dev.Bytes()), "call %d", cut)
	}
	m := newOnDevice(t)
	m.dev.broken = true
	err := m.begin(nil)
	require.ErrorIs(t, err, ErrMiddle)
	require.ErrorContains(t, err, "could not be reversed")
	m.dev.broken = false
	require.ErrorContains(t, m.again(m.resume), "nothing to resume")
	require.NoError(t, m.again(func(a *Again) error {
		_, err := a.Undo(t.Context())
		return err
	}))
	require.True(t, bytes.Equal(m.c.old, m.dev.Bytes()))
	require.NoFileExists(t, m.journal)
}

// TestDisksThatAreUnsuitable requires an error for unsuitable images that no test of another package covers.
func TestDisksThatAreUnsuitable(t *testing.T) {
	t.Parallel()
	d := disk.New(96*sector, sector, nil)
	img := &image.Image{Format: "vhd", Image: &driver.Image{Disk: d}}
	require.ErrorContains(t, onDevice(img, 0), "holds a vhd file")
	img.Format = raw.Format.Name
	require.NoError(t, onDevice(img, 96*sector))
	require.ErrorContains(t, onDevice(img, 97*sector), "the device is too small")

	f := newOnFiles(t, false)
	member, err := image.Open(f.path, image.Options{
		Digest: func(context.Context, string, driver.File) error { return nil },
	})
	require.NoError(t, err)
	defer member.Close()
	_, err = Suitable(member, 96*sector, driver.Geometry{})
	require.ErrorContains(t, err, "a disk of a package")
	t.Run("device", func(t *testing.T) {
		device := imagetest.Open(t, disktest.LoopDevice(t, f.path))
		_, err = Suitable(device, 97*sector, driver.Geometry{})
		require.ErrorContains(t, err, "the device is too small")
	})
	img = imagetest.Open(t, f.path)
	img.Around = func(int64, driver.Geometry) (driver.Around, error) { return driver.Around{}, disktest.ErrFault }
	_, err = Suitable(img, 96*sector, driver.Geometry{})
	require.ErrorContains(t, err, disktest.ErrFault.Error())
}

// TestKeptOriginalsAreUnsuitable refuses a disk if unfinished work of another one needs its file.
func TestKeptOriginalsAreUnsuitable(t *testing.T) {
	t.Parallel()
	f := newOnFiles(t, false)
	img := imagetest.Open(t, f.path)
	_, err := Suitable(img, 96*sector, driver.Geometry{})
	require.NoError(t, err)
	blob, err := json.Marshal(map[string]any{
		"Old": []map[string][]byte{{"Name": []byte("x"), "Other": []byte(img.Base)}},
	})
	require.NoError(t, err)
	h, err := journal.Begin(img.Dir, "x", filepath.Join(f.dir, "x"), journal.Exchange, blob, 0)
	require.NoError(t, err)
	require.NoError(t, h.Close())
	_, err = Suitable(img, 96*sector, driver.Geometry{})
	require.ErrorContains(t, err, `it is the kept original of "x"`)
}

// TestRoomOfJournals requires that a journal without room or folder is refused, and one that would be lost if the power
// fails.
func TestRoomOfJournals(t *testing.T) {
	t.Parallel()
	f := newOnFiles(t, false)
	img := imagetest.Open(t, f.path)
	room := func(journal string, blob int64) error {
		return (&Move{Image: img, Journal: journal}).room(&Plan{End: 1 << 59}, blob)
	}
	require.ErrorContains(t, room("", 0), "for its journal and for the growth of the disk")
	require.ErrorContains(t, room(filepath.Join(f.dir, "absent", "journal"), 0), "folder of the journal")
	require.ErrorContains(t, room(filepath.Join(f.dir, "journal"), 1<<59), "for its journal")
	require.ErrorContains(t, room(filepath.Join(f.dir, "journal"), 0), "for the growth of the disk")
	disktest.OnUnix(t, "closed folders")
	closed, err := sys.OpenFolder(f.dir)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	require.Error(t, (&Move{Image: img}).lasts(closed))

	require.NoError(t, (&Move{Image: img}).place(&Plan{}))
	other, err := image.Open(f.path, image.Options{})
	require.NoError(t, err)
	require.NoError(t, other.Close())
	require.Error(t, (&Move{Image: other}).place(&Plan{}), "its folder is closed")

	memory, err := sys.OpenFolder("/dev/shm")
	if err != nil {
		t.Skipf("no file system in memory on this machine: %v", err)
	}
	defer memory.Close()
	if in, err := memory.InMemory(); err != nil || !in {
		t.Skip("no file system in memory on this machine")
	}
	require.ErrorContains(t, (&Move{Image: img, Device: &simDevice{}}).lasts(memory), "lost if the power fails")
	require.NoError(t, (&Move{Image: img, Device: &simDevice{}}).lasts(img.Dir.At))
}

// TestDescriptors writes the text of a descriptor over a longer one, or removes the hidden one if the disk has another.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	begin := func() (*Again, *work, string) {
		dir := t.TempDir()
		d, err := gate.OpenFolder(dir)
		require.NoError(t, err)
		defer d.Close()
		path := filepath.Join(dir, "vm")
		h, err := journal.Begin(d, "vm", path, journal.InPlace, nil, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = h.Close() })
		require.NoError(t, os.WriteFile(path+hidden, []byte("a longer text"), 0o600))
		p := &Plan{Text: []byte("text"), OldText: []byte("a longer text")}
		return &Again{Held: h, plan: p}, &work{Held: h, plan: p}, path
	}
	requireText := func(path, want string) {
		t.Helper()
		got := disktest.ReadFile(t, path)
		require.Equal(t, want, string(got))
		require.NoFileExists(t, path+hidden)
	}
	_, w, path := begin()
	require.NoError(t, w.show([]byte("text")))
	requireText(path, "text")

	a, _, path := begin()
	removed, err := a.stale(a.plan)
	require.NoError(t, err)
	require.Empty(t, removed)
	requireText(path, "a longer text")

	a, _, path = begin()
	require.NoError(t, os.WriteFile(path, []byte("another"), 0o600))
	removed, err = a.stale(a.plan)
	require.NoError(t, err)
	require.Equal(t, []string{"vm" + hidden}, removed)
	requireText(path, "another")

	for op, says := range map[string]string{
		"rename2": "descriptor vm" + hidden, "unlink": "descriptor vm" + hidden, "fsyncdir": "sync folder",
	} {
		a, _, path = begin()
		if op == "unlink" {
			require.NoError(t, os.WriteFile(path, []byte("another"), 0o600))
		}
		require.NoError(t, a.Held.Dir.Close())
		a.Held.Dir = failing(t, filepath.Dir(path), op)
		_, err = a.stale(a.plan)
		require.ErrorContains(t, err, says)
	}
}

// failing opens a folder with a failing operation.
func failing(t *testing.T, behind, op string) *gate.Folder {
	t.Helper()
	d, err := gate.OpenFolder(oddfs.Mount(t, behind, oddfs.Manners{Fail: map[string]syscall.Errno{op: syscall.EIO}}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// TestMarksThatAreNotRead requires that a search for a mark fails if a file cannot be opened or read.
func TestMarksThatAreNotRead(t *testing.T) {
	t.Parallel()
	f := newOnFiles(t, false)
	for _, op := range []string{"open", "read"} {
		a := &Again{Held: &journal.Held{Dir: failing(t, f.dir, op)}}
		_, err := a.marked(&Plan{Files: []Part{{}}}, func(string, sys.Info) bool { return true })
		require.ErrorIs(t, err, syscall.EIO, op)
	}
}

// TestLostDescriptor resumes a move whose descriptor is missing or has its name back: nothing moves without it.
func TestLostDescriptor(t *testing.T) {
	t.Parallel()
	f := newOnFiles(t, true).middle()
	before := f.disk()
	text := disktest.ReadFile(t, f.path+hidden)
	require.NoError(t, os.Remove(f.path+hidden))
	require.ErrorContains(t, f.again("resume", nil), "rename vm.vmdk")
	require.True(t, bytes.Equal(before, f.disk()))
	f.put("vm.vmdk", text)
	require.NoError(t, f.again("resume", nil))
	require.True(t, bytes.Equal(f.want, f.disk()))
	require.NoFileExists(t, f.path+hidden)
}

// TestDescriptorGetsItsName requires that show flushes the descriptor before the rename, and the folder after it. If a
// call fails, show returns an error, or the descriptor has its new text.
func TestDescriptorGetsItsName(t *testing.T) {
	behind := t.TempDir()
	var j oddfs.Journal
	dir, err := gate.OpenFolder(oddfs.Mount(t, behind, oddfs.Manners{Journal: &j}))
	require.NoError(t, err)
	defer dir.Close()
	const base = "vm.vmdk"
	w := &work{Held: &journal.Held{Dir: dir, Base: base}, plan: &Plan{Text: []byte("new"), OldText: []byte("old")}}
	calls := []string{"write", "truncate", "fsync", "rename2 " + base, "fsyncdir"}
	for at, want := range map[string][]string{
		base + hidden: calls, base: slices.Concat([]string{"rename2 " + base + hidden, "fsyncdir"}, calls),
	} {
		for n := 0; n < 2 || j.Failed() != ""; n++ {
			for _, name := range disktest.Names(t, behind) {
				require.NoError(t, os.Remove(filepath.Join(behind, name)))
			}
			require.NoError(t, os.WriteFile(filepath.Join(behind, at), []byte("old"), 0o600))
			j.Restart(n)
			err := w.show(w.plan.Text)
			if n == 0 {
				require.NoError(t, err)
				require.Equal(t, want, j.Changes())
			}
			if err != nil {
				require.ErrorIs(t, err, syscall.EIO, j.Failed())
				continue
			}
			require.Equal(t, "new", string(disktest.ReadFile(t, filepath.Join(behind, base))), j.Failed())
			require.NotContains(t, want, j.Failed())
		}
	}
}

// TestMovesThatAreNotTakenBack requires that the error of a move that cannot be reversed does not wrap the interrupt.
func TestMovesThatAreNotTakenBack(t *testing.T) {
	t.Parallel()
	back := errors.New("read-only file system")
	require.EqualError(t, notBack(context.Canceled, back),
		"the interrupted move could not be reversed: read-only file system")
	require.NotErrorIs(t, notBack(context.Canceled, back), context.Canceled)
	err := notBack(disktest.ErrFault, back)
	require.ErrorIs(t, err, disktest.ErrFault)
	require.ErrorIs(t, err, back)
}
