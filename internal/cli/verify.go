package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/verify"
)

type verifyFlags struct {
	*common
	moveFlags  // of the align that wrote DEST, for the disks of --with
	jobs       int
	progress   string
	noProgress bool
}

func newVerify(c *common) *cobra.Command {
	f := verifyFlags{common: c}
	cmd := &cobra.Command{
		Use:   "verify SOURCE DEST",
		Short: "Prove that DEST is SOURCE, aligned",
		Long: `Reads the new partition starts from DEST, computes from SOURCE what DEST must contain, and compares
every byte. The two images may have different formats. --format and --sector-size describe SOURCE; a raw DEST has the
same sector size. Writes nothing.

If align was run with --with, give the same --with and the other options of align here: the references in DEST to
other disks must then match the plans of those disks. Without --with, references to other disks are accepted if they
are plausible.`,
		Example: `  trueup verify winxp.vmdk winxp-aligned.vmdk
  trueup verify --with data.vmdk winxp.vmdk winxp-aligned.vmdk`,
		Args: arguments("SOURCE", "DEST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runVerify(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f, args[0], args[1])
		},
	}
	f.addReading(cmd)
	f.addSandbox(cmd)
	withFlag(cmd, &f.with)
	boundaryFlag(cmd, &f.boundary, "the --boundary of align, for --with")
	cmd.Flags().BoolVar(&f.dataOnly, "data-only", false, "align was run with --data-only, for --with")
	cmd.Flags().BoolVar(&f.allowUnbootable, "allow-unbootable", false, "align was run with --allow-unbootable, for --with")
	flattenFlag(cmd, &f.flatten)
	cmd.Flags().IntVarP(&f.jobs, "jobs", "j", 4, "read `N` chunks at once")
	cmd.Flags().StringVar(&f.progress, "progress", "auto",
		"show progress as `KIND`: auto (a bar on terminals), json or none")
	cmd.Flags().BoolVar(&f.noProgress, "no-progress", false, "same as --progress none")
	return cmd
}

func runVerify(ctx context.Context, out, errOut io.Writer, f verifyFlags, src, dest string) error {
	if err := f.check(); err != nil {
		return err
	}
	if err := checkWork(f.jobs, f.progress); err != nil {
		return err
	}
	if len(f.with) == 0 && (f.boundary != 0 || f.dataOnly || f.allowUnbootable || f.flatten) {
		return ondisk.In(errUsage, "--boundary, --data-only, --allow-unbootable and --flatten speak of the disks of --with, and none was given: "+
			"where the partitions of SOURCE went is read from DEST")
	}
	if f.noProgress {
		f.progress = "none"
	}
	if err := f.confine(errOut, append([]string{src, dest}, f.with...), nil); err != nil {
		return err
	}
	if s, d, err := openPackages(src, dest); !errors.Is(err, ondisk.ErrNoMatch) {
		return f.verifyPackage(ctx, out, errOut, s, d, err)
	}
	s, err := openSource(src, f.reading)
	if err != nil {
		return err
	}
	defer s.close()
	d, err := openSource(dest, reading{like: s.img.Disk.SectorSize()})
	if err != nil {
		return err
	}
	defer d.close()
	if err := f.spare(s.img, d.img); err != nil {
		return err
	}
	m, err := f.otherDisks(s, d)
	if err != nil {
		return err
	}
	r := newVerifyReport(src, dest)
	f.ending.hold("") // a comparison ends soon
	bar := f.newProgress(errOut, f.progress, "verify")
	diffs, err := f.compare(ctx, s, d, r, m, bar)
	bar.stop()
	if err != nil {
		return err
	}
	settleVerify(r, diffs, d.layout)
	if err := f.emit(out, r, func(t *report.Text) { t.Verify(r) }); err != nil {
		return err
	}
	return exitWith(r.ExitCode)
}

// otherDisks returns where the disks of --with go, nil without any.
func (f *verifyFlags) otherDisks(s, d *source) (*layout.Machine, error) {
	if len(f.with) == 0 {
		return nil, nil //nolint:nilnil // no machine is known
	}
	o, err := f.openOthers(f.common, s, "")
	if err != nil {
		return nil, err
	}
	defer o.close()
	starts, _ := verify.Starts(s.layout, d.layout) // compare says what is wrong with them
	m, _, err := f.machineOf(s, starts, o)
	return m, err
}

func newVerifyReport(src, dest string) *report.Verify {
	return &report.Verify{Head: head("verify"), Source: src, Dest: dest, Changes: report.Changes{Moves: []report.Move{}, Patches: []report.Patch{}}}
}

// settleVerify draws the conclusion from the differences.
func settleVerify(r *report.Verify, diffs []verify.Difference, l *layout.Layout) {
	r.Differences = report.NewDifferences(diffs, l)
	r.Equal = len(diffs) == 0
	if !r.Equal {
		r.ExitCode = exitDiffers
	}
}

// compare repeats the plan that leads from s to d and holds d against it. m has the other disks of the machine, nil when they are not at hand.
func (f *verifyFlags) compare(ctx context.Context, s, d *source, r *report.Verify, m *layout.Machine, bar progress) ([]verify.Difference, error) {
	if want, got := s.img.Disk.SectorSize(), d.img.Disk.SectorSize(); got != want {
		return []verify.Difference{{Text: fmt.Sprintf(
			"the disk has sectors of %d bytes, want %d (--sector-size says how large those of a raw SOURCE are)", got, want)}}, nil
	}
	p, err := repeat(s, d.layout, m)
	if errors.Is(err, verify.ErrDifferent) || errors.Is(err, plan.ErrNoPlan) {
		return []verify.Difference{{Text: err.Error()}}, nil
	}
	if err != nil {
		return nil, err
	}
	if got := d.img.Disk.Size(); rounded(got, p.Size) { // by --to …,align=SIZE
		p.Grow(s.layout, got)
	}
	r.Changes = report.NewChanges(p)
	diffs, err := same(ctx, p.View(s.img.Disk), d.img.Disk, f.jobs, bar)
	if err != nil || len(diffs) > 0 {
		return diffs, err
	}
	if err := verify.Promise(p, s.layout, d.layout); err != nil {
		return []verify.Difference{{Text: err.Error()}}, nil //nolint:nilerr // the error is the result
	}
	for _, i := range d.damage {
		// A copy is written without. Its name was the user's choice, and all its bytes have been compared.
		if i.Effect >= ondisk.Refuse && i.Code != image.CodeMisnamed {
			diffs = append(diffs, verify.Difference{Text: i.Text})
		}
	}
	for _, x := range []*source{s, d} {
		if err := x.img.Unchanged(); err != nil {
			return nil, fmt.Errorf("%s: %w", x.img.Path, err)
		}
	}
	return diffs, nil
}

// same compares every byte of two disks, and shows how far it is.
func same(ctx context.Context, want, got disk.Disk, jobs int, bar progress) ([]verify.Difference, error) {
	if want.Size() == got.Size() {
		if err := begin(ctx, bar, image.PhaseCompare, want, got); err != nil {
			return nil, err
		}
	}
	return verify.Same(ctx, want, got, verify.Options{Jobs: jobs, Progress: bar.Add})
}

// repeat finds the plan from where the partitions are.
func repeat(s *source, after *layout.Layout, m *layout.Machine) (*plan.Plan, error) {
	starts, err := verify.Starts(s.layout, after)
	if err != nil {
		return nil, err
	}
	if err := s.malformed(); err != nil {
		return nil, fmt.Errorf("%s: %w", s.img.Path, err)
	}
	if err := s.layout.ReadGaps(s.img.Disk); err != nil {
		return nil, err
	}
	// A plain copy keeps a damaged table as it is.
	p, err := plan.At(s.layout, starts, s.layout.Damaged() && !after.Damaged())
	if err == nil && m == nil {
		m, err = verify.Elsewhere(s.layout, after)
	}
	if err == nil {
		p.Join(s.layout, m)
	}
	return p, err
}
