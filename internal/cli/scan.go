package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/library"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan"
)

type scanFlags struct {
	*common
	version          string
	boundary         boundary
	storage          storage
	include, exclude []string
	filesFrom        string
	jobs             int
	isolation        string
	failOn           string
}

// scanOutputs are the ways in which scan can print.
var scanOutputs = []string{"text", "json"}

func newScan(version string, c *common) *cobra.Command {
	f := scanFlags{common: c, version: version, boundary: boundary(align.DefaultBoundary)}
	cmd := &cobra.Command{
		Use:   "scan PATH...",
		Short: "Check a whole library of images, worst first",
		Long: `Looks at every image below the PATHs, one row each, worst first. A PATH is a file or a folder; folders are walked, links are not followed,
and an inode is looked at once. Images are found by content. A descriptor and its extents are one image, an OVF and its disks are one.
Nothing is written but the report.` + "\n" + exitCodes,
		Example: `  trueup scan /templates
  trueup scan -o json /templates
  find /templates -name '*.vmdk' -print0 | trueup scan --files-from -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runScan(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f, args)
		},
	}
	boundaryFlag(cmd, &f.boundary, "what a partition's start shall be a multiple of, 4K to 1G")
	cmd.Flags().Var(&f.storage, "storage", "what lies below the images, for the costs: "+strings.Join(align.StorageNames(), ", "))
	complete(cmd, "storage", align.StorageNames()...)
	cmd.Flags().IntVar(&f.jobs, "jobs", runtime.NumCPU(), "how many images are looked at at once")
	cmd.Flags().StringVar(&f.failOn, "fail-on", "", "what makes the exit code say so: "+strings.Join(library.FailOns(), ", ")+" (default: what is off --boundary, and errors)")
	complete(cmd, "fail-on", library.FailOns()...)
	return cmd
}

func (f *scanFlags) checkScan() (library.FailOn, error) {
	if !slices.Contains(scanOutputs, f.output) {
		return "", ondisk.In(errUsage, "--output %q, want one of %s", f.output, strings.Join(scanOutputs, ", "))
	}
	if f.jobs < 1 {
		return "", ondisk.In(errUsage, "--jobs %d, want 1 or more", f.jobs)
	}
	if f.failOn == "" {
		return library.Default, nil
	}
	level, err := library.ParseFailOn(f.failOn)
	if err != nil {
		return "", ondisk.In(errUsage, "--fail-on %w", err)
	}
	return level, nil
}

// scanning is a run of scan at work.
type scanning struct {
	scanFlags
	fail    library.FailOn
	summary *library.Summary
	images  []*library.Image // but with a format that is printed row by row
	lines   io.Writer        // of JSON; nil when another format is wanted
}

func runScan(ctx context.Context, in io.Reader, out, errOut io.Writer, f scanFlags, paths []string) error {
	fail, err := f.checkScan()
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return ondisk.In(errUsage, "scan takes a PATH, none given; see trueup scan --help")
	}
	s := &scanning{scanFlags: f, fail: fail, summary: library.NewSummary()}
	s.summary.Paths, s.summary.Boundary, s.summary.Storage, s.summary.Version = paths, f.boundary.criterion(), f.storage.profile().Name, f.version
	s.summary.FailOn = f.failOn
	s.summary.Started = now()
	if f.json() {
		s.lines = out
	}
	res, err := s.scan(ctx, paths)
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	s.summary.Finished, s.summary.Complete, s.summary.Skipped = now(), err == nil, res.Skipped
	library.Rank(s.images)
	if perr := s.print(out); perr != nil {
		return perr
	}
	if err != nil {
		return malformed{err}
	}
	return exitWith(s.summary.ExitCode)
}

func now() string { return time.Now().UTC().Format(time.RFC3339) }

func (s *scanning) scan(ctx context.Context, paths []string) (scan.Result, error) {
	j := newJudge(s.boundary, s.storage)
	pool := scan.NewPool(s.jobs, j, func(context.Context) (scan.Worker, error) { return scan.Inside{Judge: j}, nil })
	defer pool.Close()
	return scan.Scan(ctx, scan.Options{
		Paths: paths, Jobs: s.jobs, Pool: pool, Flags: s.commandFlags(),
		Found: func(int) {}, Walked: func() {}, Row: s.row,
		Unreadable: func(u library.Unreadable) { s.summary.Unreadable = append(s.summary.Unreadable, u) },
	})
}

// commandFlags are those that trueup align needs to do what the scan speaks of.
func (s *scanning) commandFlags() []string {
	if s.boundary.criterion() == align.DefaultBoundary {
		return nil
	}
	return []string{"--boundary", s.boundary.String()}
}

// row takes a row that is finished.
func (s *scanning) row(i *library.Image) error {
	s.summary.Add(i)
	if code := s.fail.Code(i); library.Worse(code, s.summary.ExitCode) {
		s.summary.ExitCode, s.summary.Worst = code, i.Path
	}
	if s.lines != nil {
		return wrapStdout(report.Line(s.lines, i))
	}
	s.images = append(s.images, i)
	return nil
}

func (s *scanning) print(out io.Writer) error {
	if s.lines != nil {
		return wrapStdout(report.Line(s.lines, s.summary))
	}
	for _, i := range s.images {
		fmt.Fprintln(out, i.State, i.Verdict, i.Path, i.Error, i.Priority)
	}
	return nil
}
