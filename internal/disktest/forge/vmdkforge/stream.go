package vmdkforge

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Stream is a valid streamOptimized file and where its parts lie, in bytes.
type Stream struct {
	forge.Bytes
	Grains    []int64 // markers of the grains that are stored
	Tables    []int64 // with the tables at the end: their markers; otherwise the tables
	Directory int64   // the same
	Footer    int64   // its marker; 0 with the tables at the start
	End       int64   // the marker of the end
}

// StreamLayout describes the streamOptimized file to forge.
type StreamLayout struct {
	Grain int64 // sectors; 0 means 128
	// Front puts the tables before the grains, as open-vmdk and vmware-vdiskmanager do: there is no footer then.
	Front bool
	// Short truncates the last grain at the end of the disk, like open-vmdk.
	Short bool
	// Pack compresses a grain; nil for Deflated.
	Pack func(grain int64, data []byte) []byte
}

// NewStream writes the nonzero grains of a disk with the compressor of the standard library. Spec: VMware, Virtual Disk
// Format 1.1, "Stream-Optimized Compressed Sparse Extents".
func NewStream(disk []byte, l StreamLayout) *Stream {
	if l.Grain == 0 {
		l.Grain = Grain / vmdkSector
	}
	if l.Pack == nil {
		l.Pack = func(_ int64, data []byte) []byte { return Deflated(data) }
	}
	grain := l.Grain * vmdkSector
	grains := (int64(len(disk)) + grain - 1) / grain
	tables := (grains + 511) / 512
	gdSectors := (4*tables + vmdkSector - 1) / vmdkSector
	v := &Stream{Bytes: make(forge.Bytes, vmdkSector+vmdkDescriptor)}
	v.header(l.Grain, int64(len(disk)/vmdkSector))
	if l.Front {
		v.Directory = int64(len(v.Bytes))
		v.Bytes = append(v.Bytes, make([]byte, gdSectors*vmdkSector+tables*vmdkTable)...)
		v.U64(GDOffset, uint64(v.Directory/vmdkSector))
	}
	v.U64(OverHead, uint64(len(v.Bytes)/vmdkSector))

	gd := make(forge.Bytes, gdSectors*vmdkSector)
	for t := range tables {
		gt := make(forge.Bytes, vmdkTable)
		for g := t * 512; g < min((t+1)*512, grains); g++ {
			data := disk[g*grain : min((g+1)*grain, int64(len(disk)))]
			if !l.Short {
				data = append(slices.Clone(data), make([]byte, grain-int64(len(data)))...)
			}
			if len(bytes.Trim(data, "\x00")) > 0 {
				gt.U32(g%512*4, uint32(len(v.Bytes)/vmdkSector))
				v.AddGrain(uint64(g*l.Grain), l.Pack(g, data))
			}
		}
		switch {
		case l.Front:
			v.Tables = append(v.Tables, v.Directory+gdSectors*vmdkSector+t*vmdkTable)
			v.Put(v.Tables[t], gt)
			gd.U32(4*t, uint32(v.Tables[t]/vmdkSector))
		case len(bytes.Trim(gt, "\x00")) > 0:
			v.Tables = append(v.Tables, v.AddMetadata(1, gt))
			gd.U32(4*t, uint32(v.Tables[len(v.Tables)-1]/vmdkSector+1))
		}
	}
	if l.Front {
		v.Put(v.Directory, gd)
	} else {
		v.Directory = v.AddMetadata(2, gd)
		foot := slices.Clone(v.Bytes[:vmdkSector])
		foot.U64(GDOffset, uint64(v.Directory/vmdkSector+1))
		v.Footer = v.AddMetadata(3, foot)
	}
	v.End = v.AddMetadata(0, nil)
	return v
}

// header writes all but the place of the tables and the overhead.
func (v *Stream) header(grain, capacity int64) {
	v.Text(0, "KDMV")
	v.U32(Version, 3)
	v.U32(Flags, 1|1<<16|1<<17)
	v.U64(Capacity, uint64(capacity))
	v.U64(GrainSize, uint64(grain))
	v.U64(DescriptorOffset, 1)
	v.U64(DescriptorSize, vmdkDescriptor/vmdkSector)
	v.U32(NumGTEs, 512)
	v.U64(GDOffset, 1<<64-1)
	v.Text(NewLine, "\n \r\n")
	v.U16(Compress, 1)
	v.Text(vmdkSector, Descriptor("streamOptimized", fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, capacity)))
}

// packers are reused, since one needs a megabyte of memory for little data.
var packers = sync.Pool{New: func() any { return zlib.NewWriter(nil) }}

// Deflated returns a zlib stream of the data.
func Deflated(data []byte) []byte {
	var b bytes.Buffer
	z := packers.Get().(*zlib.Writer)
	defer packers.Put(z)
	z.Reset(&b)
	_, err := z.Write(data)
	if err == nil {
		err = z.Close()
	}
	if err != nil {
		panic(err) // a buffer accepts everything
	}
	return b.Bytes()
}

// AddGrain appends a marker and the packed bytes after it, up to a whole sector.
func (v *Stream) AddGrain(lba uint64, packed []byte) {
	at := int64(len(v.Bytes))
	v.Grains = append(v.Grains, at)
	v.Bytes = append(v.Bytes, make([]byte, (12+len(packed)+vmdkSector-1)/vmdkSector*vmdkSector)...)
	v.U64(at, lba)
	v.U32(at+8, uint32(len(packed)))
	v.Put(at+12, packed)
}

// AddMetadata appends a marker and its data, in whole sectors, and returns the position of the marker.
func (v *Stream) AddMetadata(kind uint32, b []byte) int64 {
	at := int64(len(v.Bytes))
	v.Bytes = append(append(v.Bytes, make([]byte, vmdkSector)...), b...)
	v.U64(at, uint64(len(b)/vmdkSector))
	v.U32(at+12, kind)
	return at
}

// ReadStream is an independent reader, written from the specification with the decompressor of the standard library. It
// requires the form of ovftool: grains in ascending order, each table after the last of its grains, directory, footer,
// end.
func ReadStream(t testing.TB, f []byte) []byte {
	t.Helper()
	le := binary.LittleEndian
	must := func(ok bool, what string, at int64) {
		t.Helper()
		if !ok {
			t.Fatalf("stream at %#x: %s", at, what)
		}
	}
	must(string(f[:4]) == "KDMV" && le.Uint32(f[Flags:]) == 0x30001 && le.Uint64(f[GDOffset:]) == 1<<64-1, "header", 0)
	disk := make([]byte, le.Uint64(f[Capacity:])*vmdkSector)
	grain := int64(le.Uint64(f[GrainSize:])) * vmdkSector
	last, work, gd := int64(-1), make([]byte, vmdkTable), map[int64]uint32{}
	for at := int64(le.Uint64(f[OverHead:])) * vmdkSector; ; {
		val, size, kind := int64(le.Uint64(f[at:])), int64(le.Uint32(f[at+8:])), le.Uint32(f[at+12:])
		body := f[at+vmdkSector:]
		switch {
		case size > 0:
			off := val * vmdkSector
			must(off%grain == 0 && off/grain > last, "order of grains", at)
			last = off / grain
			z, err := zlib.NewReader(bytes.NewReader(f[at+12 : at+12+size]))
			must(err == nil, "compressed data", at)
			data, err := io.ReadAll(z)
			must(err == nil && int64(len(data)) == grain, "compressed data", at)
			copy(disk[off:], data)
			le.PutUint32(work[last%512*4:], uint32(at/vmdkSector))
			at += (12 + size + vmdkSector - 1) / vmdkSector * vmdkSector
			continue
		case kind == 1:
			must(val == 4 && bytes.Equal(body[:vmdkTable], work), "table", at)
			gd[last/512] = uint32(at/vmdkSector + 1)
			clear(work)
		case kind == 2:
			must(len(bytes.Trim(work, "\x00")) == 0, "grains without a table", at)
			for i := range val * vmdkSector / 4 {
				must(le.Uint32(body[4*i:]) == gd[i], "directory", at)
			}
			must(le.Uint64(f[len(f)-1024+GDOffset:]) == uint64(at/vmdkSector+1), "directory in the footer", at)
		case kind == 3:
			foot := slices.Clone(body[:vmdkSector])
			le.PutUint64(foot[GDOffset:], 1<<64-1)
			must(val == 1 && at == int64(len(f))-1536 && bytes.Equal(foot, f[:vmdkSector]), "footer", at)
		default:
			must(kind == 0 && val == 0 && at == int64(len(f))-vmdkSector, "end", at)
			return disk
		}
		at += (1 + val) * vmdkSector
	}
}
