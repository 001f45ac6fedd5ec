package vmdk

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// FuzzStream reads anything as header and body of a streamOptimized VMDK. Between them stands a text that agrees with
// the header, which no mutation would find.
func FuzzStream(f *testing.F) {
	const headerSize, bodyAt = 80, 21 * 512
	seed := func(v *vmdkforge.Stream) { f.Add([]byte(v.Bytes[:headerSize]), []byte(v.Bytes[bodyAt:])) }
	short := bytes.Repeat([]byte("grain "), 2000)[:17*512]
	sparse := make([]byte, 3<<20)
	copy(sparse, "one")
	copy(sparse[5<<19:], "two")
	for _, l := range []vmdkforge.StreamLayout{
		{Grain: 8},
		{Grain: 8, Front: true},
		{Grain: 8, Front: true, Short: true},
		{Grain: 128},
	} {
		seed(vmdkforge.NewStream(short, l))
		seed(vmdkforge.NewStream(sparse, l))
	}
	for _, change := range []func(v *vmdkforge.Stream){
		func(v *vmdkforge.Stream) { v.U64(vmdkforge.Capacity, 1<<37) },
		func(v *vmdkforge.Stream) { v.U64(v.Footer+512+vmdkforge.GDOffset, 22) },
		func(v *vmdkforge.Stream) { v.U32(v.Grains[0]+8, 1<<32-1) },
		func(v *vmdkforge.Stream) { v.U64(v.Grains[1], 0) },
		func(v *vmdkforge.Stream) { v.U32(v.Tables[0]+12, 7) },
		func(v *vmdkforge.Stream) { v.Bytes = v.Bytes[:v.Footer] },
		func(v *vmdkforge.Stream) { v.Bytes = append(v.Bytes, make([]byte, 512)...) },
	} {
		v := vmdkforge.NewStream(short, vmdkforge.StreamLayout{Grain: 8})
		change(v)
		seed(v)
	}
	for _, b := range disktest.Seeds(f, 64<<10, "vmdk-rs/streamOptimized.vmdk.xz") {
		f.Add(b[:headerSize], b[bodyAt:])
	}
	f.Fuzz(func(t *testing.T, header, body []byte) {
		v := vmdkforge.Sparse{Bytes: make(forge.Bytes, bodyAt+len(body)), Descriptor: 512}
		v.Put(bodyAt, body)
		v.Put(0, header[:min(len(header), 512)])
		var h sparseHeader
		_, err := ondisk.Decode(disktest.NewMemFile("disk.vmdk", v.Bytes, 512), 0, &h)
		require.NoError(t, err)
		v.SetDescriptor(vmdkforge.Descriptor(h.subformat(), fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, h.Capacity)))
		spent := disktest.Spent()
		file := disktest.NewMemFile("disk.vmdk", v.Bytes, int64(len(v.Bytes)))
		openFuzzed(t, file)
		require.Less(t, spent(), disktest.Slowest)
	})
}
