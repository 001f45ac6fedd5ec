package layout_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/table"
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
			disktest.EveryBadSector(t, d, func(bad disk.Disk) (string, error) {
				l, err := layout.Read(d, table.Geometry{})
				require.NoError(t, err)
				err = l.ReadGaps(bad)
				return known(l), err
			})
		})
	}
}
