package bench

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
)

// Settle makes the options of a command line whole, and refuses those that cannot be right. changed reports whether a
// flag was given.
func (o *Options) Settle(changed func(flag string) bool) error {
	usage := func(text string) error { return ondisk.In(ondisk.ErrUsage, "%s", text) }
	loads := changed("jobs") || changed("sizes")
	switch {
	case o.Quick && (o.JobFile != "" || loads):
		return usage("--quick chooses the loads itself; leave out --jobs, --sizes and --workload")
	case o.JobFile != "" && loads:
		return usage("--workload has jobs and sizes of its own; leave out --jobs and --sizes")
	case o.Quick && !changed("runtime"):
		o.Runtime = QuickRuntime
	case o.ReadOnly && changed("size"):
		return usage("--size is that of the scratch file, and --read-only makes none")
	}
	if o.JobFile != "" {
		text, err := readBounded(o.JobFile, maxWorkload)
		if err != nil {
			return fmt.Errorf("--workload: %w", err)
		}
		if o.Workload, err = parseWorkload(o.JobFile, text); err != nil {
			return fmt.Errorf("%s: %w", o.JobFile, err)
		}
	}
	return o.check()
}

// readBounded reads a file, and one byte more than a bound at most.
func readBounded(path string, most int64) ([]byte, error) {
	r, err := os.Open(path) //nolint:gosec // the user names it
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, most+1))
}

// Report measures, and reports the result.
func Report(ctx context.Context, o *Options, h report.Head) (*Bench, error) {
	r, err := Run(ctx, o)
	if err != nil {
		return nil, err
	}
	return New(h, r), nil
}

// ReadResult reads the result of an earlier benchmark, which --bench names.
func ReadResult(path string) (*measured.Result, error) {
	text, err := readBounded(path, measured.MaxFile)
	if err != nil {
		return nil, fmt.Errorf("--bench: %w", err)
	}
	r, err := measured.Decode(text)
	if err != nil {
		return nil, fmt.Errorf("--bench %s: %w", path, err)
	}
	return r, nil
}
