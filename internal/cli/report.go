package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
)

type reportFlags struct {
	*Base
	formatFlags
	scan.MergeTask
	failOn string
}

// newReport returns the command report.
func newReport(c *Base) *cobra.Command {
	f := reportFlags{Base: c}
	cmd := &cobra.Command{
		Use:   "report [KEY=VALUE]... FILE...",
		Short: "Merge the results of many scans into one report",
		RunE: func(cmd *cobra.Command, args []string) error {
			return runReport(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f, args)
		},
	}
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
	if err := f.ResolveOut(); err != nil {
		return err
	}
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

func runReport(ctx context.Context, out, errOut io.Writer, f reportFlags, args []string) (err error) {
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
