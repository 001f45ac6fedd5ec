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
		Use:   "bench DIR",
		Short: "Measure what misalignment costs on a storage",
		Long: `Measures I/O from aligned and from misaligned starts with fio, on the storage that has the images. DIR is
a folder on it: a scratch file without a name is filled there, and it is gone when the program ends, however that ends.

Random reads and writes of 8 KiB with 1 and 8 jobs, and sequential ones of 64 KiB with one job, run from the starts
63.5, 64 and 64.5 KiB, in about six minutes. I/O goes past the page cache; where that is refused, so is the measurement,
unless --buffered is given.

inspect and plan read the result, if it is kept as JSON: --bench FILE.`,
		Example: `  trueup bench /srv/images
  trueup bench --json --out bench.json /srv/images`,
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
