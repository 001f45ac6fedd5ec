package fleetcmd

import (
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/fleet/web"
	"github.com/trueup/trueup/fleet/work"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

type workerFlags struct {
	*base
	work.Worker
	logged
	datastores []string
	window     string
	metrics    web.Options
}

// resultsFolder is the default folder of scan results.
const resultsFolder = "trueup-fleet-results"

func newWorker(b *base) *cobra.Command {
	f := workerFlags{base: b}
	cmd := &cobra.Command{
		Use:   "worker --datastore NAME=DIR...",
		Short: "Run the jobs of the datastores that this host sees",
		Long: `Takes jobs of the named datastores, each with its folder on this host, and runs each job as a trueup
process. If a worker is lost, another one takes its jobs, and uses copies that are already verified. A worker that is
ended returns its jobs to the queue. With --once, the exit code is 1 if a job failed at this worker or is dead, and 4 if
one was refused.`,
		Example: `  trueup-fleet worker --datastore ds7=/vmfs/ds7 --datastore nas=/mnt/nas
  trueup-fleet worker --datastore ds7=/vmfs/ds7 --jobs 2 --at-once 4 --window 22:00-06:00
  trueup-fleet worker --once --datastore ds7=/vmfs/ds7`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	fs := cmd.Flags()
	fs.StringArrayVar(&f.datastores, "datastore", nil, "take the jobs of datastore `NAME=DIR` (repeatable)")
	fs.IntVarP(&f.Slots, "jobs", "j", 1, "run `N` jobs of each datastore at once")
	fs.IntVar(&f.AtOnce, "at-once", 0, "limit all workers together to `N` jobs of each datastore at once (2 at "+
		"first)")
	fs.BoolVar(&f.Confined, "require-sandbox", false, "fail jobs if the kernel cannot confine trueup")
	fs.StringVar(&f.window, "window", "", "start jobs only in the `HOURS` given, such as 22:00-06:00")
	fs.BoolVar(&f.Once, "once", false, "exit when no job is waiting")
	fs.StringVar(&f.Folder, "folder", resultsFolder, "store the results of scans in `DIR`")
	fs.StringVar(&f.Program, "trueup", "", "run trueup from `FILE` (default: beside this program, or in PATH)")
	fs.DurationVar(&f.Delay, "retry-delay", time.Minute, "retry a failed job after `TIME`")
	fs.DurationVar(&f.queue.AckWait, "ack-wait", time.Minute,
		"consider a silent worker lost after `TIME`; the first worker of a datastore sets it")
	fs.IntVar(&f.queue.Delivers, "deliveries", 8, "try a job `N` times")
	fs.StringVar(&f.metrics.Address, "metrics", "", "serve /metrics for Prometheus at `ADDRESS:PORT`")
	fs.StringVar(&f.metrics.Cert, "tls-cert", "", "read the certificate for --metrics from `FILE`")
	fs.StringVar(&f.metrics.Key, "tls-key", "", "read the key of the certificate from `FILE`")
	fs.StringVar(&f.metrics.Token, "token", "", "require the token in `FILE` for --metrics")
	f.register(fs)
	return cmd
}

func (f *workerFlags) run(cmd *cobra.Command) error {
	if err := f.resolve(); err != nil {
		return err
	}
	f.Log = f.logger(cmd.ErrOrStderr()).With("worker", f.ID)
	f.queue.Warn = func(err error) { f.Log.Warn("connection to the server", "error", err) }
	return f.with(cmd.Context(), func(q *queue.Queue) error {
		f.Queue, f.Version = q, f.version
		if f.metrics.Address != "" {
			f.metrics.Flag = "metrics"
			s, err := web.Start(f.metrics, web.Site{
				Version: f.version, Metrics: func(w io.Writer) error { return f.Counts.Metrics(w, f.version) },
				Warn: func(text string) { f.Log.Warn("metrics", "text", fleet.Plain(text)) },
			})
			if err != nil {
				return err
			}
			defer s.Stop()
			f.Log.Info("metrics are served", "url", s.URL()+"/metrics")
		}
		f.Log.Info("the worker starts")
		if err := f.Run(cmd.Context()); err != nil || !f.Once {
			return err
		}
		return f.verdict()
	})
}

// verdict returns the error that sets the exit code of a run with --once.
func (f *workerFlags) verdict() error {
	switch refused, failed := f.Counts.Failed(); {
	case failed > 0:
		return fmt.Errorf("%s failed; trueup-fleet dead lists those that are not tried again",
			units.Counted(failed, "job"))
	case refused > 0:
		return exitError(exitRefused)
	}
	return nil
}

// resolve checks the command line and fills in defaults.
func (f *workerFlags) resolve() (err error) {
	for _, arg := range f.datastores {
		name, dir, named := strings.Cut(arg, "=")
		if !named || dir == "" {
			return usage("--datastore %s: must be NAME=DIR, where DIR is the folder of the datastore on this host", arg)
		}
		if err := fleet.CheckName(name); err != nil {
			return usage("--datastore: %w", err)
		}
		if dir, err = filepath.Abs(dir); err == nil {
			_, err = os.ReadDir(dir)
		}
		if err != nil {
			return usage("--datastore %s: %w", arg, err)
		}
		f.Datastores = append(f.Datastores, work.Datastore{Name: name, Root: dir})
	}
	switch {
	case len(f.Datastores) == 0:
		return usage("worker takes a --datastore, none given; see trueup-fleet worker --help")
	case f.Slots < 1 || f.AtOnce < 0 || f.queue.Delivers < 1:
		return usage("--jobs %d, --at-once %d, --deliveries %d: must be at least 1, 0 and 1", f.Slots, f.AtOnce,
			f.queue.Delivers)
	case f.queue.AckWait < time.Second || f.Delay < 0:
		return usage("--ack-wait %v, --retry-delay %v: must be at least 1s and 0s", f.queue.AckWait, f.Delay)
	}
	if f.window != "" {
		if f.Window, err = work.ParseWindow(f.window); err != nil {
			return usage("--window: %w", err)
		}
	}
	if f.Folder, err = filepath.Abs(f.Folder); err == nil {
		err = os.MkdirAll(f.Folder, 0o700)
	}
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	f.ID = fmt.Sprintf("%s/%d/%s", host, os.Getpid(), rand.Text()[:8])
	f.queue.Name = f.ID
	f.Program, err = findTrueup(f.Program)
	return err
}

// findTrueup returns the path of trueup.
func findTrueup(named string) (string, error) {
	if named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", usage("--trueup %s: %w", named, sys.Cause(err))
		}
		return path, nil
	}
	if self, err := os.Executable(); err == nil {
		if beside, err := exec.LookPath(filepath.Join(filepath.Dir(self), "trueup")); err == nil {
			return beside, nil
		}
	}
	found, err := exec.LookPath("trueup")
	if err != nil {
		return "", fmt.Errorf("trueup: %w; name it with --trueup", sys.Cause(err))
	}
	return filepath.Abs(found)
}
