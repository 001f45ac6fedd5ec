package identify

import (
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
)

// addPools adds containers. What has a checksum gets no further by mutation: the texts of LVM, LUKS2 and ZFS have
// targets of their own.
func addPools(f *testing.F) {
	f.Helper()
	const size = 128 << 10
	for _, put := range []func(forge.Bytes){
		func(v forge.Bytes) { poolforge.PutLVM(v, poolforge.LVMText, 512) },
		func(v forge.Bytes) { poolforge.PutMD1(v, "1.1", 64) },
		func(v forge.Bytes) { poolforge.PutMD1(v, "1.2", 64) },
		func(v forge.Bytes) { poolforge.PutBcache(v, 16) },
		func(v forge.Bytes) { poolforge.PutLUKS1(v, 64, 1000) },
		func(v forge.Bytes) {
			v.Text(0, "\xeb\x58\x90-FVE-FS-")
			v.U64(poolforge.FVEBlocks, 512)
			v.Text(512, "-FVE-FS-\x70\x00\x02")
		},
		func(v forge.Bytes) {
			v.Text(4086, "SWAPSPACE2")
			v.U32(1024, 1)
			v.U32(1028, 31)
		},
	} {
		v := make(forge.Bytes, size)
		put(v)
		f.Add([]byte(v[:seedBytes]), uint32(size/512))
	}
}
