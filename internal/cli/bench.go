package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/bench"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/report"
)

type benchFlags struct {
	*Base
	bench.Options
}

// newBench returns the command bench.
func newBench(c *Base) *cobra.Command {
	f := benchFlags{Base: c, Options: bench.Options{
		Size: bench.DefaultSize, Starts: slices.Clone(bench.DefaultStarts), Runtime: bench.DefaultRuntime,
		Rounds: bench.DefaultRounds, Now: time.Now,
	}}
	cmd := &cobra.Command{
		Use:               "bench DIR",
		Short:             "Measure what misalignment costs on a storage",
		Args:              Arguments("DIR"),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Folder = args[0]
			return runBench(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f)
		},
	}
	addFlags(cmd,
		"size", (*bench.Size)(&f.Size), "starts", (*bench.Sizes)(&f.Starts), "runtime", &f.Runtime,
		"rounds", &f.Rounds, "buffered", &f.Buffered,
	)
	f.addProgress(cmd)
	return cmd
}

func runBench(ctx context.Context, out, errOut io.Writer, f *benchFlags) error {
	if err := errors.Join(f.Base.Check(), f.Options.Check()); err != nil {
		return err
	}
	f.Ending.Hold("ending fio; the scratch file goes with it")
	if !f.Quiet {
		f.Ready = func() { fmt.Fprintf(errOut, "trueup: bench %s\n", report.SafeMessage(f.Say())) }
	}
	bar := progress.NewBench(f.progressTo(errOut))
	f.Watch = bar
	r, err := bench.Run(ctx, &f.Options)
	bar.Stop()
	if err != nil {
		return err
	}
	b := &bench.Bench{Head: Head("bench"), Result: *r}
	return f.Emit(out, b, b.Text)
}
