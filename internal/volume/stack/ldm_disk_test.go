package stack

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/ldmforge"
)

// gptDisk is a database behind a sector that leads to it, and the private headers behind that, as in the metadata
// partition of a GPT.
func gptDisk(sectors int64) forge.Bytes {
	database := make(forge.Bytes, 2048*512)
	ldmforge.PutDatabase(database, 0, 1,
		ldmforge.Volume{Name: "A", Kind: ldmforge.Spanned, Copies: [][]ldmforge.Piece{{{Sectors: 1000}}}})
	f := make(forge.Bytes, (sectors+4)*512)
	f.Put(512, database[:sectors*512])
	for _, at := range []int64{0, sectors + 2, sectors + 3} {
		f.Put(at*512, ldmforge.PrivateHead(ldmforge.DiskID(0), 2100, 1000, 1, sectors))
	}
	return f
}

// The private headers of a GPT are those of its metadata partition, and one of them is in its last sector.
func TestHeadsOfADynamicDiskWithGPT(t *testing.T) {
	const sectors, total = 20, 4096 * 512
	metadata := disk.Range{Off: 512, Len: (sectors + 3) * 512}
	for name, c := range map[string]struct {
		change   func(f forge.Bytes)
		metadata disk.Range
		says     string
	}{
		"both":         {func(forge.Bytes) {}, metadata, ""},
		"no last one":  {func(f forge.Bytes) { f.U8((sectors+3)*512, 0) }, metadata, "at 0x2e00: magic"},
		"no other one": {func(f forge.Bytes) { f.U8((sectors+2)*512, 0) }, metadata, "copies 1, want 2 or more"},
		"a partition without the database": {
			func(forge.Bytes) {},
			disk.Range{Off: 1024, Len: metadata.Len - 512},
			"database start 1",
		},
		"a partition of 5 MiB":     {func(forge.Bytes) {}, disk.Range{Off: 512, Len: 5 << 20}, "data size 1000"},
		"a partition over volumes": {func(forge.Bytes) {}, disk.Range{Off: 512, Len: 2100 * 512}, "data size 1000"},
	} {
		f := gptDisk(sectors)
		c.change(f)
		d := disktest.ShortDisk(f, total)
		x, err := ReadLDM(d, []int64{0})
		require.NoError(t, err)
		heads, err := x.Heads(d, c.metadata)
		if c.says != "" {
			require.ErrorContains(t, err, c.says, name)
			continue
		}
		require.NoError(t, err)
		require.Len(t, heads, 2)
		require.Equal(t, int64(sectors+2)*512, heads[0].At)
	}
}
