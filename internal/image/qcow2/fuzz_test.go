package qcow2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
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
	data []byte
	size int64
}

func (f *memFile) Name() string { return "disk.qcow2" }
func (f *memFile) ID() string   { return "disk.qcow2" }
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

// folder is an image whose parent, whatever its name, is 1 MiB of text.
func folder(f *memFile) *driver.Source {
	text := bytes.NewReader(bytes.Repeat([]byte("parent of a disk"), 1<<16))
	parent := &driver.Image{Disk: disk.New(text.Size(), 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: text.Size() - off, Src: text, Off: off}, nil
	})}
	return &driver.Source{File: f, Parent: func(driver.ParentRef) (*driver.Image, error) { return parent, nil }}
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

// readSome reads both ends of a disk and places in between, and walks over its extents.
func readSome(t *testing.T, d disk.Disk) {
	t.Helper()
	buf := make([]byte, 64<<10)
	for i := range int64(16) {
		off := d.Size() / 16 * i
		if _, err := d.ReadAt(buf[:min(int64(len(buf)), d.Size()-off)], off); err != nil && !errors.Is(err, io.EOF) {
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

// FuzzQcow2 reads anything as a qcow2: the head of its first cluster, and what lies behind that, as two short inputs.
// A hole of so many bytes follows.
func FuzzQcow2(f *testing.F) {
	const bits, headSize = 9, 256
	data := bytes.Repeat([]byte("cluster of a disk"), 302)
	add := func(change func(q *disktest.Qcow2)) {
		q := disktest.ForgeQcow2(data[:5120], bits)
		change(q)
		f.Add([]byte(q.Forged[:headSize]), []byte(q.Forged[1<<bits:]), uint32(1<<20))
	}
	add(func(*disktest.Qcow2) {})
	add(func(q *disktest.Qcow2) { q.SetBacking("base", "raw") })
	add(func(q *disktest.Qcow2) { q.Set32(disktest.Qcow2Version, 2) })
	add(func(q *disktest.Qcow2) { q.Set32(disktest.Qcow2ClusterBits, 21) })
	add(func(q *disktest.Qcow2) { q.Set64(disktest.Qcow2Size, 1<<60) })
	add(func(q *disktest.Qcow2) { q.Set64(disktest.Qcow2RefTable, 1<<63) })
	add(func(q *disktest.Qcow2) { q.SetEntry(1, 1); q.SetEntry(2, uint64(q.L2)); q.SetEntry(3, 1<<63) })
	for order := range uint32(7) {
		add(func(q *disktest.Qcow2) { q.Set32(disktest.Qcow2Order, order) })
	}
	add(func(q *disktest.Qcow2) {
		at := q.Append(make([]byte, 1024))
		q.Set64(disktest.Qcow2SnapTable, uint64(at))
		q.Set32(disktest.Qcow2Snapshots, 3)
		q.Set64(at, uint64(q.L1))
		q.Set32(at+8, 1)
	})
	add(func(q *disktest.Qcow2) {
		q.Set64(disktest.Qcow2Autoclear, 1)
		at := q.Append(make([]byte, 512))
		b := binary.BigEndian.AppendUint64(make([]byte, 8), 32)
		q.AddExtension(extBitmaps, binary.BigEndian.AppendUint64(b, uint64(at)))
	})
	for kind, stream := range [][]byte{
		{0xed, 0xc1, 0x01, 0x01, 0, 0, 0, 0x80, 0x90, 0xfe, 0xaf, 0xee, 0x08, 0x0a},
		{0x28, 0xb5, 0x2f, 0xfd, 0x60, 0, 1, 0x4b, 0x10, 0, 'x'},
	} {
		add(func(q *disktest.Qcow2) {
			q.Set64(disktest.Qcow2Incompatible, uint64(kind)<<3)
			q.U8(disktest.Qcow2Compression, uint8(kind))
			q.SetPacked(0, q.Append(stream)+3, int64(len(stream)))
		})
	}
	for _, b := range disktest.Seeds(f, 64<<10, "dfvfs/ext2.qcow2.xz") {
		f.Add(b[:headSize], b[headSize:], uint32(1<<20))
	}
	f.Fuzz(func(t *testing.T, head, rest []byte, hole uint32) {
		b := make([]byte, 1<<bits, 1<<bits+len(rest))
		copy(b, head)
		copy(b, magic)
		b = append(b, rest...)
		spent := disktest.Spent()
		openFuzzed(t, &memFile{data: b, size: int64(len(b)) + int64(hole%(64<<20))})
		require.Less(t, spent(), slowest)
	})
}

func openFuzzed(t *testing.T, file *memFile) {
	t.Helper()
	_, err := names(file)
	require.NoError(t, err)
	img, err := open(folder(file))
	if err != nil {
		requireClass(t, err)
		return
	}
	readSome(t, img.Disk)
	issues, err := img.Check()
	require.NoError(t, err)
	for _, i := range issues {
		if i.Effect == ondisk.Broken {
			return
		}
	}
	// Tables in which nothing is broken lead to clusters that can be read, but for what is compressed.
	buf := make([]byte, 1<<20)
	for off := int64(0); off < min(img.Disk.Size(), 16<<20); off += int64(len(buf)) {
		b := buf[:min(int64(len(buf)), img.Disk.Size()-off)]
		if err := ondisk.ReadFull(img.Disk, b, off); err != nil {
			require.ErrorContains(t, err, "qcow2 compressed cluster")
		}
	}
}

// FuzzUnpack unpacks anything, to exactly a cluster or not at all.
func FuzzUnpack(f *testing.F) {
	t := &packedTarget{target: newTarget(nil, 1<<20, 12, 3)}
	stream, err := t.Pack(bytes.Repeat([]byte("packs well "), 300), 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(stream, false)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x60, 0, 15, 3, 0x80, 0, 'x'}, true)
	f.Fuzz(func(t *testing.T, stream []byte, zstd bool) {
		kind := packingDeflate
		if zstd {
			kind = packingZstd
		}
		dst := make([]byte, 4096)
		err := inflaters[kind](dst, bytes.NewReader(stream))
		if err != nil {
			require.ErrorAs(t, err, new(*streamError), "%T", err)
		}
	})
}
