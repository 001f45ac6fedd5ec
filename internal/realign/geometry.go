package realign

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/table"
)

const codeSectors = "sector-size"

// countSectors gives the disk the sectors that its GPT counts.
func (s *Source) countSectors() {
	if s.Layout.Sectors.By == layout.GPTHeader {
		s.counted = s.Layout.Sectors.Counted
		s.Image.CountIn(s.Layout.SectorSize)
		return
	}
	s.shownOtherwise()
}

// shownOtherwise makes an error of an MBR that counts other sectors than those that its image states, and could state:
// a machine reads the table by the stated size, and finds no partition. The bytes can still be copied.
func (s *Source) shownOtherwise() {
	found, stated := s.Layout.Sectors, s.Image.StatedSectors()
	if found.By != layout.BootRecords || stated == 0 || stated == found.Counted || s.Image.OnDevice() ||
		s.Image.HoldsSectors(s.Image.Format, found.Counted) != nil {
		return
	}
	err := ondisk.In(ondisk.ErrFormat,
		"the partition table counts sectors of %d bytes, and the %s states those of %d: a machine finds no partition",
		found.Counted, s.shownBy(), stated)
	s.Layout.Issues = append(s.Layout.Issues, ondisk.Issue{
		Code: codeSectors, Effect: ondisk.BadVolume, Err: err, Text: err.Error(),
		Remedy: "trueup convert --to raw, and state the size where the copy is attached (QEMU: logical_block_size)",
	})
}

// sectorSize returns the sector size of the disk, as far as it is certain.
func (s *Source) sectorSize() int64 {
	switch {
	case s.counted != 0:
		return s.counted
	case s.Layout != nil:
		return s.Layout.Sectors.Size()
	}
	return s.Image.Disk.SectorSize()
}

// sectors compares the sector size of the disk with the one that was ordered, the one that its image states, and those
// that the copy can state.
func (s *Source) sectors() (out []ondisk.Issue) {
	n, stated, ordered := s.sectorSize(), s.Image.StatedSectors(), s.reading.SectorSize
	gpt := s.counted != 0
	if gpt && ordered != 0 && ordered != n {
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Refuse,
			Text:   fmt.Sprintf("the GPT counts sectors of %d bytes, and --sector-size says %d", n, ordered),
			Remedy: "leave out --sector-size: a GPT states the size of its sectors",
		})
	}
	switch {
	case !gpt || ordered == n:
	case stated != 0 && stated != n:
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Warn,
			Text: fmt.Sprintf("the GPT counts sectors of %d bytes, and the %s shows the disk with those of %d: no "+
				"system finds the partitions there", n, s.shownBy(), stated),
			Remedy: stateSectors(n),
		})
	case stated == 0 && s.Image.Disk.SectorSize() == n && n != 512:
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Note,
			Text: fmt.Sprintf("the GPT counts sectors of %d bytes, so that the disk is read in these: a machine "+
				"must be told to show it so", n),
			Remedy: stateSectors(n),
		})
	}
	to := s.to
	if to == "" {
		to = s.Image.Format
	}
	var refused *ondisk.Refusal
	switch shows := s.Image.Disk.SectorSize(); {
	case errors.As(s.Image.HoldsSectors(to, n), &refused):
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Refuse, Text: refused.Reason, Remedy: refused.Remedy,
		})
	case n != shows && to != raw.Format.Name:
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Refuse,
			Text: fmt.Sprintf("the partition table counts sectors of %d bytes, and the %s would state those of %d, by "+
				"which the disk is read", n, image.Title(to), shows),
			Remedy: fmt.Sprintf("add --sector-size %d if SOURCE is raw; else write the copy with --to raw", n),
		})
	}
	return out
}

// staysAsShown refuses a move inside of a device that shows its disk with other sectors than its GPT counts.
func (s *Source) staysAsShown() error {
	n, stated := s.sectorSize(), s.Image.StatedSectors()
	if stated == 0 || stated == n {
		return nil
	}
	return &ondisk.Refusal{
		Code: "unsupported",
		Reason: fmt.Sprintf("the GPT counts sectors of %d bytes, and the %s shows the disk with those of %d: no "+
			"system finds the partitions there, before the move or after it", n, s.shownBy(), stated),
		Remedy: "make a copy with --to raw or --to vhdx, or attach the device so that it shows the sectors of the GPT",
	}
}

// copyHoldsSectors refuses a copy that cannot state the sector size of the disk in it, of which nothing was known
// before.
func copyHoldsSectors(got *image.Image) error {
	l, err := layout.Read(got.Disk, table.Geometry{})
	if err != nil {
		return nil //nolint:nilerr // it was copied as it is
	}
	return got.HoldsSectors(got.Format, l.Sectors.Size())
}

// shownBy names what shows the disk.
func (s *Source) shownBy() string {
	if s.Image.OnDevice() {
		return "device"
	}
	return image.Title(s.Image.Format)
}

// stateSectors returns how a machine is told the sector size of a disk.
func stateSectors(n int64) string {
	return fmt.Sprintf("state the size where the disk is attached (QEMU: logical_block_size=%d), or have a VHDX "+
		"state it (trueup convert --to vhdx)", n)
}

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
