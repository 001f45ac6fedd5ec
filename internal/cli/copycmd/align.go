// Package copycmd holds the commands that write, go on with or prove a copy, and those that move or exchange a disk.
package copycmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/cli/command"
	"github.com/trueup/trueup/internal/cli/flags"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
)

// copyFlags decide how a copy is written; align and convert share them.
type copyFlags struct {
	*command.Base
	flags.Work
	to      realign.Target
	force   bool
	verify  string
	sums    string // file for the digests
	command string
	dev     deviceFlags
}

func (c *copyFlags) add(cmd *cobra.Command) {
	c.AddSandbox(cmd)
	c.AddSpool(cmd, " (default: the folder of DEST)")
	f := cmd.Flags()
	f.Var(&c.to, "to", "format of DEST (default: the format of SOURCE)")
	f.BoolVar(&c.force, "force", false, "replace an existing DEST when the copy is complete")
	f.StringVar(&c.verify, "verify", full, "proof before DEST gets its name, by `LEVEL`: full (every "+
		"byte) or structure")
	f.StringVar(&c.sums, "checksums", "", "write the SHA-256 of each file of DEST to `FILE`, as sha256sum does")
	c.dev.add(cmd)
	c.AddWork(cmd, defaultJobs, "read and write `N` chunks at once")
	names, _ := realign.Targets()
	command.Complete(cmd, "to", names...)
	command.Complete(cmd, "verify", full, "structure")
}

func (c *copyFlags) checkFlags() error {
	if err := c.Check(); err != nil {
		return err
	}
	if proofs := []string{full, "structure"}; !slices.Contains(proofs, c.verify) {
		return ondisk.NoChoice("--verify", c.verify, proofs...)
	}
	return errors.Join(c.settleSums(), c.CheckWork())
}

// settleSums decides where the digests go, before anything is read.
func (c *copyFlags) settleSums() (err error) {
	if c.sums == "" {
		return nil
	}
	if c.sums, err = (store.Place{Flag: "--checksums", Path: c.sums, Role: store.Report}).Settle(); err != nil {
		return err
	}
	return errors.Join(store.Apart(store.Use{Flag: "--checksums", Path: c.sums}, store.Use{Flag: "--out", Path: c.Out}),
		store.TryFolder("--checksums", c.sums))
}

// spareSums refuses a file of digests that would overwrite what the command reads.
func (c *copyFlags) spareSums(images ...command.Input) error {
	for _, i := range images {
		if name, ok := i.Uses(c.sums); ok && c.sums != "" {
			return command.Usage("--checksums %s would overwrite %s, which the command reads", c.sums, name)
		}
	}
	return nil
}

// writeSums writes the digests of the files of DEST, named as the user named that.
func (c *copyFlags) writeSums(dest string, w realign.Written) error {
	if c.sums == "" || len(w.Sums) == 0 {
		return nil
	}
	sums := store.SHA256Sums(strings.TrimSuffix(dest, filepath.Base(dest)), w.Sums)
	if err := command.WriteFile(c.sums, []byte(sums)); err != nil {
		return fmt.Errorf("--checksums: %w; %s itself is complete and verified", err, dest)
	}
	return nil
}

// defaultJobs is how many chunks a copy reads and writes at once.
const defaultJobs = 4

// full is the proof that compares every byte.
const full = "full"

type alignFlags struct {
	copyFlags
	flags.Move
	replaceFlags
	caller      supervised
	skipAligned bool
	view        bool
	inPlace     bool
	journal     string // of a move in place; empty: beside the disk
}

func alignHelp() string {
	return `Writes DEST, a copy of SOURCE in which every misaligned partition starts on a boundary. File systems
move with their partitions; the partition table, the boot sectors and the positions that boot loaders and Windows
store are corrected. A copy that would not be safe is refused. By default, every byte is compared before DEST gets its
name. SOURCE is never written; if it is aligned already, it is copied unchanged.

` + flags.MoveHelp + `

Windows refers to partitions of other MBR disks by position. Align each disk of such a machine with --with for every
other disk, in its original state, and with the same options. The references in SOURCE then follow the partitions of
the other disks.

With --view, DEST is a VMDK over the files of a raw or flat SOURCE, in its folder: little is written, and a hosted
hypervisor can start it at once. QEMU opens it with -snapshot or below an overlay, and not for writing. It is neither
a copy nor a snapshot: what a guest writes to it goes to SOURCE, and the storage sees the old offsets until DEST is
copied. Undo it by removing its two files, before anything is written.

With --replace there is no DEST: when the copy is complete and proved, it gets the names of SOURCE, and SOURCE stays
beside it as a disk of its own, NAME.orig.EXT. At every moment a complete disk stands under the name of SOURCE. trueup
undo brings the original back, trueup finish removes it, and --keep none does so at once. A run that was killed is
completed by trueup resume, or by the same command again. If nothing has to move, nothing is done. SOURCE can also be a
package, an OVA or an OVF with its files.

With --in-place there is no DEST and no copy: the partitions of DISK (raw, flat VMDK, fixed VHD) move inside of
it. A journal beside it, DISK.trueup, lets trueup resume go on after a kill or a power cut, and trueup undo bring the
old bytes back, until the last tables are written. Nothing else is kept of the old disk: have a backup. No guest starts
from the disk in between. With --journal FILE the journal lies there, not in memory, and resume and undo need the same
flag. With --device, which needs --journal, DISK is a block device; it must not be in use, and cannot grow.

SOURCE can be a package: an OVA, or an OVF with its files. If DEST ends in .ova or .ovf, it becomes a package too:
every misaligned disk is realigned, sizes and manifest are adjusted, and everything else is kept. The digests in the
manifest of SOURCE are checked first. Any other DEST becomes a single disk, from a SOURCE such as vm.ova!disk1.vmdk.

` + deviceHelp + `

` + command.SourcesHelp + `

` + flags.ToHelp()
}

// NewAlign returns the command align.
func NewAlign(c *command.Base) *cobra.Command {
	f := alignFlags{copyFlags: copyFlags{Base: c, command: "align"}}
	cmd := &cobra.Command{
		Use:   "align SOURCE DEST",
		Short: "Write an aligned copy of a disk image that still boots",
		Long:  alignHelp(),
		Example: `  trueup align winxp.vmdk winxp-aligned.vmdk
  trueup align --json --no-progress --to raw p2v.vmdk p2v.img
  trueup align --with data.vmdk system.vmdk system-aligned.vmdk
  trueup align library.ova library-aligned.ova`,
		Args: f.alignArguments(f.copyArguments()),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.inPlace {
				return runInPlace(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0])
			}
			f.caller.ask, f.caller.in = cmd.ErrOrStderr(), cmd.InOrStdin()
			return runCopy(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0], args[len(args)-1])
		},
	}
	f.add(cmd)
	f.caller.add(cmd)
	f.Add(cmd, c)
	f.addReplace(cmd)
	cmd.Flags().BoolVar(&f.skipAligned, "skip-aligned", false, "write nothing if no partition has to move")
	cmd.Flags().BoolVar(&f.inPlace, inPlace, false, "move the partitions of DISK inside of it; there is no DEST")
	cmd.Flags().StringVar(&f.journal, "journal", "", "keep the journal of --in-place in `FILE`, not beside DISK")
	cmd.Flags().BoolVar(&f.view, "view", false, "write a VMDK that shows SOURCE aligned, without a copy of its data")
	return cmd
}

func runCopy(ctx context.Context, out, errOut io.Writer, f *alignFlags, src, dest string) error {
	err := errors.Join(f.checkFlags(), f.Consistent(), f.checkView(dest), f.checkDevice(src, dest),
		f.checkReplace(), f.checkSupervised(src, dest), f.checkRemote(src, dest))
	if err != nil {
		return err
	}
	if goes, err := f.goesOnFirst(ctx, out, errOut, src); goes {
		return err
	}
	if err := f.dev.claim(dest, append(f.With, src)...); err != nil {
		return err
	}
	defer f.dev.claimed.Close()
	if !f.dev.device {
		f.SpoolBeside(dest)
	}
	if err := f.Confine(ctx, errOut, f.dev.reads(dest, f.Reads(src)), f.dev.writes(dest, f.sums)); err != nil {
		return err
	}
	switch {
	case realign.IsPackage(dest):
		return f.copyPackage(ctx, out, errOut, src, dest)
	case src == "-" && f.command == convert:
		return f.convertStream(ctx, out, errOut, dest)
	}
	r, w, err := f.copyDisk(ctx, errOut, src, dest)
	switch {
	case err != nil:
		return err
	case len(w.Files) == 0: // it was skipped
		return f.Emit(out, r, func(t *report.Text) { t.Align(r) })
	}
	return f.finish(out, r, w)
}

// copyDisk writes DEST of one disk, unless it is aligned and may be skipped.
func (f *alignFlags) copyDisk(
	ctx context.Context, errOut io.Writer, src, dest string,
) (r *report.Align, w realign.Written, err error) {
	s, err := f.OpenFile(src, cmp.Or(f.needFiles()...), f.Reading)
	if err != nil {
		return nil, w, err
	}
	defer s.Close()
	if err := errors.Join(f.spareSums(s.Image), f.keepsFormat(s)); err != nil {
		return nil, w, err
	}
	o, err := f.OpenOthers(f.Base, s, dest)
	if err != nil {
		return nil, w, err
	}
	defer o.Close()
	if err := f.dev.apart(o); err != nil {
		return nil, w, err
	}
	f.To = f.format()
	p, err := s.PlanAmong(o, f.Goal, f.dev.size(f.to.Size))
	if err != nil {
		return nil, w, err
	}
	if err := realign.Acceptable(p, f.Goal); err != nil {
		return nil, w, fmt.Errorf("%s: %w", src, err)
	}
	r = report.NewAlign(command.Head(f.command), s, p, dest)
	r.Flags = f.proof()
	if p.Idle() && f.skipAligned {
		return r, w, nil
	}
	j, end := f.job(errOut, dest)
	j.Replace, j.Looped = f.replace, f.looped
	if f.view {
		j.View, j.Format, j.Subformat = true, "vmdk", "twoGbMaxExtentFlat"
	}
	f.caller.judgeCopy(j, end)
	w, err = j.Write(ctx, s, p)
	end()
	if err == nil {
		replaced, bad := f.replaced(ctx, dest, w)
		r.ReplacedBy(replaced)
		err = bad
	}
	return r, w, err
}

// format returns the format of DEST, empty for that of SOURCE.
func (f *alignFlags) format() string {
	switch {
	case f.view:
		return "vmdk"
	case f.dev.device:
		return "raw"
	}
	return f.to.Format
}

// checkView refuses what a view cannot be. Its format is the only one that names stretches of other files.
func (f *alignFlags) checkView(dest string) error {
	switch {
	case !f.view:
		return nil
	case f.to != (realign.Target{}):
		return command.Usage("--view always writes a VMDK over the files of SOURCE, and --to %s asks for another "+
			"format; leave out one of them", f.to)
	case f.SkipFree:
		return command.Usage("--view copies no data that --skip-free could leave out; leave out one of them")
	case !strings.EqualFold(filepath.Ext(dest), ".vmdk"):
		return command.Usage("--view writes a VMDK, and DEST %s has another name; name it with .vmdk at the end", dest)
	}
	return nil
}

// job is the writing of DEST, and what ends it: once, when the writing has ended.
func (c *copyFlags) job(errOut io.Writer, dest string) (j *realign.Job, end func()) {
	watch, end := c.Watched(errOut, c.Progress, c.command, c.verify == full)
	j = &realign.Job{
		Dest: dest, Format: c.to.Format, Subformat: c.to.Subformat, Force: c.force, Full: c.verify == full,
		Jobs: c.Jobs,
		Sums: c.sums != "", Begin: func() { c.Ending.Hold(c.dev.ends()) }, Watch: watch, Device: c.dev.claimed,
		Spare: func(files []string) error {
			return errors.Join(store.SpareFiles("--out", c.Out, dest, files),
				store.SpareFiles("--checksums", c.sums, dest, files))
		},
	}
	if !c.Quiet {
		j.Warn = func(text string) { fmt.Fprintln(errOut, "trueup: "+report.SafeMessage(text)) }
	}
	return j, end
}

// finish prints the result of a written DEST.
func (c *copyFlags) finish(out io.Writer, r *report.Align, w realign.Written) error {
	if err := c.writeSums(r.Dest, w); err != nil {
		return err
	}
	r.Wrote(w, c.verify)
	r.Folder, _ = os.Getwd() // for a command that is shown
	if err := c.Emit(out, r, func(t *report.Text) { t.Align(r) }); err != nil {
		return fmt.Errorf("%w; %s itself is complete and verified", err, r.Dest)
	}
	return nil
}

// convert is the command that moves nothing.
const convert = "convert"

// NewConvert returns the command convert.
func NewConvert(c *command.Base) *cobra.Command {
	f := alignFlags{copyFlags: copyFlags{Base: c, command: convert}}
	f.Copy = true
	cmd := &cobra.Command{
		Use:   "convert SOURCE DEST",
		Short: "Copy a disk image into another format, moving nothing",
		Long: `Copies the disk of SOURCE to DEST unchanged, in the format of --to. By default, every byte is compared
before DEST gets its name. SOURCE can be - to read a streamOptimized VMDK from a pipe.

` + flags.SkipFreeHelp + `

` + flags.RepairTableHelp + `

` + deviceHelp + `

` + command.SourcesHelp + `

` + flags.ToHelp(),
		Example: `  trueup convert --to raw disk.vmdk disk.img
  trueup convert --to vmdk:monolithicFlat disk.img disk.vmdk
  tar -xOf vm.ova disk1.vmdk | trueup convert --to raw - disk.img`,
		Args: command.Arguments("SOURCE", "DEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCopy(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0], args[1])
		},
	}
	f.add(cmd)
	flags.AddRepairTable(cmd, &f.RepairTable)
	flags.AddSkipFree(cmd, &f.SkipFree)
	flags.AddReading(cmd, &f.Reading)
	flags.AddFlatten(cmd, &f.Flatten)
	return cmd
}

// convertStream converts an image that comes through standard input.
func (f *alignFlags) convertStream(ctx context.Context, out, errOut io.Writer, dest string) error {
	if f.SkipFree {
		return command.Usage("--skip-free reads where SOURCE has free space before it is copied, and SOURCE is a " +
			"pipe; store it in a file first")
	}
	if err := f.Spare(); err != nil {
		return err
	}
	in, stop := command.Interruptible(ctx, os.Stdin)
	defer stop()
	j, end := f.job(errOut, dest)
	p, w, err := j.WriteStream(ctx, in, f.Reading, f.to.Size)
	end()
	if err != nil {
		return err
	}
	r := report.NewStreamAlign(command.Head(convert), p, dest)
	return f.finish(out, r, w)
}

// proof returns the flags of the verify that proves the copy again.
func (f *alignFlags) proof() []string {
	same := f.Spooled(f.Reading.Flags())
	if f.SkipFree {
		same = append(same, "--skip-free")
	}
	return same
}
