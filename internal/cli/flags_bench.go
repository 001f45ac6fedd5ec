package cli

import (
	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/bench"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/report"
)

// BenchFile is the flag that names the result of a benchmark.
type BenchFile string

// Add adds --bench.
func (b *BenchFile) Add(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(b), "bench", "", "say what trueup bench --json measured, from its `FILE`")
}

// Read reads the result, nil without the flag. out is that of the command.
func (b BenchFile) Read(out string) (*report.Benchmark, error) {
	if b == "" {
		return nil, nil
	}
	path := string(b)
	if err := store.Apart(store.Use{Flag: "--out", Path: out}, store.Use{Flag: "--bench", Path: path}); err != nil {
		return nil, err
	}
	return bench.ReadResult(path)
}
