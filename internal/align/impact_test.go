package align_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// storageNames are named storages, sizes, and both with an offset.
var storageNames = append(align.StorageNames(), "512", "4K", "8K", "32K", "256K", "1M", "4M", "32K+63s", "zvol+512",
	"vmfs+32256")

func storage(t require.TestingT, name string) align.Storage {
	s, err := align.ParseStorage(name)
	require.NoError(t, err)
	return s
}

// simulate counts the blocks that each I/O costs, one after the other, until the starts repeat. On a storage that
// rewrites, a write first reads the blocks that it fills only in part.
func simulate(first, n, step int64, s align.Storage, writes bool) float64 {
	count, ios := int64(0), int64(0)
	first += s.Block - s.Offset
	for start := first; ios == 0 || (start-first)%s.Block != 0; start += step {
		for b := start / s.Block * s.Block; b < start+n; b += s.Block {
			count++
			if full := b >= start && b+s.Block <= start+n; writes && s.Rewrites && !full {
				count++
			}
		}
		ios++
	}
	return float64(count) / float64(ios)
}

func TestImpactEqualsASimulation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := storage(t, rapid.SampledFrom(storageNames).Draw(t, "storage"))
		v := volume.Volume{
			BlockSize: rapid.SampledFrom([]int64{
				512, 1024, 2048, 4096, 8192, 32768, 65536, 1 << 20, 12288,
				3 * 512,
			}).Draw(t, "block"),
			DataStart: 512 * rapid.Int64Range(0, 5000).Draw(t, "data"),
		}
		p := at(rapid.Int64Range(0, 1<<33).Draw(t, "start"), 7, v)
		i := align.ImpactOf(p, s)
		for _, got := range i.Table() {
			random := min(v.BlockSize, got.Size)
			for _, x := range []struct {
				name   string
				step   int64
				writes bool
				got    align.Change
			}{
				{"random reads", random, false, got.Random},
				{"random writes", random, true, got.RandomWrite},
				{"sequential reads", got.Size, false, got.Sequential},
				{"sequential writes", got.Size, true, got.SequentialWrite},
			} {
				now := simulate(p.Off+v.DataStart, got.Size, x.step, s, x.writes)
				require.InDelta(t, now, x.got.Now, 0, "%s of %d", x.name, got.Size)
				then := simulate(v.DataStart, got.Size, x.step, s, x.writes)
				require.InDelta(t, then, x.got.Aligned, 0, "%s of %d, aligned", x.name, got.Size)
			}
		}
	})
}

// Published recommendations of vendors.
func TestImpactOfPublishedExamples(t *testing.T) {
	for _, tc := range []struct {
		name                    string
		lba, block              int64
		storage                 string
		io                      int64
		random, sequential      float64
		randomThen, sequentThen float64
	}{
		{
			"virt-alignment-scan(1): each 4K guest block at sector 63 needs two of the host", 63, 4096, "4K", 4096, 2,
			2, 1, 1,
		},
		{"NetApp TR-3747: the same on WAFL", 63, 4096, "netapp", 4096, 2, 2, 1, 1},
		{
			"Microsoft, SQL Server: 31.5 KiB on stripe units of 64 KiB, every 64 KiB extent lies on two disks", 63,
			65536, "64K", 65536, 2, 2, 1, 1,
		},
		{"the same with pages of 8 KiB: every eighth", 63, 8192, "64K", 8192, 9.0 / 8, 9.0 / 8, 1, 1},
		{
			"StorView manual: 64 KiB from LBA 0x70 on chunks of 64 KiB use two drives", 0x70, 65536, "64K", 65536, 2,
			2, 1, 1,
		},
		{
			"EMC CLARiiON: clusters of 4 KiB at 63 cross an element 1 in 16", 63, 4096, "clariion", 4096, 17.0 / 16,
			17.0 / 16, 1, 1,
		},
		{"Pure Storage: alignment is no issue", 63, 4096, "flasharray", 4096, 8, 8, 8, 8},
		{"LBA 2048 is on everything", 2048, 4096, "128K", 131072, 63.0 / 32, 1, 63.0 / 32, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := align.ImpactOf(at(tc.lba, 7, volume.Volume{BlockSize: tc.block}),
				storage(t, tc.storage)).Touched(tc.io)
			assert.Equal(t, []float64{tc.random, tc.sequential, tc.randomThen, tc.sequentThen}, []float64{
				got.Random.Now, got.Sequential.Now, got.Random.Aligned, got.Sequential.Aligned,
			})
		})
	}
}

// No start is better than one on a block of the storage, for data that begin with the partition; 512-byte blocks do not
// matter.
func TestAlignedIsNeverWorse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := at(rapid.Int64Range(0, 1<<33).Draw(t, "start"), 7,
			volume.Volume{BlockSize: 512 << rapid.IntRange(0, 8).Draw(t, "shift")})
		s := storage(t, rapid.SampledFrom(align.StorageNames()).Draw(t, "storage"))
		i := align.ImpactOf(p, s)
		for _, x := range i.Table() {
			for _, c := range []align.Change{x.Random, x.Sequential, x.RandomWrite, x.SequentialWrite} {
				require.GreaterOrEqual(t, c.Now, c.Aligned)
				require.False(t, (s.Block == 512 || p.Off%s.Block == 0) && c.Worse())
			}
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
			vol(volume.NTFS, 4096, 0),
			"each 4 KiB cluster touches two 4 KiB blocks of the storage instead of one",
		},
		{
			"larger clusters", "4K", 63,
			vol(volume.FAT16, 32768, 0),
			"each 32 KiB cluster touches 9 blocks of 4 KiB of the storage instead of 8",
		},
		{
			"smaller blocks", "64K", 63,
			vol(volume.Ext3, 4096, 0),
			"one 4 KiB block in 16 lies across two 64 KiB blocks of the storage instead of in one, and each of a " +
				"stream of 64 " +
				"KiB I/Os touches two",
		},
		{
			"smaller clusters behind tables", "64K", 63,
			vol(volume.FAT32, 4096, 4096),
			"one 4 KiB cluster in 16 lies across two 64 KiB blocks of the storage instead of in one",
		},
		{
			"clusters in order, the storage's blocks not", "64K", 64,
			vol(volume.NTFS, 4096, 0),
			"each of a stream of 64 KiB I/Os touches two 64 KiB blocks of the storage instead of one",
		},
		{
			"content that is not known", "4K", 63,
			vol(volume.Unknown, 0, 0),
			"each 4 KiB block (assumed size: the content states none) touches two",
		},
		{
			"odd blocks", "4K", 63,
			vol(volume.MDRaid, 12288, 0),
			"each 12 KiB block touches 4 blocks of 4 KiB of the storage instead of 3",
		},
		{
			"odd blocks, smaller", "4K", 63,
			vol(volume.MDRaid, 1536, 1024),
			"random reads of 1 KiB: 1.25 blocks of 4 KiB of the storage each on average instead of 1",
		},
		{"by luck in order", "4K", 63, vol(volume.FAT32, 4096, 512*9), ""},
		{"nothing to gain", "512", 63, vol(volume.NTFS, 4096, 0), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := align.ImpactOf(at(tc.lba, 7, tc.v), storage(t, tc.storage)).Text()
			if tc.want == "" {
				require.Empty(t, got)
			} else {
				require.Contains(t, got, tc.want)
			}
		})
	}
}

// A broken volume does not produce absurd numbers.
func TestImpactOfNonsense(t *testing.T) {
	p := at(63, 7, volume.Volume{BlockSize: -1, DataStart: 1 << 62})
	i := align.ImpactOf(p, align.Generic())
	require.True(t, i.Assumed)
	require.EqualValues(t, 4096, i.Block)
	require.Equal(t, p.Off, i.Data)
}

func TestStorages(t *testing.T) {
	sizes := map[string]int64{
		"generic": 4096, "netapp": 4096, "clariion": 65536, "3par": 16384, "hp-raid5": 65536, "flasharray": 512,
		"vmfs": 65536, "ceph": 4 << 20, "zvol": 16384, "nutanix": 1 << 20, "s2d": 256 << 10,
	}
	for _, name := range align.StorageNames() {
		s := storage(t, name)
		require.Equal(t, name, s.Name)
		if want, ok := sizes[name]; ok {
			require.Equal(t, want, s.Block, name)
		}
		require.NotEmpty(t, s.Source, name)
		require.Equal(t, s.Rewrites, storage(t, name+"+0").Rewrites)
	}
	require.Equal(t, "generic", align.StorageNames()[0])
	require.Equal(t, storage(t, "netapp"), storage(t, "NetApp"))
	require.Equal(t, storage(t, "64K"), storage(t, "65536"))
	shifted := storage(t, "32K+63s")
	require.Equal(t, []int64{32768, 32256}, []int64{shifted.Block, shifted.Offset})
	shifted = storage(t, "4K+63s") // LBA 63 lies 3584 bytes behind a boundary
	require.Equal(t, []int64{4096, 3584}, []int64{shifted.Block, shifted.Offset})
	require.Equal(t, shifted.About, storage(t, "4K+7s").About)
	require.Equal(t, storage(t, "32K").About, storage(t, "32K+32K").About)
	require.Equal(t, storage(t, "512").About, storage(t, "512+63s").About)
	for _, bad := range []string{"", "2", "3K", "-4K", "emc", "8M", "\x1b[2J", "../generic"} {
		_, err := align.ParseStorage(bad)
		require.ErrorContains(t, err, "must be one of generic, 3par, 4kn, 512e, azure, ceph", bad)
		require.ErrorContains(t, err, "or a power of two from 512 to 4M", bad)
	}
	for _, bad := range []string{"32K+", "32K+100", "vmfs+-512", "4K+x", "flasharray+1"} {
		_, err := align.ParseStorage(bad)
		require.ErrorContains(t, err, "offset", bad)
	}
}

// docs/dev/cost-model.md lists all storages, and the model with its computed numbers.
func TestCostModelIsDocumented(t *testing.T) {
	b := disktest.ReadFile(t, "../../docs/dev/cost-model.md")
	text, yes := string(b), map[bool]string{true: "yes", false: "no"}
	for _, name := range align.StorageNames() {
		s := storage(t, name)
		require.Contains(t, text, fmt.Sprintf("| `%s` | %s | %s | %s | %s |", name, s.About, units.Short(s.Block),
			yes[s.Rewrites], yes[s.Documented]))
	}
	cluster := at(63, 7, volume.Volume{BlockSize: 4096})
	disk, vmfs := align.ImpactOf(cluster, align.Generic()), align.ImpactOf(cluster, storage(t, "vmfs"))
	for _, row := range []struct {
		want      string
		published float64
		c         align.Change
	}{
		{"(4 KiB assumed) | 2.0 | %.1f | %+.0f %%", 2, disk.Touched(4096).RandomWrite},
		{"synchronous writes of 4 KiB | 3.1 | %.1f | %+.0f %%", 23 / 7.5, disk.Touched(4096).RandomWrite},
		{"`mke2fs`, writes of 4 KiB | 3.5 | %.1f | %+.0f %%", 1193.609 / 345.716, disk.Touched(4096).RandomWrite},
		{"(64 KiB assumed) | 5.4 | %.1f | %+.0f %%", 83 / 15.5, disk.Touched(65536).SequentialWrite},
	} {
		want := fmt.Sprintf(row.want, row.c.More(), 100*(row.c.More()/row.published-1))
		require.Contains(t, text, strings.ReplaceAll(want, "-", "−"))
	}
	database := align.ImpactOf(at(63, 7, volume.Volume{BlockSize: 8192}), storage(t, "vmfs"))
	pages := align.ImpactOf(at(63, 7, volume.Volume{BlockSize: 65536}), storage(t, "vmfs"))
	few, many := database.Touched(8192).Random.More(), pages.Touched(65536).Random.More()
	require.Contains(t, text, fmt.Sprintf("| 1.1 to 1.3 | %.2f to %.1f | %+.0f to %+.0f %% |", few, many,
		100*(few/1.1-1), 100*(many/1.3-1)))
	require.Contains(t, text, fmt.Sprintf("| 1.02 to 1.62 | %.2f to %.1f |", vmfs.Touched(4096).Random.More(),
		vmfs.Touched(65536).Sequential.More()))
}

func FuzzParseStorage(f *testing.F) {
	f.Add("32K+63s")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := align.ParseStorage(text)
		if err != nil {
			return
		}
		require.Less(t, s.Offset, s.Block)
		align.ImpactOf(at(63, 7, volume.Volume{BlockSize: 4096}), s).Text()
	})
}
