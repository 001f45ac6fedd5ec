package volume

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// FuzzLVMText reads anything as the text of a volume group.
func FuzzLVMText(f *testing.F) {
	f.Add([]byte(poolforge.LVMText))
	f.Add([]byte(`g { extent_size = 1 a = ["x", 2, "y\"z"] # comment`))
	f.Fuzz(func(t *testing.T, text []byte) {
		p := &physicalVolume{
			d: disktest.ShortDisk(nil, 1<<30), uuid: poolforge.LVMID,
			v: &Volume{DataStart: 4096},
		}
		if err := p.describe(text); err != nil {
			require.True(t, isBroken(err), "%v", err)
			return
		}
		for _, part := range p.v.Parts {
			require.GreaterOrEqual(t, part.Size, int64(0))
			require.True(t, part.Start == -1 || (part.Start >= 4096 && part.Start+part.Size <= 1<<30))
		}
	})
}

// FuzzPackedTexts reads anything as the list of a ZFS label, and as the JSON of a LUKS2 header.
func FuzzPackedTexts(f *testing.F) {
	zfs := make(forge.Bytes, 1<<20)
	poolforge.PutZFS(zfs)
	f.Add([]byte(zfs[poolforge.ZFSList:][:512]))
	f.Add([]byte(poolforge.LUKS2Text("16777216", "1000")))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := disktest.ShortDisk(append(make([]byte, poolforge.ZFSList), data...), 1<<30)
		v, err := readZFS(d, 0)
		require.True(t, err == nil && v.DataStart == zfsDataStart || isBroken(err) ||
			errors.Is(err, ondisk.ErrNoMatch), "%v", err)
		first, err := payloadOf(data)
		require.True(t, err == nil || isBroken(err), "%v", err)
		require.GreaterOrEqual(t, first.Off, int64(0))
		require.GreaterOrEqual(t, first.End(), first.Off)
	})
}

// FuzzBitLocker reads anything as the metadata of a BitLocker volume, with a checksum that is right.
func FuzzBitLocker(f *testing.F) {
	const at, size = 4096, 64 << 10
	forged := make(forge.Bytes, 2<<20)
	poolforge.PutBitLocker(forged, "PC D: 01/02/2020", 0x2000, 0x0100)
	forged.U64(poolforge.FVEBlocks, at)
	f.Add([]byte(forged[:512]), []byte(forged[poolforge.FVEBlock:][:400]))
	f.Fuzz(func(t *testing.T, sector, block []byte) {
		v := make(forge.Bytes, size)
		v.Put(0, sector[:min(len(sector), 512)])
		b := v[at:]
		b.Put(0, block)
		if length := 16 * int(binary.LittleEndian.Uint16(b[8:])); length+8 <= len(b) {
			poolforge.SealFVE(b)
		}
		got, err := probeBitLocker(disktest.ShortDisk(v, int64(len(v))))
		if err != nil {
			require.ErrorIs(t, err, ondisk.ErrNoMatch)
			return
		}
		require.LessOrEqual(t, len(got.Label), fveMaxLabel)
		known := slices.ContainsFunc(got.Details, func(d Detail) bool { return d.Name == "opened by" })
		require.True(t, known || len(got.Issues) == 1, "a volume of data without a protector")
	})
}
