package align_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// vol returns a volume with this block size, whose data start at a byte.
func vol(kind volume.Kind, block, start int64) volume.Volume {
	return volume.Volume{Kind: kind, BlockSize: block, DataStart: start}
}

// at returns an MBR partition of 1 GiB that starts at an LBA.
func at(lba int64, kind byte, v volume.Volume) boot.Partition {
	return boot.Partition{Volume: &v, Partition: table.Partition{
		Range: disk.Range{Off: lba * 512, Len: 1 << 30}, Number: 1, Kind: table.Primary, Type: kind,
	}}
}

// entry returns a GPT partition of 1 GiB that starts at LBA 34.
func entry(guid string, kind volume.Kind) boot.Partition {
	return boot.Partition{Volume: new(vol(kind, 0, 0)), Partition: table.Partition{
		Range: disk.Range{Off: 34 * 512, Len: 1 << 30}, Number: 1, Kind: table.Entry, TypeGUID: guid,
	}}
}

// slicesAt returns a BSD label with slices that start at these bytes of their partition.
func slicesAt(starts ...int64) volume.Volume {
	v := volume.Volume{Kind: volume.Disklabel}
	for _, n := range starts {
		v.Parts = append(v.Parts, volume.Part{Name: "a", Start: n, Size: 1 << 20})
	}
	return v
}

// holding returns a container whose data begin at a byte, with a volume there. chunk is of a striped array in bytes.
func holding(kind volume.Kind, start, chunk int64, content volume.Volume) volume.Volume {
	return volume.Volume{Kind: kind, DataStart: start, Chunk: chunk, Holds: true, Content: &content}
}

// slicesWith returns a BSD label whose slices all hold a volume.
func slicesWith(content volume.Volume, starts ...int64) volume.Volume {
	v := slicesAt(starts...)
	for i := range v.Parts {
		v.Parts[i].Content = &content
	}
	return v
}

// Verdicts follow the data of a partition if its start differs from them, and the partition moves if that does not
// worsen their alignment. Offsets are those of mkfs.fat, pvcreate, gpart, Windows and GRUB.
func TestJudgement(t *testing.T) {
	const (
		k   = 1024
		msr = "e3c9e316-0b5c-4db8-817d-f92df00215ae" // PARTITION_MSFT_RESERVED_GUID
		bbp = "21686148-6449-6e6f-744e-656564454649" // "Hah!IdontNeedEFI"
		prp = "9e1a2d38-c612-4316-aa26-8b49521e5a8b" // PReP
		bas = "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7" // PARTITION_BASIC_DATA_GUID
	)
	fat := vol(volume.FAT16, 512, 161*512)
	for _, tc := range []struct {
		name     string
		p        boot.Partition
		boundary int64
		verdict  align.Verdict // empty: not judged
		moves    bool
	}{
		{"NTFS at LBA 63", at(63, 7, vol(volume.NTFS, 4*k, 0)), 64 * k, align.Misaligned, true},
		{"NTFS on 32 KiB", at(64, 7, vol(volume.NTFS, 4*k, 0)), 64 * k, align.BelowBoundary, true},
		{"unknown content", at(63, 7, vol(volume.Unknown, 0, 0)), 64 * k, align.Misaligned, true},
		// mkfs.fat -F 16 -s 1 over 8 MiB: 1 boot sector, two FATs of 64, 32 of the root; 63 + 161 = 224 = 28 * 8.
		{"clusters of 512 bytes on 4 KiB", at(63, 6, fat), 64 * k, align.BelowBoundary, false},
		{"the same by 4 KiB", at(63, 6, fat), 4 * k, align.Aligned, false},
		{"the same by 1 MiB", at(63, 6, fat), 1024 * k, align.BelowBoundary, false},
		// pvcreate --dataalignment 1m --dataalignmentoffset 512 in a partition at LBA 63.
		{
			"LVM with an offset of its data",
			at(63, 0x8e, vol(volume.LVM2, 4096*k, 1024*k+512)), 64 * k,
			align.BelowBoundary, false,
		},
		{"LVM at 1 MiB of LBA 63", at(63, 0x8e, vol(volume.LVM2, 4096*k, 1024*k)), 64 * k, align.Misaligned, true},
		{"LVM on 64 KiB in a partition on 32", at(64, 0x8e, vol(volume.LVM2, 0, 32*k)), 64 * k, align.Aligned, false},
		{"FAT of 4 KiB off both", at(63, 6, vol(volume.FAT16, 4*k, 8*k)), 64 * k, align.Misaligned, true},
		{
			"clusters of 2 KiB on multiples of it, off 4 KiB",
			at(63, 1, vol(volume.FAT12, 2*k, 45*512)), 64 * k,
			align.Misaligned, false,
		},
		{
			"data off a partition on the boundary",
			at(128, 6, vol(volume.FAT16, 4*k, 9*k)), 64 * k,
			align.Aligned, false,
		},
		{
			"data start behind the partition", at(63, 6, vol(volume.FAT16, 0, 1<<40+512)),
			64 * k, align.Misaligned, true,
		},
		// gpart add -a 4k in a slice at LBA 63 puts the file system at its sector 1.
		{"BSD slice on LBA 64", at(63, 0xa5, slicesAt(512)), 64 * k, align.BelowBoundary, false},
		{"BSD slice at the start", at(63, 0xa5, slicesAt(0)), 64 * k, align.Misaligned, true},
		{"one slice loses", at(63, 0xa5, slicesAt(0, 512, 1<<20)), 64 * k, align.Misaligned, false},
		{"as many slices lose", at(63, 0xa5, slicesAt(0, 512)), 64 * k, align.Misaligned, false},

		// Containers: mdadm --metadata=1.0 and 0.90, mkfs.fat as above; make-bcache without --data-offset.
		{"FAT on a mirror", at(63, 0xfd, holding(volume.MDRaid, 0, 0, fat)), 64 * k, align.BelowBoundary, false},
		{
			"LVM on a mirror, extents from sector 2113",
			at(63, 0xfd, holding(volume.MDRaid, 0, 0, vol(volume.LVM2, 0, 2113*512))),
			64 * k, align.Aligned, false,
		},
		{
			"ext on a mirror",
			at(63, 0xfd, holding(volume.MDRaid, 0, 0, vol(volume.Ext4, 4*k, 0))),
			64 * k, align.Misaligned, true,
		},
		{
			"ext behind a cache",
			at(63, 0x83, holding(volume.BCache, 16*512, 0, vol(volume.Ext4, 4*k, 0))),
			64 * k, align.Misaligned, true,
		},
		{
			"ext behind a cache with an offset",
			at(63, 0x83, holding(volume.BCache, 65*512, 0, vol(volume.Ext4, 4*k, 0))),
			64 * k, align.Aligned, false,
		},
		{
			"a cache on a mirror",
			at(63, 0xfd, holding(volume.MDRaid, 0, 0, holding(volume.BCache, 16*512, 0,
				vol(volume.LVM2, 0, 2097*512)))),
			64 * k, align.Aligned, false,
		},
		{
			"stripes of 64 KiB from LBA 128, extents from 960 KiB",
			at(63, 0xfd, holding(volume.MDRaid, 65*512, 64*k, vol(volume.LVM2, 0, 960*k))),
			1024 * k, align.BelowBoundary, false,
		},
		{"FAT in a BSD slice", at(63, 0xa5, slicesWith(fat, 0)), 64 * k, align.BelowBoundary, false},
		{
			"FAT in a BSD slice, beside another that loses nothing", at(63, 0xa5, slicesWith(fat, 0, 1<<20)),
			64 * k, align.BelowBoundary, false,
		},

		{"Microsoft reserved at LBA 34", entry(msr, volume.Unknown), 64 * k, "", false},
		{"BIOS boot at LBA 34", entry(bbp, volume.Unknown), 64 * k, "", false},
		{"PReP of a GPT", entry(prp, volume.Unknown), 64 * k, "", false},
		{"PReP of an MBR", at(63, 0x41, vol(volume.Unknown, 0, 0)), 64 * k, "", false},
		{"a volume in a partition of such a type", entry(msr, volume.NTFS), 64 * k, align.Misaligned, true},
		{"basic data at LBA 34", entry(bas, volume.Unknown), 64 * k, align.Misaligned, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := &layout.Layout{Partitions: []boot.Partition{tc.p}, Table: &table.Table{}}
			j := align.Judge(tc.p, align.BoundaryOf(tc.boundary))
			assert.Equal(t, tc.verdict, j.Verdict)
			assert.Equal(t, tc.verdict == "", j.Unjudged != "")
			assert.Equal(t, tc.verdict != "", align.Judged(tc.p))
			goal := align.Goal{Must: align.BoundaryOf(tc.boundary), Want: align.BoundaryOf(tc.boundary)}
			assert.Equal(t, tc.moves, goal.Moves(tc.p))
			assert.Equal(t, !tc.moves && j.ByStart.Off(), j.Stays != "", j.Stays)
			want := tc.verdict
			if want == "" {
				want = align.NothingToJudge
			}
			assert.Equal(t, want, align.Overall(l, align.BoundaryOf(tc.boundary)))

			_, said := goal.Left(tc.p, false)
			assert.Equal(t, j.Stays != "", said)
			goal.Only = []int{1}
			assert.Equal(t, j.ByStart.Off(), goal.Moves(tc.p),
				"--partition moves what is off the boundary by its start")
			if warning, said := goal.Left(tc.p, true); j.Stays != "" {
				assert.True(t, said)
				assert.Contains(t, []string{"data-worse", "no-gain"}, warning.Code)
			} else {
				assert.False(t, said)
			}
		})
	}
}

// blocksOf counts the blocks that I/Os of size bytes touch, from first on in steps, over one period.
func blocksOf(first, step, size, block int64) (n int64) {
	for i := range block {
		at := first + i*step
		n += (at+size-1)/block - at/block + 1
	}
	return n
}

// A default plan worsens no data: for no I/O does a storage with blocks up to the boundary touch more of them, and
// partitions that stay off the boundary would be touched more often on some storage. The blocks are counted one by one.
func TestNoMovePutsDataWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		boundary := int64(4096) << rapid.IntRange(0, 3).Draw(t, "boundary")
		v := vol(volume.FAT16, 512<<rapid.IntRange(0, 6).Draw(t, "cluster"),
			512*rapid.Int64Range(0, 300).Draw(t, "inside"))
		p := at(rapid.Int64Range(1, 300).Draw(t, "start"), 6, v)
		goal := align.Goal{Must: align.BoundaryOf(boundary), Want: align.BoundaryOf(boundary)}
		better, worse := false, false
		for block := int64(1024); block <= boundary; block *= 2 {
			for size := int64(512); size <= boundary; size *= 2 {
				for _, step := range []int64{size, min(v.BlockSize, size)} {
					now := blocksOf(p.Off+v.DataStart, step, size, block)
					then := blocksOf(v.DataStart, step, size, block)
					better, worse = better || then < now, worse || then > now
				}
			}
		}
		require.False(t, better && worse, "an order of places by a power of two")
		if goal.Moves(p) {
			require.False(t, worse)
		}
		j := align.Judge(p, goal.Must)
		if j.Verdict.Off() && !goal.Moves(p) {
			require.True(t, worse)
		}
		if j.Verdict == align.Aligned && j.ByStart.Off() {
			require.True(t, worse, "only data that a move would put worse excuse a start")
		}
	})
}
