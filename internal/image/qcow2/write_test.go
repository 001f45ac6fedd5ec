package qcow2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// sheet is a file of pieces, as large as one likes.
type sheet map[int64][]byte

func (s sheet) WriteAt(p []byte, off int64) (int, error) {
	s[off] = bytes.Clone(p)
	return len(p), nil
}
func (s sheet) Truncate(int64) error { return nil }
func (s sheet) Sync() error          { return nil }

// noiseOf returns n incompressible bytes.
func noiseOf(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never returns an error
	return b
}

// QEMU inflates with a window of 4 KiB, so there must be no references beyond it.
func TestPackedClustersKeepTheWindow(t *testing.T) {
	p := &packedTarget{target: newTarget(nil, 1<<20, 16, 3)}
	near := bytes.Repeat(noiseOf(3000), 20)
	packed, err := p.Pack(near, 0)
	require.NoError(t, err)
	require.Less(t, len(packed), 8000)
	far := bytes.Repeat(noiseOf(5000), 13)
	packed, err = p.Pack(far, 0)
	require.NoError(t, err)
	require.Len(t, packed, 1<<16, "stored plainly, and as a whole")
	require.Equal(t, far, packed[:len(far)])
}

// Compressed clusters of any length, with jumps that need L2 tables, over several refcount blocks: no two share a byte,
// and all refcounts are right.
func TestPackedPlacesAreDisjoint(t *testing.T) {
	for seed := range uint64(9) {
		f := sheet{}
		p := &packedTarget{target: newTarget(f, 1<<40, 12, 3)}
		rnd := rand.New(rand.NewPCG(seed, 1))
		sizes := map[int64]int64{}
		jump := []int64{1, 100, 700}[seed%3]
		for guest := int64(0); p.next < 3*p.perBlock(); guest += 1 + rnd.Int64N(jump) {
			sizes[guest] = 1 + rnd.Int64N(4096)
			require.NoError(t, p.Reserve(guest*4096, sizes[guest]))
		}
		require.NoError(t, p.Finish())
		data := make([]byte, p.next*4096)
		for off, b := range f {
			copy(data[off:], b)
		}
		img, err := open(folder(disktest.NewMemFile("disk.qcow2", data, p.next*4096)))
		require.NoError(t, err)
		issues, err := img.Check()
		require.NoError(t, err)
		require.Empty(t, issues)

		// Where the clusters are stored.
		used := map[int64]int64{}
		for guest, n := range sizes {
			l2 := binary.BigEndian.Uint64(data[p.h.l1().Off+8*(guest/p.h.entries()):]) & placeMask
			entry := binary.BigEndian.Uint64(data[ondisk.I64(l2)+8*(guest%p.h.entries()):])
			place := ondisk.I64(entry & placeMask)
			if entry&compressed != 0 {
				place, _ = p.h.packedPlace(entry &^ compressed)
			}
			used[place] = n
		}
		require.Len(t, used, len(sizes))
		end := int64(0)
		for _, place := range slices.Sorted(maps.Keys(used)) {
			require.GreaterOrEqual(t, place, end)
			end = place + used[place]
		}
	}
}

// The refcount table is contiguous, in clusters counted by one refcount block.
func TestRefcountTableDoesNotStraddle(t *testing.T) {
	for _, back := range []int64{0, 1, 2, 3, 5} {
		f := sheet{}
		target := newTarget(f, 1<<40, 12, 3)
		target.block, target.next = 511, 512*target.perBlock()-back
		require.NoError(t, target.Finish())
		table := target.h.refTable()
		first, last := table.Off/4096, table.End()/4096-1
		require.Equal(t, first/target.perBlock(), last/target.perBlock(), "%d clusters left", back)
		require.Equal(t, target.next, last+1)
		entries := f[table.Off]
		for i := range first/target.perBlock() + 1 {
			require.Equal(t, ondisk.U64(max(1, i*target.perBlock())*4096), binary.BigEndian.Uint64(entries[8*i:]))
		}
		counts := f[target.blockPlace(first/target.perBlock())]
		for c := first; c <= last; c++ {
			require.Equal(t, uint16(1), binary.BigEndian.Uint16(counts[2*(c%target.perBlock()):]))
		}
	}
}

// steps is a file that lists its operations, each of which can fail.
type steps struct {
	faults *disktest.Faults
	list   *[]string
}

func (s steps) do(step string) error {
	*s.list = append(*s.list, step)
	return s.faults.Next()
}

func (s steps) WriteAt(p []byte, off int64) (int, error) {
	return len(p), s.do(fmt.Sprintf("write %d at %d", len(p), off))
}
func (s steps) Truncate(size int64) error { return s.do(fmt.Sprintf("truncate to %d", size)) }
func (s steps) Sync() error               { return s.do("sync") }

// Tables are written as soon as they are full. Each of these writes can fail, and the header follows all of them.
func TestWritesOfTables(t *testing.T) {
	const bits, cluster = 9, 512
	for _, n := range []int64{cluster, cluster - 100} { // stored plainly, and packed
		var list []string
		disktest.EveryFault(t, "write", func(faults *disktest.Faults) error {
			list = nil
			p := &packedTarget{target: newTarget(steps{faults, &list}, 1<<20, bits, 3)}
			for off := int64(0); off < 1<<20; off += cluster {
				if err := p.Reserve(off, n); err != nil {
					return err
				}
			}
			if err := p.Finish(); err != nil {
				return err
			}
			require.Greater(t, p.block, int64(2))
			table := p.h.refTable()
			require.Equal(t, []string{
				fmt.Sprintf("write %d at %d", p.next*cluster-table.Off, table.Off), "sync",
				fmt.Sprintf("write %d at 0", version3Length), "sync",
			}, list[len(list)-4:])
			return nil
		})
		require.Greater(t, len(list), 1<<20/(cluster*cluster/8), "each L2 table, beside refcount blocks")
	}
}

// Offsets of compressed clusters end at 512 TiB.
func TestTheFileEnds(t *testing.T) {
	p := &packedTarget{target: newTarget(sheet{}, 1<<50, 16, 3)}
	p.next = maxFile>>16 - 2 // room for an L2 table and a cluster
	require.NoError(t, p.Reserve(0, 1<<16))
	require.ErrorIs(t, p.Reserve(1<<16, 1<<16), ondisk.ErrLimit)
	require.ErrorIs(t, p.Finish(), ondisk.ErrLimit, "the refcount table has no place")
}

// Clusters grow with the disk, so that the L1 table stays short; a disk that no cluster suffices for is refused.
func TestClusterSizeOfHugeDisks(t *testing.T) {
	for _, tc := range []struct {
		size       int64
		from, want uint32
	}{
		{1 << 30, 9, 12}, {1 << 40, 12, 12}, {1<<40 + 512, 12, 13}, {64 << 40, 9, 15}, {64 << 40, 16, 16}, {
			1 << 50, 16, 17,
		}, {1 << 50, 21, 21},
	} {
		made, err := create(sheet{}, tc.size, driver.Options{Template: &template{clusterBits: tc.from}})
		require.NoError(t, err)
		require.Equal(t, tc.want, made.(*target).h.ClusterBits, "%+v", tc)
	}
	_, err := create(sheet{}, 1<<62, driver.Options{})
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

func TestSizesOfStructures(t *testing.T) {
	require.Equal(t, version3Length, binary.Size(header{}))
	require.Equal(t, snapshotLength, binary.Size(snapshotEntry{}))
	require.Equal(t, 24, binary.Size(bitmapEntry{}))
	require.Equal(t, 24, binary.Size(bitmapsExtension{}))
}
