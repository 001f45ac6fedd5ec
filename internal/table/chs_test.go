package table

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

var (
	g255 = Geometry{255, 63}
	g16  = Geometry{16, 63}
)

// Expected bytes: head; sector with the cylinder's bits 8 and 9 on top; the cylinder's low bits. They
// follow from LBA = (C * heads + H) * sectors + S - 1.
func TestEncodeCHS(t *testing.T) {
	for _, tc := range []struct {
		name string
		g    Geometry
		lba  int64
		want [3]byte
	}{
		{"lba 63 is C0 H1 S1", g255, 63, [3]byte{1, 1, 0}},
		{"lba 128 is C0 H2 S3 with 255 heads", g255, 128, [3]byte{2, 3, 0}},
		{"lba 128 is C0 H2 S3 with 16 heads", g16, 128, [3]byte{2, 3, 0}},
		{"lba 128 is C0 H2 S3 with 240 heads", Geometry{240, 63}, 128, [3]byte{2, 3, 0}},
		{"lba 2048 is C0 H32 S33 with 255 heads", g255, 2048, [3]byte{32, 33, 0}},
		{"lba 2048 is C2 H0 S33 with 16 heads", g16, 2048, [3]byte{0, 33, 2}},
		{"lba 0", g255, 0, [3]byte{0, 1, 0}},
		{"cylinder 256 needs a high bit", g16, 256 * 16 * 63, [3]byte{0, 0x41, 0}},
		{"cylinder 1022 needs both", g255, 1022*255*63 + 5, [3]byte{0, 0xc6, 0xfe}},
		{"the last sector of CHS", g255, 1024*255*63 - 1, [3]byte{254, 0xff, 0xff}},
		{"64 heads, 32 sectors", Geometry{64, 32}, 2048, [3]byte{0, 1, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := tc.g.encode(tc.lba)
			require.True(t, ok)
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.lba, tc.g.lba(got), "and back")
		})
	}
	got, ok := g255.encode(1024 * 255 * 63)
	require.False(t, ok, "one sector further there is no cylinder")
	require.Equal(t, [3]byte{0xfe, 0xff, 0xff}, got)
}

func TestCHSBytesThatMeanNothing(t *testing.T) {
	for _, b := range [][3]byte{{0, 0, 0}, {16, 1, 0}, {255, 63, 0}} {
		assert.Equal(t, int64(-1), g16.lba(b), "%x", b)
	}
	assert.Equal(t, int64(-1), Geometry{64, 32}.lba([3]byte{0, 33, 0}), "sector 33 of 32")
}

// QEMU (hw/block/hd-geometry.c) and BIOSes guess the geometry from the end bytes: they keep the last head and sector.
func TestEndCHSKeepsTheLastHeadAndSector(t *testing.T) {
	for _, tc := range []struct {
		name string
		g    Geometry
		last int64 // LBA
		old  [3]byte
		want [3]byte
	}{
		{"at the end of cylinder 0", g255, 16064, [3]byte{}, [3]byte{254, 63, 0}},
		{"in the middle of cylinder 1", g255, 20000, [3]byte{}, [3]byte{254, 63, 1}},
		{"16 heads, cylinder 3", g16, 3*16*63 + 1, [3]byte{}, [3]byte{15, 63, 3}},
		{"cylinder 1023", g255, 1024*255*63 - 1, [3]byte{}, [3]byte{254, 0xff, 0xff}},
		{"beyond CHS, was fe ff ff", g255, 1024 * 255 * 63, [3]byte{0xfe, 0xff, 0xff}, [3]byte{0xfe, 0xff, 0xff}},
		{
			"beyond CHS with 16 heads, was the full end of that geometry", g16, 1 << 24,
			[3]byte{15, 0xff, 0xff},
			[3]byte{15, 0xff, 0xff},
		},
		{"beyond CHS with 16 heads, was not", g16, 1 << 24, [3]byte{15, 63, 5}, [3]byte{15, 0xff, 0xff}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.want, tc.g.lastOfCylinder(tc.last, tc.old))
		})
	}
}

// entry writes a slot with CHS bytes.
func entry(f forge.Bytes, slot int, start, end [3]byte, lba, sectors uint32) {
	tableforge.PutSlot(f, 0, slot, tableforge.Slot{Type: 7, Start: lba, Sectors: sectors})
	at := tableforge.MBREntries + int64(slot)*tableforge.MBREntry
	f.Put(at+1, start[:])
	f.Put(at+5, end[:])
}

func read(t *testing.T, f forge.Bytes) *Table {
	t.Helper()
	tab := readTable(t, f)
	require.Empty(t, tab.Issues)
	return tab
}

func readTable(t *testing.T, f forge.Bytes) *Table {
	t.Helper()
	tab, err := Read(disktest.Memory(f))
	require.NoError(t, err)
	return tab
}

func TestGeometryOfTheTable(t *testing.T) {
	const size = 40000
	beyond := [3]byte{0xfe, 0xff, 0xff}
	for _, tc := range []struct {
		name  string
		table func(f forge.Bytes)
		hints []Geometry
		want  Geometry
	}{
		{
			"255 heads, from its own bytes",
			func(f forge.Bytes) { entry(f, 0, [3]byte{1, 1, 0}, [3]byte{254, 63, 0}, 63, 16065-63) }, nil, g255,
		},
		{
			"16 heads, from its own bytes",
			func(f forge.Bytes) { entry(f, 0, [3]byte{1, 1, 0}, [3]byte{15, 63, 9}, 63, 10*1008-63) }, nil, g16,
		},
		{
			"16 heads against a hint of 255",
			func(f forge.Bytes) {
				entry(f, 0, [3]byte{1, 1, 0}, [3]byte{15, 63, 9}, 63, 10*1008-63)
			},
			[]Geometry{g255},
			g16,
		},
		{
			// Start bytes of LBA 63 fit every geometry of 63 sectors: the end decides, and the second entry is right.
			"the entry that explains more wins", func(f forge.Bytes) {
				entry(f, 0, [3]byte{1, 1, 0}, [3]byte{3, 7, 2}, 63, 1000)
				entry(f, 1, [3]byte{0, 1, 2}, [3]byte{15, 63, 9}, 2*1008, 8*1008)
			}, nil, g16,
		},
		{"a geometry that is not common, from its own bytes", func(f forge.Bytes) {
			entry(f, 0, [3]byte{1, 1, 0}, [3]byte{11, 36, 9}, 36, 10*12*36-36)
		}, nil, Geometry{12, 36}},
		{
			"saturated bytes say nothing: the boot sector does",
			func(f forge.Bytes) { entry(f, 0, beyond, beyond, 2048, 4096) },
			[]Geometry{g16, g255},
			g16,
		},
		{"saturated bytes and no hint", func(f forge.Bytes) { entry(f, 0, beyond, beyond, 2048, 4096) }, nil, g255},
		{
			"a hint that cannot be is passed over", func(f forge.Bytes) { entry(f, 0, beyond, beyond, 2048, 4096) },
			[]Geometry{{0, 0}, {300, 64}, g16},
			g16,
		},
		{
			"bytes of no geometry at all",
			func(f forge.Bytes) { entry(f, 0, [3]byte{7, 7, 7}, [3]byte{8, 8, 8}, 63, 1000) }, nil, g255,
		},
		{"an exact end inside of a cylinder", func(f forge.Bytes) {
			// 63 + 8000 - 1 = LBA 8062 = C0 H127 S62 with 255 heads
			entry(f, 0, [3]byte{1, 1, 0}, [3]byte{127, 62, 0}, 63, 8000)
		}, nil, g255},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := tableforge.NewMBR(size)
			tc.table(f)
			require.Equal(t, tc.want, read(t, f).Geometry(tc.hints))
		})
	}
}

// The patches of a move, byte by byte: start CHS, end CHS and start LBA, each with its old value; nothing else.
// relocate gives partitions new starts, in bytes.
func relocate(t *Table, starts map[int]int64, g Geometry) []disk.Patch {
	to := Places{Parts: map[int]disk.Range{}}
	for _, p := range t.Partitions {
		if off, ok := starts[p.Number]; ok {
			to.Parts[p.Number] = disk.Range{Off: off, Len: p.Len}
		}
	}
	return t.Relocate(to, g)
}

func TestRelocate(t *testing.T) {
	f := tableforge.NewMBR(4 * 16065)
	entry(f, 0, [3]byte{1, 1, 0}, [3]byte{254, 63, 1}, 63, 2*16065-63)
	entry(f, 2, [3]byte{0, 1, 2}, [3]byte{254, 63, 2}, 2*16065, 16065)
	got := relocate(read(t, f), map[int]int64{1: 128 * 512, 3: 32256 * 512}, g255)
	for i := range got {
		got[i].Reason = ""
	}
	require.Equal(t, []disk.Patch{
		{Off: 446 + 1, Old: []byte{1, 1, 0}, New: []byte{2, 3, 0}},
		{Off: 446 + 5, Old: []byte{254, 63, 1}, New: []byte{254, 63, 2}}, // ends at LBA 32194, in cylinder 2
		{Off: 446 + 8, Old: []byte{63, 0, 0, 0}, New: []byte{128, 0, 0, 0}},
		{Off: 478 + 1, Old: []byte{0, 1, 2}, New: []byte{2, 1, 2}}, // 32256 = 2 cylinders and 2 tracks
		{Off: 478 + 5, Old: []byte{254, 63, 2}, New: []byte{254, 63, 3}},
		{Off: 478 + 8, Old: []byte{0x82, 0x7d, 0, 0}, New: []byte{0, 0x7e, 0, 0}},
	}, got)
}

func TestRelocateChangesNothingThatStays(t *testing.T) {
	f := tableforge.NewMBR(40000)
	// wrong bytes of a fixed partition are not repaired
	entry(f, 0, [3]byte{9, 9, 9}, [3]byte{8, 8, 8}, 2048, 4096)
	tab := read(t, f)
	require.Empty(t, relocate(tab, nil, g255))
	require.Empty(t, relocate(tab, map[int]int64{1: 2048 * 512}, g255))
}

// "Beyond CHS" has two encodings; that of the source is kept.
func TestRelocateKeepsHowSaturationIsWritten(t *testing.T) {
	for _, beyond := range [][3]byte{{0xfe, 0xff, 0xff}, {15, 0xff, 0xff}} {
		f := tableforge.NewMBR(64)
		entry(f, 0, beyond, beyond, 20_000_063, 20_000_000)
		tab, err := Read(disktest.ShortDisk(f, 40<<30))
		require.NoError(t, err)
		got := relocate(tab, map[int]int64{1: 20_000_768 * 512}, g16)
		require.Len(t, got, 1, "only the LBA changes")
		require.Equal(t, int64(446+8), got[0].Off)
	}
}

// The geometry that QEMU guesses from a table without a contradicting container stays when partitions move: it uses the
// end of the first entry with a head. Source: QEMU 7.2 hw/block/hd-geometry.c, guess_disk_lchs.
func TestGuessedGeometryStays(t *testing.T) {
	guess := func(mbr []byte) (heads, sectors int) {
		for e := mbr[446:510]; len(e) > 0; e = e[16:] {
			if e[5] > 0 && e[12]|e[13]|e[14]|e[15] != 0 {
				return int(e[5]) + 1, int(e[6] & 63)
			}
		}
		return 0, 0
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		g := Geometry{[]int{4, 5, 12, 16, 64, 255}[r.IntN(6)], []int{17, 32, 63}[r.IntN(3)]}
		cylinder, last := int64(g.Heads*g.Sectors), r.Int64N(1024)
		first := int64(g.Sectors)
		end := [3]byte{byte(g.Heads - 1), byte(int64(g.Sectors) | last>>8<<6), byte(last)}
		f := tableforge.NewMBR(1)
		entry(f, 0, [3]byte{1, 1, 0}, end, uint32(first), uint32((last+1)*cylinder-first))
		tab, err := Read(disktest.ShortDisk(f, 20<<30))
		require.NoError(t, err)
		guessed, ok := tab.Guessed()
		require.True(t, ok)
		require.Equal(t, g, guessed)
		to := first + 1 + r.Int64N(1<<r.IntN(20))
		mbr := slices.Clone(f[:512])
		for _, p := range relocate(tab, map[int]int64{1: to * 512}, g) {
			copy(mbr[p.Off:], p.New)
		}
		heads, sectors := guess(mbr)
		after := Geometry{heads, sectors}
		require.Equal(t, g, after, "cylinder %d goes to LBA %d", last, to)
	}
}
