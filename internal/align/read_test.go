package align_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
)

// bytewise counts what Touches counts from the place of each byte of a file: -1 where it is not stored. step is the
// unit of all places.
func bytewise(places []int64, block, step int64) (t align.Touches) {
	for first := 0; first < len(places); first += int(align.SequentialIO / step) {
		last := -2 * block
		for _, at := range places[first:min(len(places), first+int(align.SequentialIO/step))] {
			if at < 0 {
				continue
			}
			if at != last {
				t.Requests++
				t.Blocks += (at+step+block-1)/block - at/block
			} else {
				t.Blocks += (at+step+block-1)/block - (at+block-1)/block
			}
			last = at + step
		}
	}
	return t
}

// Requests and blocks of random files on random maps are what a count of every sector gives.
func TestReadsLikeEverySector(t *testing.T) {
	t.Parallel()
	const sector, sectors = 512, 4096
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 60 {
		f := &file{size: tib}
		host := make([]int64, sectors) // of each sector of the disk
		var runs []disk.Run
		for n := 0; n < sectors; {
			length := min(1+rnd.IntN(300), sectors-n)
			run := disk.Run{Len: int64(length) * sector, Src: f, Off: rnd.Int64N(1<<20) * sector}
			if k := len(runs) - 1; k >= 0 && rnd.IntN(3) == 0 {
				run.Off = runs[k].Off + runs[k].Len
			}
			if rnd.IntN(4) == 0 {
				run.Src = nil
			}
			for i := range length {
				host[n+i] = run.Off + int64(i)*sector
				if run.Src == nil {
					host[n+i] = -1
				}
			}
			runs, n = append(runs, run), n+length
		}
		start := int64(rnd.IntN(100)) // of the volume, sectors
		var now, copied []int64
		var pieces []guestfile.Run
		for range 8 {
			at, n := rnd.Int64N(3000), 1+rnd.Int64N(600)
			pieces = append(pieces, guestfile.Run{Off: int64(len(now)) * sector, Len: n * sector, At: at * sector})
			for i := range n {
				now = append(now, host[start+at+i])
				if host[start+at+i] < 0 {
					copied = append(copied, -1)
				} else {
					copied = append(copied, (at+i)*sector)
				}
			}
		}
		block := int64(512 << rnd.IntN(8))
		offset := rnd.Int64N(100) * sector
		for _, places := range [][]int64{now, copied} {
			for i := range places {
				if places[i] >= 0 { // a block begins at every byte that the offset is behind
					places[i] += 100*block - offset
				}
			}
		}
		got, err := align.NewCost(mapped(runs...), block, offset).Read(start*sector, pieces)
		require.NoError(t, err)
		require.Equal(t, bytewise(now, block, sector), got.Now)
		require.Equal(t, bytewise(copied, block, sector), got.Copied)
	}
}

// The product of both layers: an I/O of 64 KiB that starts at LBA 63 meets two grains, which lie apart.
func TestReadsOfGrainsAtLBA63(t *testing.T) {
	t.Parallel()
	f := &file{size: tib}
	grains := disk.New(64*mib, 512, func(off int64) (disk.Run, error) {
		into := off % (64 * kib)
		return disk.Run{Len: 64*kib - into, Src: f, Off: (1000-off/(64*kib))*64*kib + into}, nil // backwards
	})
	whole := []guestfile.Run{{Len: mib}}
	got, err := align.NewCost(grains, 4*kib, 0).Read(63*512, whole)
	require.NoError(t, err)
	require.Equal(t, &align.Reads{
		IO: 16, Now: align.Touches{Requests: 32, Blocks: 16 * 17}, Copied: align.Touches{
			Requests: 16,
			Blocks:   16 * 16,
		},
	}, got)
	got, err = align.NewCost(grains, 4*kib, 0).Read(mib, whole)
	require.NoError(t, err)
	require.Equal(t, got.Now, got.Copied)
}

func TestReadsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	got, err := align.NewCost(mapped(disk.Run{Len: mib, Src: packed{}}), 4096, 0).Read(0,
		[]guestfile.Run{{Len: mib}})
	require.NoError(t, err)
	require.Nil(t, got, "compressed")
	f := &file{size: tib}
	tiny := disk.New(1<<30, 512, func(off int64) (disk.Run, error) {
		return disk.Run{Len: 512 - off%512, Src: f, Off: (1<<21 - off/512) * 1024}, nil
	})
	c := align.NewCost(tiny, 4096, 0)
	got, err = c.Read(0, []guestfile.Run{{Len: 1 << 30}})
	require.NoError(t, err)
	require.Nil(t, got, "a map that is too long")
	got, err = c.Read(0, nil)
	require.NoError(t, err)
	require.Nil(t, got)
}
