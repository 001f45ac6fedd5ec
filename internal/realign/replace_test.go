package realign

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// TestNotesOfAnExchange requires notes after an exchange: the disk has another size, and no changed-block tracking.
func TestNotesOfAnExchange(t *testing.T) {
	disktest.OnUnix(t, "notes")
	t.Parallel()
	dir := t.TempDir()
	text := vmdkforge.Descriptor("monolithicFlat", `RW 8192 FLAT "disk-flat.vmdk" 0`) +
		"changeTrackPath=\"disk-ctk.vmdk\"\n"
	path := filepath.Join(dir, "disk.vmdk")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	full := tableforge.NewMBR(8192, tableforge.Slot{Type: 0xda, Start: 63, Sectors: 8192 - 63})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "disk-flat.vmdk"), full, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "disk-ctk.vmdk"), []byte("blocks"), 0o644))
	w, err := write(t.Context(), t, &Job{Jobs: 1}, Replace{}, path)
	require.NoError(t, err)
	var codes []string
	for _, n := range w.Notes {
		codes = append(codes, n.Code)
	}
	require.Equal(t, []string{"replaced-tracking", "outside-size", "overlays-elsewhere"}, codes)
}

// A disk that cannot be exchanged stays unchanged, and nothing is left of the copy.
func TestExchangesThatAreRefused(t *testing.T) {
	t.Parallel()
	made := t.TempDir()
	smallPackage(t, made)
	packed := content(t, filepath.Join(made, "vm.ova"))
	nothing := func() {}
	for says, prepare := range map[string]func(t *testing.T, path string, to *Replace) (opened func()){
		"/dev/loop7": func(t *testing.T, path string, to *Replace) func() {
			t.Helper()
			st, err := sys.Stat(path)
			require.NoError(t, err)
			to.Looped = Loops{st.ID: "/dev/loop7"}
			return nothing
		},
		"has 2 hard links": func(t *testing.T, path string, _ *Replace) func() {
			t.Helper()
			require.NoError(t, os.Link(path, filepath.Join(filepath.Dir(path), "other")))
			return nothing
		},
		"no such file": func(t *testing.T, path string, _ *Replace) func() {
			t.Helper()
			return func() { require.NoError(t, os.Rename(path, path+".old")) }
		},
	} {
		path := smallDisk(t)
		was := content(t, path)
		j, to := Job{Jobs: 1}, Replace{}
		opened := prepare(t, path, &to)
		before := len(disktest.Names(t, filepath.Dir(path)))
		s := open(t, path)
		disk := mustPlan(t, s)
		opened()
		_, err := j.Write(t.Context(), s, disk, to)
		s.Close()
		require.ErrorContains(t, err, says)
		require.NotErrorIs(t, err, ondisk.ErrChanged, "nothing was copied yet")
		left := disktest.Names(t, filepath.Dir(path))
		require.Len(t, left, before)
		require.Equal(t, was, content(t, filepath.Join(filepath.Dir(path), left[0])))

		dir := t.TempDir()
		path = filepath.Join(dir, "vm.ova")
		require.NoError(t, os.WriteFile(path, []byte(packed), 0o644))
		to = Replace{}
		opened = prepare(t, path, &to)
		p, err := PlanPackage(openedPackage(t, path), Reading{}, Goal{})
		require.NoError(t, err)
		defer p.Close()
		opened()
		_, err = j.WritePackage(t.Context(), p, to)
		require.ErrorContains(t, err, says)
		require.Empty(t, slices.DeleteFunc(disktest.Names(t, dir), func(name string) bool { return name[0] != '.' }))
	}
}

// The original of an exchange is recognized, and not used in the middle of it.
func TestOriginals(t *testing.T) {
	t.Parallel()
	path := smallDisk(t)
	w, err := write(t.Context(), t, &Job{Jobs: 1}, Replace{}, path)
	require.NoError(t, err)
	require.False(t, open(t, path).Original)
	s := open(t, w.Replaced.Original)
	require.True(t, s.Original)
	last := s.Beside[len(s.Beside)-1]
	require.Equal(t, "original", last.Code)
	require.Contains(t, last.Remedy, "trueup undo "+shell.Quote(path))
	require.False(t, s.Written)
	require.NoError(t, os.Chtimes(w.Replaced.Original, time.Unix(1e9, 0), time.Unix(1e9, 0)))
	s = open(t, w.Replaced.Original)
	require.True(t, s.Original && s.Written)
	last = s.Beside[len(s.Beside)-1]
	require.Equal(t, "original-written", last.Code)
	require.Equal(t, ondisk.Warn, last.Effect)
	h, err := journal.Hold(path, "")
	require.NoError(t, err)
	require.NoError(t, errors.Join(h.Enter(journal.Begun), h.Close()))
	for _, name := range []string{path, w.Replaced.Original} {
		_, err = Open(name, Reading{})
		require.Equal(t, "unfinished", Code(err), name)
	}
	require.NoError(t, os.Remove(path))
	_, err = Open(path, Reading{})
	require.Equal(t, "unfinished", Code(err))
	require.ErrorContains(t, err, "was interrupted")
	require.NoError(t, os.WriteFile(path, []byte("no disk"), 0o600))
	_, err = Open(path, Reading{})
	require.Equal(t, "unfinished", Code(err))
}

// A missing disk can be due to unfinished work.
func TestDisksThatAreNotThere(t *testing.T) {
	t.Parallel()
	path := smallDisk(t)
	begun(t, path, journal.Exchange, []byte("plan"), journal.Kept)
	require.NoError(t, os.Rename(path, path+image.Moving))
	_, err := Open(path, Reading{})
	require.ErrorContains(t, err, "it is not there; the disk was exchanged")
	require.NoError(t, os.Remove(journal.PathOf(path)))
	_, err = Open(path, Reading{})
	require.ErrorContains(t, err, "a move has left")
	require.NoError(t, os.Remove(path+image.Moving))
	_, err = Open(path, Reading{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, ondisk.ErrUnsupported)
}

// A read error of a folder or of a planned disk is returned.
func TestReadingThatFails(t *testing.T) {
	path := smallDisk(t)
	img, err := image.Open(path, image.Options{})
	require.NoError(t, err)
	require.NoError(t, img.Dir.Close())
	require.Error(t, (&Source{Image: img, asked: true}).read())
	require.NoError(t, img.CloseFiles())

	s := open(t, path)
	p := mustPlan(t, s)
	s.Image.Disk = unread(s.Image.Disk.Size())
	_, err = s.View(p)
	require.ErrorIs(t, err, disktest.ErrFault)
	require.ErrorContains(t, err, "planned result: ")
}

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
	p := mustPlan(t, s)
	require.ErrorContains(t, Acceptable(p, Goal{}), `o.qcow2" is a snapshot of this disk`)
	s.Close()

	s = open(t, path)
	p = mustPlan(t, s)
	w, err = (&Job{Jobs: 1}).MoveInPlace(t.Context(), s, p, Move{})
	require.NoError(t, err)
	require.Equal(t, 1, warned(w.Notes))
}

// A disk that a program has open for writing is refused with the name of that program if it was found at the start,
// otherwise with the kernel's answer.
func TestDiskIsWritten(t *testing.T) {
	t.Parallel()
	path := smallDisk(t)
	refused := func(by Writers) error {
		s, err := Open(path, Reading{Writers: by})
		require.NoError(t, err)
		defer s.Close()
		p := mustPlan(t, s)
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
	if yes, _ := sys.FromOS(f).Written(); !yes { // this descriptor counts too
		t.Skip("the file system has no leases that count")
	}
	require.ErrorContains(t, refused(Writers{}), "is open for writing in another program")
	require.NoError(t, refused(nil), "nobody looked")
	_, err = write(t.Context(), t, &Job{Jobs: 1}, Replace{}, path)
	require.ErrorContains(t, err, "open for writing")
	s := open(t, path)
	p := mustPlan(t, s)
	_, err = (&Job{Jobs: 1}).MoveInPlace(t.Context(), s, p, Move{})
	require.ErrorContains(t, err, "open for writing")
	require.Equal(t, []string{"disk.img"}, disktest.Names(t, filepath.Dir(path)))
}

// If a disk is missing, the hidden file of a killed run is named, but not that of a running one.
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
	require.NoError(t, sys.FromOS(f).Lock(sys.Exclusive))
	require.Empty(t, LeftBehind(path))
	require.NoError(t, f.Close())
	_, err = Open(path, Reading{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, `left the hidden file ".disk.img.partial"`)
}

// standIn returns a device of size bytes in a file, with bytes at some offsets.
func standIn(t *testing.T, size int64, at map[int64][]byte) *Device {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(size))
	for off, b := range at {
		_, err := f.WriteAt(b, off)
		require.NoError(t, err)
	}
	return &Device{Device: &store.Device{Path: "/dev/x", Node: path, Size: size, Sector: sector}}
}

// A device is blank if its edges, the places of superblock copies, and samples are zero. Other content is named.
func TestContentOfADevice(t *testing.T) {
	t.Parallel()
	x, qcow2 := []byte("x"), qcow2forge.New(make([]byte, 1<<16), 16).Bytes
	mbr := tableforge.NewMBR(2048, tableforge.Slot{Type: 0xda, Start: 63, Sectors: 300})
	for name, c := range map[string]struct {
		size int64
		at   map[int64][]byte
		want string
	}{
		"nothing":                  {units.GiB, nil, ""},
		"the end of its head":      {units.GiB, map[int64][]byte{4*units.MiB - 1: x}, "unknown content"},
		"behind its head":          {units.GiB, map[int64][]byte{5 * units.MiB: x}, ""},
		"the start of its tail":    {units.GiB, map[int64][]byte{1023 * units.MiB: x}, "unknown content"},
		"a backup of ext":          {units.GiB, map[int64][]byte{8 * units.MiB: x}, "unknown content"},
		"a sample":                 {units.GiB, map[int64][]byte{528 * units.MiB: x}, "unknown content"},
		"a table":                  {units.MiB, map[int64][]byte{0: mbr}, "MBR"},
		"an image":                 {units.MiB, map[int64][]byte{0: qcow2}, "qcow2 image"},
		"a mark":                   {units.MiB, map[int64][]byte{0: image.Mark(sector)}, ""},
		"a mark before other data": {units.MiB, map[int64][]byte{0: image.Mark(sector), sector: x}, "unfinished copy"},
	} {
		d := standIn(t, c.size, c.at)
		got, err := d.content()
		require.NoError(t, err, name)
		if c.want != "" {
			c.want = fmt.Sprintf("%d bytes: %s", c.size, c.want)
		}
		require.Equal(t, c.want, got, name)
	}
	_, err := (&Device{Device: &store.Device{Node: filepath.Join(t.TempDir(), "none"), Sector: sector}}).content()
	require.ErrorIs(t, err, os.ErrNotExist)
}

// Unreadable parts of a device are not considered blank.
func TestBadSectorsOfADevice(t *testing.T) {
	t.Parallel()
	mbr := tableforge.NewMBR(512, tableforge.Slot{Type: 0xda, Start: 63, Sectors: 300})
	for _, at := range []map[int64][]byte{nil, {0: image.Mark(sector)}, {0: mbr}} {
		d := standIn(t, units.MiB/4, at)
		img, err := image.Open(d.Node, image.Options{Format: "raw"})
		require.NoError(t, err)
		defer img.Close()
		disktest.EveryBadRead(t, img.Disk, func(bad disk.Disk) (string, error) {
			img.Disk = broken{bad}
			got, err := d.contentOf(img)
			if strings.Contains(got, "unknown content") && at[0] == nil || strings.Contains(got, "unfinished copy") {
				return disktest.ErrFault.Error(), err // and is kept
			}
			return got, err
		})
	}
}

// A read of the edges or of a sample of a device that fails is an error.
func TestEdgesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	d := standIn(t, units.MiB, nil)
	img, err := image.Open(d.Node, image.Options{Format: "raw"})
	require.NoError(t, err)
	defer img.Close()
	good := img.Disk
	for n := range 3 { // head, tail, and the first sample
		img.Disk = broken{failsOnce{good, &n}}
		_, err = d.contentOf(img)
		require.ErrorIs(t, err, disktest.ErrFault)
	}
	_, err = blankAt(unread(good.Size()), disk.Range{Len: sector})
	require.ErrorIs(t, err, disktest.ErrFault)
}

// broken is a disk whose injected faults are also I/O errors of the system.
type broken struct{ disk.Disk }

func (d broken) ReadAt(p []byte, off int64) (int, error) {
	n, err := d.Disk.ReadAt(p, off)
	if errors.Is(err, disktest.ErrFault) {
		err = errors.Join(err, syscall.EIO)
	}
	return n, err
}

// The volumes of a device are listed in order with their labels, up to a limit.
func TestVolumesOfADevice(t *testing.T) {
	t.Parallel()
	ext := &volume.Volume{Kind: volume.Ext4, Label: "data"}
	l := &layout.Layout{Table: &table.Table{Scheme: table.GPT}, Outer: &volume.Volume{Kind: volume.ISO9660}}
	l.Partitions = []boot.Partition{{Volume: ext}, {Volume: &volume.Volume{Kind: volume.Unknown}}}
	require.Equal(t, `GPT, iso9660, ext4 "data"`, volumesOf(l))
	l.Partitions = slices.Repeat([]boot.Partition{{Volume: ext}}, 9)
	require.Equal(t, `GPT, iso9660, `+strings.Repeat(`ext4 "data", `, 6)+"3 more", volumesOf(l))
	require.Equal(t, "unknown content", volumesOf(&layout.Layout{}))
}

// A device with content is overwritten only if the user names that content.
func TestDeviceThatIsNotBlank(t *testing.T) {
	t.Parallel()
	s := open(t, smallDisk(t))
	p := mustPlan(t, s)
	d := standIn(t, s.Image.Disk.Size(), map[int64][]byte{0: []byte("x")})
	small := standIn(t, s.Image.Disk.Size()-sector, nil)
	_, err := small.create(t.Context(), s, disk.Range{Len: p.Size})
	require.ErrorContains(t, err, "is too small")
	small.Node, small.Size = t.TempDir(), d.Size
	_, err = small.create(t.Context(), s, disk.Range{Len: p.Size})
	require.ErrorIs(t, err, ondisk.ErrUnsupported)
	d.Overwrite = "something else"
	_, err = d.create(t.Context(), s, disk.Range{Len: p.Size})
	require.ErrorContains(t, err, "is not blank, and its content would be lost (--overwrite-content names")
	require.ErrorContains(t, err, ": unknown content'")
	_, err = (&Job{Jobs: 1}).Write(t.Context(), s, p, d)
	require.ErrorContains(t, err, ": unknown content'")
}
