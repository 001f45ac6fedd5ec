package identify

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/volume"
)

// What has a magic number and nothing else that is of use here is called by the name that blkid gives it.
func TestKindsByMagic(t *testing.T) {
	t.Parallel()
	for name, pieces := range map[string]map[int64]string{
		"ocfs2":          {4096: "OCFSV2"},
		"gfs2":           {65536: "\x01\x16\x19\x70", 65536 + 24: "\x00\x00\x07\x09\x00\x00\x07\x6c"},
		"oracleasm":      {32: "ORCLDISK"},
		"ceph_bluestore": {0: "bluestore block device\n"},
		"erofs":          {1024: "\xe2\xe1\xf5\xe0", 1024 + 12: "\x0c"},
		"vdo":            {0: "dmvdo001"},
		"nss":            {4096: "SPB5"},
		"reiser4":        {65536: "ReIsEr4"},
		"vxfs":           {1024: "\xf5\xfc\x01\xa5"},
		"sysv":           {1016: "\x20\x7e\x18\xfd"},
	} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, 64<<20)
			for off, b := range pieces {
				disktest.WriteAt(t, path, off, []byte(b))
			}
			v := probe(t, path)
			tags := blkidTags(t, path)
			require.Equal(t, name, string(v.Kind))
			require.Equal(t, name, tags["TYPE"])
			require.Empty(t, v.Issues)
		})
	}
}

// The formatters themselves, and blkid, for those whose numbers are short.
func TestKindsByMagicOfTools(t *testing.T) {
	t.Parallel()
	for name, make := range map[string]func(t *testing.T, path string){
		"bfs":    func(t *testing.T, path string) { t.Helper(); disktest.Run(t, "mkfs.bfs", path) },
		"cramfs": func(t *testing.T, path string) { t.Helper(); disktest.Run(t, "mkfs.cramfs", folder(t), path) },
		"squashfs": func(t *testing.T, path string) {
			t.Helper()
			disktest.Run(t, "mksquashfs", folder(t), path, "-noappend")
		},
		"udf": func(t *testing.T, path string) {
			t.Helper()
			disktest.Run(t, "genisoimage", "-quiet", "-udf", "-o", path, folder(t))
			// no bridge, which is an ISO 9660
			disktest.WriteAt(t, path, 32769, []byte("BEA01"))
			disktest.WriteAt(t, path, 34817, []byte("NSR02"))
			disktest.WriteAt(t, path, 36865, []byte("TEA01"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := blank(t, 4<<20)
			make(t, path)
			v := probe(t, path)
			require.Equal(t, name, string(v.Kind))
			require.Equal(t, name, blkidTags(t, path)["TYPE"])
			require.Empty(t, v.Issues)
		})
	}
}

// A disk that ends inside a magic number is of an unknown kind, without an error.
func TestMagicAtTheEnd(t *testing.T) {
	t.Parallel()
	known := map[volume.Kind]bool{}
	for _, p := range Probers {
		for _, k := range p.Kinds {
			known[k.Kind] = true
		}
	}
	for _, m := range magics() {
		require.False(t, known[m.Kind], "%s has a prober or another row: delete one of them", m.Kind)
		known[m.Kind] = true
		require.NotEmpty(t, m.Marks, m.Kind)
		for _, mark := range m.Marks {
			number, err := hex.DecodeString(mark.Hex)
			require.NoError(t, err)
			require.NotEmpty(t, mark.At, m.Kind)
			for _, at := range mark.At {
				b := append(bytes.Repeat([]byte{0}, int(at)), number...)
				for _, end := range []int{len(b) - 1, len(b)} {
					v, err := byMagic(disktest.Memory(b[:end]))
					require.NoError(t, err)
					if end < len(b) {
						require.Equal(t, volume.Unknown, v.Kind, m.Kind)
					} else {
						require.Equal(t, m.Kind, v.Kind)
					}
				}
			}
		}
	}
}

// A FAT16 of 16384 clusters of one sector: 1 reserved sector, two tables of 64, 32 of the root directory. Spec:
// Microsoft FAT specification 1.03, "FAT Data Structure".
const (
	innerSectors = 16384
	innerData    = (1 + 2*64 + 32) * 512
)

func putFAT(sector int64) func(forge.Bytes) {
	return func(f forge.Bytes) { fsforge.PutFAT16(f, sector, innerSectors) }
}

func putMD1(version string, level uint32, sector uint64) func(forge.Bytes) {
	return func(f forge.Bytes) {
		poolforge.PutMD1(f, version, sector)
		f.U32(poolforge.MD1At(f, version)+poolforge.MD1Level, level)
		poolforge.SealMD1(f, version)
	}
}

func putBcache(version uint64) func(forge.Bytes) {
	return func(f forge.Bytes) {
		poolforge.PutBcache(f, 0)
		f.U64(poolforge.BcacheVersion, version)
		poolforge.SealBcache(f)
	}
}

// The blocks of a volume in a container are counted from its own first block, for a glance as well.
func TestContentOfContainers(t *testing.T) {
	for name, tc := range map[string]struct {
		put  puts
		kind volume.Kind
		data int64
		of   volume.Kind
	}{
		"mirror 0.90": {puts{putFAT(0), mirror0}, volume.MDRaid, innerData, volume.FAT16},
		"mirror 1.0":  {puts{putFAT(0), putMD1("1.0", 1, 0)}, volume.MDRaid, innerData, volume.FAT16},
		"mirror 1.1":  {puts{putFAT(65), putMD1("1.1", 1, 65)}, volume.MDRaid, 65*512 + innerData, volume.FAT16},
		"mirror 1.2":  {puts{putFAT(272), putMD1("1.2", 1, 272)}, volume.MDRaid, 272*512 + innerData, volume.FAT16},
		"stripes of 64 KiB": {
			puts{putFAT(272), putMD1("1.2", 5, 272)},
			volume.MDRaid,
			272*512 + innerData - 64<<10, volume.FAT16,
		},
		"LVM on a mirror": {puts{leftoverLVM, mirror0}, volume.MDRaid, poolforge.LVMPeStart, volume.LVM2},
		"backing device":  {puts{putFAT(16), putBcache(1)}, volume.BCache, 16*512 + innerData, volume.FAT16},
		"backing device on a mirror": {
			puts{putFAT(16), putBcache(1), mirror0},
			volume.MDRaid,
			16*512 + innerData, volume.FAT16,
		},
		"ext on a mirror": {
			puts{func(f forge.Bytes) { fsforge.PutExt(f, 272, innerSectors) }, putMD1("1.2", 1, 272)},
			volume.MDRaid,
			272 * 512, volume.MDRaid,
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := tc.put.disk()
			v := probeForged(t, f)
			require.Equal(t, tc.kind, v.Kind)
			at, of := v.Data()
			require.Equal(t, tc.data, at)
			require.Equal(t, tc.of, of.Kind)
			require.Equal(t, describe(v.Content), detail(v, "content"))
			if v.Chunk > 0 {
				return
			}
			v, err := Glance(disktest.Memory(f), 0)
			require.NoError(t, err)
			at, _ = v.Data()
			require.Equal(t, tc.data, at, "a glance")
		})
	}
}

// A cache has the blocks of another device, a spare those of an earlier use.
func TestContainersThatHoldNothing(t *testing.T) {
	cache, spare := make(forge.Bytes, leftoverSize), make(forge.Bytes, leftoverSize)
	putFAT(1024)(cache)
	putBcache(3)(cache)
	cache.U16(4096+204, 1) // its first bucket, of 1024 sectors
	poolforge.SealBcache(cache)
	putFAT(272)(spare)
	putMD1("1.2", 1, 272)(spare)
	spare.U16(4096+258, 0xffff) // the role of device 1
	poolforge.SealMD1(spare, "1.2")
	for start, f := range map[int64]forge.Bytes{1024 * 512: cache, 272 * 512: spare} {
		v := probeForged(t, f)
		require.Equal(t, start, v.DataStart)
		require.Nil(t, v.Content)
		at, _ := v.Data()
		require.Equal(t, start, at)
	}
}

// Containers in one another end at a bound.
func TestNestedContainersAreBounded(t *testing.T) {
	f := make(forge.Bytes, leftoverSize)
	const levels = 3 * maxNested
	putFAT(levels * 16)(f)
	for i := range levels {
		putBcache(1)(f[i*16*512:])
	}
	v := probeForged(t, f)
	at, of := v.Data()
	require.Equal(t, volume.BCache, of.Kind)
	require.Equal(t, int64((maxNested+1)*16*512), at)
}

func TestContentOfSlices(t *testing.T) {
	f := make(forge.Bytes, leftoverSize)
	putFAT(64)(f)
	tableforge.PutDisklabel(f, 512, tableforge.Slice{Start: 64, Sectors: innerSectors, Type: 8},
		tableforge.Slice{Start: 20000, Sectors: 100, Type: 7})
	v := probeForged(t, f)
	require.Equal(t, volume.Disklabel, v.Kind)
	require.NoError(t, Slices(disktest.Memory(f), 0, v, Probe))
	require.Len(t, v.Parts, 2)
	require.Equal(t, volume.FAT16, v.Parts[0].Content.Kind)
	require.Equal(t, int64(innerData), v.Parts[0].Content.DataStart)
	require.Nil(t, v.Parts[1].Content)
}
