package vmdk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// FuzzStream reads anything as header and body of a streamOptimized VMDK, front to back and as a file. Between them
// stands a text that agrees with the header, which no mutation would find. What comes through the pipe to its end is
// what the file holds.
func FuzzStream(f *testing.F) {
	const headerSize, bodyAt = 80, 21 * 512
	seed := func(v *disktest.StreamVMDK) { f.Add([]byte(v.Forged[:headerSize]), []byte(v.Forged[bodyAt:])) }
	short := bytes.Repeat([]byte("grain "), 2000)[:17*512]
	sparse := make([]byte, 3<<20)
	copy(sparse, "one")
	copy(sparse[5<<19:], "two")
	for _, l := range []disktest.StreamLayout{
		{Grain: 8},
		{Grain: 8, Front: true},
		{Grain: 8, Front: true, Short: true},
		{Grain: 128},
	} {
		seed(disktest.ForgeStreamVMDK(short, l))
		seed(disktest.ForgeStreamVMDK(sparse, l))
	}
	for _, change := range []func(v *disktest.StreamVMDK){
		func(v *disktest.StreamVMDK) { v.U64(disktest.VMDKCapacity, 1<<37) },
		func(v *disktest.StreamVMDK) { v.U64(v.Footer+512+disktest.VMDKGDOffset, 22) },
		func(v *disktest.StreamVMDK) { v.U32(v.Grains[0]+8, 1<<32-1) },
		func(v *disktest.StreamVMDK) { v.U64(v.Grains[1], 0) },
		func(v *disktest.StreamVMDK) { v.U32(v.Tables[0]+12, 7) },
		func(v *disktest.StreamVMDK) { v.Forged = v.Forged[:v.Footer] },
		func(v *disktest.StreamVMDK) { v.Forged = append(v.Forged, make([]byte, 512)...) },
	} {
		v := disktest.ForgeStreamVMDK(short, disktest.StreamLayout{Grain: 8})
		change(v)
		seed(v)
	}
	for _, b := range disktest.Seeds(f, 64<<10, "vmdk-rs/streamOptimized.vmdk.xz") {
		f.Add(b[:headerSize], b[bodyAt:])
	}
	f.Fuzz(func(t *testing.T, header, body []byte) {
		v := disktest.SparseVMDK{Forged: make(disktest.Forged, bodyAt+len(body)), Descriptor: 512}
		v.Put(bodyAt, body)
		v.Put(0, header[:min(len(header), 512)])
		var h sparseHeader
		_, err := ondisk.Decode(disktest.NewMemFile("disk.vmdk", v.Forged, 512), 0, &h)
		require.NoError(t, err)
		v.SetDescriptor(disktest.VMDKDescriptor(h.subformat(), fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, h.Capacity)))
		spent := disktest.Spent()
		file := disktest.NewMemFile("disk.vmdk", v.Forged, int64(len(v.Forged)))
		openFuzzed(t, file)
		requireSame(t, v.Forged, file)
		require.Less(t, spent(), disktest.Slowest)
	})
}

// requireSame reads front to back. When that comes to its end, the grains must be those of the file.
func requireSame(t *testing.T, stream []byte, file *disktest.MemFile) {
	t.Helper()
	s, err := openStream(bytes.NewReader(stream))
	if err != nil {
		disktest.RequireClass(t, err)
		return
	}
	type piece struct {
		off  int64
		data []byte
	}
	var pieces []piece
	for {
		off, p, err := s.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			disktest.RequireClass(t, err)
			return
		}
		pieces = append(pieces, piece{off, slices.Clone(p)})
		if len(pieces) == 100 {
			return
		}
	}
	img, err := open(folder(file))
	require.NoError(t, err)
	require.Equal(t, s.Size, img.Disk.Size())
	end := int64(0)
	for _, p := range append(pieces, piece{off: s.Size}) {
		if p.off > end {
			e, err := img.Disk.Extent(end, p.off-end)
			require.NoError(t, err)
			require.True(t, e.Zero, "%#x", end)
		}
		got := make([]byte, len(p.data))
		require.NoError(t, ondisk.ReadFull(img.Disk, got, p.off))
		require.True(t, bytes.Equal(p.data, got), "%#x", p.off)
		end = p.off + int64(len(p.data))
	}
}
