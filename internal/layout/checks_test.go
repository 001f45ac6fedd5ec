package layout_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// requireBad requires that reading a layout fails without a sector.
func requireBad(t *testing.T, f forge.Bytes, lba int64) {
	t.Helper()
	_, err := layout.Read(disktest.NewBadDisk(disktest.Memory(f), lba*512), table.Geometry{})
	require.ErrorIs(t, err, disktest.ErrFault, lba)
}

// Both sector sizes are tried, and a bad sector is an error with either.
func TestBadSectorsOfEvidence(t *testing.T) {
	t.Parallel()
	primary := slot(0x83, 63, 4000)
	data := tableforge.NewMBR(36000, primary)
	data.U8(63*4096, 1)
	for _, lba := range []int64{63 * 8, 63*8 + 6*8, (63 + 3999) * 8, 63*8 + 8193*2, 63 + 6, 63 + 3999} {
		requireBad(t, data, lba)
	}
	l := read(t, data)
	var effects []ondisk.Effect
	for _, i := range l.Issues {
		if i.Code == "sector-size" || i.Code == "sector-size-unsure" {
			effects = append(effects, i.Effect)
		}
	}
	require.Equal(t, []ondisk.Effect{ondisk.Note, ondisk.Refuse}, effects)

	sure := tableforge.NewMBR(36000, slot(7, 63, 2400), slot(0x83, 2500, 100))
	fsforge.PutNTFS(sure, 63*8, 2400)
	require.True(t, refusesSectors(read(t, sure)))
	requireBad(t, sure, 2500*8)

	lost := tableforge.NewMBR(8000, slot(0x05, 2048, 4000))
	lost.U8(3000*512, 1)
	requireBad(t, lost, 2900)
}

// A gap with more pieces than the limit is kept as a whole.
func TestGapOfManyPieces(t *testing.T) {
	t.Parallel()
	const pieces, end = 65536 + 2, 2 * (65536 + 100)
	head := tableforge.NewMBR(100, slot(0x83, 63, 37))
	head.U8(99*512, 1)
	stored := bytes.NewReader(make([]byte, 512))
	for n, all := range map[int64]bool{100: false, pieces: true} {
		d := disk.New(end*512, 512, func(off int64) (disk.Run, error) {
			lba := off / 512
			switch {
			case lba < 100:
				return disk.Run{Len: 100*512 - off, Src: bytes.NewReader(head), Off: off}, nil
			case lba >= 100+n:
				return disk.Run{Len: end*512 - off}, nil
			case lba == 101: // the data
				return disk.Run{Len: 512 - off%512, Src: bytes.NewReader(bytes.Repeat([]byte{1}, 512)), Off: off % 512},
					nil
			case lba%2 == 1:
				return disk.Run{Len: 512 - off%512, Src: stored, Off: off % 512}, nil
			}
			return disk.Run{Len: 512 - off%512}, nil
		})
		l := readDisk(t, d, table.Geometry{})
		require.NoError(t, l.ReadGaps(d))
		want := disk.Range{Off: 101 * 512, Len: 512}
		if all {
			want.Len = (end - 101) * 512
		}
		require.Equal(t, want, l.Gaps[len(l.Gaps)-1].Data)
	}
}

// Without an end in CHS bytes, the geometry is that of a boot sector, then the 255 heads of entries beyond CHS, then
// that of the container.
func TestHintsOfGeometry(t *testing.T) {
	t.Parallel()
	container := table.Geometry{Heads: 7, Sectors: 9}
	f := tableforge.NewMBR(20000, slot(7, 63, 16000))
	clear(f[446+1 : 446+4])
	clear(f[446+5 : 446+8])
	geometry := func() table.Geometry {
		l := readDisk(t, disktest.Memory(f), container)
		return l.Geometry
	}
	require.Equal(t, container, geometry())
	f.Put(446+5, []byte{0xfe, 0xff, 0xff})
	require.Equal(t, table.Geometry{Heads: 255, Sectors: 63}, geometry())
	fsforge.PutNTFS(f, 63, 16000)
	f.U16(63*512+fsforge.BootHeads, 16)
	f.U16(63*512+fsforge.BootSectorsPerTrack, 32)
	require.Equal(t, table.Geometry{Heads: 16, Sectors: 32}, geometry())
}

// DOS never reads a chain off the cylinders: there is a warning if something moves, since the move does not repair it.
func TestChainThatDOSCannotRead(t *testing.T) {
	for off, said := range map[int64]bool{0: false, 1: true} {
		const cylinder = 255 * 63
		start := cylinder + off
		f := tableforge.NewMBR(int(start)+17000, slot(0x05, uint32(start), 16500))
		tableforge.PutEBR(f, start, slot(0x06, 63, 16000), tableforge.Slot{})
		fsforge.PutFAT16(f, start+63, 16000)
		l := read(t, f)
		require.Equal(t, table.Geometry{Heads: 255, Sectors: 63}, l.Geometry)
		require.Equal(t, said,
			slices.ContainsFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == "dos-chain" && i.OnMove }))
		record := l.Items()[0]
		require.Equal(t, layout.RecordItem, record.Kind)
		require.Equal(t, !said, record.Step > 0)
	}
}

// known returns the content of a layout as a text.
func known(l *layout.Layout) string {
	var out strings.Builder
	for _, p := range l.Partitions {
		v := *p.Volume
		v.Boot = nil
		fmt.Fprintln(&out, p.Number, p.Kind, p.Range, p.TypeID(), p.GUID, p.Name, p.Active, v)
	}
	for _, i := range l.Issues {
		fmt.Fprintln(&out, i.Code, i.Effect, i.Partition, i.Text)
	}
	for _, r := range l.Boot.Refs {
		fmt.Fprintln(&out, r.Name(), r.Place(), r.Points, r.Target, string(r.Raw), r.At, r.Stays, r.Loss)
	}
	fmt.Fprintln(&out, l.Boot.Code.ID, l.Boot.Chain, l.Geometry, l.Gaps, l.Damaged(), l.Signature())
	return out.String()
}

// An unreadable sector is never mistaken for data.
func TestBadSectors(t *testing.T) {
	for name, fixture := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := disktest.Fixture(t, fixture)
			badReads(t, d)
			badGaps(t, d)
		})
	}
	for name, text := range map[string]string{"blank": "", "unknown": "text"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := make(forge.Bytes, 3<<20)
			f.Text(int64(len(f)-1000), text)
			badReads(t, disktest.Memory(f))
		})
	}
}

// badReads reads a layout with each sector unreadable in turn, and with each operation failing once.
func badReads(t *testing.T, d disk.Disk) {
	t.Helper()
	for _, read := range []func(disk.Disk, table.Geometry) (*layout.Layout, error){layout.Read, layout.Survey} {
		text := func(d disk.Disk) (string, error) {
			l, err := read(d, table.Geometry{})
			if err != nil {
				return "", err
			}
			return known(l), nil
		}
		disktest.EveryBadSector(t, d, text)
		disktest.EveryBadRead(t, d, text)
	}
}

// badGaps measures gaps with each sector unreadable in turn, and with each operation failing once.
func badGaps(t *testing.T, d disk.Disk) {
	t.Helper()
	gaps := func(bad disk.Disk) (string, error) {
		l := readDisk(t, d, table.Geometry{})
		err := l.ReadGaps(bad)
		return known(l), err
	}
	disktest.EveryBadSector(t, d, gaps)
	disktest.EveryBadRead(t, d, gaps)
}

// The gap has stored zeros, data and holes, in this order and reversed.
func TestBadSectorsInGaps(t *testing.T) {
	t.Parallel()
	const track, end = 63, 4096
	f := tableforge.NewMBR(end, slot(0x83, track, 1000))
	f.Text(2000*units.SectorSize, "data")
	f.Text(3000*units.SectorSize, "data")
	stored := []disk.Range{{Len: 1}, {Off: track, Len: 1400}, {Off: 1990, Len: 20}, {Off: 2900, Len: 300}}
	var pieces []disk.Piece
	for _, r := range stored {
		r = disk.Range{Off: r.Off * units.SectorSize, Len: r.Len * units.SectorSize}
		pieces = append(pieces, disk.Piece{Range: r, Src: bytes.NewReader(f), At: r.Off})
	}
	d := disk.New(int64(len(f)), units.SectorSize, disk.Pieces(int64(len(f)), pieces, nil))
	l := readDisk(t, d, table.Geometry{})
	require.NoError(t, l.ReadGaps(d))
	sectors := func(first, end int64) disk.Range {
		return disk.Range{Off: first * units.SectorSize, Len: (end - first) * units.SectorSize}
	}
	require.Equal(t, []layout.Gap{{Range: sectors(track+1000, end), Data: sectors(2000, 3001)}}, l.Gaps)
	badGaps(t, d)
}

// Headers of 4 MiB in each of many partitions cost an attacker nothing, but trueup minutes.
func TestMetadataOfAllVolumesAreBounded(t *testing.T) {
	const count, size, header = 24, 9 << 11, 4 << 20
	var entries []tableforge.GPTEntry
	for i := range uint64(count) {
		entries = append(entries, tableforge.GPTEntry{First: 2048 + i*size, Last: 2048 + (i+1)*size - 1})
	}
	f := tableforge.NewGPT(512, 2048+count*size+64, 128, entries...)
	for _, e := range entries {
		poolforge.PutLUKS2(f[e.First*512:], poolforge.LUKS2Text("8388608", "1000"), header)
	}
	l := readForged(t, f)
	require.Len(t, l.Partitions, count)
	require.Equal(t, volume.LUKS, l.Partitions[0].Volume.Kind)
	require.Equal(t, volume.Unknown, l.Partitions[count-1].Volume.Kind)
	requireLimit(t, l)
}

// Thousands of small partitions with any content cost an attacker a few bytes each, but trueup a run of all probers.
// Empty ones cost nothing.
func TestFilledPartitionsAreBounded(t *testing.T) {
	const count, step = 1200, 64
	entries := make([]tableforge.GPTEntry, count)
	for i := range entries {
		first := 2048 + uint64(i)*step
		entries[i] = tableforge.GPTEntry{First: first, Last: first + step - 1}
	}
	f := tableforge.NewGPT(512, 2048+count*step+1024, count, entries...)
	for _, i := range readForged(t, f).Issues {
		require.NotErrorIs(t, i.Err, ondisk.ErrLimit)
	}
	for _, e := range entries {
		f[e.First*512+100] = 1
	}
	l := readForged(t, f)
	require.Len(t, l.Partitions, count)
	requireLimit(t, l)
	last := l.Issues[slices.IndexFunc(l.Issues, func(i ondisk.Issue) bool { return errors.Is(i.Err, ondisk.ErrLimit) })]
	require.Contains(t, last.Text, "more than 1024 partitions in front of partition 1026 hold data")
}

// requireLimit requires one limit, that of the volumes.
func requireLimit(t *testing.T, l *layout.Layout) {
	t.Helper()
	var limits []ondisk.Issue
	for _, i := range l.Issues {
		if errors.Is(i.Err, ondisk.ErrLimit) {
			limits = append(limits, i)
		}
	}
	require.Len(t, limits, 1)
	require.Equal(t, []any{"volume", ondisk.Broken}, []any{limits[0].Code, limits[0].Effect})
}

// A table can refer to one volume group repeatedly, with all of its logical volumes each time.
func TestPartsOfAllVolumesAreBounded(t *testing.T) {
	const count, sectors = 300, 1024
	var text strings.Builder
	text.WriteString("g { extent_size = 8 logical_volumes {")
	for i := range 256 {
		fmt.Fprintf(&text, "l%d { s { extent_count = 1 } }\n", i)
	}
	text.WriteString("} }")
	entries := make([]tableforge.GPTEntry, count)
	for i := range entries {
		entries[i] = tableforge.GPTEntry{First: 2048, Last: 2048 + sectors - 1}
	}
	f := tableforge.NewGPT(512, 2048+sectors+1024, 512, entries...)
	poolforge.PutLVM(f[2048*512:][:sectors*512], text.String(), 512)
	l := readForged(t, f)
	require.Len(t, l.Partitions, count)
	require.Len(t, l.Partitions[0].Volume.Parts, 256)
	require.Empty(t, l.Partitions[count-1].Volume.Parts)
	requireLimit(t, l)
}

// However many positions on other disks a hive has, one finding reports them.
func TestNamesOfManyDisks(t *testing.T) {
	l := &layout.Layout{Boot: &boot.Result{Code: boot.Empty, Found: boot.Found{Unlisted: 7000}}}
	for i := range 1024 {
		l.Boot.Refs = append(l.Boot.Refs,
			boot.Ref{File: "WINDOWS/system32/config/SYSTEM", Partition: 1, Disk: uint32(i%300 + 1), Points: int64(i)})
	}
	l.Relate(&layout.Machine{})
	l.Relate(&layout.Machine{})
	require.Len(t, l.Issues, 1)
	require.Equal(t, "names-other-disks", l.Issues[0].Code)
	require.Equal(t, ondisk.Warn, l.Issues[0].Effect)
	require.True(t, l.Issues[0].OnMove)
	require.Contains(t, l.Issues[0].Text,
		`\WINDOWS\system32\config\SYSTEM of partition 1 refers to partitions of other disks`)
	require.Contains(t, l.Issues[0].Text, "disk 0x00000004 at byte 3, and 8020 more")
	require.Less(t, len(l.Issues[0].Text), 400)
}

// A data disk has a warning if it has an MBR with a signature, a volume that gets a drive letter, and no bootable
// system of its own.
func TestDisksThatAWindowsElsewhereMayKnow(t *testing.T) {
	ntfs := func(signature uint32, active byte, code []byte) forge.Bytes {
		f := tableforge.NewMBR(4096, tableforge.Slot{Flag: active, Type: 7, Start: 63, Sectors: 3000})
		fsforge.PutNTFS(f, 63, 3000)
		f.U32(tableforge.MBRSignature, signature)
		f.Put(0, code)
		return f
	}
	generic := []byte{0xbe, 0xbe, 0x07, 0xb8, 0x01, 0x02, 0xcd, 0x13} // reads the sector of an entry of the table
	gpt := tableforge.NewGPT(512, 8192, 128, tableforge.GPTEntry{First: 63, Last: 3062})
	fsforge.PutNTFS(gpt, 63, 3000)
	linux := tableforge.NewMBR(4096, slot(0x83, 63, 3000))
	fsforge.PutExt(linux, 63, 3000)
	for name, c := range map[string]struct {
		disk  forge.Bytes
		warns bool
	}{
		"no boot code":                {ntfs(1, 0, nil), true},
		"active, no boot code":        {ntfs(1, 0x80, nil), true},
		"boot code, nothing active":   {ntfs(1, 0, generic), true},
		"boot code, active":           {ntfs(1, 0x80, generic), false},
		"without a signature":         {ntfs(0, 0, nil), false},
		"partitions have identifiers": {gpt, false},
		"no volume that has letters":  {linux, false},
	} {
		t.Run(name, func(t *testing.T) {
			warns := false
			for _, i := range layout.Elsewhere(read(t, c.disk).Issues) {
				require.Equal(t, layout.KnownElsewhere, i.Code)
				warns = true
			}
			require.Equal(t, c.warns, warns)
		})
	}
}
