package layout_test

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/ldmforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

const (
	dynamicTotal = 16384
	dynamicSpace = 12000 // sectors, from LBA 63 on
	databaseAt   = (dynamicTotal - 2048) * 512
)

func simple(name string, start, sectors int64) ldmforge.Volume {
	return ldmforge.Volume{
		Name: name, Kind: ldmforge.Spanned, Copies: [][]ldmforge.Piece{{{Start: start, Sectors: sectors}}},
	}
}

// dynamic forges a disk of one group with the slots and volumes given, or one over all of its space.
func dynamic(slots []tableforge.Slot, volumes ...ldmforge.Volume) forge.Bytes {
	if slots == nil {
		slots = []tableforge.Slot{{Type: 0x42, Start: 63, Sectors: dynamicSpace}}
	}
	f := tableforge.NewMBR(dynamicTotal, slots...)
	ldmforge.PutGroup([]forge.Bytes{f}, 63, dynamicSpace, volumes...)
	return f
}

// onHeads changes all private headers, and makes their sums right.
func onHeads(f forge.Bytes, change func(h forge.Bytes)) {
	for _, at := range []int64{ldmforge.Head, databaseAt + 1856*512, databaseAt + 2047*512} {
		h := f[at:][:512]
		change(h)
		h.BE32(ldmforge.Sum, 0)
		sum := uint32(0)
		for _, b := range h {
			sum += uint32(b)
		}
		h.BE32(ldmforge.Sum, sum)
	}
}

// dynamicFault is what a disk has that keeps it from being moved, and the refusal; empty: its table is malformed.
type dynamicFault struct {
	change func(f forge.Bytes)
	says   string
}

func databaseOf(f forge.Bytes) forge.Bytes { return f[databaseAt:] }

func headFaults() map[string]dynamicFault {
	return map[string]dynamicFault{
		"a sum": {func(f forge.Bytes) { f.U8(ldmforge.Head+16, 1) }, "ldm private header at 0xc08: sum"},
		"the first header": {
			func(f forge.Bytes) { f.Put(ldmforge.Head, make([]byte, 512)) },
			`ldm private header at 0xc00: magic "none"`,
		},
		"a copy": {
			func(f forge.Bytes) { databaseOf(f).Put(2047*512, make([]byte, 512)) },
			"copies 2, want 3 or more",
		},
		"another copy": {
			func(f forge.Bytes) { databaseOf(f).Put(1856*512, make([]byte, 512)) },
			"copies 2, want 3 or more",
		},
		"a copy of an older start": {func(f forge.Bytes) {
			h := ldmforge.PrivateHead(ldmforge.DiskID(0), 64, dynamicSpace, dynamicTotal-2048, 2048)
			databaseOf(f).Put(1900*512, h)
		}, "data start and size [64 12000], want [63 12000]"},
		"a copy of another database": {func(f forge.Bytes) {
			h := ldmforge.PrivateHead(ldmforge.DiskID(0), 63, dynamicSpace, dynamicTotal-2047, 2047)
			databaseOf(f).Put(1900*512, h)
		}, "database start and size"},
		"a copy of another disk": {func(f forge.Bytes) {
			h := ldmforge.PrivateHead(ldmforge.DiskID(1), 63, dynamicSpace, dynamicTotal-2048, 2048)
			databaseOf(f).Put(1900*512, h)
		}, `disk "11111111-2222-3333-4444-555555555556"`},
		"another version": {
			func(f forge.Bytes) { onHeads(f, func(h forge.Bytes) { h.U8(15, 13) }) },
			`version "2.13", want 2.11 or 2.12`,
		},
	}
}

func placeFaults() map[string]dynamicFault {
	return map[string]dynamicFault{
		"data over the database": {
			func(f forge.Bytes) { onHeads(f, func(h forge.Bytes) { h.BE64(0x123, dynamicTotal-2048-62) }) },
			"data size 14274, want a space for volumes that ends in front of the database",
		},
		"no data": {func(f forge.Bytes) { onHeads(f, func(h forge.Bytes) { h.BE64(0x123, 0) }) }, "place of"},
		"data of 2^64-1 sectors": {
			func(f forge.Bytes) { onHeads(f, func(h forge.Bytes) { h.BE64(0x123, 1<<64-1) }) },
			"data size 18446744073709551615",
		},
		"data that begin elsewhere": {
			func(f forge.Bytes) { onHeads(f, func(h forge.Bytes) { h.BE64(0x11b, 64) }) },
			"partition 1 starts at byte 32256, and the volumes of the private header at byte 32768",
		},
	}
}

func recordFaults() map[string]dynamicFault {
	return map[string]dynamicFault{
		"a transaction": {
			func(f forge.Bytes) { databaseOf(f).U8(ldmforge.VMDB+ldmforge.State+1, 2) },
			"state 2, want 1, committed",
		},
		"a pending transaction": {
			func(f forge.Bytes) { databaseOf(f).U8(ldmforge.VMDB+0x84, 7) },
			"pending transaction 7, want 0",
		},
		"a record less": {
			func(f forge.Bytes) { databaseOf(f).BE32(ldmforge.VMDB+ldmforge.Counts+8, 2) },
			"number of partitions 2, want 1, the records that are there",
		},
		"a record of another revision": {
			func(f forge.Bytes) { databaseOf(f).U8(ldmforge.Blocks+2*ldmforge.Block+19, 0x43) },
			"type 0x43, want revision 3",
		},
		"a component of another kind": {
			func(f forge.Bytes) {
				at := int64(ldmforge.Blocks + 3*ldmforge.Block)
				databaseOf(f).U8(at+int64(bytes.Index(databaseOf(f)[at:], []byte("ACTIVE")))+6, 9)
			},
			"kind of that of",
		},
		"a disk that its database does not know": {
			func(f forge.Bytes) { databaseOf(f).U8(ldmforge.Blocks+ldmforge.Block+40, '9') },
			"no record of",
		},
		"a partition beside it, over its space": {
			func(f forge.Bytes) { tableforge.PutSlot(f, 0, 1, tableforge.Slot{Type: 7, Start: 12060, Sectors: 100}) },
			"", // a broken table
		},
		"an extended partition": {
			func(f forge.Bytes) { tableforge.PutSlot(f, 0, 1, tableforge.Slot{Type: 5, Start: 12100, Sectors: 100}) },
			"partition 2 is extended",
		},
		"a partition over the database": {
			func(f forge.Bytes) { tableforge.PutSlot(f, 0, 1, tableforge.Slot{Type: 7, Start: 14330, Sectors: 100}) },
			"partition 2 lies over the database",
		},
		"a partition over the first header": {
			func(f forge.Bytes) { tableforge.PutSlot(f, 0, 1, tableforge.Slot{Type: 7, Start: 2, Sectors: 20}) },
			"partition 2 lies over the private header at byte 3072",
		},
		"volumes over the first header": {
			func(f forge.Bytes) {
				tableforge.PutSlot(f, 0, 0, tableforge.Slot{Type: 0x42, Start: 5, Sectors: dynamicSpace})
				onHeads(f, func(h forge.Bytes) { h.BE64(0x11b, 5) })
			},
			"partition 1 lies over the private header at byte 3072",
		},
	}
}

// A disk whose structures are not all understood, complete and the same is refused, with the field that is not.
func TestDynamicDisksThatCannotMove(t *testing.T) {
	t.Parallel()
	faults := headFaults()
	maps.Copy(faults, placeFaults())
	maps.Copy(faults, recordFaults())
	for name, c := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := dynamic(nil, simple("Volume1", 0, 5000))
			require.NotNil(t, read(t, f).Dynamic)
			c.change(f)
			l := read(t, f)
			if c.says == "" {
				require.Equal(t, ondisk.Broken, l.Issues[0].Effect)
				return
			}
			require.Nil(t, l.Dynamic)
			i := slices.IndexFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == layout.CodeDynamic })
			require.Contains(t, l.Issues[i].Text, c.says)
			require.Equal(t, ondisk.Refuse, l.Issues[i].Effect)
			require.NotContains(t, l.Issues[i].Remedy, "--dynamic-disks")
		})
	}
	for name, volumes := range map[string][]ldmforge.Volume{
		"over each other":   {simple("A", 0, 5000), simple("B", 4999, 100)},
		"beyond the data":   {simple("A", 0, dynamicSpace+1)},
		"behind 2^63":       {simple("A", -1, 5)},
		"an odd one behind": {simple("A", dynamicSpace, 1)},
	} {
		require.Nil(t, read(t, dynamic(nil, volumes...)).Dynamic, name)
	}
}

// Hidden sectors are found of each volume that begins on the disk, wherever in its partition; those of RAID-5 stay.
func TestHiddenSectorsOfDynamicVolumes(t *testing.T) {
	t.Parallel()
	raid := ldmforge.Volume{Name: "Raid", Kind: ldmforge.RAID5, Copies: [][]ldmforge.Piece{{
		{Start: 8192, Sectors: 1024}, {Start: 9216, Sectors: 1024}, {Start: 10240, Sectors: 1024},
	}}}
	f := dynamic([]tableforge.Slot{
		{Type: 0x42, Start: 63, Sectors: 2048}, {Type: 0x42, Start: 2111, Sectors: 3000},
	}, simple("First", 0, 2048), simple("Second", 2048, 3000), simple("Between", 5048, 3000), raid)
	for start, sectors := range map[int64]int64{63: 2048, 2111: 3000, 63 + 5048: 3000, 63 + 8192: 1024} {
		fsforge.PutNTFS(f, start, sectors)
	}
	f.U32((63+5048)*512+fsforge.BootHidden, 77)
	l := read(t, f)
	require.NotNil(t, l.Dynamic)
	require.Equal(t, []int{1, 2}, l.Dynamic.Members)
	got := map[int64]int{}
	for _, r := range l.Boot.Refs {
		require.NotEqual(t, r.Follows(), r.Stays != "")
		got[r.At[0].Off] = r.Target
		if r.Points == 77*512 {
			require.Contains(t, r.Stays, "the volume starts at byte")
			continue
		}
		require.Equal(t, binary.BigEndian.Uint64(append(make([]byte, 8-len(r.Raw)), r.Raw...)) != 0, r.Points != 0)
	}
	hidden := func(lba int64) int64 { return lba*512 + fsforge.BootHidden }
	heads := []int64{ldmforge.Head + 0x11b, databaseAt + 1856*512 + 0x11b, databaseAt + 2047*512 + 0x11b}
	require.Equal(t, map[int64]int{
		heads[0]: 1, heads[1]: 1, heads[2]: 1,
		hidden(63): 1, hidden(63 + 2047): 1, hidden(2111): 2, hidden(2111 + 2999): 2,
		hidden(63 + 5048): 0, hidden(63 + 5048 + 2999): 1, // in no partition, and so with the first
	}, got)
}

// A partition that begins with a piece of a volume has no file system of its own, which a finder could look into.
func TestAPieceIsNoVolume(t *testing.T) {
	t.Parallel()
	f := dynamic(nil, ldmforge.Volume{Name: "Raid", Kind: ldmforge.RAID5, Copies: [][]ldmforge.Piece{{
		{Sectors: 1024}, {Start: 1024, Sectors: 1024}, {Start: 2048, Sectors: 1024},
	}}})
	fsforge.PutNTFS(f, 63, 1024)
	l := read(t, f)
	require.NotNil(t, l.Dynamic)
	require.Equal(t, volume.LDM, l.Partitions[0].Volume.Kind)
	require.Len(t, l.Partitions[0].Volume.Parts, 3)
	require.Len(t, l.Boot.Refs, 3, "those of the private headers")
}

// Most extents get on the boundary; what is aligned needs a majority against it.
func TestAnchorOfADynamicDisk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		starts []int64 // sectors of the data
		want   int64   // LBA that is put on a boundary of 64 KiB, modulo 128
	}{
		"one":                             {[]int64{0}, 63},
		"the majority":                    {[]int64{0, 100, 228}, 163 % 128},
		"a tie with what is aligned":      {[]int64{0, 65}, 0},
		"a tie with what is aligned last": {[]int64{0, 65, 100, 193}, 0},
		"a majority against it":           {[]int64{0, 65, 128}, 63},
		"no volumes":                      {nil, 63},
	} {
		var volumes []ldmforge.Volume
		for i, start := range c.starts {
			volumes = append(volumes, simple(string(rune('A'+i)), start, 20))
		}
		x := read(t, dynamic(nil, volumes...)).Dynamic
		require.NotNil(t, x, name)
		require.Equal(t, c.want, (63+x.Anchor(65536)/512)%128, name)
	}
}
