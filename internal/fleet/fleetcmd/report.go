package fleetcmd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/fleet"
	"github.com/trueup/trueup/internal/fleet/queue"
)

func newReport(b *base) *cobra.Command {
	program, datastore := "", ""
	cmd := &cobra.Command{
		Use:   "report [-- FLAGS]",
		Short: "Make one report of the scans of the fleet",
		Long: `Has trueup report make a report of the last scan of each folder of each datastore. FLAGS are those of
trueup report. Large results are files on the host that scanned: without such a file no report is made.`,
		Example: `  trueup-fleet report
  trueup-fleet report -- -o html --out morning.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return usage("report takes FLAGS of trueup report behind --")
			}
			trueup, err := findTrueup(program)
			if err != nil {
				return err
			}
			return b.with(cmd.Context(), func(q *queue.Queue) error {
				run := exec.CommandContext(cmd.Context(), trueup, "report")
				run.Stdout, run.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
				if b.json {
					args = append(args, "--json")
				}
				return report(cmd.Context(), q, datastore, run, args)
			})
		},
	}
	cmd.Flags().StringVar(&program, "trueup", "", "`FILE` of trueup (default: beside this program, or in PATH)")
	cmd.Flags().StringVar(&datastore, "datastore", "", "only scans of datastore `NAME`")
	return cmd
}

// report runs trueup report with the results of the last scans.
func report(ctx context.Context, q *queue.Queue, datastore string, run *exec.Cmd, args []string) error {
	last := map[string]*fleet.Record{}
	err := q.Each(ctx, datastore, func(r *fleet.Record) {
		folder := r.Datastore + "/" + r.Path + " " + r.Shard
		if r.Kind == fleet.Scan && r.State == fleet.Done && (last[folder] == nil || last[folder].Again < r.Again) {
			last[folder] = r
		}
	})
	if err != nil {
		return err
	}
	if len(last) == 0 {
		return errors.New("no scan is done; trueup-fleet submit scan queues one")
	}
	dir, err := os.MkdirTemp("", "trueup-fleet-report-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	run.Args = append(run.Args, args...)
	for _, folder := range slices.Sorted(maps.Keys(last)) {
		r := last[folder]
		rows, err := q.Rows(ctx, r.Key())
		if err != nil {
			return err
		}
		path := r.ResultFile
		if rows != nil {
			path = filepath.Join(dir, r.Key()+".ndjson")
			if err := os.WriteFile(path, rows, 0o600); err != nil {
				return err
			}
		}
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("results of %s on %s: %w; make the report there", r.Key(), fleet.Plain(r.Worker), err)
		}
		run.Args = append(run.Args, path)
	}
	err = run.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exitError(exit.ExitCode())
	}
	return err
}

func linesOf(s string) iter.Seq[string] { return strings.SplitSeq(strings.TrimSpace(s), "\n") }
