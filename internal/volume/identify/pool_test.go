package identify

import (
	"bytes"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/volume"
)

func TestSwap(t *testing.T) {
	for _, page := range []int64{4096, 8192, 65536} {
		t.Run(strconv.FormatInt(page, 10), func(t *testing.T) {
			path := blank(t, 4<<20)
			disktest.Run(t, "mkswap", "--pagesize", strconv.FormatInt(page, 10), "--label", "a label", path)
			v, found := probe(t, path), blkid(t, path)
			require.Equal(t, volume.Swap, v.Kind)
			require.Equal(t, []string{found["UUID"], found["LABEL"], found["VERSION"]},
				[]string{v.UUID, v.Label, detail(v, "version")})
			require.Equal(t, page, v.BlockSize)
			require.Equal(t, int64(4<<20), v.Size)
			require.Empty(t, v.Issues)
		})
	}
}

// The kernel puts the signature of its image over that of the swap area, and leaves the header.
func TestHibernatedSwap(t *testing.T) {
	for signature, version := range map[string]string{
		"S1SUSPEND": "s1suspend", "S2SUSPEND": "s2suspend",
		"ULSUSPEND": "ulsuspend", "LINHIB0001": "linhib0001",
	} {
		for _, page := range []int64{4096, 65536} {
			f := make(forge.Bytes, 1<<20)
			f.Text(page-10, signature)
			f.U32(1024, 1)
			f.U32(1028, uint32(1<<20/page)-1)
			f.Text(1036, "0123456789abcdef")
			v, found := probeForged(t, f), blkid(t, written(t, f))
			require.Equal(t, "swsuspend", found["TYPE"])
			require.Equal(t, version, found["VERSION"])
			require.Equal(t, found["UUID"], v.UUID)
			require.Len(t, v.Issues, 1)
			require.Equal(t, "hibernated-linux", v.Issues[0].Code)
		}
	}
}

func TestBcache(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		data int64 // bytes: 8 KiB for old backing devices, else as asked for; behind the first bucket of a cache
	}{
		{"backing device", []string{"-B"}, 8 << 10},
		{"backing device with an offset", []string{"-B", "--data-offset", "2048"}, 1 << 20},
		{"cache", []string{"-C", "--bucket", "64k"}, 64 << 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := blank(t, 8<<20)
			disktest.Run(t, "make-bcache", append(tc.args, path)...)
			v := probe(t, path)
			says := columns(disktest.Output(t, "bcache-super-show", path))
			require.Equal(t, volume.BCache, v.Kind)
			require.Equal(t, says["dev.uuid"], v.UUID)
			require.Equal(t, says["cset.uuid"], detail(v, "set UUID"))
			require.Equal(t, blkid(t, path)["UUID"], v.UUID)
			require.Equal(t, tc.data, v.DataStart)
			first := says["dev.data.first_sector"] + says["dev.cache.first_sector"]
			require.Equal(t, first, strconv.FormatInt(v.DataStart/512, 10))
		})
	}
	f := make(forge.Bytes, 1<<20)
	poolforge.PutBcache(f, 264)
	v := probeForged(t, f)
	require.Equal(t, blkid(t, written(t, f))["UUID"], v.UUID, "libblkid looks at the checksum")
	require.Equal(t, int64(264*512), v.DataStart)
	require.Equal(t, "a label", v.Label)
}

func TestZFS(t *testing.T) {
	f := make(forge.Bytes, 64<<20)
	poolforge.PutZFS(f)
	v, found := probeForged(t, f), blkid(t, written(t, f))
	require.Equal(t, "zfs_member", found["TYPE"])
	require.Equal(t, []string{found["LABEL"], found["UUID"]}, []string{v.Label, v.UUID})
	require.Equal(t, int64(4096), v.BlockSize)
	require.Equal(t, int64(4<<20), v.DataStart)
	require.True(t, v.AtEnd)

	// The second label counts when the first is gone, as after a boot loader was written there.
	second := make(forge.Bytes, 64<<20)
	second.Put(256<<10, f[:256<<10])
	require.Equal(t, v, probeForged(t, second))
	clear(f[128<<10 : 256<<10])
	clear(f[poolforge.ZFSList+12 : 128<<10]) // no pair, and no uberblock
	require.Equal(t, volume.Unknown, probeForged(t, f).Kind)
}

func TestVMFS(t *testing.T) {
	for _, tc := range []struct {
		device, major uint32
		minor         uint8
		version       string
	}{{3, 12, 46, "3.46"}, {5, 14, 61, "5.61"}, {6, 24, 82, "6.82"}} {
		t.Run(tc.version, func(t *testing.T) {
			f := make(forge.Bytes, 20<<20)
			poolforge.PutVMFS(f, tc.device, tc.major, tc.minor)
			v := probeForged(t, f)
			device := blkid(t, written(t, f))
			require.Equal(t, "VMFS_volume_member", device["TYPE"])
			require.Equal(t, device["UUID_SUB"], detail(v, "device"))
			require.Equal(t, int64(poolforge.VMFSData), v.DataStart)
			require.Equal(t, "vmfs", v.Issues[0].Code)
		})
	}
}

// A name can be as long as its structure, and stands in a report as often as there are partitions.
func TestLongNames(t *testing.T) {
	pool := make(forge.Bytes, 64<<20)
	poolforge.PutZFS(pool)
	at := int64(bytes.Index(pool, []byte("tank")))
	behind := bytes.Clone(pool[at:][:512])
	pool.Put(at-4, append([]byte{0, 1, 0, 0}, strings.Repeat("x", 1<<10)...))
	pool.Put(at+1<<10, behind)
	require.Len(t, probeForged(t, pool).Label, 255)
	f := make(forge.Bytes, leftoverSize)
	fsforge.PutNTFS(f, 0, leftoverSize/512)
	f.U64(fsforge.NTFSMFT, 1)
	f.Put(4096+3<<10, fsforge.NTFSVolumeRecord(strings.Repeat("x", 300)))
	require.Len(t, probeForged(t, f).Label, 128)
}
