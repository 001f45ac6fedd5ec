package firmware_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/firmware"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// limineCode is what the boot sector of Limine 4 to 8 has in common.
var limineCode = boottest.Code("68007007bfa87d668b05668b6d0431db6631c98b4dfce8", "668b4508668b6d0c01cb8b4dfee8",
	"60be0080c7041000c744020100895c048c44065256665066 55b448be1080c7041e00cd1372458b6c18",
	"66f7f56689440866c7440c000000005ab442f8cd1372 13016c04")

// putLimine writes Limine into sector 0, with the lengths and places of both halves of its stage 2, in bytes.
func putLimine(f forge.Bytes, sizes [2]uint16, places [2]uint64) {
	f.Put(0, limineCode)
	for i := range int64(2) {
		f.U16(0x1a4+2*i, sizes[i])
		f.U64(0x1a8+8*i, places[i])
	}
}

// Limine's stage 2 follows the partition in which it lies, keeps its place outside of all, and is refused otherwise.
func TestLimine(t *testing.T) {
	const half = "Limine in sector 0 loads half "
	for name, tc := range map[string]struct {
		sizes  [2]uint16
		places [2]uint64
		texts  []string
		refs   []int64 // places of fields that follow
		fixed  []disk.Range
		wrong  int // halves that are refused
	}{
		"in the gap": {
			sizes: [2]uint16{1024, 700}, places: [2]uint64{512, 1536},
			texts: []string{
				half + "1 of its stage 2 (1024 bytes) from byte 512 of the disk, outside of all partitions",
				half + "2 of its stage 2 (700 bytes) from byte 1536 of the disk, outside of all partitions",
			},
			fixed: []disk.Range{{Off: 512, Len: 1024}, {Off: 1536, Len: 1024}},
		},
		"in a partition and behind all": {
			sizes: [2]uint16{512, 512}, places: [2]uint64{100 * 512, 7999 * 512},
			texts: []string{
				"stage 2 of Limine lies in partition 1",
				half + "1 of its stage 2 (512 bytes) from byte 51200 of the disk, inside partition 1",
				half + "2 of its stage 2 (512 bytes) from byte 4095488 of the disk, outside of all partitions",
			},
			refs: []int64{0x1a8}, fixed: []disk.Range{{Off: 7999 * 512, Len: 512}},
		},
		"over an end, and none": {
			sizes: [2]uint16{1024, 0}, places: [2]uint64{62 * 512, 512},
			texts: []string{
				half + "1 of its stage 2 (1024 bytes) from byte 31744 of the disk, only partly inside a partition",
				half + "2 of its stage 2 (0 bytes) from byte 512 of the disk, which is not a valid place for it",
			},
			wrong: 2,
		},
		"behind the disk, and between sectors": {
			sizes: [2]uint16{513, 512}, places: [2]uint64{7999 * 512, 1000},
			texts: []string{
				half + "1 of its stage 2 (513 bytes) from byte 4095488 of the disk, which is not a valid place for it",
				half + "2 of its stage 2 (512 bytes) from byte 1000 of the disk, which is not a valid place for it",
			},
			wrong: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(8000, tableforge.Slot{Type: 0xda, Flag: 0x80, Start: 63, Sectors: 4000})
			putLimine(f, tc.sizes, tc.places)
			r := boottest.Read(t, f)
			require.Equal(t, firmware.Limine, r.Code)
			require.Equal(t, tc.texts, boottest.Texts(r.Chain))
			var refs []int64
			require.Len(t, r.Refs, 2)
			for _, x := range r.Refs {
				if !x.Follows() {
					require.Zero(t, x.Target)
					require.NotEmpty(t, x.Stays)
					continue
				}
				require.Equal(t, 1, x.Target)
				b, err := x.Encode(x.Raw, 1<<20)
				require.NoError(t, err)
				require.Equal(t, binary.LittleEndian.AppendUint64(nil, 1<<20), b)
				refs = append(refs, x.Off)
			}
			require.Equal(t, tc.refs, refs)
			var fixed []disk.Range
			for _, x := range r.Fixed {
				require.Equal(t, ondisk.Unbootable, x.Issue.Effect)
				fixed = append(fixed, x.Range)
			}
			require.Equal(t, tc.fixed, fixed)
			require.Len(t, boottest.Issues(r, "limine"), tc.wrong)
		})
	}
}

// Whatever the fields say, each half is rewritten within one partition, or must stay outside of all, or is refused.
func FuzzLimine(f *testing.F) {
	blank := tableforge.NewMBR(512, tableforge.Slot{Type: 0x83, Flag: 0x80, Start: 63, Sectors: 200},
		tableforge.Slot{Type: 0x83, Start: 300, Sectors: 100})
	tab, err := table.Read(boottest.Disk(blank))
	require.NoError(f, err)
	var parts []boot.Partition
	for _, p := range tab.Partitions {
		parts = append(parts, boot.Partition{Partition: p, Volume: &volume.Volume{Kind: volume.Unknown}})
	}
	f.Add(uint16(512), uint16(512), uint64(512), uint64(64*512))
	f.Add(uint16(65535), uint16(0), uint64(1<<63), uint64(511*512))
	f.Fuzz(func(t *testing.T, size1, size2 uint16, place1, place2 uint64) {
		image := bytes.Clone(blank)
		putLimine(image, [2]uint16{size1, size2}, [2]uint64{place1, place2})
		d := boottest.Disk(image)
		g := boottest.Guest(d, &table.Table{BootCode: image[:440]}, parts)
		r := boottest.ReadGuest(t, g)
		require.Len(t, r.Refs, 2)
		follow := 0
		for _, x := range r.Refs {
			if !x.Follows() {
				continue
			}
			follow++
			p, ok := g.Holding(x.Points, 1)
			require.True(t, ok)
			require.Equal(t, p.Number, x.Target)
			same, err := x.Encode(x.Raw, x.Points)
			require.NoError(t, err)
			require.Equal(t, x.Raw, same)
		}
		require.Equal(t, 2, follow+len(r.Fixed)+len(boottest.Issues(r, "limine")))
		for _, x := range r.Fixed {
			require.Positive(t, x.Len)
			require.GreaterOrEqual(t, x.Off, int64(512))
			require.LessOrEqual(t, x.End(), d.Size())
			for _, p := range parts {
				require.False(t, p.Overlaps(x.Range))
			}
		}
	})
}
