package layout_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
)

// known is what a layout says.
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

// A sector that cannot be read is never taken for what is on a disk.
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

// The gap holds zeros that are stored, data and holes, in this order and back.
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
