package cli

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
)

// copyFlags decide how a copy is written; align and convert share them.
type copyFlags struct {
	*common
	to         target
	force      bool
	verify     string
	jobs       int
	progress   string
	noProgress bool
	command    string
	shared     progress // of all disks of a package
}

func (c *copyFlags) add(cmd *cobra.Command) {
	c.addSandbox(cmd)
	f := cmd.Flags()
	f.Var(&c.to, "to", "format of DEST (default: the format of SOURCE)")
	f.BoolVar(&c.force, "force", false, "replace an existing DEST when the copy is complete")
	f.StringVar(&c.verify, "verify", "full", "proof before DEST gets its name, by `LEVEL`: full (every byte) or structure")
	f.IntVarP(&c.jobs, "jobs", "j", 4, "read and write `N` chunks at once")
	f.StringVar(&c.progress, "progress", "auto", "show progress as `KIND`: auto (a bar on terminals), json or none")
	f.BoolVar(&c.noProgress, "no-progress", false, "same as --progress none")
	complete(cmd, "to", targetNames()...)
	complete(cmd, "verify", "full", "structure")
	complete(cmd, "progress", "auto", "json", "none")
}

func (c *copyFlags) check() error {
	if err := c.common.check(); err != nil {
		return err
	}
	if c.verify != "full" && c.verify != "structure" {
		return ondisk.In(errUsage, "--verify %q, want full or structure", c.verify)
	}
	if err := checkWork(c.jobs, c.progress); err != nil {
		return err
	}
	if c.noProgress {
		c.progress = "none"
	}
	return nil
}

// maxJobs is how many things are done at once at most.
const maxJobs = 64

// checkWork refuses values of the flags that all commands with long work have.
func checkWork(jobs int, progress string) error {
	switch {
	case jobs < 1 || jobs > maxJobs:
		return ondisk.In(errUsage, "--jobs %d, want 1 to %d", jobs, maxJobs)
	case progress != "auto" && progress != "json" && progress != "none":
		return ondisk.In(errUsage, "--progress %q, want auto, json or none", progress)
	}
	return nil
}

type alignFlags struct {
	copyFlags
	moveFlags
	skipAligned bool
}

func newAlign(c *common) *cobra.Command {
	f := alignFlags{copyFlags: copyFlags{common: c, command: "align"}}
	cmd := &cobra.Command{
		Use:   "align SOURCE DEST",
		Short: "Write an aligned copy of a disk image that still boots",
		Long: `Writes DEST, a copy of SOURCE in which every misaligned partition starts on a boundary. File systems
move with their partitions; the partition table, the boot sectors and the positions that boot loaders and Windows
store are corrected. A copy that would not be safe is refused. By default, every byte is compared before DEST gets its
name. SOURCE is never written; if it is aligned already, it is copied unchanged.

` + moveHelp + `

Windows refers to partitions of other MBR disks by position. Align each disk of such a machine with --with for every
other disk, in its original state, and with the same options. The references in SOURCE then follow the partitions of
the other disks.

SOURCE can be a package: an OVA, or an OVF with its files. If DEST ends in .ova or .ovf, it becomes a package too:
every misaligned disk is realigned, sizes and manifest are adjusted, and everything else is kept. The digests in the
manifest of SOURCE are checked first. Any other DEST becomes a single disk, from a SOURCE such as vm.ova!disk1.vmdk.

` + toHelp(),
		Example: `  trueup align winxp.vmdk winxp-aligned.vmdk
  trueup align --json --no-progress --to raw p2v.vmdk p2v.img
  trueup align --with data.vmdk system.vmdk system-aligned.vmdk
  trueup align library.ova library-aligned.ova`,
		Args: arguments("SOURCE", "DEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAlign(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, args[0], args[1])
		},
	}
	f.copyFlags.add(cmd)
	f.moveFlags.add(cmd)
	cmd.Flags().BoolVar(&f.skipAligned, "skip-aligned", false, "write nothing if no partition has to move")
	return cmd
}

func runAlign(ctx context.Context, out, errOut io.Writer, f *alignFlags, src, dest string) error {
	if err := errors.Join(f.check(), f.checkChoice()); err != nil {
		return err
	}
	if err := f.confine(errOut, append([]string{src}, f.with...), []string{dest}); err != nil {
		return err
	}
	if image.PackageKind(dest) != "" {
		if err := f.noPackage(); err != nil {
			return err
		}
		return f.copyPackage(ctx, out, errOut, packageCopy{source: src, dest: dest, reading: f.reading, skipAligned: f.skipAligned, plan: f.planDisk, accepts: f.accepts})
	}
	s, err := f.open(src, f.reading)
	if err != nil {
		return err
	}
	defer s.close()
	o, err := f.openOthers(f.common, s, dest)
	if err != nil {
		return err
	}
	defer o.close()
	s.flatten = f.flatten
	p, err := s.plan(f.choice)
	if err != nil {
		return fmt.Errorf("%s: %w", src, err)
	}
	p.Grow(s.layout, f.to.size(p.Size))
	if err := f.joinOthers(s, p, o); err != nil {
		return err
	}
	if err := refusal(p.Refusals(f.allowUnbootable)); err != nil {
		return fmt.Errorf("%s: %w", src, err)
	}
	r := newAlignReport("align", s, p, dest)
	if len(p.Moves) == 0 && !p.Renames && f.skipAligned {
		return f.emit(out, r, func(t *report.Text) { t.Align(r) })
	}
	return f.copy(ctx, out, errOut, s, p, r)
}

func newAlignReport(command string, s *source, p *plan.Plan, dest string) *report.Align {
	return &report.Align{
		Head: head(command), Source: s.img.Path, Dest: dest, Format: s.img.Format, Subformat: s.img.Subformat,
		Changes: report.NewChanges(p), Findings: notRefused(p.Notes, nil), Files: []string{},
		Flags: s.flags(),
	}
}

// copy carries a plan out and prints the result.
func (c *copyFlags) copy(ctx context.Context, out, errOut io.Writer, s *source, p *plan.Plan, r *report.Align) error {
	o, err := c.write(ctx, errOut, s, p, r.Dest)
	if err != nil {
		return err
	}
	return c.finish(out, r, o)
}

// finish prints what was written.
func (c *copyFlags) finish(out io.Writer, r *report.Align, w written) error {
	r.Format, r.Subformat, r.Files = w.format, w.subformat, w.files
	r.Written, r.Verified, r.Copied, r.Took = true, c.verify, w.copied, w.took
	r.Findings = append(r.Findings, report.DestFindings(w.notes())...)
	if err := c.emit(out, r, func(t *report.Text) { t.Align(r) }); err != nil {
		return fmt.Errorf("%w; %s itself is complete and verified", err, r.Dest)
	}
	return nil
}

type written struct {
	format, subformat string
	files             []string
	copied            int64                 // bytes of data
	took              float64               // seconds
	notes             func() []ondisk.Issue // of the place where it went
}

// write makes DEST: absent or complete, whatever happens in between.
func (c *copyFlags) write(ctx context.Context, errOut io.Writer, s *source, p *plan.Plan, dest string) (w written, err error) {
	view, err := checked(s, p)
	if err != nil {
		return w, fmt.Errorf("%s: %w", s.img.Path, err)
	}
	start := time.Now()
	release := s.img.Hold()
	defer release()
	if err := s.img.CheckDigests(ctx); err != nil {
		return w, fmt.Errorf("%s: %w", s.img.Path, err)
	}
	c.ending.hold(removing)
	o, err := image.Create(dest, p.Size, s.img, image.CreateOptions{
		Format: c.to.format, Subformat: c.to.subformat, Force: c.force, Seed: seed(s, p),
		Heads: s.layout.Geometry.Heads, Sectors: s.layout.Geometry.Sectors,
	})
	if err != nil {
		return w, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.Discard())
		}
	}()
	w = written{format: o.Format, subformat: o.Subformat, files: o.Files(), notes: o.Notes}
	if err := c.spareFiles(dest, w.files); err != nil {
		return w, err
	}
	if w.copied, err = c.fill(ctx, errOut, s, p, view, o); err != nil {
		return w, cause(s, err)
	}
	if err := s.img.Unchanged(); err != nil {
		return w, fmt.Errorf("%s: %w", s.img.Path, err)
	}
	if err := ctx.Err(); err != nil {
		return w, err
	}
	err = o.Publish()
	w.took = since(start)
	return w, err
}

// cause is what made a copy fail: a source that changed under it can look like anything.
func cause(s *source, err error) error {
	if changed := s.img.Unchanged(); changed != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", s.img.Path, changed)
	}
	return err
}

// seed is what identifiers of the copy are derived from: the disk and the job, and nothing of chance.
func seed(s *source, p *plan.Plan) []byte {
	h := sha256.New()
	if t := s.layout.Table; t != nil {
		fmt.Fprintln(h, t.Signature, t.GUID)
	}
	for _, x := range s.layout.Partitions {
		fmt.Fprintln(h, x.Off, x.Len, x.GUID, x.Volume.UUID, x.Volume.Label)
	}
	for _, m := range p.Pieces {
		fmt.Fprintln(h, m.From, m.To, m.Len)
	}
	for _, x := range p.Patches {
		fmt.Fprintf(h, "%d %x\n", x.Off, x.New)
	}
	return binary.BigEndian.AppendUint64(h.Sum(nil), ondisk.U64(p.Size))
}

func newConvert(c *common) *cobra.Command {
	f := copyFlags{common: c, command: "convert"}
	var read reading
	var flatten bool
	cmd := &cobra.Command{
		Use:   "convert SOURCE DEST",
		Short: "Copy a disk image into another format, moving nothing",
		Long: `Copies the disk of SOURCE to DEST unchanged, in the format of --to. By default, every byte is compared
before DEST gets its name. SOURCE can be - to read a streamOptimized VMDK from a pipe.

` + toHelp(),
		Example: `  trueup convert --to raw disk.vmdk disk.img
  trueup convert --to vmdk:monolithicFlat disk.img disk.vmdk
  tar -xOf vm.ova disk1.vmdk | trueup convert --to raw - disk.img`,
		Args: arguments("SOURCE", "DEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runConvert(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f, read, flatten, args[0], args[1])
		},
	}
	f.add(cmd)
	read.addReading(cmd)
	flattenFlag(cmd, &flatten)
	return cmd
}

func runConvert(ctx context.Context, out, errOut io.Writer, f *copyFlags, read reading, flatten bool, src, dest string) error {
	if err := f.check(); err != nil {
		return err
	}
	if err := f.confine(errOut, []string{src}, []string{dest}); err != nil {
		return err
	}
	if image.PackageKind(dest) != "" {
		return f.copyPackage(ctx, out, errOut, packageCopy{source: src, dest: dest, reading: read, plan: planCopy, accepts: acceptCopy})
	}
	if src == "-" {
		return runStream(ctx, out, errOut, f, read, dest)
	}
	s, err := f.open(src, read)
	if err != nil {
		return err
	}
	defer s.close()
	s.flatten = flatten
	p := plan.Copy(s.img.Disk.Size())
	p.Notes = align.Relevant(s.issues(), nil)
	if err := broken(p.Notes); err != nil {
		return fmt.Errorf("%s: %w", src, err)
	}
	p.Grow(s.layout, f.to.size(p.Size))
	if err := refusal(p.Refusals(false)); err != nil {
		return fmt.Errorf("%s: %w", src, err)
	}
	return f.copy(ctx, out, errOut, s, p, newAlignReport("convert", s, p, dest))
}
