package realign

import (
	"cmp"
	"fmt"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
)

// bios returns the geometry that the BIOS has to report of a copy in a format, zero where nothing depends on it: what
// it reports of the source if the format stays, and otherwise that of the table.
func (s *Source) bios(format string) driver.Geometry {
	want := general(s.Layout.BIOS())
	if want != (driver.Geometry{}) && format == s.Image.Format {
		return cmp.Or(s.Image.BIOS, want)
	}
	return want
}

// BIOSOf returns the geometry that a BIOS reports of a planned disk in the format of its source, zero where the format
// states none.
func (s *Source) BIOSOf(p *plan.Plan) driver.Geometry {
	return store.Reports(s.Image, p.Size, store.CreateOptions{BIOS: s.bios(s.Image.Format)})
}

func general(g table.Geometry) driver.Geometry {
	return driver.Geometry{Heads: int64(g.Heads), Sectors: int64(g.Sectors)}
}

// geometryNotes warns of a disk that is read by cylinder, head and sector, in a container by which a BIOS reports
// others. A container that states none is as good as another one of its format.
func (s *Source) geometryNotes(o *store.Output) []ondisk.Issue {
	format, got := o.Format, o.BIOS()
	want := s.bios(format)
	if want == (driver.Geometry{}) {
		return nil
	}
	says := fmt.Sprintf("a BIOS reports %d heads and %d sectors of this %s", got.Heads, got.Sectors, format)
	if got == (driver.Geometry{}) {
		if format == s.Image.Format {
			return nil
		}
		guess, _ := s.Layout.Table.Guessed()
		got, says = general(guess), fmt.Sprintf("a %s states none: the machine chooses", format)
	}
	if got.Alike(want) {
		return nil
	}
	return []ondisk.Issue{{
		Code: "container-geometry", Effect: ondisk.Warn,
		Text: fmt.Sprintf("the disk boots by cylinders of %d heads and %d sectors, and %s", want.Heads, want.Sectors,
			says),
		Remedy: "set that geometry in the machine if the guest does not start (QEMU: cyls=, heads= and secs= of the " +
			"disk), or choose --to vmdk, which states it",
	}}
}
