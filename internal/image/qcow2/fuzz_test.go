package qcow2

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/image/driver"
)

// folder is an image whose parent, whatever its name, is 1 MiB of text.
func folder(f *disktest.MemFile) *driver.Source {
	text := bytes.NewReader(bytes.Repeat([]byte("parent of a disk"), 1<<16))
	parent := &driver.Image{Disk: disk.New(text.Size(), 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: text.Size() - off, Src: text, Off: off}, nil
	})}
	return &driver.Source{File: f, Parent: func(driver.ParentRef) (*driver.Image, error) { return parent, nil }}
}

// FuzzQcow2 reads anything as a qcow2: the head of its first cluster, and the data after it, as two short inputs. A
// hole of this many bytes follows.
func FuzzQcow2(f *testing.F) {
	const bits, headSize = 9, 256
	data := bytes.Repeat([]byte("cluster of a disk"), 302)
	add := func(change func(q *qcow2forge.File)) {
		q := qcow2forge.New(data[:5120], bits)
		change(q)
		f.Add([]byte(q.Bytes[:headSize]), []byte(q.Bytes[1<<bits:]), uint32(1<<20))
	}
	add(func(*qcow2forge.File) {})
	add(func(q *qcow2forge.File) { q.SetBacking("base", "raw") })
	add(func(q *qcow2forge.File) { q.BE32(qcow2forge.Version, 2) })
	add(func(q *qcow2forge.File) { q.BE32(qcow2forge.ClusterBits, 21) })
	add(func(q *qcow2forge.File) { q.BE64(qcow2forge.Size, 1<<60) })
	add(func(q *qcow2forge.File) { q.BE64(qcow2forge.RefTable, 1<<63) })
	add(func(q *qcow2forge.File) { q.SetEntry(1, 1); q.SetEntry(2, uint64(q.L2)); q.SetEntry(3, 1<<63) })
	for order := range uint32(7) {
		add(func(q *qcow2forge.File) { q.BE32(qcow2forge.Order, order) })
	}
	add(func(q *qcow2forge.File) {
		at := q.Append(make([]byte, 1024))
		q.BE64(qcow2forge.SnapTable, uint64(at))
		q.BE32(qcow2forge.Snapshots, 3)
		q.BE64(at, uint64(q.L1))
		q.BE32(at+8, 1)
	})
	add(func(q *qcow2forge.File) {
		q.BE64(qcow2forge.Autoclear, 1)
		at := q.Append(make([]byte, 512))
		b := binary.BigEndian.AppendUint64(make([]byte, 8), 32)
		q.AddExtension(extBitmaps, binary.BigEndian.AppendUint64(b, uint64(at)))
	})
	add(func(q *qcow2forge.File) { // a dirty tracking bitmap without a name, of one cluster with all bits set
		q.BE64(qcow2forge.Autoclear, 1)
		b := binary.BigEndian.AppendUint64(nil, uint64(q.Append([]byte{0, 0, 0, 0, 0, 0, 0, 1})))
		b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, bitmapDirty, minGranularity, 0, 0, 0, 0, 0, 0)
		at := q.Append(b)
		x := append(binary.BigEndian.AppendUint32(nil, 1), 0, 0, 0, 0)
		x = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(x, uint64(len(b))), uint64(at))
		q.AddExtension(extBitmaps, x)
	})
	for kind, stream := range [][]byte{
		{0xed, 0xc1, 0x01, 0x01, 0, 0, 0, 0x80, 0x90, 0xfe, 0xaf, 0xee, 0x08, 0x0a},
		{0x28, 0xb5, 0x2f, 0xfd, 0x60, 0, 1, 0x4b, 0x10, 0, 'x'},
	} {
		add(func(q *qcow2forge.File) {
			q.BE64(qcow2forge.Incompatible, uint64(kind)<<3)
			q.U8(qcow2forge.Compression, uint8(kind))
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
		file := disktest.NewMemFile("disk.qcow2", b, int64(len(b))+int64(hole%(64<<20)))
		_, err := names(file)
		require.NoError(t, err)
		img, err := open(folder(file))
		if err != nil {
			disktest.RequireClass(t, err)
		} else {
			disktest.ReadSome(t, img.Disk, disktest.RequireClass)
			if _, err := img.Bitmap(""); err != nil {
				disktest.RequireClass(t, err)
			}
			issues, err := img.Check()
			require.NoError(t, err)
			// Compressed data can be damaged too.
			disktest.ReadSound(t, img.Disk, issues, func(t *testing.T, err error) {
				t.Helper()
				require.ErrorContains(t, err, "qcow2 compressed cluster")
			})
		}
		require.Less(t, spent(), disktest.Slowest)
	})
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
