package identify

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

const foreignSectors = 4096

// Identifiers of the blocks of an Amiga, and the end of a list of them. Spec: Linux, include/linux/affs_hardblocks.h.
const (
	idRDB     = 0x5244534b // "RDSK"
	idPart    = 0x50415254 // "PART"
	endOfList = 1<<32 - 1
)

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

// forgeRDB is a rigid disk block in sector 2 and a partition in sector 3, of cylinders of 10 sectors.
func forgeRDB() forge.Bytes {
	f := make(forge.Bytes, foreignSectors*512)
	for at, words := range map[int64]map[int64]uint32{
		2 * 512: {0: idRDB, 1: 64, 4: 512, 7: 3},
		3 * 512: {
			0: idPart, 1: 64, 4: endOfList, 9: 0x03444830, 32 + 3: 2, 32 + 5: 5, 32 + 9: 7, 32 + 10: 16,
			32 + 16: 0x444f5303,
		},
	} {
		for word, v := range words {
			f.BE32(at+4*word, v)
		}
		sealRDB(f, at)
	}
	return f
}

func sealRDB(f forge.Bytes, at int64) {
	f.BE32(at+8, 0)
	f.BE32(at+8, -sumOf(f[at:at+4*int64(binary.BigEndian.Uint32(f[at+4:]))]))
}

// dasdSectors is the size of the DASD below: ten tracks.
const dasdSectors = 10 * 96

// forgeDASD is a compatible disk layout: the table of contents in track 1, and two data sets behind it.
func forgeDASD() forge.Bytes {
	f := make(forge.Bytes, dasdSectors*512)
	text := func(at int64, s string) { f.Text(at, ebcdicText(s)) }
	text(8192, "VOL1VOL1LIN201")
	f.BE32(8192+15, 1) // cylinder 0, head 1
	f.U8(8192+19, 1)
	const toc = 12 * 4096
	f.U8(toc+44, 0xf4)
	f.U8(toc+4096+44, 0xf5)
	for i, tracks := range []uint32{2<<16 | 2, 3<<16 | 4} {
		at := int64(toc + (2+i)*4096)
		text(at, fmt.Sprintf("LINUX.V0X0201.PART%04d.NATIVE", i+1))
		f.U8(at+44, 0xf1)
		f.BE32(at+107, tracks>>16)
		f.BE32(at+111, tracks&0xffff)
	}
	return f
}

// ebcdicText is a text of capitals, digits and full stops. Source: Linux, arch/s390/kernel/ebcdic.c, _ascebc.
func ebcdicText(s string) string {
	out := []byte(s)
	for i, c := range out {
		switch {
		case c == '.':
			out[i] = 0x4b
		case c <= '9':
			out[i] = 0xf0 + c - '0'
		case c <= 'I':
			out[i] = 0xc1 + c - 'A'
		case c <= 'R':
			out[i] = 0xd1 + c - 'J'
		default:
			out[i] = 0xe2 + c - 'S'
		}
	}
	return string(out)
}

// forgeAtari is a root sector with one partition and a chain of two.
func forgeAtari() forge.Bytes {
	f := make(forge.Bytes, foreignSectors*512)
	f.BE32(0x1c2, foreignSectors)
	part := func(sector, entry int64, id string, start, sectors uint32) {
		at := sector*512 + 0x1c6 + 12*entry
		f.Text(at, "\x01"+id)
		f.BE32(at+4, start)
		f.BE32(at+8, sectors)
	}
	part(0, 0, "GEM", 2, 100)
	part(0, 2, "XGM", 200, 2000)
	part(200, 0, "BGM", 1, 100)
	part(200, 1, "XGM", 300, 500)
	part(500, 3, "GEM", 1, 100)
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
		volume.RDB: {forgeRDB(), []volume.Part{{Name: "DH0", Kind: "DOS3", Start: 70 * k, Size: 100 * k}}},
		volume.Atari: {forgeAtari(), []volume.Part{
			{Name: "1", Kind: "GEM", Start: 2 * k, Size: 100 * k},
			{Name: "2", Kind: "BGM", Start: 201 * k, Size: 100 * k},
			{
				Name: "3", Kind: "GEM", Start: 501 * k,
				Size: 100 * k,
			},
		}},
		volume.DASD: {forgeDASD(), []volume.Part{{
			Name: "1", Kind: "LINUX.V0X0201.PART0001.NATIVE", Start: 96 * 1024,
			Size: 48 * 1024,
		}, {Name: "2", Kind: "LINUX.V0X0201.PART0002.NATIVE", Start: 144 * 1024, Size: 96 * 1024}}},
	} {
		t.Run(string(kind), func(t *testing.T) {
			v, err := Probe(disktest.ShortDisk(c.disk, int64(len(c.disk))), 0)
			require.NoError(t, err)
			require.Equal(t, kind, v.Kind)
			require.Equal(t, c.want, v.Parts)
			require.Empty(t, v.Issues)
			require.Empty(t, v.Outside)
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
		"rdb whose list is a circle": {
			forgeRDB(), func(f forge.Bytes) { f.BE32(3*512+16, 3); sealRDB(f, 3*512) },
			volume.RDB, true,
		},
		"rdb whose list leaves the disk": {
			forgeRDB(), func(f forge.Bytes) { f.BE32(3*512+16, 1<<31); sealRDB(f, 3*512) }, volume.RDB, true,
		},
		"rdb with cylinders beyond 2^64": {forgeRDB(), func(f forge.Bytes) {
			f.BE32(3*512+128+12, 1<<32-1)
			f.BE32(3*512+128+40, 1<<32-2)
			sealRDB(f, 3*512)
		}, volume.RDB, true},
		"rdb with an end before its start": {
			forgeRDB(), func(f forge.Bytes) { f.BE32(3*512+128+40, 1); sealRDB(f, 3*512) }, volume.RDB, true,
		},
		"rdb of cylinders of no blocks": {
			forgeRDB(), func(f forge.Bytes) { f.BE32(3*512+128+12, 0); sealRDB(f, 3*512) }, volume.RDB, true,
		},
		"rdb partition behind the disk": {
			forgeRDB(), func(f forge.Bytes) { f.BE32(3*512+128+40, 1000); sealRDB(f, 3*512) }, volume.RDB, true,
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
		"atari link behind the disk": {
			forgeAtari(), func(f forge.Bytes) { f.BE32(200*512+0x1c6+8, foreignSectors) }, volume.Atari, true,
		},
		"atari link of no sectors": {
			forgeAtari(), func(f forge.Bytes) { f.BE32(200*512+0x1c6+8, 0) },
			volume.Atari, true,
		},
		"dasd without a second VOL1": {
			forgeDASD(), func(f forge.Bytes) { f.U8(8196, 0) }, volume.Unknown,
			false,
		},
		"dasd without a table of contents": {
			forgeDASD(), func(f forge.Bytes) { f.U8(12*4096+44, 0) }, volume.DASD,
			true,
		},
		"dasd whose table leaves the disk": {
			forgeDASD(), func(f forge.Bytes) { f.BE32(8192+15, 1<<32-1) },
			volume.DASD, true,
		},
		"dasd table in record 0": {
			forgeDASD(), func(f forge.Bytes) { f.BE32(8192+15, 0); f.U8(8192+19, 0) },
			volume.DASD, true,
		},
		"dasd with an end before its start": {
			forgeDASD(), func(f forge.Bytes) { f.BE32(14*4096+107, 1<<32-1) },
			volume.DASD, true,
		},
		"dasd with an end behind the disk": {
			forgeDASD(), func(f forge.Bytes) { f.BE32(14*4096+111, 1<<32-1) },
			volume.DASD, true,
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
		"atari chain that is a circle": {
			forgeAtari(), func(f forge.Bytes) { f.BE32(200*512+0x1c6+12+4, 0) },
			volume.Atari, true,
		},
		"atari chain behind the disk": {
			forgeAtari(), func(f forge.Bytes) { f.BE32(200*512+0x1c6+12+4, 1<<32-1) },
			volume.Atari, true,
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

// Labels of one partition, at the places where Linux looks for them.
func TestDASDOfOnePartition(t *testing.T) {
	const end = dasdSectors * 512
	for name, c := range map[string]struct {
		at   int64
		text string
		u32  map[int64]uint32
		want volume.Part
	}{
		"LDL in block 2": {8192, "\xd3\xd5\xe7\xf1", nil, volume.Part{
			Name: "1", Start: 12288,
			Size: end - 12288,
		}},
		"LDL with a count": {
			8192, "\xd3\xd5\xe7\xf1",
			map[int64]uint32{79: 0xf2000000, 84: 50},
			volume.Part{Name: "1", Start: 12288, Size: 50*4096 - 12288},
		},
		"LDL in block 1 of 4096": {4096, "\xd3\xd5\xe7\xf1", nil, volume.Part{
			Name: "1", Start: 8192,
			Size: end - 8192,
		}},
		"LDL in block 2 of 512": {1024, "\xd3\xd5\xe7\xf1", nil, volume.Part{
			Name: "1", Start: 1536,
			Size: end - 1536,
		}},
		"LDL in block 1 of 512": {512, "\xd3\xd5\xe7\xf1", nil, volume.Part{
			Name: "1", Start: 1024,
			Size: end - 1024,
		}},
		"CMS": {
			8192, "\xc3\xd4\xe2\xf1",
			map[int64]uint32{12: 4096, 28: 40},
			volume.Part{Name: "1", Start: 12288, Size: 40*4096 - 12288},
		},
		"CMS in sector 1": {
			512, "\xc3\xd4\xe2\xf1",
			map[int64]uint32{12: 4096, 28: 40},
			volume.Part{Name: "1", Start: 8192, Size: 40*4096 - 8192},
		},
		"CMS minidisk": {
			8192, "\xc3\xd4\xe2\xf1",
			map[int64]uint32{12: 1024, 28: 300, 52: 20},
			volume.Part{Name: "1", Start: 20480, Size: 299*1024 - 20480},
		},
		"CMS of more than the device": {
			8192, "\xc3\xd4\xe2\xf1",
			map[int64]uint32{12: 4096, 28: 1<<32 - 1},
			volume.Part{Name: "1", Start: -1, Size: (1<<32-1)*4096 - 12288},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := make(forge.Bytes, end)
			for off, n := range c.u32 {
				f.BE32(c.at+off, n)
			}
			f.Text(c.at, c.text+"\xd3\xc9\xd5\xe4\xe7\xf1")
			v, err := Probe(disktest.ShortDisk(f, end), 0)
			require.NoError(t, err)
			require.Equal(t, volume.DASD, v.Kind)
			require.Equal(t, "LINUX1", v.Label)
			require.Equal(t, []volume.Part{c.want}, v.Parts)
			require.Empty(t, v.Issues)
			require.Equal(t, c.want.Start < 0, len(v.Outside) > 0)
		})
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
			if id, longs := binary.BigEndian.Uint32(b[at:]), binary.BigEndian.Uint32(b[at+4:]); (id == idRDB ||
				id == idPart) &&
				longs <= 128 && longs >= 32 {
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
			require.LessOrEqual(t, len(v.Parts), 4+2*256)
			for _, p := range v.Parts {
				require.Positive(t, p.Size)
				require.True(t, p.Start < 0 || p.Start+p.Size <= d.Size())
			}
		}
	})
}
