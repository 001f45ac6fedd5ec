package vmdk

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// The geometry that a BIOS reports stays that of the source, over the new size, or becomes that by which the disk
// boots. Where the lines do it already, none is added.
func TestGeometryForABIOS(t *testing.T) {
	chs := func(h, s int64) driver.Geometry { return driver.Geometry{Heads: h, Sectors: s} }
	lines := func(adapter, disk, bios string) *descriptor {
		text := "# Disk DescriptorFile\nCID=1\nddb.adapterType = \"" + adapter + "\"\n"
		for i, all := range []string{disk, bios} {
			names := [2][3]string{
				{"cylinders", "heads", "sectors"}, {"biosCylinders", "biosHeads", "biosSectors"},
			}[i]
			for n, v := range strings.Fields(all) {
				text += "ddb.geometry." + names[n] + " = \"" + v + "\"\n"
			}
		}
		return parsed(t, text)
	}
	for _, tc := range []struct {
		name    string
		d       *descriptor
		sectors int64
		bios    driver.Geometry
		want    string
	}{
		{
			"scsi: as it is", lines("lsilogic", "522 255 63", ""), 8390656, chs(255, 63),
			"cylinders=522 heads=255 sectors=63",
		},
		{
			"ide: the same translation", lines("ide", "8322 16 63", ""), 8390656, chs(255, 63),
			"cylinders=8324 heads=16 sectors=63",
		},
		{
			"ide: 1024 cylinders of 4 heads are left behind", lines("ide", "1023 4 17", ""), 71612, chs(4, 17),
			"cylinders=1053 heads=4 sectors=17 biosCylinders=1024 biosHeads=4 biosSectors=17",
		},
		{
			"ide: nothing depends on it", lines("ide", "1023 4 17", ""), 71612, chs(0, 0),
			"cylinders=1053 heads=4 sectors=17",
		},
		{
			"ide: the next translation", lines("ide", "2080 16 63", ""), 2099664, chs(16, 63),
			"cylinders=2083 heads=16 sectors=63 biosCylinders=1024 biosHeads=16 biosSectors=63",
		},
		{
			"pinned: over the new size", lines("ide", "600 16 63", "300 32 63"), 606816, chs(32, 63),
			"cylinders=602 heads=16 sectors=63 biosCylinders=301 biosHeads=32 biosSectors=63",
		},
		{
			"pinned: all that can be addressed", lines("ide", "83220 16 63", "1024 255 63"), 83887808, chs(255, 63),
			"cylinders=83222 heads=16 sectors=63 biosCylinders=1024 biosHeads=255 biosSectors=63",
		},
		{
			"pinned: a writer that counts them all", lines("ide", "83220 16 63", "5221 255 63"), 83903872, chs(255, 63),
			"cylinders=83237 heads=16 sectors=63 biosCylinders=5222 biosHeads=255 biosSectors=63",
		},
		{
			"zeros of VirtualBox say nothing", lines("ide", "600 16 63", "0 0 0"), 606816, chs(16, 63),
			"cylinders=602 heads=16 sectors=63 biosCylinders=0 biosHeads=0 biosSectors=0",
		},
		{
			"was no vmdk", plainDescriptor(chs(4, 17)), 71612, chs(4, 17), "cylinders=1053 heads=4 sectors=17",
		},
		{
			"was no vmdk, and nothing depends on it", plainDescriptor(chs(0, 0)), 71612, chs(0, 0),
			"cylinders=4 heads=255 sectors=63",
		},
	} {
		var got []string
		for l := range strings.SplitSeq(string(tc.d.copyFor(monolithicFlat, 512*tc.sectors, nil, nil, tc.bios)), "\n") {
			if rest, ok := strings.CutPrefix(l, "ddb.geometry."); ok {
				got = append(got, strings.NewReplacer(`"`, "", " ", "").Replace(rest))
			}
		}
		require.Equal(t, tc.want, strings.Join(got, " "), tc.name)
	}
}

// A disk that changes in its place keeps the geometry for its BIOS too.
func TestGeometryInPlace(t *testing.T) {
	text := strings.NewReplacer(`"buslogic"`, `"ide"`, `"1044"`, `"1023"`, `"255"`, `"4"`, `"63"`, `"17"`,
		"16777216", "69564").Replace(esxi)
	d := parsed(t, text)
	around, err := d.around(512*71612, driver.Geometry{Heads: 4, Sectors: 17})
	require.NoError(t, err)
	for _, line := range []string{
		`cylinders = "1053"`, `biosCylinders = "1024"`, `biosHeads = "4"`, `biosSectors = "17"`,
	} {
		require.Contains(t, string(around.Text), "ddb.geometry."+line)
	}
}

// nowhere is a file that keeps nothing.
type nowhere struct{}

func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (nowhere) Truncate(int64) error                   { return nil }
func (nowhere) Sync() error                            { return nil }

// Tables have 32 bits for a sector.
func TestDataBehind2TiB(t *testing.T) {
	t.Parallel()
	sparse, err := newSparseTarget(nowhere{}, 1<<42, defaultGrain, []byte("text"))
	require.NoError(t, err)
	sparse.next = math.MaxUint32 - defaultGrain
	require.NoError(t, sparse.Reserve(0, 1<<16))
	require.ErrorIs(t, sparse.Reserve(1<<16, 1<<16), ondisk.ErrLimit)

	stream, err := newStreamTarget(nowhere{}, 1<<42, []byte("text"))
	require.NoError(t, err)
	stream.next = math.MaxUint32 - 1
	require.NoError(t, stream.Reserve(0, 1))
	require.ErrorIs(t, stream.Reserve(1<<16, 1), ondisk.ErrLimit)
	require.ErrorIs(t, stream.Reserve(1<<25, 1), ondisk.ErrLimit, "the table has no room")
	require.ErrorIs(t, stream.Finish(), ondisk.ErrLimit)
	_, err = newStreamTarget(nowhere{}, 1<<47+1<<25, nil)
	require.ErrorIs(t, err, ondisk.ErrLimit, "the directory")
	_, err = newSparseTarget(nowhere{}, 1<<52, 8, nil)
	require.ErrorIs(t, err, ondisk.ErrLimit, "the tables")
}

// A disk that lies over others needs a head for what they leave.
func TestViewsHaveAHead(t *testing.T) {
	t.Parallel()
	_, err := create(nowhere{}, 1<<20, driver.Options{
		Over:   []disk.Piece{},
		Beside: func(string) (driver.WriteFile, string, error) { return nil, "", disktest.ErrFault },
	})
	require.ErrorIs(t, err, disktest.ErrFault)
}

// What compresses one grain compresses the next.
func TestPackersAreUsedAgain(t *testing.T) {
	if disktest.Raced {
		t.Skip("the race detector has pools forget some of what they hold")
	}
	stream, err := newStreamTarget(nowhere{}, 1<<20, nil)
	require.NoError(t, err)
	grain := make([]byte, stream.Unit())
	require.Less(t, disktest.Allocated(func() {
		for range 20 {
			_, err := stream.Pack(grain, 0)
			require.NoError(t, err)
		}
	}), int64(4<<20), "one has 800 KiB")
}

// Expected sizes and places are those of Virtual Disk Format 1.1, "Hosted Sparse Extents".
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 512, binary.Size(sparseHeader{}), "sparse header")
	b, err := binary.Append(nil, binary.LittleEndian,
		sparseHeader{Capacity: 1, GrainSize: 2, NumGTEsPerGT: 3, GDOffset: 4, UncleanShutdown: 5, CompressAlgo: 6})
	require.NoError(t, err)
	for at, want := range map[int]byte{atCap: 1, atGrain: 2, atGTEs: 3, atGD: 4, 72: 5, 77: 6} {
		assert.Equal(t, want, b[at], "byte %d", at)
	}
}

// Those of an extent of ESX are from the same document, "ESX Server Sparse Extents": four sectors.
func TestCOWDHeaderSize(t *testing.T) {
	require.Equal(t, 4*512, binary.Size(cowdHeader{}))
	b, err := binary.Append(nil, binary.LittleEndian,
		cowdHeader{GrainSize: 1, GDOffset: 2, NumGDEntries: 3, UncleanShutdown: 4})
	require.NoError(t, err)
	for at, want := range map[int]byte{atCOWDGrain: 1, atCOWDGD: 2, atCOWDNumGDE: 3, atCOWDUnclean: 4} {
		assert.Equal(t, want, b[at], "byte %d", at)
	}
}

// QEMU: block/vmdk.c asserts that both are one sector.
func TestSESparseHeaderSizes(t *testing.T) {
	require.Equal(t, 512, binary.Size(seVolatile{}))
	b, err := binary.Append(nil, binary.LittleEndian, seHeader{
		Capacity: 1, GrainTableSize: 2, Flags: 3, VolatileHeaderOffset: 4, GrainDirOffset: 5, GrainTablesOffset: 6,
		GrainsOffset: 7,
	})
	require.NoError(t, err)
	require.Len(t, b, 512)
	for at, want := range map[int]byte{
		atSECapacity: 1, atSETable: 2, atSEFlags: 3, atSEVolatile: 4, atSEGD: 5,
		atSEGTs: 6, atSEGrains: 7,
	} {
		assert.Equal(t, want, b[at], "byte %d", at)
	}
}
