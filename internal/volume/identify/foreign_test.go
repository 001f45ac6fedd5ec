package identify

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

const foreignSectors = 4096

// sumOf is zero over a structure whose checksum is right.
func sumOf(b []byte) (sum uint32) {
	for ; len(b) >= 4; b = b[4:] {
		sum += binary.BigEndian.Uint32(b)
	}
	return sum
}

// forgeAPM is a map of two entries: itself, and one partition.
func forgeAPM() forge.Bytes {
	f := make(forge.Bytes, foreignSectors*512)
	f.Text(0, "ER")
	f.Text(2, "\x02\x00")
	for i, e := range []struct {
		start, count uint32
		kind         string
	}{{1, 63, "Apple_partition_map"}, {65, 1000, "Apple_HFS"}} {
		at := 512 * int64(i+1)
		f.Text(at, "PM")
		f.BE32(at+4, 2)
		f.BE32(at+8, e.start)
		f.BE32(at+12, e.count)
		f.Text(at+48, e.kind)
	}
	return f
}

func forgeSGI() forge.Bytes {
	f := make(forge.Bytes, foreignSectors*512)
	f.BE32(0, 0x0be5a941)
	for i, v := range []uint32{1000, 65, 10, 65, 0, 0} { // an XFS, and the header
		f.BE32(int64(312+4*i), v)
	}
	sealSGI(f)
	return f
}

func sealSGI(f forge.Bytes) {
	f.BE32(504, 0)
	f.BE32(504, -sumOf(f[:512]))
}

// forgeRDB is a rigid disk block in sector 2.
func forgeRDB() forge.Bytes {
	f := make(forge.Bytes, foreignSectors*512)
	f.Text(2*512, "RDSK")
	f.BE32(2*512+4, 64)
	f.BE32(2*512+16, 512)
	sealRDB(f, 2*512)
	return f
}

func sealRDB(f forge.Bytes, at int64) {
	f.BE32(at+8, 0)
	f.BE32(at+8, -sumOf(f[at:at+4*int64(binary.BigEndian.Uint32(f[at+4:]))]))
}

// forgeDASD is the label of a compatible disk layout in block 2 of 4096 bytes: VOL1 in EBCDIC, twice.
func forgeDASD() forge.Bytes {
	f := make(forge.Bytes, foreignSectors*512)
	f.Text(8192, "\xe5\xd6\xd3\xf1\xe5\xd6\xd3\xf1")
	return f
}

// forgeAtari is a root sector with one partition and the start of a chain.
func forgeAtari() forge.Bytes {
	f := make(forge.Bytes, foreignSectors*512)
	f.BE32(0x1c2, foreignSectors)
	for entry, p := range map[int64]struct {
		id             string
		start, sectors uint32
	}{0: {"GEM", 2, 100}, 2: {"XGM", 200, 2000}} {
		at := 0x1c6 + 12*entry
		f.Text(at, "\x01"+p.id)
		f.BE32(at+4, p.start)
		f.BE32(at+8, p.sectors)
	}
	return f
}

func TestForeignTables(t *testing.T) {
	const k = 512
	for kind, c := range map[volume.Kind]struct {
		disk forge.Bytes
		want []volume.Part
	}{
		volume.APM: {forgeAPM(), []volume.Part{{
			Name: "1", Kind: "Apple_partition_map", Start: k, Size: 63 * k,
			Own: true,
		}, {Name: "2", Kind: "Apple_HFS", Start: 65 * k, Size: 1000 * k}}},
		volume.SGI: {forgeSGI(), []volume.Part{
			{Name: "1", Kind: "SGI xfs", Start: 65 * k, Size: 1000 * k},
			{Name: "2", Kind: "SGI volhdr", Start: 0, Size: 65 * k, Own: true},
		}},
		volume.RDB:   {forgeRDB(), nil}, // these three are recognised only
		volume.Atari: {forgeAtari(), nil},
		volume.DASD:  {forgeDASD(), nil},
	} {
		t.Run(string(kind), func(t *testing.T) {
			v, err := Probe(disktest.ShortDisk(c.disk, int64(len(c.disk))), 0)
			require.NoError(t, err)
			require.Equal(t, kind, v.Kind)
			require.Equal(t, c.want, v.Parts)
			require.Empty(t, v.Issues)
			require.Empty(t, v.Outside)
			require.Equal(t, c.want == nil, Traits(kind).Unlisted)
		})
	}
}

// What is no such table is not taken for one, and a broken one is said to be broken.
func TestForeignTablesOfStrangers(t *testing.T) {
	for name, c := range map[string]struct {
		disk   forge.Bytes
		spoil  func(f forge.Bytes)
		kind   volume.Kind
		broken bool
	}{
		"apm without entries": {
			forgeAPM(), func(f forge.Bytes) { f.Text(512, "XX") }, volume.Unknown,
			false,
		},
		"apm of blocks of three bytes": {
			forgeAPM(), func(f forge.Bytes) { f.Text(2, "\x00\x03") }, volume.Unknown,
			false,
		},
		"apm of 2^32 entries":            {forgeAPM(), func(f forge.Bytes) { f.BE32(516, 1<<32-1) }, volume.APM, true},
		"apm of no entries":              {forgeAPM(), func(f forge.Bytes) { f.BE32(516, 0) }, volume.APM, true},
		"apm with an entry that is lost": {forgeAPM(), func(f forge.Bytes) { f.BE32(516, 3) }, volume.APM, true},
		"apm partition behind the disk": {
			forgeAPM(), func(f forge.Bytes) { f.BE32(1024+12, 1<<32-1) }, volume.APM,
			true,
		},
		"sgi with a wrong checksum": {forgeSGI(), func(f forge.Bytes) { f.BE32(504, 1) }, volume.SGI, true},
		"rdb with a wrong checksum": {forgeRDB(), func(f forge.Bytes) { f.BE32(2*512+8, 1) }, volume.RDB, true},
		"rdb whose checksum is of 2^32": {
			forgeRDB(), func(f forge.Bytes) { f.BE32(2*512+4, 1<<32-1) }, volume.RDB,
			true,
		},
		"rdb of few words": {
			forgeRDB(), func(f forge.Bytes) { f.BE32(2*512+4, 31); sealRDB(f, 2*512) }, volume.RDB, true,
		},
		"rdb behind the first 16 sectors": {
			forgeRDB(), func(f forge.Bytes) { copy(f[16*512:], f[2*512:3*512]); clear(f[:16*512]) },
			volume.Unknown, false,
		},
		"sgi partition behind the disk": {
			forgeSGI(), func(f forge.Bytes) { f.BE32(312, foreignSectors); sealSGI(f) }, volume.SGI, true,
		},
		"sgi volume behind the disk": {
			forgeSGI(), func(f forge.Bytes) { f.BE32(324, foreignSectors+1); sealSGI(f) }, volume.SGI, false,
		},
		"sgi slot without blocks": {
			forgeSGI(), func(f forge.Bytes) { f.BE32(312, 0); sealSGI(f) },
			volume.SGI, false,
		},
		"apm entry without blocks": {
			forgeAPM(), func(f forge.Bytes) { f.BE32(1024+12, 0) }, volume.APM,
			false,
		},
		"dasd without a second VOL1": {
			forgeDASD(), func(f forge.Bytes) { f.U8(8196, 0) }, volume.Unknown,
			false,
		},
		"atari with an unknown type": {
			forgeAtari(), func(f forge.Bytes) { f.Text(0x1c7, "ABC") }, volume.Unknown,
			false,
		},
		"atari larger than the disk": {
			forgeAtari(), func(f forge.Bytes) { f.BE32(0x1c2, foreignSectors+1) },
			volume.Unknown, false,
		},
		"atari partition behind the disk": {
			forgeAtari(), func(f forge.Bytes) { f.BE32(0x1c6+8, foreignSectors) },
			volume.Unknown, false,
		},
		"atari without partitions": {
			forgeAtari(), func(f forge.Bytes) { clear(f[0x1c6:0x1f6]) }, volume.Unknown, false,
		},
		"atari partition at the start": {
			forgeAtari(), func(f forge.Bytes) { f.BE32(0x1c6+4, 0) }, volume.Unknown, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.spoil(c.disk)
			v, err := Probe(disktest.ShortDisk(c.disk, int64(len(c.disk))), 0)
			require.NoError(t, err)
			require.Equal(t, c.kind, v.Kind)
			require.Equal(t, c.broken, broken(v) || len(v.Outside) > 0, "%v", v.Issues)
			for _, p := range v.Parts {
				require.LessOrEqual(t, p.Start, int64(foreignSectors*512))
			}
		})
	}
}

// A CD that a Macintosh starts from has a partition map in front: it is a CD.
func TestMapOfACD(t *testing.T) {
	f := forgeAPM()
	f.Text(0x8000, "\x01CD001\x01")
	v, err := Probe(disktest.ShortDisk(f, int64(len(f))), 0)
	require.NoError(t, err)
	require.Equal(t, volume.ISO9660, v.Kind)
}

// The labels of mainframes are found at the places where Linux looks for them.
func TestDASDLabels(t *testing.T) {
	for mark, layout := range map[string]string{
		"\xd3\xd5\xe7\xf1": "LDL (LNX1)", "\xc3\xd4\xe2\xf1": "CMS (CMS1)",
		"\xe5\xd6\xd3\xf1\xe5\xd6\xd3\xf1": "CDL (VOL1)",
	} {
		for _, at := range []int64{512, 1024, 4096, 8192} {
			f := make(forge.Bytes, foreignSectors*512)
			f.Text(at, mark)
			v, err := Probe(disktest.ShortDisk(f, int64(len(f))), 0)
			require.NoError(t, err)
			if len(mark) > 4 && at != 8192 {
				require.Equal(t, volume.Unknown, v.Kind, at)
				continue
			}
			require.Equal(t, volume.DASD, v.Kind, at)
			require.Equal(t, []volume.Detail{{Name: "layout", Value: layout}}, v.Details)
		}
	}
}

// FuzzForeignTable reads anything as a table of another machine, with its checksums made right.
func FuzzForeignTable(f *testing.F) {
	for _, seed := range []forge.Bytes{forgeAPM(), forgeSGI(), forgeRDB(), forgeAtari(), forgeDASD()} {
		f.Add([]byte(seed[:min(len(seed), 16*4096)]), uint32(foreignSectors))
	}
	f.Fuzz(func(t *testing.T, data []byte, sectors uint32) {
		b := make(forge.Bytes, max(4096, len(data)))
		copy(b, data)
		if binary.BigEndian.Uint32(b) == 0x0be5a941 {
			b.BE32(504, 0)
			b.BE32(504, -sumOf(b[:512]))
		}
		for at := int64(0); at+512 <= 4096; at += 512 {
			longs := binary.BigEndian.Uint32(b[at+4:])
			if string(b[at:at+4]) == "RDSK" && longs <= 128 && longs >= 32 {
				sealRDB(b, at)
			}
		}
		d := disktest.ShortDisk(b, int64(sectors)*512)
		for _, p := range volume.Probers {
			if !p.Kinds[0].Foreign {
				continue
			}
			v, err := p.Probe(d)
			if err != nil {
				require.True(t, errors.Is(err, ondisk.ErrNoMatch) || errors.Is(err, ondisk.ErrFormat), "%v", err)
			}
			if v == nil {
				continue
			}
			require.LessOrEqual(t, len(v.Parts), 256)
			for _, p := range v.Parts {
				require.Positive(t, p.Size)
				require.True(t, p.Start < 0 || p.Start+p.Size <= d.Size())
			}
		}
	})
}
