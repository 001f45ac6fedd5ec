package align_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// No other of the 128 offsets puts more data on blocks of 4 KiB, or as many on 4 KiB and more on 64 KiB.
func TestOffsetIsTheBest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := &layout.Layout{Table: &table.Table{}}
		for range rapid.IntRange(1, 6).Draw(t, "partitions") {
			p := at(rapid.Int64Range(1, 1<<20).Draw(t, "lba"), 0x83, vol(volume.Ext4, 4096, 0))
			p.Len = rapid.Int64Range(1, 5).Draw(t, "size") << 30
			l.Partitions = append(l.Partitions, p)
		}
		on := func(offset, block int64) (n int64) {
			for _, p := range l.Partitions {
				if (offset+p.Off)%block == 0 {
					n += p.Len
				}
			}
			return n
		}
		offset := align.OffsetFor(l, 512)
		for other := int64(0); other < 64<<10; other += 512 {
			small, large := on(offset, 4096)-on(other, 4096), on(offset, 64<<10)-on(other, 64<<10)
			if small < 0 || small == 0 && (large < 0 || large == 0 && other < offset) {
				t.Fatalf("offset %d, and %d is better", offset, other)
			}
		}
	})
}

// The data count, and not the start; a disk with sectors of 4 KiB keeps them.
func TestOffsetForData(t *testing.T) {
	t.Parallel()
	fat := at(63, 0x0c, vol(volume.FAT32, 4096, 37*512))
	l := &layout.Layout{Table: &table.Table{}, Partitions: []boot.Partition{fat}}
	require.Equal(t, int64((128-63-37)*512), align.OffsetFor(l, 512))
	l.Partitions[0] = at(64, 0x83, vol(volume.Ext4, 4096, 0))
	require.Equal(t, int64(32<<10), align.OffsetFor(l, 4096))
	slices := volume.Volume{Kind: volume.Disklabel, Parts: []volume.Part{
		{Start: 63 * 512, Size: 15 * mib}, {Start: 40001 * 512, Size: 20 * mib},
	}}
	l = &layout.Layout{Size: 64 * mib, Volume: &slices}
	offset := align.OffsetFor(l, 512)
	require.Equal(t, int64(63*512), offset, "the larger slice decides")
	places := align.Placings(l, offset)
	require.Equal(t, []align.Verdict{align.Misaligned, align.Aligned}, []align.Verdict{places[0].Is, places[1].Is})
	require.Equal(t, []align.Verdict{align.Misaligned, align.Misaligned}, []align.Verdict{places[0].Was, places[1].Was})
	whole := volume.Volume{Kind: volume.Disklabel, Parts: []volume.Part{{Start: 63 * 512, Size: 1 << 20}}}
	require.Equal(t, int64(65*512), align.OffsetFor(&layout.Layout{Size: 1 << 30, Volume: &whole}, 512))
}

// The place in the file decides if all parts of a partition are shifted alike, but for whole MiB.
func TestPlacesInFiles(t *testing.T) {
	t.Parallel()
	f, g := &file{}, &file{}
	piece := func(f *file, off, length, at int64) disk.Piece {
		return disk.Piece{Range: disk.Range{Off: off, Len: length}, Src: f, At: at}
	}
	for _, c := range []struct {
		name          string
		pieces        []disk.Piece
		even          bool
		shift, inFile int64
		verdict       align.Verdict
	}{
		{"from byte 0", []disk.Piece{piece(f, 0, 64*mib, 0)}, false, 0, 32256, align.Misaligned},
		{"behind a offset", []disk.Piece{piece(f, 0, 64*mib, 33280)}, false, 33280, 65536, align.Aligned},
		{
			"behind some MiB",
			[]disk.Piece{piece(f, 0, 64*mib, 3*mib+33280)},
			false, 3*mib + 33280, 3*mib + 65536, align.Aligned,
		},
		{
			"two files, alike",
			[]disk.Piece{piece(f, 0, 8*mib, 33280), piece(g, 8*mib, 56*mib, 33280)},
			false, 33280,
			65536, align.Aligned,
		},
		{
			"two files, otherwise",
			[]disk.Piece{piece(f, 0, 8*mib, 33280), piece(g, 8*mib, 56*mib, 512)},
			false, 0,
			65536, align.Misaligned,
		},
		{
			"before its place",
			[]disk.Piece{piece(f, 32256, 63*mib, 28672)},
			false, mib - 3584, 28672,
			align.BelowBoundary,
		},
		{"blocks of a VHDX", []disk.Piece{piece(f, 0, 64*mib, 4*mib)}, true, 0, 4*mib + 32256, align.Misaligned},
	} {
		t.Run(c.name, func(t *testing.T) {
			part := at(63, 7, vol(volume.NTFS, 4096, 0))
			part.Len = 32 * mib
			l := &layout.Layout{Table: &table.Table{}, Partitions: []boot.Partition{part}}
			seen, err := align.InFiles(disk.New(64*mib, 512, disk.Pieces(64*mib, c.pieces, nil)), l, c.even)
			require.NoError(t, err)
			p := seen.Partitions[0]
			require.Equal(t, []int64{c.shift, c.inFile}, []int64{p.Shift, p.InFile})
			require.Equal(t, c.verdict, align.Overall(seen, align.DefaultBoundary))
			goal := align.Goal{Must: align.DefaultBoundary, Want: align.Kept}
			require.True(t, goal.Moves(p), "a copy begins with its disk")
			require.Zero(t, l.Partitions[0].Shift)
		})
	}
}
