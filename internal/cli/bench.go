package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/trueup/trueup/internal/bench"
	"github.com/trueup/trueup/internal/progress"
	"github.com/trueup/trueup/internal/report"
)

type benchFlags struct {
	*Base
	Shown
	bench.Options
	set *pflag.FlagSet
}

// newBench returns the command bench.
func newBench(c *Base) *cobra.Command {
	f := benchFlags{Base: c, Options: bench.Options{
		Size: bench.DefaultSize, Starts: slices.Clone(bench.DefaultStarts), Sizes: slices.Clone(bench.DefaultSizes),
		Now: time.Now,
	}}
	cmd := &cobra.Command{
		Use:   "bench DIR",
		Short: "Measure what misalignment costs on a storage",
		Long: `Measures I/O from aligned and from misaligned starts with fio, on the storage that has the images. DIR is
a folder on it: a scratch file without a name is filled there, and it is gone when the program ends, however that ends.
With --read-only, DIR is an image or a block device, which is read and not written.

Without --quick: random reads and writes of 8 KiB with 1 to 36 jobs, and random and sequential ones of 4 to 128 KiB with
one job, each from the starts 63.5, 64 and 64.5 KiB. The order of the starts changes from round to round. I/O goes past
the page cache; where that is refused, so is the measurement, unless --buffered is given.

--workload measures a fio job file instead. It may say what kind of I/O there is; file, offset, size and time are set
here, and options that run programs or touch other files are refused.

The result can be kept as JSON.`,
		Example: `  trueup bench --quick /srv/images
  trueup bench --rounds 5 --json --out bench.json /srv/images
  trueup bench --read-only /dev/sdb`,
		Args: Arguments("DIR"),
		// an image, with --read-only
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Target = args[0]
			return runBench(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), &f)
		},
	}
	f.set = cmd.Flags()
	f.Jobs, f.Runtime, f.Rounds = bench.DefaultJobs, bench.DefaultRuntime, bench.DefaultRounds
	addFlags(cmd,
		"size", (*bench.Size)(&f.Size), "starts", (*bench.Sizes)(&f.Starts), "sizes", (*bench.Sizes)(&f.Sizes),
		"jobs", &f.Jobs, "runtime", &f.Runtime, "rounds", &f.Rounds, "quick", &f.Quick, "read-only", &f.ReadOnly,
		"buffered", &f.Buffered, "workload", &f.JobFile,
	)
	f.AddProgress(cmd)
	return cmd
}

func (f *benchFlags) checkFlags() error {
	if err := f.Check(); err != nil {
		return err
	}
	return f.Settle(f.set.Changed)
}

func runBench(ctx context.Context, out, errOut io.Writer, f *benchFlags) error {
	if err := f.checkFlags(); err != nil {
		return err
	}
	does := "ending fio"
	if !f.ReadOnly {
		does += "; the scratch file goes with it"
	}
	f.Ending.Hold(does)
	if !f.Quiet {
		f.Ready = func() { fmt.Fprintf(errOut, "trueup: bench %s\n", report.SafeMessage(f.Say())) }
	}
	bar := progress.NewBench(f.ProgressTo(errOut, f.kind()))
	f.Watch = bar
	r, err := bench.Run(ctx, &f.Options)
	bar.Stop()
	if err != nil {
		return err
	}
	b := &bench.Bench{Head: Head("bench"), Result: *r}
	return f.Emit(out, b, b.Text)
}
