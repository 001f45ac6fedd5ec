package volume

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

const foreignSectors = 4096

// forgeAPM is a map of two entries: itself, and one partition.
func forgeAPM() disktest.Forged {
	f := make(disktest.Forged, foreignSectors*512)
	f.Text(0, "ER")
	f.Text(2, "\x02\x00")
	for i, e := range []struct {
		start, count uint32
		kind         string
	}{{1, 63, "Apple_partition_map"}, {65, 1000, "Apple_HFS"}} {
		at := 512 * int64(i+1)
		f.Text(at, "PM")
		f.Big32(at+4, 2)
		f.Big32(at+8, e.start)
		f.Big32(at+12, e.count)
		f.Text(at+48, e.kind)
	}
	return f
}

func forgeSGI() disktest.Forged {
	f := make(disktest.Forged, foreignSectors*512)
	f.Big32(0, 0x0be5a941)
	for i, v := range []uint32{1000, 65, 10, 65, 0, 0} { // an XFS, and the header
		f.Big32(int64(312+4*i), v)
	}
	f.Big32(504, -sum32(f[:512]))
	return f
}

// forgeRDB is a rigid disk block in sector 2 and a partition in sector 3, of cylinders of 10 sectors.
func forgeRDB() disktest.Forged {
	f := make(disktest.Forged, foreignSectors*512)
	for at, words := range map[int64]map[int64]uint32{
		2 * 512: {0: rdbID, 1: 64, 4: 512, 7: 3},
		3 * 512: {0: partID, 1: 64, 4: amigaEnd, 9: 0x03444830, 32 + 3: 2, 32 + 5: 5, 32 + 9: 7, 32 + 10: 16, 32 + 16: 0x444f5303},
	} {
		for word, v := range words {
			f.Big32(at+4*word, v)
		}
		sealRDB(f, at)
	}
	return f
}

func sealRDB(f disktest.Forged, at int64) {
	f.Big32(at+8, 0)
	f.Big32(at+8, -sum32(f[at:at+4*int64(binary.BigEndian.Uint32(f[at+4:]))]))
}

// forgeAtari is a root sector with one partition and a chain of two.
func forgeAtari() disktest.Forged {
	f := make(disktest.Forged, foreignSectors*512)
	f.Big32(0x1c2, foreignSectors)
	part := func(sector, entry int64, id string, start, sectors uint32) {
		at := sector*512 + 0x1c6 + 12*entry
		f.Text(at, "\x01"+id)
		f.Big32(at+4, start)
		f.Big32(at+8, sectors)
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
	for kind, c := range map[Kind]struct {
		disk disktest.Forged
		want []Part
	}{
		APM:   {forgeAPM(), []Part{{"1", "Apple_partition_map", k, 63 * k, true}, {"2", "Apple_HFS", 65 * k, 1000 * k, false}}},
		SGI:   {forgeSGI(), []Part{{"1", "SGI xfs", 65 * k, 1000 * k, false}, {"2", "SGI volhdr", 0, 65 * k, true}}},
		RDB:   {forgeRDB(), []Part{{"DH0", "DOS3", 70 * k, 100 * k, false}}},
		Atari: {forgeAtari(), []Part{{"1", "GEM", 2 * k, 100 * k, false}, {"2", "BGM", 201 * k, 100 * k, false}, {"3", "GEM", 501 * k, 100 * k, false}}},
	} {
		t.Run(string(kind), func(t *testing.T) {
			v, err := Probe(disktest.ShortDisk(c.disk, int64(len(c.disk))), 0)
			require.NoError(t, err)
			require.Equal(t, kind, v.Kind)
			require.Equal(t, c.want, v.Parts)
			require.Empty(t, v.Issues)
		})
	}
}

// What is no such table is not taken for one, and a broken one is said to be broken.
func TestForeignTablesOfStrangers(t *testing.T) {
	for name, c := range map[string]struct {
		disk   disktest.Forged
		spoil  func(f disktest.Forged)
		kind   Kind
		broken bool
	}{
		"apm without entries":            {forgeAPM(), func(f disktest.Forged) { f.Text(512, "XX") }, Unknown, false},
		"apm of blocks of three bytes":   {forgeAPM(), func(f disktest.Forged) { f.Text(2, "\x00\x03") }, Unknown, false},
		"apm of 2^32 entries":            {forgeAPM(), func(f disktest.Forged) { f.Big32(516, 1<<32-1) }, APM, true},
		"apm of no entries":              {forgeAPM(), func(f disktest.Forged) { f.Big32(516, 0) }, APM, true},
		"apm with an entry that is lost": {forgeAPM(), func(f disktest.Forged) { f.Big32(516, 3) }, APM, true},
		"apm partition behind the disk":  {forgeAPM(), func(f disktest.Forged) { f.Big32(1024+12, 1<<32-1) }, APM, false},
		"sgi with a wrong checksum":      {forgeSGI(), func(f disktest.Forged) { f.Big32(504, 1) }, SGI, true},
		"rdb with a wrong checksum":      {forgeRDB(), func(f disktest.Forged) { f.Big32(2*512+8, 1) }, RDB, true},
		"rdb whose checksum is of 2^32":  {forgeRDB(), func(f disktest.Forged) { f.Big32(2*512+4, 1<<32-1) }, RDB, true},
		"rdb whose list is a circle":     {forgeRDB(), func(f disktest.Forged) { f.Big32(3*512+16, 3); sealRDB(f, 3*512) }, RDB, true},
		"rdb whose list leaves the disk": {forgeRDB(), func(f disktest.Forged) { f.Big32(3*512+16, 1<<31); sealRDB(f, 3*512) }, RDB, true},
		"rdb with cylinders beyond 2^64": {forgeRDB(), func(f disktest.Forged) {
			f.Big32(3*512+128+12, 1<<32-1)
			f.Big32(3*512+128+40, 1<<32-2)
			sealRDB(f, 3*512)
		}, RDB, false},
		"atari with an unknown type":      {forgeAtari(), func(f disktest.Forged) { f.Text(0x1c7, "ABC") }, Unknown, false},
		"atari larger than the disk":      {forgeAtari(), func(f disktest.Forged) { f.Big32(0x1c2, foreignSectors+1) }, Unknown, false},
		"atari partition behind the disk": {forgeAtari(), func(f disktest.Forged) { f.Big32(0x1c6+8, foreignSectors) }, Unknown, false},
		"atari chain that is a circle":    {forgeAtari(), func(f disktest.Forged) { f.Big32(200*512+0x1c6+12+4, 0) }, Atari, true},
		"atari chain behind the disk":     {forgeAtari(), func(f disktest.Forged) { f.Big32(200*512+0x1c6+12+4, 1<<32-1) }, Atari, true},
	} {
		t.Run(name, func(t *testing.T) {
			c.spoil(c.disk)
			v, err := Probe(disktest.ShortDisk(c.disk, int64(len(c.disk))), 0)
			require.NoError(t, err)
			require.Equal(t, c.kind, v.Kind)
			require.Equal(t, c.broken, v.broken(), "%v", v.Issues)
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
	require.Equal(t, ISO9660, v.Kind)
}

func TestSizesOfForeignTables(t *testing.T) {
	assert.Equal(t, 80, binary.Size(appleEntry{}), "entry of an Apple partition map up to pmPartType")
	assert.Equal(t, 512, binary.Size(sgiLabel{}), "volume header")
	assert.Equal(t, 208, binary.Size(amigaBlock{}), "partition block up to the last word of its environment")
	assert.Equal(t, 512, binary.Size(atariRoot{}), "root sector")
}

// FuzzForeignTable reads anything as a table of another machine, with its checksums made right.
func FuzzForeignTable(f *testing.F) {
	for _, seed := range []disktest.Forged{forgeAPM(), forgeSGI(), forgeRDB(), forgeAtari()} {
		f.Add([]byte(seed[:4096]), uint32(foreignSectors))
	}
	f.Fuzz(func(t *testing.T, data []byte, sectors uint32) {
		b := make(disktest.Forged, max(4096, len(data)))
		copy(b, data)
		if binary.BigEndian.Uint32(b) == 0x0be5a941 {
			b.Big32(504, 0)
			b.Big32(504, -sum32(b[:512]))
		}
		for at := int64(0); at+512 <= 4096; at += 512 {
			if id, longs := binary.BigEndian.Uint32(b[at:]), binary.BigEndian.Uint32(b[at+4:]); (id == rdbID || id == partID) && longs <= 128 && longs >= 32 {
				sealRDB(b, at)
			}
		}
		d := disktest.ShortDisk(b, int64(sectors)*512)
		for _, p := range []Prober{applePartitions, sgiDisk, amigaDisk, atariDisk} {
			v, err := p.Probe(d)
			if err != nil {
				require.True(t, isNoMatch(err) || errors.Is(err, ondisk.ErrFormat), "%v", err)
			}
			if v == nil {
				continue
			}
			require.LessOrEqual(t, len(v.Parts), 4+2*maxEntries)
			for _, p := range v.Parts {
				require.Positive(t, p.Size)
				require.True(t, p.Start < 0 || p.Start+p.Size <= d.Size())
			}
		}
	})
}
