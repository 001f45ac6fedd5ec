package plan_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/boottest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// dosDisk is a disk in the layout of FDISK: a chain whose boot records begin cylinders, some of them with a logical
// drive far after them.
type dosDisk struct {
	*sparse

	geometry table.Geometry
	drives   []int64 // first bytes of logical drives, in the order of the chain
}

func (d dice) dosDisk() *dosDisk {
	g := table.Geometry{Heads: int(1 + d.Int64N(5)), Sectors: int(2 + d.Int64N(9))}
	cylinder := int64(g.Heads * g.Sectors)
	up := func(lba int64) int64 { return (lba + cylinder - 1) / cylinder * cylinder }
	s := &sparse{bytes: map[int64]forge.Bytes{}}
	o := &dosDisk{sparse: s, geometry: g}
	first := 1 + d.Int64N(20)
	size := 1 + d.Int64N(30)
	start := up(first + size)
	s.bytes[0] = tableforge.NewMBR(1, slot(6, uint32(first), uint32(size)))
	d.gap(s, first+size, start)
	lba, n := start, 1+d.IntN(4)
	for i := range n {
		record := up(lba)
		begin := record + 1 + d.Int64N(cylinder+3)
		sectors := 1 + d.Int64N(40)
		f := s.at(record)
		tableforge.PutSlot(f, 0, 0, slot(6, uint32(begin-record), uint32(sectors)))
		if lba = begin + sectors; i+1 < n {
			tableforge.PutSlot(f, 0, 1, slot(5, uint32(up(lba)-start), uint32(cylinder)))
		}
		d.gap(s, record+1, begin)
		s.at(begin).U64(0, uint64(begin)|1<<60)
		o.drives = append(o.drives, begin)
	}
	end := up(lba)
	tableforge.PutSlot(s.at(0), 0, 1, slot(5, uint32(start), uint32(end-start)))
	s.sectors = end + d.Int64N(100)
	return o
}

// layout returns the drives that DOS finds on a disk.
func (o *dosDisk) layout(t *testing.T, d disk.Disk) *layout.Layout {
	t.Helper()
	l := boottest.Bare(t, d)
	l.Geometry = o.geometry
	for i := range l.Partitions {
		if l.Partitions[i].Kind != table.Extended {
			l.Partitions[i].Volume = &volume.Volume{Kind: volume.FAT16}
		}
	}
	return l
}

// letters walks the chain like MSINIT.ASM of MS-DOS 4.0: of a boot record it keeps the cylinder, and the drive begins
// the entry's number of sectors after that cylinder's start. It returns the first bytes of each drive.
func (o *dosDisk) letters(t *testing.T, d disk.Disk) (found []int64) {
	t.Helper()
	cylinder := int64(o.geometry.Heads*o.geometry.Sectors) * sector
	read := func(off int64) forge.Bytes {
		b := make(forge.Bytes, sector)
		_, err := d.ReadAt(b, off)
		require.NoError(t, err)
		return b
	}
	le := binary.LittleEndian
	box := int64(le.Uint32(read(0)[tableforge.MBREntries+tableforge.MBREntry+8:])) * sector
	for at := box; ; {
		b := read(at)[tableforge.MBREntries:]
		drive := at/cylinder*cylinder + int64(le.Uint32(b[8:]))*sector
		found = append(found, int64(le.Uint64(read(drive))&^(1<<60)))
		if b[tableforge.MBREntry+4] == 0 {
			return found
		}
		at = box + int64(le.Uint32(b[tableforge.MBREntry+8:]))*sector
	}
}

// TestDOSFindsItsDrives tests plans for random chains of DOS: DOS finds each drive that it found, all are aligned, and
// a disk grows only if a search for any place fails.
func TestDOSFindsItsDrives(t *testing.T) {
	grown, n := 0, disktest.Sample(6000)
	for i := range n {
		d := dice{Rand: rand.New(rand.NewPCG(tablesSeed, uint64(i))), tiny: true}
		o := d.dosDisk()
		source := o.disk()
		again := fmt.Sprintf("disk %d", i)
		before := o.layout(t, source)
		require.Equal(t, o.drives, o.letters(t, source), again)
		goal := align.Goal{Must: align.BoundaryOf(4096 << d.IntN(2))}
		goal.Want = align.BoundaryOf(goal.Must.Bytes() << d.IntN(2))
		p, err := plan.New(before, goal)
		require.NoError(t, err, again)
		require.Empty(t, p.Refusals(true), again)
		view := p.View(source)
		after := o.layout(t, view)
		checkPlaces(t, p, before, after, again)
		checkBytes(t, p, before, after, again)
		checkExplained(t, p, source, view, before, after, again)
		o.checkStray(t, view, again)
		require.Equal(t, o.drives, o.letters(t, view), again)
		fits := fitsSomewhere(before, goal, before.Size)
		require.Equal(t, fits, p.Size == before.Size, again)
		if !fits {
			grown++
		}
		requireSettled(t, after, goal, again)
	}
	require.Greater(t, grown, n/30, "too few disks that have to grow")
}

// chainOfDOS returns a disk of 16 heads and 63 sectors with a chain at a cylinder, whose first drive is 63 sectors
// after its record.
func chainOfDOS(kind byte, cylinder, off int64) (*sparse, int64) {
	const track = 63
	start := cylinder*16*track + off
	s := &sparse{sectors: start + 40*16*track, bytes: map[int64]forge.Bytes{}}
	s.bytes[0] = tableforge.NewMBR(1, slot(6, track, uint32(start-track)),
		slot(kind, uint32(start), 30*16*track))
	tableforge.PutSlot(s.at(start), 0, 0, slot(6, track, 30*16*track-track))
	return s, start
}

// Records of chains that no DOS reads are placed directly after the preceding partition or record.
func TestWhoseChainStaysOnCylinders(t *testing.T) {
	const cylinder = 16 * 63
	for name, c := range map[string]struct {
		kind byte
		off  int64
		code *boot.Code
		fs   volume.Kind
		step bool
	}{
		"type 05 with a FAT":                 {0x05, 0, boot.Named("windows-7"), volume.FAT16, true},
		"type 05 with NTFS only":             {0x05, 0, boot.Named("dos"), volume.NTFS, false},
		"type 05, and a FAT that is broken":  {0x05, 0, boot.Named("dos"), volume.Unknown, true},
		"type 0f behind code that reads CHS": {0x0f, 0, boot.Named("windows-98"), volume.FAT32, true},
		"type 0f behind code that reads LBA": {0x0f, 0, boot.Named("windows-7"), volume.FAT32, false},
		"type 85 of Linux":                   {0x85, 0, boot.Named("dos"), volume.FAT16, false},
		"type 05 off the cylinders":          {0x05, 5, boot.Named("dos"), volume.FAT16, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, start := chainOfDOS(c.kind, 20, c.off)
			l := boottest.Bare(t, s.disk())
			l.Geometry, l.Boot = table.Geometry{Heads: 16, Sectors: 63}, &boot.Result{Code: c.code}
			for i := range l.Partitions {
				l.Partitions[i].Volume = &volume.Volume{Kind: c.fs}
			}
			p := newPlan(t, l, align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary})
			require.Empty(t, p.Refusals(false))
			want := start + 65 // as far as the partition before it, from 63 to 128
			if c.step {
				want = start + cylinder
			}
			require.Equal(t, want*sector, p.Places.Records[start*sector])
		})
	}
}

// Beyond cylinder 1023, CHS cannot address a record: a chain that DOS reads is not put there, unless the user accepts
// that DOS loses it.
func TestChainAtTheLastCylinder(t *testing.T) {
	const cylinderSize = 16 * 63 * sector
	for cylinder, refused := range map[int64]bool{1022: false, 1023: true} {
		s, start := chainOfDOS(0x05, cylinder, 0)
		l := boottest.Bare(t, s.disk())
		l.Geometry = table.Geometry{Heads: 16, Sectors: 63}
		p := newPlan(t, l, align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary})
		require.Empty(t, p.Refusals(true))
		require.Equal(t, (cylinder+1)*cylinderSize, p.Places.Records[start*sector])
		require.Zero(t, p.Places.Parts[5].Off%65536)
		if !refused {
			require.Empty(t, p.Refusals(false))
			continue
		}
		require.Equal(t, "dos-chain", p.Refusals(false)[0].Code)
		require.Contains(t, p.Refusals(false)[0].Text, "from LBA 1031184 to LBA 1032192, past cylinder 1023")
		require.NotEmpty(t, p.Refusals(false)[0].Remedy)
		again, err := plan.At(l, p.Starts(), false)
		require.NoError(t, err)
		require.Equal(t, p.Places, again.Places)
		require.Equal(t, p.Patches, again.Patches)
		after := boottest.Bare(t, p.View(s.disk()))
		after.Geometry = l.Geometry
		goal := align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary}
		requireSettled(t, after, goal, "")
		require.Empty(t, newPlan(t, after, goal).Refusals(false))
	}
}

// A partition before the last cylinder moves backward if that keeps the chain within reach of DOS.
func TestPartitionInFrontOfTheLastCylinder(t *testing.T) {
	s, start := chainOfDOS(0x05, 1023, 0)
	tableforge.PutSlot(s.bytes[0], 0, 0, slot(6, 2048, 100))
	tableforge.PutSlot(s.bytes[0], 0, 2, slot(6, 5000, uint32(start-5000)))
	l := boottest.Bare(t, s.disk())
	l.Geometry = table.Geometry{Heads: 16, Sectors: 63}
	p := newPlan(t, l, kept)
	require.Empty(t, p.Refusals(false))
	require.EqualValues(t, 4096*sector, p.Places.Parts[3].Off)
	require.Equal(t, start*sector, p.Places.Records[start*sector])
}

// After the last drive that DOS reads, records need no cylinder: a disk of small drives need not grow by one for each.
func TestRecordsBehindTheLastDriveOfDOS(t *testing.T) {
	const cylinder, drives, drive = 16 * 63, 4, 15 * 63 // sectors, number, sectors
	for name, c := range map[string]struct {
		fat  int // the logical drive that DOS reads
		want []int64
	}{
		"the first":  {5, []int64{2 * cylinder, 2048 + drive, 3072 + drive, 4096 + drive}},
		"the second": {6, []int64{2 * cylinder, 3 * cylinder, 3072 + drive, 4096 + drive}},
	} {
		t.Run(name, func(t *testing.T) {
			start := int64(cylinder)
			s := &sparse{sectors: (drives + 6) * cylinder, bytes: map[int64]forge.Bytes{}}
			s.bytes[0] = tableforge.NewMBR(1, slot(6, 63, uint32(start-63)),
				slot(5, uint32(start), drives*cylinder))
			for i := range int64(drives) {
				f := s.at(start + i*cylinder)
				tableforge.PutSlot(f, 0, 0, slot(6, 63, drive))
				if i+1 < drives {
					tableforge.PutSlot(f, 0, 1, slot(5, uint32((i+1)*cylinder), cylinder))
				}
			}
			l := boottest.Bare(t, s.disk())
			l.Geometry = table.Geometry{Heads: 16, Sectors: 63}
			for i := range l.Partitions {
				kind := volume.Ext4
				if l.Partitions[i].Number == c.fat {
					kind = volume.FAT16
				}
				l.Partitions[i].Volume = &volume.Volume{Kind: kind}
			}
			p := newPlan(t, l, align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary})
			require.Empty(t, p.Refusals(false))
			var records []int64
			for i := range int64(drives) {
				records = append(records, p.Places.Records[(start+i*cylinder)*sector]/sector)
			}
			require.Equal(t, c.want, records)
		})
	}
}

// Records with two data entries do not matter on an aligned disk; a move is refused.
func TestRecordsWithTwoDrives(t *testing.T) {
	for name, tc := range map[string]struct {
		first   uint32 // of the primary partition
		verdict align.Verdict
		refused bool
	}{
		"aligned":    {2048, align.Aligned, false},
		"misaligned": {63, align.Misaligned, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := tableforge.NewMBR(16384, slot(0x83, tc.first, 1024), slot(5, 4096, 8192))
			tableforge.PutEBR(f, 4096, slot(0x83, 2048, 1024), slot(0x83, 4096, 1024))
			l := read(t, disktest.Memory(f))
			require.Len(t, l.Partitions, 4)
			goal := align.GoalFor(l, align.Boundary{})
			require.Equal(t, tc.verdict, align.Overall(l, goal.Must))
			p := newPlan(t, l, goal)
			found := append(codes(p.Refusals(false)), codes(align.Check(l, goal))...)
			require.Equal(t, tc.refused, slices.Contains(found, "ebr-entries"), found)
			require.Equal(t, tc.refused, len(p.Refusals(false)) > 0)
		})
	}
}

// A link without sectors hides partitions from Linux and from the plan. A moving drive could overwrite them, whether
// their extended partition moves or stays.
func TestLinkWithoutSectorsKeepsAllInPlace(t *testing.T) {
	f := tableforge.NewMBR(24576, slot(0x0f, 2048, 20000))
	tableforge.PutEBR(f, 2048, slot(0x83, 63, 7937), tableforge.Slot{Type: 5, Start: 8000})
	tableforge.PutEBR(f, 10048, slot(0x83, 63, 4000), tableforge.Slot{})
	l := read(t, disktest.Memory(f))
	p := newPlan(t, l, align.GoalFor(l, align.Boundary{}))
	require.NotEmpty(t, p.Moves, "the drive is off, its extended partition is not")
	refused := p.Refusals(true)
	require.Len(t, refused, 1)
	require.Equal(t, "ebr-link", refused[0].Code)
}

// A FAT that DOS reads by CHS gets a warning if its end leaves the reach of CHS; the remedy keeps it there, if any
// boundary does. One that was beyond before, and one of an LBA type, get none.
func TestFATBehindTheLastCylinder(t *testing.T) {
	const heads, track = 4, 17
	for _, tc := range []struct {
		name           string
		kind           byte
		start, sectors uint32
		warned, remedy string
	}{
		{
			"up to cylinder 1022", 6, 17, 1023*heads*track - 17, "its last 43 sectors are past cylinder 1023",
			"or try --boundary 32K",
		},
		{"no boundary keeps it", 4, 17, 1024*heads*track - 17, "its last 111 sectors", "first"},
		{"half of the disk", 6, 17, 500 * heads * track, "", ""},
		{"by LBA", 0x0e, 17, 1023*heads*track - 17, "", ""},
		{"it was behind", 6, 17, 1030 * heads * track, "", ""},
	} {
		s := &sparse{sectors: int64(tc.start + tc.sectors), bytes: map[int64]forge.Bytes{}}
		s.bytes[0] = tableforge.NewMBR(1, slot(tc.kind, tc.start, tc.sectors))
		l := boottest.Bare(t, s.disk())
		l.Geometry = table.Geometry{Heads: heads, Sectors: track}
		l.Partitions[0].Volume = &volume.Volume{Kind: volume.FAT16}
		goal := align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary}
		found := coded(newPlan(t, l, goal).Notes, "chs-end")
		if tc.warned == "" {
			require.Empty(t, found, tc.name)
			continue
		}
		require.Len(t, found, 1, tc.name)
		require.Contains(t, found[0].Text, tc.warned, tc.name)
		require.Regexp(t, tc.remedy+"$|"+tc.remedy+",", found[0].Remedy, tc.name)
	}
}
