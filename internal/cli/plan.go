package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// moveFlags decide what moves where; plan and align share them.
type moveFlags struct {
	realign.Reading
	realign.Goal
	with []string // other disks of the machine
}

// skipFreeHelp explains --skip-free.
const skipFreeHelp = `With --skip-free, the free space of NTFS, FAT and ext2 to ext4 is neither read nor written, and
the copy has zeros there: what was deleted cannot be brought back from it. A volume that is dirty or hibernated, or
whose bitmap does not agree with its files, is copied as a whole, with the reason.`

// moveHelp explains the flags that decide what moves where.
const moveHelp = skipFreeHelp + `

By default, partitions that start off 64 KiB move to a multiple of 64 KiB if the boot code uses
cylinders, heads and sectors, and to a multiple of 1 MiB otherwise. --boundary SIZE makes SIZE both criterion and
target. --data-only is refused if a partition that the boot needs would have to make room.

--dynamic-disks lets the volumes of a Windows dynamic disk move. All of them move by one distance, which aligns as many
as possible; the database stays. Disks of Windows 2000 to 2003 with an MBR stay refused, since these look for the
volumes at LBA 63 only. The others were not tried with Windows: keep SOURCE until Windows shows the volumes of the copy.`

func (m *moveFlags) add(cmd *cobra.Command) {
	boundaryFlag(cmd, (*align.Boundary)(&m.Boundary), "alignment of moved partitions: auto, or 4K to 1G")
	cmd.Flags().IntSliceVar(&m.Only, "partition", nil, "move only partition `N`, and what it displaces (repeatable)")
	cmd.Flags().BoolVar(&m.DataOnly, "data-only", false, "leave partitions that the boot needs in place")
	cmd.Flags().BoolVar(&m.AllowUnbootable, "allow-unbootable", false, "proceed although the copy may not boot")
	cmd.Flags().BoolVar(&m.DynamicDisks, "dynamic-disks", false,
		"move the volumes of Windows dynamic disks, all by one distance")
	skipFreeFlag(cmd, &m.SkipFree)
	readingFlags(cmd, &m.Reading)
	flattenFlag(cmd, &m.Flatten)
	withFlag(cmd, &m.with)
}

func skipFreeFlag(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "skip-free", false, "leave out what NTFS, ext and FAT call free: zeros are there instead")
}

// proof returns the flags of the verify that proves the copy again.
func (f *alignFlags) proof() []string {
	if f.SkipFree {
		return append(f.Reading.Flags(), "--skip-free")
	}
	return f.Reading.Flags()
}

func flattenFlag(cmd *cobra.Command, on *bool) {
	cmd.Flags().BoolVar(on, "flatten", false, "merge a snapshot and its parents into one disk")
}

// choices are the flags that make align move the same.
func (m *moveFlags) choices() []string { return append(m.Goal.Flags(), m.withArguments()...) }

// withArguments are the flags that name the other disks of the machine.
func (m *moveFlags) withArguments() (out []string) {
	for _, path := range m.with {
		out = append(out, "--with", path)
	}
	return out
}

type planFlags struct {
	*common
	moveFlags
	bench    benchFile
	estimate bool
}

func newPlan(c *common) *cobra.Command {
	f := planFlags{common: c}
	cmd := &cobra.Command{
		Use:   "plan IMAGE",
		Short: "Show what align would do, and write nothing",
		Long: `Shows what align would do: the partitions that move, every byte that changes with old value, new value
and reason, the growth of the disk, every stored position of a partition and its new value, refusals, an inspection of
the result, and what a copy reads, writes and needs. Writes nothing.

` + moveHelp + `

--with names the other disks of the machine, as for align.`,
		Example: `  trueup plan winxp.vmdk
  trueup plan --boundary 1M --partition 2 data.vmdk`,
		Args: arguments("IMAGE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runPlan(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f, args[0])
		},
	}
	f.add(cmd)
	f.addSandbox(cmd)
	f.bench.add(cmd)
	cmd.Flags().BoolVar(&f.estimate, "estimate", false,
		"read some of IMAGE, not from memory, to estimate the time of a copy")
	return cmd
}

func runPlan(ctx context.Context, out, errOut io.Writer, f planFlags, path string) error {
	if err := errors.Join(f.check(), f.Consistent()); err != nil {
		return err
	}
	measured, err := f.bench.read(f.out)
	if err != nil {
		return err
	}
	if err := f.confine(errOut, f.reads(path), nil); err != nil {
		return err
	}
	s, err := f.open(path, f.Reading)
	if err != nil {
		return err
	}
	defer s.Close()
	o, err := f.openOthers(f.common, s, "")
	if err != nil {
		return err
	}
	defer o.Close()
	p, err := s.PlanAmong(o, f.Goal, nil)
	if err != nil {
		return err
	}
	refusals := p.Refusals(f.AllowUnbootable)
	r := report.NewPlan(head("plan"), s, p, refusals)
	r.Flags = append(f.Reading.Flags(), f.choices()...)
	r.Benchmark(measured)
	refused := realign.Refusal(refusals)
	if refused == nil {
		after, err := s.Result(p)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		r.Inspected(after, p)
		cost, err := s.Cost(ctx, p, f.estimate)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		r.Cost = new(report.Cost(cost))
	} else {
		refused = afterReport(fmt.Errorf("%s: %w", path, refused), true)
		_, r.ExitCode = classify(refused)
		r.Error = report.NewError(refused)
	}
	if err := f.emit(out, r, func(t *report.Text) { t.Plan(r) }); err != nil {
		return err
	}
	return refused
}

func withFlag(cmd *cobra.Command, paths *[]string) {
	cmd.Flags().StringArrayVar(paths, "with", nil, "another `DISK` of the machine, read only (repeatable)")
}

// reads lists what is read for some images: the other disks of the machine, and the folders of parents.
func (m *moveFlags) reads(images ...string) []string { return slices.Concat(images, m.with, m.Allow) }

// noPackage refuses --with for a package.
func (m *moveFlags) noPackage() error {
	if len(m.with) > 0 {
		return ondisk.In(ondisk.ErrUsage, "--with, but the disks of a package are planned together without it")
	}
	return nil
}

// openOthers opens the disks of --with. dest is the output of the command, empty for none.
func (m *moveFlags) openOthers(c *common, s *realign.Source, dest string) (realign.Others, error) {
	return realign.OpenOthers(s, m.with, m.Goal, m.Allow, dest, c.open)
}
