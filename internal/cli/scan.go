package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
	"github.com/trueup/trueup/internal/units"
)

type scanFlags struct {
	*Base
	formatFlags
	scan.Choices
	boundary align.Boundary
	storage  align.Storage
	jobs     int
}

// Worker is the hidden command of a scan worker.
const Worker = "scan-worker"

// newWorker returns the command of a scan worker, which serves its parent on standard input and output. It is hidden:
// only trueup itself runs it.
func newWorker() *cobra.Command {
	return &cobra.Command{
		Use: Worker, Short: "Answer the questions of trueup scan", Hidden: true, Args: Arguments(),
		RunE: func(*cobra.Command, []string) error { return scan.Serve(os.Stdin, os.Stdout) },
	}
}

// newScan returns the command scan.
func newScan(c *Base) *cobra.Command {
	f := scanFlags{Base: c, boundary: align.DefaultBoundary, storage: align.Generic()}
	cmd := &cobra.Command{
		Use:   "scan PATH...",
		Short: "Check a whole library of images, worst first",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runScan(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f, args)
		},
	}
	f.Isolation, f.jobs = scan.Isolations[len(scan.Isolations)-1], min(runtime.NumCPU(), MaxJobs)
	f.add(cmd, f.Base)
	addFlags(cmd,
		"storage", &f.storage, "boundary", &f.boundary, "include", &f.Include, "exclude", &f.Exclude,
		"files-from", &f.FilesFrom, "shard", &f.Shard, "label", &f.Label, "isolation", &f.Isolation,
		"require-sandbox", &f.RequireSandbox, "since", &f.Since, "changed", &f.Changed, "fail-on", &f.FailOn,
		"allow-unknown", &f.Unknown, "allow-empty", &f.Empty, "check", &f.Tables, "ignore", &f.Ignore,
		"script", &f.Script, "replace", &f.Replace, "jobs", &f.jobs, "progress", &f.progress,
	)
	return cmd
}

// task converts the flags to a task. It checks all flags before any image is read.
func (f *scanFlags) task(stdin io.Reader, paths []string) (*scan.Task, error) {
	if err := f.resolve(f.Base); err != nil {
		return nil, err
	}
	if err := f.Consistent(f.RequireSandbox); err != nil {
		return nil, err
	}
	if err := f.Prepare(f.Out, f.Output == "json"); err != nil {
		return nil, err
	}
	if err := f.Spare(); err != nil {
		return nil, err
	}
	t, err := f.Task(stdin, paths)
	if err != nil {
		return nil, err
	}
	t.Boundary, t.Storage, t.Jobs, t.Version = f.boundary.Criterion(), f.storage, f.jobs, f.Version
	t.Args = []string{Worker}
	t.Reusable = f.Output == "json"
	t.Spare = append(t.Spare, f.Out, f.template)
	if f.OwnProcess {
		t.Confine = func(a sandbox.Access) {
			if !a.Workers {
				a.Write = store.OutputFolders(f.Out, f.Script)
			}
			sandbox.Confine(a)
		}
	}
	return t, nil
}

func runScan(ctx context.Context, in io.Reader, out, errOut io.Writer, f scanFlags, paths []string) (err error) {
	t, err := f.task(in, paths)
	if err != nil {
		return err
	}
	f.Ending.Hold("completing the report of the images inspected so far")
	format := f.format
	w, end, stop := out, func(err error) error { return err }, func() {}
	t.Ready = func(cut int) error {
		if cut > 0 {
			f.say(errOut, fmt.Sprintf("note: %s: line %d is incomplete (a killed scan?) and was skipped", f.Since, cut))
		}
		if f.Out != "" {
			file, err := store.CreateReport(f.Out, ReportMode)
			if err != nil {
				return err
			}
			t.Spare = append(t.Spare, file.Name()) // it may be in a folder of the scan
			w, end = file, file.End
		}
		bar := progress.NewScan(f.progressTo(errOut))
		t.Progress, stop = bar, bar.Stop
		return nil
	}
	if format.Row != nil {
		t.Row = func(i *results.Image) error { return WrapStdout(format.Row(w, i)) }
	}
	t.Weaker = func(got sandbox.Isolation) error { return f.Confined(errOut, got) }
	t.Interrupted = func() int { return InterruptOf(ctx).Exit() }
	r, err := t.Run(ctx)
	stop()
	if r == nil {
		return end(err)
	}
	f.Result = r.Summary
	if !format.Terminal || f.Out != "" || !f.Quiet {
		r.Text = f.Layout(out)
		err = errors.Join(err, WrapStdout(format.Write(w, r)))
	}
	interrupted := r.Interrupted()
	if _, none := os.Stat(f.Out); t.First && none == nil && interrupted != "" {
		interrupted = "interrupted: " + report.SafeMessage(f.Out) + " is unchanged"
		_ = end(context.Canceled) // removes the new file
	} else if err = end(err); err == nil && t.First && r.Summary.LeftOut > 0 {
		f.say(errOut, fmt.Sprintf("note: %s no longer has rows of %s outside of this scan (other PATHs, filters or "+
			"shards, a missing folder); to keep them, scan all, or give --out another FILE", f.Out,
			units.Counted(r.Summary.LeftOut, "image")))
	}
	if err := errors.Join(err, f.WriteScript(r)); err != nil { // the failure of one must not prevent the other
		return err
	}
	return verdict(ctx, interrupted, r.NoneJudged() && r.Summary.Failed == 0, r.Summary.ExitCode)
}

// verdict returns the error that ends the command after its report. interrupted is "" without an interrupt.
func verdict(ctx context.Context, interrupted string, noneJudged bool, code int) error {
	if interrupted != "" {
		return AfterReport(InterruptOf(ctx).Saying(interrupted), false)
	}
	if noneJudged {
		return AfterReport(ondisk.In(realign.ErrUnknown,
			"scan: no image was judged; if that is right, add --allow-empty"), false)
	}
	return ExitWith(code)
}

type reportFlags struct {
	*Base
	formatFlags
	scan.MergeTask
	failOn string
}

// newReport returns the command report.
func newReport(c *Base) *cobra.Command {
	f := &reportFlags{Base: c}
	cmd := newCommand("report [KEY=VALUE]... FILE...", "Merge the results of many scans into one report", f.run)
	cmd.Args = nil // see scan.ReportFiles
	f.add(cmd, c)
	addFlags(cmd,
		"require-sandbox", &f.RequireSandbox, "fail-on", &f.failOn, "allow-unknown", &f.AllowUnknown,
		"allow-empty", &f.AllowEmpty,
	)
	return cmd
}

// resolve checks the command line.
func (f *reportFlags) resolve(args []string) (err error) {
	if err := f.formatFlags.resolve(f.Base); err != nil {
		return err
	}
	if f.Fail, err = results.ParseFailOn(f.failOn); err != nil {
		return err
	}
	if f.Files, err = scan.ReportFiles(args); err != nil {
		return err
	}
	f.MergeTask.Version = f.Base.Version
	return f.apart()
}

// apart refuses a report over its inputs, and a FILE that is missing or given twice.
func (f *reportFlags) apart() error {
	var read []store.Use
	var seen []os.FileInfo
	for _, file := range f.Files {
		st, err := os.Stat(file.Path)
		switch {
		case err != nil:
			return Usage("%w", err)
		case !st.Mode().IsRegular():
			return Usage("%s is not a regular file; name a file written by trueup scan -o json", file.Path)
		case slices.ContainsFunc(seen, func(other os.FileInfo) bool { return os.SameFile(st, other) }):
			return Usage("%s is given twice; give it once", file.Path)
		}
		seen, read = append(seen, st), append(read, store.Use{Flag: "FILE", Path: file.Path})
	}
	if err := store.Apart(store.Use{Flag: "--out", Path: f.Out}, read...); err != nil {
		return err
	}
	return f.Spare()
}

func (f *reportFlags) run(ctx context.Context, out, errOut io.Writer, args []string) (err error) {
	if err := f.resolve(args); err != nil {
		return err
	}
	read := []string{}
	for _, file := range f.Files {
		read = append(read, file.Path)
	}
	if err := f.Confine(ctx, errOut, read, nil); err != nil {
		return err
	}
	m, err := f.Run(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	w, end, err := f.CreateReport(out)
	if err != nil {
		return err
	}
	format := f.format
	if !format.Terminal || f.Out != "" || !f.Quiet {
		m.Text = f.Layout(out)
		if format.Row != nil {
			for i := range m.Images {
				if err = format.Row(w, i); err != nil {
					break
				}
			}
		}
		if err == nil {
			err = format.Write(w, m.Report)
		}
		err = errors.Join(WrapStdout(err), m.Err())
	}
	if err := end(err); err != nil {
		return err
	}
	return verdict(ctx, "", m.NoneJudged() && m.Summary.Failed == 0, m.Summary.ExitCode)
}
