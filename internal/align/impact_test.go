package align_test

import (
	"math/big"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

func partitionAt(off int64, v volume.Volume) boot.Partition {
	return boot.Partition{
		Partition: table.Partition{Range: disk.Range{Off: off, Len: 1 << 30}, Number: 1, Kind: table.Primary}, Volume: &v,
	}
}

func storage(t require.TestingT, name string) align.Storage {
	s, err := align.ParseStorage(name)
	require.NoError(t, err)
	return s
}

// simulate counts the blocks that each I/O touches, one after the other, until the starts repeat.
func simulate(first, n, step, block int64) *big.Rat {
	count, ios := int64(0), int64(0)
	for start := first; ios == 0 || (start-first)%block != 0; start += step {
		for b := start / block; b*block < start+n; b++ {
			count++
		}
		ios++
	}
	return big.NewRat(count, ios)
}

func TestImpactEqualsASimulation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := storage(t, rapid.SampledFrom(align.StorageNames()).Draw(t, "storage"))
		v := volume.Volume{
			BlockSize: rapid.SampledFrom([]int64{512, 1024, 2048, 4096, 8192, 32768, 65536, 1 << 20, 12288, 3 * 512}).Draw(t,
				"block"),
			DataStart: 512 * rapid.Int64Range(0, 5000).Draw(t, "data"),
		}
		p := partitionAt(512*rapid.Int64Range(0, 1<<33).Draw(t, "start"), v)
		i := align.ImpactOf(p, s)
		for _, got := range i.Table() {
			step := min(v.BlockSize, got.Size)
			for name, x := range map[string]struct {
				first, step int64
				got         *big.Rat
			}{
				"random, now":         {p.Off + v.DataStart, step, got.Random.Now()},
				"random, aligned":     {v.DataStart, step, got.Random.Aligned()},
				"sequential, now":     {p.Off + v.DataStart, got.Size, got.Sequential.Now()},
				"sequential, aligned": {v.DataStart, got.Size, got.Sequential.Aligned()},
			} {
				want := simulate(x.first, got.Size, x.step, s.Block)
				require.Zero(t, want.Cmp(x.got), "%s of %d bytes: %s, want %s", name, got.Size, x.got, want)
			}
		}
	})
}

// What makers of storage and of systems have published.
func TestImpactOfPublishedExamples(t *testing.T) {
	for _, tc := range []struct {
		name                    string
		lba, block              int64
		storage                 string
		io                      int64
		random, sequential      string
		randomThen, sequentThen string
	}{
		{
			"virt-alignment-scan(1): each 4K guest block at sector 63 needs two of the host", 63, 4096, "4K", 4096, "2", "2",
			"1", "1",
		},
		{"NetApp TR-3747: the same on WAFL", 63, 4096, "netapp", 4096, "2", "2", "1", "1"},
		{
			"Microsoft, SQL Server: 31.5 KiB on stripe units of 64 KiB, every 64 KiB extent lies on two disks", 63, 65536, "64K",
			65536, "2", "2", "1", "1",
		},
		{"the same with pages of 8 KiB: every eighth", 63, 8192, "64K", 8192, "9/8", "9/8", "1", "1"},
		{
			"StorView manual: 64 KiB from LBA 0x70 on chunks of 64 KiB use two drives", 0x70, 65536, "64K", 65536, "2", "2", "1",
			"1",
		},
		{
			"EMC CLARiiON: 4 KiB clusters at 63 cross an element once in sixteen", 63, 4096, "clariion", 4096, "17/16", "17/16",
			"1", "1",
		},
		{"Pure Storage: alignment is no issue", 63, 4096, "flasharray", 4096, "8", "8", "8", "8"},
		{"LBA 2048 is on everything", 2048, 4096, "128K", 131072, "63/32", "1", "63/32", "1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := align.ImpactOf(partitionAt(tc.lba*512, volume.Volume{BlockSize: tc.block}), storage(t, tc.storage)).Of(tc.io)
			assert.Equal(t, []string{tc.random, tc.sequential, tc.randomThen, tc.sequentThen}, []string{
				got.Random.Now().RatString(), got.Sequential.Now().RatString(), got.Random.Aligned().RatString(),
				got.Sequential.Aligned().RatString(),
			})
		})
	}
}

// No start is better than one on a block of the storage, for data that begin with the partition; 512-byte blocks do not
// mind.
func TestAlignedIsNeverWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := partitionAt(512*rapid.Int64Range(0, 1<<33).Draw(t, "start"),
			volume.Volume{BlockSize: 512 << rapid.IntRange(0, 8).Draw(t, "shift")})
		s := storage(t, rapid.SampledFrom(align.StorageNames()).Draw(t, "storage"))
		i := align.ImpactOf(p, s)
		for _, x := range i.Table() {
			require.GreaterOrEqual(t, x.Random.Now().Cmp(x.Random.Aligned()), 0)
			require.GreaterOrEqual(t, x.Sequential.Now().Cmp(x.Sequential.Aligned()), 0)
			require.False(t, (s.Block == 512 || p.Off%s.Block == 0) && (x.Random.Worse() || x.Sequential.Worse()))
		}
		require.Equal(t, p.Off%s.Block == 0, i.Text() == "", i.Text())
	})
}

func TestImpactInWords(t *testing.T) {
	for _, tc := range []struct {
		name, storage string
		lba           int64
		v             volume.Volume
		want          string
	}{
		{
			"clusters of the storage's size", "4K", 63,
			volume.Volume{Kind: volume.NTFS, BlockSize: 4096},
			"each 4 KiB cluster touches two 4 KiB blocks of the storage instead of one",
		},
		{
			"larger clusters", "4K", 63,
			volume.Volume{Kind: volume.FAT16, BlockSize: 32768},
			"each 32 KiB cluster touches 9 blocks of 4 KiB of the storage instead of 8",
		},
		{
			"smaller blocks", "64K", 63,
			volume.Volume{Kind: volume.Ext3, BlockSize: 4096},
			"one 4 KiB block in 16 lies across two 64 KiB blocks of the storage instead of in one, and each of a stream of 64 " +
				"KiB I/Os touches two",
		},
		{
			"smaller clusters behind tables", "64K", 63,
			volume.Volume{Kind: volume.FAT32, BlockSize: 4096, DataStart: 4096},
			"one 4 KiB cluster in 16 lies across two 64 KiB blocks of the storage instead of in one",
		},
		{
			"clusters in order, the storage's blocks not", "64K", 64,
			volume.Volume{Kind: volume.NTFS, BlockSize: 4096},
			"each of a stream of 64 KiB I/Os touches two 64 KiB blocks of the storage instead of one",
		},
		{
			"content that is not known", "4K", 63,
			volume.Volume{Kind: volume.Unknown},
			"each 4 KiB block (a size that is assumed: the content names none) touches two",
		},
		{
			"odd blocks", "4K", 63,
			volume.Volume{Kind: volume.MDRaid, BlockSize: 12288},
			"each 12 KiB block touches 4 blocks of 4 KiB of the storage instead of 3",
		},
		{
			"odd blocks, smaller", "4K", 63,
			volume.Volume{Kind: volume.MDRaid, BlockSize: 1536, DataStart: 1024},
			"random I/O of 1 KiB touches 1.25 blocks of 4 KiB of the storage on average instead of 1",
		},
		{"by luck in order", "4K", 63, volume.Volume{Kind: volume.FAT32, BlockSize: 4096, DataStart: 512 * 9}, ""},
		{"nothing to gain", "512", 63, volume.Volume{Kind: volume.NTFS, BlockSize: 4096}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := align.ImpactOf(partitionAt(tc.lba*512, tc.v), storage(t, tc.storage)).Text()
			if tc.want == "" {
				require.Empty(t, got)
			} else {
				require.Contains(t, got, tc.want)
			}
		})
	}
}

// What a broken volume says about itself makes no nonsense of the numbers.
func TestImpactOfNonsense(t *testing.T) {
	p := partitionAt(63*512, volume.Volume{BlockSize: -1, DataStart: 1 << 62})
	i := align.ImpactOf(p, align.Generic())
	require.True(t, i.Assumed)
	require.EqualValues(t, 4096, i.Block)
	require.Equal(t, p.Off, i.Data)
}

func TestStorages(t *testing.T) {
	sizes := map[string]int64{
		"generic": 4096, "netapp": 4096, "clariion": 65536, "3par": 16384, "hp-raid5": 65536, "flasharray": 512,
		"vmfs": 65536,
		"512":  512, "4K": 4096, "8K": 8192, "16K": 16384, "32K": 32768, "64K": 65536, "128K": 131072,
	}
	require.Len(t, align.StorageNames(), len(sizes))
	for _, name := range align.StorageNames() {
		s := storage(t, name)
		require.Equal(t, sizes[name], s.Block, name)
		require.NotEmpty(t, s.About)
		require.NotEmpty(t, s.Source)
	}
	require.Equal(t, storage(t, "netapp"), storage(t, "NetApp"))
	require.Equal(t, storage(t, "64K"), storage(t, "65536"))
	for _, bad := range []string{"", "1M", "2K", "3K", "-4K", "emc", "4096K", "\x1b[2J"} {
		_, err := align.ParseStorage(bad)
		require.ErrorContains(t, err,
			"want one of generic, netapp, clariion, 3par, hp-raid5, flasharray, vmfs, 512, 4K, 8K, 16K, 32K, 64K, 128K", bad)
	}
}
