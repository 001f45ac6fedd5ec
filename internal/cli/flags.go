package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/realign"
)

// Move has the flags that decide what moves where.
type Move struct {
	realign.Reading
	realign.Goal
	With []string // other disks of the machine
}

// SkipFreeHelp explains --skip-free.
const SkipFreeHelp = `With --skip-free, the free space of NTFS, FAT and ext2 to ext4 is neither read nor written, and
the copy has zeros there: what was deleted cannot be brought back from it. A volume that is dirty or hibernated, or
whose bitmap does not agree with its files, is copied as a whole, with the reason.`

// MoveHelp explains the flags of a copy that decide what moves where, and what is copied.
const MoveHelp = SkipFreeHelp + `

` + PlacesHelp

// PlacesHelp explains the flags that decide what moves where.
const PlacesHelp = `By default, partitions that inspect finds off 64 KiB move to a multiple of 64 KiB if the boot
code uses cylinders, heads and sectors, and to a multiple of 1 MiB otherwise. --boundary SIZE makes SIZE both criterion
and target. A partition whose data would lie worse, or that no running guest reads or writes, stays; --partition N moves
it, with a warning. --data-only is refused if a partition that the boot needs would have to make room.

` + RepairTableHelp

// Add adds the flags.
func (m *Move) Add(cmd *cobra.Command, c *Base) {
	m.AddPlaces(cmd, c)
	AddSkipFree(cmd, &m.SkipFree)
	AddFlatten(cmd, &m.Flatten)
	AddWith(cmd, &m.With)
}

// AddPlaces adds the flags that decide which partitions of an image move where.
func (m *Move) AddPlaces(cmd *cobra.Command, c *Base) {
	AddBoundary(cmd, (*align.Boundary)(&m.Boundary), "alignment of moved partitions: auto, or 4K to 1G")
	cmd.Flags().IntSliceVar(&m.Only, "partition", nil, "move only partition `N`, and what it displaces (repeatable)")
	completePartitions(c, cmd, "partition", &m.Reading)
	cmd.Flags().BoolVar(&m.DataOnly, "data-only", false, "leave partitions that the boot needs in place")
	cmd.Flags().BoolVar(&m.AllowUnbootable, "allow-unbootable", false, "proceed although the copy may not boot")
	AddRepairTable(cmd, &m.RepairTable)
	AddReading(cmd, &m.Reading)
}

// RepairTableHelp explains --repair-table.
const RepairTableHelp = `A damaged GPT is copied as it is, with a warning, if nothing has to be rewritten in it, and
refused otherwise. With --repair-table, the damaged copy is written again from the other one, and the protective MBR if
it is missing. Every byte that this replaces is listed. It is refused if anything but zeros or the remains of this GPT
stands there.`

// AddRepairTable adds --repair-table.
func AddRepairTable(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "repair-table", false, "write a damaged copy of a GPT again, from the other one")
}

// AddSkipFree adds --skip-free.
func AddSkipFree(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "skip-free", false, "leave out what NTFS, ext and FAT call free: zeros are there instead")
}

// AddFlatten adds --flatten.
func AddFlatten(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "flatten", false, "merge a snapshot and its parents into one disk")
}

// Choices are the flags that make align move the same.
func (m *Move) Choices() []string { return append(m.Goal.Flags(), m.WithArguments()...) }

// WithArguments are the flags that name the other disks of the machine.
func (m *Move) WithArguments() (out []string) {
	for _, path := range m.With {
		out = append(out, "--with", realign.Shown(path))
	}
	return out
}

// AddWith adds --with.
func AddWith(cmd *cobra.Command, paths *[]string) {
	cmd.Flags().StringArrayVar(paths, "with", nil, "another `DISK` of the machine, read only (repeatable)")
}

// Reads lists what is read for some images: the other disks of the machine, and the folders of parents.
func (m *Move) Reads(images ...string) []string { return slices.Concat(images, m.With, m.Allow) }

// NoPackage refuses --with for a package.
func (m *Move) NoPackage() error {
	if len(m.With) > 0 {
		return Usage("--with, but the disks of a package are planned together without it")
	}
	return nil
}

// OpenOthers opens the disks of --with. dest is the output of the command, empty for none.
func (m *Move) OpenOthers(c *Base, s *realign.Source, dest string) (realign.Others, error) {
	return realign.OpenOthers(s, m.With, m.Goal, m.Allow, dest, c.Open)
}

// AddBoundary adds --boundary.
func AddBoundary(cmd *cobra.Command, n *align.Boundary, usage string) {
	cmd.Flags().Var(n, "boundary", usage)
	Complete(cmd, "boundary", "auto", "4K", "64K", "1M")
}
