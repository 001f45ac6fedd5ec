package realign

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/verify"
)

const codeSectors = "sector-size"

// countSectors sets the sector size of the disk to the unit of its GPT.
func (s *Source) countSectors() {
	if s.Layout.Sectors.By == layout.GPTHeader {
		s.counted = s.Layout.Sectors.Counted
		s.Image.CountIn(s.Layout.SectorSize)
		return
	}
	s.shownOtherwise()
}

// shownOtherwise adds an error for an MBR whose unit differs from the sector size that its image states, although the
// image format allows that unit. A machine reads the table with the stated size, and finds no partition. The bytes can
// still be copied.
func (s *Source) shownOtherwise() {
	found, stated := s.Layout.Sectors, s.Image.StatedSectors()
	if found.By != layout.BootRecords || stated == 0 || stated == found.Counted || s.Image.OnDevice() ||
		s.Image.HoldsSectors(s.Image.Format, found.Counted) != nil {
		return
	}
	err := ondisk.In(ondisk.ErrFormat,
		"the partition table uses sectors of %d bytes, and the %s states %d: a machine finds no partition",
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

// sectors compares the sector size of the disk with the size given by the user, the size stated by its image, and the
// sizes that the format of a copy with a goal allows.
func (s *Source) sectors(g Goal) (out []ondisk.Issue) {
	n, stated, ordered := s.sectorSize(), s.Image.StatedSectors(), s.reading.SectorSize
	gpt := s.counted != 0
	if gpt && ordered != 0 && ordered != n {
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Refuse,
			Text:   fmt.Sprintf("the GPT uses sectors of %d bytes, and --sector-size is %d", n, ordered),
			Remedy: "leave out --sector-size: a GPT states its sector size",
		})
	}
	switch {
	case s.resizes(g):
	case stated == n && n != 512 && s.Layout.Table != nil:
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Note,
			Text: fmt.Sprintf("the partition table uses sectors of %d bytes, as the %s states: a machine with other "+
				"sectors finds no partition", n, s.shownBy()),
			Remedy: "for a machine with sectors of 512 bytes: trueup align --to-sector-size 512",
		})
	case !gpt || ordered == n:
	case stated != 0 && stated != n:
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Warn,
			Text: fmt.Sprintf("the GPT uses sectors of %d bytes, and the %s presents %d: no system finds the "+
				"partitions there", n, s.shownBy(), stated),
			Remedy: stateSectors(n),
		})
	case stated == 0 && s.Image.Disk.SectorSize() == n && n != 512:
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Note,
			Text: fmt.Sprintf("the GPT uses sectors of %d bytes, so the disk is read with that sector size; a "+
				"machine must be configured for it", n),
			Remedy: stateSectors(n),
		})
	}
	return append(out, s.sectorsOf(g)...)
}

// sectorsOf compares the sector size of a copy with a goal with the sizes that its format allows.
func (s *Source) sectorsOf(g Goal) (out []ondisk.Issue) {
	n := s.sectorSize()
	to, shows := cmp.Or(g.To, s.Image.Format), s.Image.Disk.SectorSize()
	if s.resizes(g) {
		n, shows = g.Sectors, g.Sectors
	}
	var refused *ondisk.Refusal
	switch {
	case errors.As(s.Image.HoldsSectors(to, n), &refused):
		if s.resizes(g) {
			refused.Reason = fmt.Sprintf("the format %s cannot record sectors of %d bytes", to, n)
			refused.Remedy = "leave out --to-sector-size, or add --to vhdx or --to raw"
		}
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Refuse, Text: refused.Reason, Remedy: refused.Remedy,
		})
	case n != shows && to != raw.Format.Name:
		out = append(out, ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Refuse,
			Text: fmt.Sprintf("the partition table uses sectors of %d bytes, and the %s would state %d",
				n, image.Title(to), shows),
			Remedy: fmt.Sprintf("add --sector-size %d if SOURCE is raw; else write the copy with --to raw", n),
		})
	}
	return out
}

// staysAsShown refuses a move in place if the device or image shows another sector size than the GPT.
func (s *Source) staysAsShown() error {
	n, stated := s.sectorSize(), s.Image.StatedSectors()
	if stated == 0 || stated == n {
		return nil
	}
	return &ondisk.Refusal{
		Code: "unsupported",
		Reason: fmt.Sprintf("the GPT uses sectors of %d bytes, and the %s presents %d: no system finds the "+
			"partitions there, before or after the move", n, s.shownBy(), stated),
		Remedy: "make a copy with --to raw or --to vhdx, or attach the device with the sector size of the GPT",
	}
}

// shownBy returns the name of the device or format that shows the disk.
func (s *Source) shownBy() string {
	if s.Image.OnDevice() {
		return "device"
	}
	return image.Title(s.Image.Format)
}

// stateSectors describes how to set the sector size of a disk in a machine.
func stateSectors(n int64) string {
	return fmt.Sprintf("state the size where the disk is attached (QEMU: logical_block_size=%d), or have a VHDX "+
		"state it (trueup convert --to vhdx); for a machine with sectors of 512 bytes: trueup align "+
		"--to-sector-size 512", n)
}

// resizes reports whether a copy with a goal has another sector size than the disk.
func (s *Source) resizes(g Goal) bool { return g.Sectors != 0 && g.Sectors != s.sectorSize() }

// planSectors completes a plan for a goal with another sector size: the disk grows if the new table needs it, and
// everything that prevents the change becomes a note. size rounds the size of the copy, or is nil to keep it.
func (s *Source) planSectors(p *plan.Plan, g Goal, size func(int64) int64) error {
	if !s.resizes(g) {
		return nil
	}
	if err := s.malformed(); err != nil { // a plain copy keeps a damaged table
		return fmt.Errorf("%s: %w", s.Path(), err)
	}
	s.count(p, g.Sectors)
	if size != nil {
		p.Grow(s.Layout, size(p.Size))
	}
	for _, i := range s.Layout.Issues { // the table is rewritten as if all partitions moved
		same := func(f align.Finding) bool { return f.Code == i.Code && f.Partition == i.Partition }
		if i.OnMove && i.Effect >= ondisk.Refuse && !slices.ContainsFunc(p.Notes, same) {
			p.Notes = append(p.Notes, align.FromIssue(i))
		}
	}
	if len(p.Refusals(true)) > 0 {
		return nil
	}
	now, _, err := s.inSectors(p)
	switch {
	case errors.Is(err, ondisk.ErrUnsupported) || errors.Is(err, ondisk.ErrLimit):
		p.Notes = append(p.Notes, align.FromIssue(ondisk.Issue{
			Code: codeSectors, Effect: ondisk.Refuse, Err: err, Text: err.Error(), Remedy: s.resizeRemedy(g, err),
		}))
	case err != nil:
		return err
	default:
		p.Notes = append(p.Notes, s.inNewSectors(now.Layout, g.Sectors)...)
	}
	return nil
}

// resizeRemedy returns the remedy for a table that cannot be written in other sectors.
func (s *Source) resizeRemedy(g Goal, err error) string {
	switch {
	case errors.Is(err, ondisk.ErrLimit):
		return "convert the table to GPT in the guest first"
	case s.Layout.Damaged() && !g.RepairTable:
		return "add --repair-table"
	case g.Copy:
		return "trueup align moves partitions onto whole sectors: use it in place of convert; move other data in the " +
			"guest"
	}
	return "leave out --partition and --data-only, so that all partitions can move, or change the disk in the guest"
}

// count makes a plan write the table in sectors of n bytes, on a disk that has room for that.
func (s *Source) count(p *plan.Plan, n int64) {
	p.Sectors = n
	least := units.AlignUp(p.Size, n)
	if t := s.Layout.Table; t != nil {
		least = t.SizeIn(p.Places, p.Size, n)
	}
	if least > p.Size {
		p.Grow(s.Layout, units.AlignUp(least, units.MiB))
	}
}

// inNewSectors returns the notes for the volumes and the boot of a disk whose sectors now have n bytes. A volume made
// for smaller sectors is refused, because no system can mount it.
func (s *Source) inNewSectors(now *layout.Layout, n int64) (out []align.Finding) {
	for _, i := range now.Issues {
		if i.Code != layout.CodeVolumeSectors {
			continue
		}
		if n > s.sectorSize() {
			i.Effect, i.Err = ondisk.Refuse, ondisk.ErrUnsupported
		}
		out = append(out, align.FromIssue(i))
	}
	for _, p := range s.Layout.Partitions {
		if is, _ := now.Partition(p.Number); p.Volume.AtEnd && is.Len != p.Len {
			out = append(out, align.FromIssue(ondisk.Issue{
				Code: codeSectors, Effect: ondisk.Refuse, Err: ondisk.ErrUnsupported, Partition: p.Number,
				Text: fmt.Sprintf("it ends in the middle of a sector of %d bytes and would grow, and the superblock "+
					"of its %s is located from its end", n, p.Volume.Kind),
				Remedy: "make the partition a multiple of the new sector size in the guest",
			}))
		}
	}
	if n > 512 && s.Layout.BIOSBoots() {
		out = append(out, align.FromIssue(ondisk.Issue{
			Code: "bios-sectors", Effect: ondisk.Warn,
			Text: fmt.Sprintf("sector 0 holds boot code (%s), and no BIOS boots from a disk with sectors of %d "+
				"bytes: the copy starts only by UEFI", s.Layout.Boot.Code.Name, n),
			Remedy: "use the copy as a data disk, or in a machine with UEFI firmware",
		}))
	}
	return out
}

// inSectors returns the planned disk as a source whose table counts the sectors of the plan, and the plan of its copy.
// For a plan that keeps the sector size, it returns its arguments.
func (s *Source) inSectors(p *plan.Plan) (*Source, *plan.Plan, error) {
	if p.Sectors == 0 {
		return s, p, nil
	}
	view, before, err := s.promised(p)
	if err == nil {
		err = settled(view, before, p)
	}
	if err != nil {
		return nil, nil, err
	}
	patches, err := before.InSectors(view, p.Sectors)
	if err != nil {
		return nil, nil, err
	}
	now := *s
	now.Image = s.Image.Showing(disk.InSectors(disk.Overlay(view, patches), p.Sectors))
	if now.Layout, err = layout.Read(now.Image.Disk, s.geometry()); err == nil {
		err = verify.InSectors(before, now.Layout, patches, p.Sectors)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("planned result in sectors of %d bytes: %w", p.Sectors, err)
	}
	now.counted = 0
	return &now, plan.Copy(p.Size), nil
}
