package image_test

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// step is an operation on a file of a recorded folder.
type step struct {
	file string
	data []byte // written at off; nil: size or sync
	off  int64
	size int64
	sync bool
}

// recordedFolder keeps the files of an image in memory, and the steps that made them. Its operations can fail.
type recordedFolder struct {
	files  map[string][]byte
	steps  []step
	faults *disktest.Faults
}

func newFolder(f *disktest.Faults) *recordedFolder {
	return &recordedFolder{files: map[string][]byte{}, faults: f}
}

// apply performs a step.
func (d *recordedFolder) apply(s step) {
	b := d.files[s.file]
	if need := max(s.off+int64(len(s.data)), s.size); int64(len(b)) < need {
		b = append(b, make([]byte, need-int64(len(b)))...)
	}
	if s.data == nil && !s.sync {
		b = b[:s.size]
	}
	copy(b[min(s.off, int64(len(b))):], s.data)
	d.files[s.file] = b
}

// recordedFile is a file in a recordedFolder.
type recordedFile struct {
	*recordedFolder
	name string
}

func (f recordedFile) do(s step) error {
	if err := f.faults.Next(); err != nil {
		return err
	}
	s.file = f.name
	f.steps = append(f.steps, s)
	f.apply(s)
	return nil
}

func (f recordedFile) WriteAt(p []byte, off int64) (int, error) {
	return len(p), f.do(step{data: bytes.Clone(p), off: off})
}
func (f recordedFile) Truncate(size int64) error { return f.do(step{size: size}) }
func (f recordedFile) Sync() error               { return f.do(step{sync: true}) }
func (f recordedFile) Name() string              { return f.name }
func (f recordedFile) ID() string                { return f.name }
func (f recordedFile) Size() int64               { return int64(len(f.files[f.name])) }

func (f recordedFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.faults.Next(); err != nil {
		return 0, err
	}
	return bytes.NewReader(f.files[f.name]).ReadAt(p, off)
}

func (f recordedFile) Extent(off, most int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: most}}, nil
}

// create writes data as an image of a format into the folder.
func (d *recordedFolder) create(t *testing.T, f driver.Format, sub, name string, data []byte) error {
	t.Helper()
	stem, ext := name[:len(name)-len(filepath.Ext(name))], filepath.Ext(name)
	target, err := f.Create(recordedFile{d, name}, int64(len(data)), driver.Options{
		Subformat: sub, Name: name, Seed: []byte("seed"), SectorSize: 512,
		BIOS: driver.Geometry{Heads: 255, Sectors: 63},
		Beside: func(suffix string) (driver.WriteFile, string, error) {
			return recordedFile{d, stem + suffix + ext}, stem + suffix + ext, d.faults.Next()
		},
	})
	if err != nil {
		return err
	}
	o := diskcopy.Options{}
	if p, ok := target.(driver.Packer); ok {
		o.Pack = p.Pack
	}
	if _, err := diskcopy.Run(t.Context(), disktest.Memory(data), target, o); err != nil {
		return err
	}
	return target.Finish()
}

// open reads the whole of an image, and checks its tables.
func (d *recordedFolder) open(f driver.Format, name string) ([]byte, error) {
	img, err := f.Open(&driver.Source{File: recordedFile{d, name}, Open: func(name string) (driver.File, error) {
		if _, ok := d.files[name]; !ok {
			return nil, errors.New("no such file")
		}
		return recordedFile{d, name}, nil
	}})
	if err != nil {
		return nil, err
	}
	if img.Check != nil {
		issues, err := img.Check()
		if err != nil {
			return nil, err
		}
		if len(issues) > 0 {
			return nil, issues[0].Err
		}
	}
	b := make([]byte, img.Disk.Size())
	if n, err := img.Disk.ReadAt(b, 0); n < len(b) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, nil
}

// everyKind runs a test for all formats that are written, in all their subformats.
func everyKind(t *testing.T, test func(t *testing.T, f driver.Format, sub, name string)) {
	t.Helper()
	for f := range image.All {
		for _, sub := range slices.Concat(f.Subformats, []string{""})[:max(1, len(f.Subformats))] {
			t.Run(f.Name+sub, func(t *testing.T) {
				t.Parallel()
				test(t, f, sub, "disk."+f.Name)
			})
		}
	}
}

// Any failing operation on a file ends the writing or reading of an image.
func TestEveryErrorOfAFileSurfaces(t *testing.T) {
	data := imagetest.Noise(7, 1<<20+512) // the last unit is cut
	everyKind(t, func(t *testing.T, f driver.Format, sub, name string) {
		t.Helper()
		disktest.EveryFault(t, "write", func(faults *disktest.Faults) error {
			return newFolder(faults).create(t, f, sub, name, data)
		})
		written := newFolder(nil)
		require.NoError(t, written.create(t, f, sub, name, data))
		disktest.EveryFault(t, "read", func(faults *disktest.Faults) error {
			written.faults = faults
			got, err := written.open(f, name)
			if err == nil {
				require.Equal(t, data, got[:len(data)])
			}
			return err
		})
	})
}

// blindFile is a file of a recorded folder that keeps no bytes, so it can be large.
type blindFile struct{ recordedFile }

func (f blindFile) do(s step) error {
	s.file = f.name
	f.steps = append(f.steps, s)
	return f.faults.Next()
}

func (f blindFile) WriteAt(p []byte, off int64) (int, error) {
	return len(p), f.do(step{off: off, size: int64(len(p))})
}
func (f blindFile) Truncate(size int64) error { return f.do(step{size: size}) }
func (f blindFile) Sync() error               { return f.do(step{sync: true}) }

// A disk of 40 GiB has several tables of every kind, some without an entry. Each of their writes can fail. The files
// become an image when all else is durable, and that is then made durable too.
func TestEveryErrorOfALargeImageSurfaces(t *testing.T) {
	t.Parallel()
	everyKind(t, func(t *testing.T, f driver.Format, sub, name string) {
		t.Helper()
		var d *recordedFolder
		whole := int64(0)
		disktest.EveryFault(t, "write", func(faults *disktest.Faults) error {
			d = newFolder(faults)
			target, err := f.Create(blindFile{recordedFile{d, name}}, 40<<30, driver.Options{
				Subformat: sub, Name: name, Seed: []byte("seed"), SectorSize: 512,
				BIOS: driver.Geometry{Heads: 255, Sectors: 63},
				Beside: func(suffix string) (driver.WriteFile, string, error) {
					return blindFile{recordedFile{d, suffix}}, suffix, faults.Next()
				},
			})
			if err != nil {
				return err
			}
			if _, packs := target.(driver.Packer); !packs {
				whole = target.Unit()
			}
			for off := int64(0); off < 40<<30; off += 5 << 30 {
				if err := target.Reserve(off, target.Unit()/2); err != nil {
					return err
				}
				if _, err := target.WriteAt(make([]byte, target.Unit()/2), off); err != nil {
					return err
				}
			}
			return target.Finish()
		})
		if f.Name == "raw" {
			return
		}
		requireSealed(t, d.steps, name)

		// Units whose first half was written are stored as a whole.
		ends, want := map[string]int64{}, map[string]int64{}
		for _, s := range d.steps {
			ends[s.file] = max(ends[s.file], s.off+s.size)
			if s.size == whole/2 && whole > 0 {
				want[s.file] = s.off + whole
			}
		}
		for file, end := range want {
			require.GreaterOrEqual(t, ends[file], end, file)
		}
	})
}

// requireSealed requires that the last writes go to the named file, after a sync of all files including this one.
func requireSealed(t *testing.T, steps []step, name string) {
	t.Helper()
	last := len(steps) - 1
	require.Equal(t, step{file: name, sync: true}, steps[last])
	seal := last
	for seal > 0 && !steps[seal-1].sync {
		seal--
		require.Equal(t, name, steps[seal].file)
	}
	dirty := map[string]bool{}
	for _, s := range steps[:seal] {
		dirty[s.file] = !s.sync
	}
	for file, is := range dirty {
		require.False(t, is, "%s is not on the disk before the end", file)
	}
	require.NotEmpty(t, dirty)
	require.Less(t, seal, last)
	require.LessOrEqual(t, last-seal, 2)
}

// After a loss of power, each unsynced write may be lost independently. No intermediate state is read as an image,
// unless it has all data.
func TestNoImageAfterALossOfPower(t *testing.T) {
	data := imagetest.Noise(8, 1<<20)
	everyKind(t, func(t *testing.T, f driver.Format, sub, name string) {
		t.Helper()
		if f.Detect == nil {
			t.Skip("a raw disk is known by its name alone")
		}
		all := newFolder(nil)
		require.NoError(t, all.create(t, f, sub, name, data))
		last := map[string]step{}
		for _, s := range all.steps {
			last[s.file] = s
		}
		for file, s := range last {
			require.True(t, s.sync, "%s ends with a sync", file)
		}
		for i, s := range all.steps {
			if s.sync {
				continue
			}
			after := newFolder(nil)
			for file := range all.files {
				after.files[file] = nil
			}
			for k, was := range all.steps[:i] {
				durable := func(x step) bool { return x.sync && x.file == was.file }
				if slices.ContainsFunc(all.steps[k:i], durable) {
					after.apply(was)
				}
			}
			after.apply(s)
			b := after.files[name]
			if !f.Detect(b[:min(len(b), 4096)], b[max(0, len(b)-4096):]) {
				continue
			}
			if got, err := after.open(f, name); err == nil {
				require.Equal(t, data, got[:len(data)], "only step %d of %d is there: %s at %#x", i, len(all.steps),
					s.file, s.off)
			}
		}
	})
}

// served is a remote file.
type served struct {
	*bytes.Reader
	name    string
	device  bool
	changed error
	closed  int
}

func (s *served) Name() string     { return s.name }
func (*served) ID() string         { return "x://y" }
func (*served) Forget()            {}
func (s *served) Device() bool     { return s.device }
func (s *served) Unchanged() error { return s.changed }
func (s *served) Extent(off, limit int64) (disk.Extent, error) {
	return disk.Extent{Range: disk.Range{Off: off, Len: min(limit, s.Size()-off)}}, nil
}

func (s *served) Close() error {
	s.closed++
	return nil
}

// A remote image has no siblings, and reports changes.
func TestOpenAlone(t *testing.T) {
	t.Parallel()
	content := bytes.Repeat([]byte("0123456789abcdef"), 8192)
	f := &served{Reader: bytes.NewReader(qcow2forge.New(content, 16).Bytes), name: "disk"}
	img, err := image.OpenAlone(f, "x://y", image.Options{}, nil)
	require.NoError(t, err)
	require.Equal(t, "qcow2", img.Format)
	require.Equal(t, "x://y", img.Path)
	got, err := ondisk.Bytes(img.Disk, 0, int64(len(content)))
	require.NoError(t, err)
	require.Equal(t, content, got)
	require.Equal(t, []image.FileInfo{{Name: "disk", Size: f.Size(), Allocated: f.Size()}}, img.Files())
	require.Equal(t, f.Size(), img.States()[0].Size)
	for _, look := range []func() ([]ondisk.Issue, error){img.Busy, img.Children, img.Owner} {
		found, err := look()
		require.NoError(t, err)
		require.Empty(t, found)
	}
	require.NoError(t, img.Unchanged())
	f.changed = errors.New("changed")
	require.ErrorIs(t, img.Unchanged(), f.changed)
	require.False(t, img.Unseen())
	f.device = true
	require.True(t, img.Unseen())
	require.NoError(t, img.Close())
	require.Equal(t, 1, f.closed)
}

// A server cannot redirect further reads, and the name of a device does not determine its format.
func TestOpenAloneRefuses(t *testing.T) {
	t.Parallel()
	child := qcow2forge.New(make([]byte, 1<<16), 16)
	child.SetBacking("/etc/passwd", "raw")
	descriptor := "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\n" +
		"createType=\"monolithicFlat\"\n" +
		"RW 2048 FLAT \"a-flat.vmdk\" 0\nddb.adapterType = \"ide\"\n"
	for names, content := range map[string][]byte{
		`it refers to the file "/etc/passwd"`: child.Bytes, `it refers to the file "a-flat.vmdk"`: []byte(descriptor),
	} {
		f := &served{Reader: bytes.NewReader(content), name: "disk"}
		_, err := image.OpenAlone(f, "x://y", image.Options{}, nil)
		require.ErrorContains(t, err, names)
		require.ErrorContains(t, err, "opens no further file")
		require.Equal(t, 1, f.closed)
	}
	zeros := &served{Reader: bytes.NewReader(make([]byte, 1<<16)), name: "disk.vmdk"}
	codes := func() (codes []string) {
		img, err := image.OpenAlone(zeros, "x://y", image.Options{}, nil)
		require.NoError(t, err)
		for _, i := range img.Issues {
			codes = append(codes, i.Code)
		}
		return codes
	}
	require.Equal(t, []string{image.CodeMisnamed}, codes())
	zeros.device = true
	require.Empty(t, codes())
	zeros = &served{Reader: bytes.NewReader(make([]byte, 700)), name: "disk.vmdk"}
	_, err := image.OpenAlone(zeros, "x://y", image.Options{}, nil)
	require.ErrorContains(t, err, "its file extension is that of vmdk")
}
