package fleetcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
)

func newReport(b *base) *cobra.Command {
	program, datastore, folder, format, file := "", "", "", "", ""
	cmd := &cobra.Command{
		Use:   "report [-- FLAGS]",
		Short: "Make one report of all scans of the fleet",
		Long: `Runs trueup report on the last scan of each folder of each datastore. FLAGS are further flags of trueup
report. Large results are files on the host that scanned: if some are missing here, they are named, and the exit code is
1.`,
		Example: `  trueup-fleet report
  trueup-fleet report -o html --out morning.html
  trueup-fleet report -- --fail-on 4K`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.ArgsLenAtDash() != 0 {
				return usage("put flags of trueup report after --: trueup-fleet report -- FLAGS")
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
				if format != "" {
					args = append(args, "--output", format)
				}
				if file != "" {
					args = append(args, "--out", file)
				}
				return report(cmd.Context(), q, datastore, folder, run, args)
			})
		},
	}
	cmd.Flags().StringVar(&program, "trueup", "", "run trueup from `FILE` (default: beside this program, or in PATH)")
	cmd.Flags().StringVarP(&format, "output", "o", "", "print the report as `FORMAT`, like trueup report")
	cmd.Flags().StringVar(&file, "out", "", "write the report to `FILE`")
	cmd.Flags().StringVar(&folder, "folder", resultsFolder, "look for large results in `DIR`, like worker --folder")
	cmd.Flags().StringVar(&datastore, "datastore", "", "only scans of datastore `NAME`")
	return cmd
}

// report runs trueup report on the results of the last scans, which are in the queue or in a folder.
func report(ctx context.Context, q *queue.Queue, datastore, folder string, run *exec.Cmd, args []string) error {
	var scans []*fleet.Record
	err := q.Each(ctx, datastore, func(r *fleet.Record) {
		if r.Kind == fleet.Scan {
			scans = append(scans, r)
		}
	})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "trueup-fleet-report-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	run.Args = append(run.Args, args...)
	found, missing := 0, 0
	for _, r := range fleet.LastScans(scans) {
		path, err := resultOf(ctx, q, r, dir, folder)
		switch {
		case errors.Is(err, errMissing):
			missing++
			fmt.Fprintf(run.Stderr, "trueup-fleet: %s\n", err)
		case err != nil:
			return err
		default:
			found++
			run.Args = append(run.Args, path)
		}
	}
	if found == 0 {
		return errors.New("there are no results of a scan; to queue one: trueup-fleet submit scan --datastore NAME")
	}
	err = run.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case missing > 0 && (ok || err == nil):
		return exitError(exitFailed)
	case ok:
		return exitError(exit.ExitCode())
	}
	return err
}

// reportCache caches a report for maxAge. It is safe for concurrent use.
type reportCache struct {
	make func(ctx context.Context, out *os.File) error

	mu   sync.Mutex
	file *os.File // nil until the first report
	made time.Time
}

// maxAge is the maximum age of a cached report.
const maxAge = time.Minute

// get returns the cached report, and renews it if it is missing or too old. Readers of the old report can still finish.
func (c *reportCache) get(ctx context.Context) (io.Reader, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == nil || time.Since(c.made) >= maxAge {
		out, err := os.CreateTemp("", "trueup-fleet-report-*.html")
		if err != nil {
			return nil, err
		}
		_ = os.Remove(out.Name()) // so that nothing is left after a kill; Windows refuses, because the file is open
		err = c.make(ctx, out)
		if code, ok := errors.AsType[exitError](err); ok {
			err = nil
			if st, _ := out.Stat(); st == nil || st.Size() == 0 { // exit codes for misaligned images are no errors
				err = fmt.Errorf("trueup report ended with code %d", int(code))
			}
		}
		if err != nil {
			return nil, errors.Join(err, out.Close())
		}
		c.file, c.made = out, time.Now()
	}
	st, err := c.file.Stat()
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(c.file, 0, st.Size()), nil
}

var errMissing = errors.New("missing in the report")

// resultOf returns the path of a file with the rows of a scan.
func resultOf(ctx context.Context, q *queue.Queue, r *fleet.Record, dir, folder string) (string, error) {
	if r.State != fleet.Done {
		return "", fmt.Errorf("%w: %s", errMissing, line(r))
	}
	rows, err := q.Rows(ctx, r.Key())
	if err != nil {
		return "", err
	}
	if rows != nil {
		path := filepath.Join(dir, r.ResultName())
		return path, os.WriteFile(path, rows, 0o600)
	}
	path, err := filepath.Abs(filepath.Join(folder, r.ResultName()))
	if err != nil {
		return "", err
	}
	if st, err := os.Lstat(path); err != nil || !st.Mode().IsRegular() {
		return "", fmt.Errorf("%w: the rows of %s %s are too many for the queue, and are in %s in the --folder of "+
			"worker %s", errMissing, r.Key(), fleet.Plain(r.Path), r.ResultName(), fleet.Plain(r.Worker))
	}
	return path, nil
}

func linesOf(s string) iter.Seq[string] { return strings.SplitSeq(strings.TrimSpace(s), "\n") }
