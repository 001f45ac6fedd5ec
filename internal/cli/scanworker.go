package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

// isolations are the values of --isolation, the last one the default.
var isolations = []string{string(sandbox.None), string(sandbox.Process), string(sandbox.Sandbox)}

// workerCommand is what the program is called with to be a worker.
const workerCommand = "scan-worker"

// newScanWorker is the command of a worker. It is no use to people.
func newScanWorker() *cobra.Command {
	return &cobra.Command{
		Use:    workerCommand,
		Short:  "Answer the questions of trueup scan",
		Hidden: true,
		Args:   arguments(),
		RunE:   func(*cobra.Command, []string) error { return scan.Serve(os.Stdin, os.Stdout) },
	}
}

// inspector is what looks into the images.
func (f *scanFlags) inspector() (*scan.Inspector, error) {
	j := &scan.Inspector{Boundary: f.boundary.criterion(), Storage: f.storage.profile().Name, Check: f.tables}
	return j, j.Prepare()
}

// startPool makes the workers of a scan.
func (s *scanning) startPool(ctx context.Context) (*scan.Pool, error) {
	j, err := s.inspector()
	if err != nil {
		return nil, err
	}
	s.summary.Isolation = results.Isolation{Wanted: s.isolation, Achieved: string(sandbox.None), Layers: []string{}}
	if s.isolation != string(sandbox.None) && s.ownProcess {
		sandbox.Confine(sandbox.Access{Workers: true}) // which reads nothing of an image; what counts is what the workers achieve
	}
	c := &scan.Crew{
		Level: sandbox.Level(s.isolation), Args: []string{workerCommand}, Paths: s.paths, Jobs: s.jobs, Inspector: j,
		Achieved: s.achieved, Inside: s.confineInside,
	}
	return c.Pool(ctx)
}

// confineInside restricts the process that looks at the images itself to what that needs.
func (s *scanning) confineInside() {
	if !s.ownProcess {
		return
	}
	a := sandbox.Access{Read: scan.Roots(s.paths)}
	for _, path := range []string{s.out, s.script, s.catalog} {
		a.Write = append(a.Write, outputFolders(path)...)
	}
	sandbox.Confine(a)
}

// achieved notes the isolation of a worker, of which the least counts, and warns of it or refuses to go on with it.
func (s *scanning) achieved(got sandbox.Isolation) error {
	s.summary.Isolation = results.Isolation{
		Wanted: string(got.Wanted), Achieved: string(got.Achieved), Layers: append([]string{}, got.Layers...), Note: got.Note,
	}
	if got.Achieved == got.Wanted {
		return nil
	}
	return s.confined(s.errOut, got)
}
