package vmdk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// slowest is how long one image may take, on a machine that does other things besides.
const slowest = 5 * time.Second

// memFile is an image file of size bytes: data, and a hole behind it.
type memFile struct {
	name string
	data []byte
	size int64
}

func (f *memFile) Name() string { return f.name }
func (f *memFile) ID() string   { return f.name }
func (f *memFile) Size() int64  { return f.size }

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	n := int(max(0, min(int64(len(p)), f.size-off)))
	clear(p[:n])
	if off < int64(len(f.data)) {
		copy(p[:n], f.data[off:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) Extent(off, limit int64) (disk.Extent, error) {
	e := disk.Extent{Range: disk.Range{Off: off, Len: limit}, Zero: off >= int64(len(f.data))}
	if !e.Zero {
		e.Len = min(limit, int64(len(f.data))-off)
	}
	return e, nil
}

// folder is a gate to a few files, and to a parent that every child has.
func folder(main *memFile, beside ...*memFile) *driver.Source {
	flat := &memFile{name: "x-flat.vmdk", data: bytes.Repeat([]byte("flat"), 1024), size: 2 << 20}
	open := func(name string) (driver.File, error) {
		for _, f := range append(beside, main, flat) {
			if f.name == name {
				return f, nil
			}
		}
		return nil, fmt.Errorf("file name %.256q: %w", name, ondisk.ErrReference)
	}
	parent := func(driver.ParentRef) (*driver.Image, error) {
		d := disktest.ShortDisk(bytes.Repeat([]byte("parent "), 10_000), 1<<20)
		return &driver.Image{Disk: d, Template: plainDescriptor(), ContentID: "00000001"}, nil
	}
	return &driver.Source{File: main, Open: open, Parent: parent}
}

// requireClass wants an error that the command line can put a name to: with an image in memory there are no others.
func requireClass(t *testing.T, err error) {
	t.Helper()
	for _, class := range []error{ondisk.ErrFormat, ondisk.ErrLimit, ondisk.ErrUnsupported, ondisk.ErrReference} {
		if errors.Is(err, class) {
			return
		}
	}
	_, refused := errors.AsType[*ondisk.Refusal](err)
	require.True(t, refused, "%v", err)
}

// FuzzDescriptor reads anything as the text of a VMDK.
func FuzzDescriptor(f *testing.F) {
	good := disktest.VMDKDescriptor("monolithicFlat", `RW 4096 FLAT "x-flat.vmdk" 0`)
	for _, old := range []string{
		"RW 4096", "4096", "FLAT", `"x-flat.vmdk"`, " 0\n", "monolithicFlat", "ffffffff",
		"4a5b6c7d", `"16"`, "#DDB",
	} {
		for _, new := range []string{
			"", "-1", "ZERO", "RDONLY", "18014398509481983", `"`, "vmfs",
			"parentFileNameHint=x", "SPARSE \"disk.vmdk\"", "\x00", "\r",
		} {
			f.Add([]byte(strings.Replace(good, old, new, 1)))
		}
	}
	f.Add([]byte(strings.ReplaceAll(good, "\n", "\r\n")))
	// their product is 2^64
	f.Add([]byte(strings.NewReplacer(`"16"`, `"4294967296"`, `"63"`, `"4294967296"`).Replace(good)))
	f.Add([]byte(good + "ddb.uuid = \"\xf7\xf7\"\n"))
	f.Add([]byte("\xef\xbb\xbf" + good +
		"ddb.uuid = \"60 00 C2 9a 1d 7b 49 44-dc 53 e6 d3 e5 89 7b 0d\"\nddb.longContentID = \"0\"\n"))
	f.Add([]byte(disktest.ForgeHiddenDescriptor(good)))
	for _, b := range disktest.Seeds(f, 64<<10, "vmdk-rs/monolithicFlat.vmdk", "vmdk-rs/vmfs_thick.vmdk",
		"vmdk-rs/twoGbMaxExtentSparse.vmdk") {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		spent := disktest.Spent()
		img, err := open(folder(&memFile{name: "disk.vmdk", data: text, size: int64(len(text))}))
		if err != nil {
			requireClass(t, err)
		} else {
			readSome(t, img.Disk)
		}
		if d, err := parseDescriptor(text); err == nil {
			checkCopy(t, d, len(text))
		}
		require.Less(t, spent(), slowest)
	})
}

// checkCopy requires that what was read can be written, and that the copy can be read.
func checkCopy(t *testing.T, d *descriptor, size int) {
	t.Helper()
	text := d.copyFor(monolithicFlat, 1<<20, []string{`RW 2048 FLAT "new-flat.vmdk" 0`}, []byte("seed"))
	require.Equal(t, text, d.copyFor(monolithicFlat, 1<<20, []string{`RW 2048 FLAT "new-flat.vmdk" 0`}, []byte("seed")))
	if size > maxText/2 || len(d.lines) > maxLines/2 {
		return // the copy can be a little larger than what may be read
	}
	again, err := parseDescriptor(text)
	require.NoError(t, err, "%.200q", text)
	require.LessOrEqual(t, len(again.extents), 1)
	if len(d.extents) > 0 {
		require.Len(t, again.extents, 1)
		require.Equal(t, "new-flat.vmdk", again.extents[0].name)
	}
}

// readSome reads both ends of a disk and places in between, and walks over its extents.
func readSome(t *testing.T, d disk.Disk) {
	t.Helper()
	buf := make([]byte, 64<<10)
	for i := range int64(16) {
		off := d.Size() / 16 * i
		n, err := d.ReadAt(buf[:min(int64(len(buf)), d.Size()-off)], off)
		require.True(t, err == nil || errors.Is(err, io.EOF) || n >= 0)
		if err != nil && !errors.Is(err, io.EOF) {
			requireClass(t, err)
		}
	}
	off := int64(0)
	for range 1000 {
		if off == d.Size() {
			return
		}
		e, err := d.Extent(off, d.Size()-off)
		if err != nil {
			requireClass(t, err)
			return
		}
		require.Equal(t, off, e.Off)
		require.Positive(t, e.Len)
		require.LessOrEqual(t, e.End(), d.Size())
		off = e.End()
	}
}

// FuzzSparse reads anything as header and tables of a sparse VMDK. They are two short inputs, because a mutation hits
// any byte; between them stands a text that agrees with the header, which no mutation would find. A hole of so many
// bytes follows.
func FuzzSparse(f *testing.F) {
	const sectors = 300
	const headerSize, tablesAt = 80, 21 * 512
	v := disktest.ForgeSparseVMDK(bytes.Repeat([]byte("grain of a disk "), sectors*512/16))
	tables := []byte(v.Forged[tablesAt : v.GT+16])
	f.Add([]byte(v.Forged[:headerSize]), tables, uint32(1<<20))
	for _, c := range []struct {
		at int64
		v  uint64
	}{
		{disktest.VMDKCapacity, 1 << 37},
		{disktest.VMDKCapacity, 1<<64 - 1},
		{disktest.VMDKGrainSize, 3},
		{disktest.VMDKGrainSize, 8},
		{disktest.VMDKGDOffset, 21},
		{disktest.VMDKRGDOffset, 1 << 40},
		{disktest.VMDKOverHead, 0},
		{disktest.VMDKDescriptorSize, 1 << 55},
		{disktest.VMDKCapacity, 40_000_000},
	} {
		header := slices.Clone(v.Forged[:headerSize])
		header.U64(c.at, c.v)
		f.Add([]byte(header), tables, uint32(32<<20))
	}
	for _, b := range disktest.Seeds(f, 64<<10, "vmdk-rs/monolithicSparse.vmdk.xz", "vmdk-rs/streamOptimized.vmdk.xz",
		"dfvfs/ext2.vmdk.xz") {
		f.Add(b[:headerSize], b[tablesAt:tablesAt+4096], uint32(32<<20))
	}
	f.Fuzz(func(t *testing.T, header, tables []byte, hole uint32) {
		v := disktest.SparseVMDK{Forged: make(disktest.Forged, tablesAt+len(tables)), Descriptor: 512}
		v.Put(tablesAt, tables)
		v.Put(0, header[:min(len(header), 512)])
		file := &memFile{name: "disk.vmdk", data: v.Forged, size: int64(len(v.Forged)) + int64(hole%(64<<20))}
		var h sparseHeader
		_, err := ondisk.Decode(file, 0, &h)
		require.NoError(t, err)
		v.SetDescriptor(disktest.VMDKDescriptor(monolithicSparse, fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, h.Capacity)))
		spent := disktest.Spent()
		openFuzzed(t, file)
		require.Less(t, spent(), slowest)
	})
}

func openFuzzed(t *testing.T, file *memFile) {
	t.Helper()
	if file.size < 4 || !detect(file.data, nil) {
		return
	}
	img, err := open(folder(file))
	if err != nil {
		requireClass(t, err)
		return
	}
	readSome(t, img.Disk)
	if img.Check == nil {
		return
	}
	issues, err := img.Check()
	require.NoError(t, err)
	for _, i := range issues {
		if i.Effect == ondisk.Broken {
			return
		}
	}
	if img.Subformat == streamOptimized {
		return // the check does not unpack grains
	}
	// Tables in which nothing is broken lead to grains that can be read.
	buf := make([]byte, 1<<20)
	for off := int64(0); off < min(img.Disk.Size(), 16<<20); off += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), img.Disk.Size()-off)]
		require.NoError(t, ondisk.ReadFull(img.Disk, b, off))
	}
}
