package volume

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// addPools adds containers. What has a checksum gets no further by mutation: the texts of LVM, LUKS2 and ZFS have targets of
// their own.
func addPools(f *testing.F) {
	f.Helper()
	const size = 128 << 10
	for _, put := range []func(disktest.Forged){
		func(v disktest.Forged) { v.PutLVM(disktest.LVMText, 512) },
		func(v disktest.Forged) { v.PutMD1("1.1", 64) },
		func(v disktest.Forged) { v.PutMD1("1.2", 64) },
		func(v disktest.Forged) { v.PutBcache(16) },
		func(v disktest.Forged) { v.PutLUKS1(64, 1000) },
		func(v disktest.Forged) {
			v.Text(0, "\xeb\x58\x90-FVE-FS-")
			v.U64(disktest.FVEBlocks, 512)
			v.Text(512, "-FVE-FS-\x70\x00\x02")
		},
		func(v disktest.Forged) {
			v.Text(4086, "SWAPSPACE2")
			v.U32(1024, 1)
			v.U32(1028, 31)
		},
	} {
		v := make(disktest.Forged, size)
		put(v)
		f.Add([]byte(v[:seedBytes]), uint32(size/512))
	}
}

// FuzzLVMText reads anything as the text of a volume group.
func FuzzLVMText(f *testing.F) {
	f.Add([]byte(disktest.LVMText))
	f.Add([]byte(`g { extent_size = 1 a = ["x", 2, "y\"z"] # comment`))
	f.Fuzz(func(t *testing.T, text []byte) {
		g, err := parseGroup(text)
		if err != nil {
			require.True(t, isBroken(err), "%v", err)
			return
		}
		p := &physicalVolume{d: disktest.ShortDisk(nil, 1<<30), uuid: disktest.LVMID, v: &Volume{DataStart: 4096}}
		g.describe(p)
		for _, part := range p.v.Parts {
			require.GreaterOrEqual(t, part.Size, int64(0))
			require.True(t, part.Start == -1 || (part.Start >= 4096 && part.Start+part.Size <= 1<<30))
		}
	})
}

// FuzzPackedTexts reads anything as the list of a ZFS label, and as the JSON of a LUKS2 header.
func FuzzPackedTexts(f *testing.F) {
	zfs := make(disktest.Forged, 1<<20)
	zfs.PutZFS()
	f.Add([]byte(zfs[disktest.ZFSList:][:512]))
	f.Add([]byte(disktest.LUKS2Text("16777216", "1000")))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := disktest.ShortDisk(append(make([]byte, disktest.ZFSList), data...), 1<<30)
		v, err := readZFS(d, 0)
		require.True(t, err == nil && v.DataStart == zfsDataStart || isBroken(err) || isNoMatch(err), "%v", err)
		start, err := luks2Payload(data)
		require.True(t, err == nil || isBroken(err), "%v", err)
		require.GreaterOrEqual(t, start, int64(0))
	})
}
