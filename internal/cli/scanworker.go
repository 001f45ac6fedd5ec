package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/trueup/trueup/internal/library"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sandbox"
	"github.com/trueup/trueup/internal/scan"
	"github.com/trueup/trueup/internal/units"
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
		RunE:   func(*cobra.Command, []string) error { return sandbox.Serve(os.Stdin, os.Stdout, startJudge) },
	}
}

// startJudge makes a worker's judge from what the scan told it.
func startJudge(hello []byte) (sandbox.Handle, error) {
	j := &judge{}
	if err := json.Unmarshal(hello, j); err != nil {
		return nil, fmt.Errorf("judge of a worker: %w", err)
	}
	if err := j.prepare(); err != nil {
		return nil, err
	}
	return func(request []byte) []byte {
		var r scan.Request
		if err := json.Unmarshal(request, &r); err != nil {
			panic(err) // our own parent wrote it
		}
		answer, err := json.Marshal(scan.Handle(j, r))
		if err != nil {
			panic(err)
		}
		return answer
	}, nil
}

// outside is a worker in a process of its own.
type outside struct{ *sandbox.Worker }

// Call has the worker answer. The error says what it died of, and has the class that the row of the image gets.
func (o outside) Call(ctx context.Context, r scan.Request) (a scan.Answer, err error) {
	request, err := json.Marshal(r)
	if err != nil {
		return a, fmt.Errorf("request for a worker: %w", err)
	}
	answer, err := o.Worker.Call(ctx, request)
	if err == nil {
		err = json.Unmarshal(answer, &a)
	}
	d, died := errors.AsType[*sandbox.Death](err)
	switch {
	case err == nil:
		return a, nil
	case ctx.Err() != nil:
		return a, ctx.Err()
	case died && d.Idle:
		return a, errors.Join(scan.ErrUnasked, fromDeath(err))
	case died && d.Cause == sandbox.Time:
		return a, scan.SlowError{Err: fromDeath(err)}
	case died:
		return a, fromDeath(err)
	}
	return a, fmt.Errorf("internal error, please report it: answer of a worker: %w", err)
}

// fromDeath makes the error of an image of what a worker died of. Any other error is what it is.
func fromDeath(err error) error {
	d, died := errors.AsType[*sandbox.Death](err)
	switch {
	case died && d.Cause == sandbox.Killed:
		return ondisk.In(ondisk.ErrLimit, "what reads it was %s; scan again, with fewer --jobs when memory is short", d.Text)
	case died && d.Cause != sandbox.Crash:
		return ondisk.In(ondisk.ErrLimit, "what reads it was stopped: %s; look at it alone with trueup inspect", d.Text)
	case died:
		return fmt.Errorf("internal error, please report it: what reads it died: %s", d.Text)
	}
	return err
}

// maxAnswer is the most that a worker says about one image, in bytes: the names of 4096 extents or library.MostItems of all kinds are far
// less. What is read takes many times that in memory.
const maxAnswer = 8 * units.MiB

// startPool makes the workers of a scan. The first is started at once, to know what isolation there is.
func (s *scanning) startPool(ctx context.Context) (*scan.Pool, error) {
	j := newJudge(&s.scanFlags)
	s.summary.Isolation = library.Isolation{Wanted: s.isolation, Achieved: string(sandbox.None), Layers: []string{}}
	if s.isolation == string(sandbox.None) {
		return s.inside(j), nil
	}
	if s.ownProcess {
		sandbox.Confine(sandbox.Access{Workers: true}) // which reads nothing of an image; what counts is what the workers achieve
	}
	hello, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("judge for a worker: %w", err)
	}
	o := sandbox.Options{Args: []string{workerCommand}, Level: sandbox.Level(s.isolation), Roots: scan.Roots(s.paths), Hello: hello, Limits: sandbox.Limits{Answer: maxAnswer}}
	first, err := sandbox.Start(ctx, o)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		none := sandbox.Isolation{Wanted: o.Level, Achieved: sandbox.None, Layers: []string{}, Note: message(err)}
		return s.inside(j), s.achieved(none)
	}
	if err := s.achieved(first.Isolation()); err != nil {
		return nil, errors.Join(err, first.Close())
	}
	c := &crew{scanning: s, options: o, first: first}
	return scan.NewPool(s.jobs, j, c.next), nil
}

// inside is a pool without workers. The process itself looks at the images, and may do no more than that needs.
func (s *scanning) inside(j *judge) *scan.Pool {
	if s.ownProcess {
		a := sandbox.Access{Read: scan.Roots(s.paths)}
		for _, path := range []string{s.out, s.script, s.catalog} {
			a.Write = append(a.Write, outputFolders(path)...)
		}
		sandbox.Confine(a)
	}
	return scan.NewPool(s.jobs, j, func(context.Context) (scan.Worker, error) { return scan.Inside{Judge: j}, nil })
}

// achieved notes the isolation of a worker, of which the least counts, and warns of it or refuses to go on with it.
func (s *scanning) achieved(got sandbox.Isolation) error {
	s.summary.Isolation = library.Isolation{Wanted: string(got.Wanted), Achieved: string(got.Achieved), Layers: append([]string{}, got.Layers...), Note: got.Note}
	if got.Achieved == got.Wanted {
		return nil
	}
	return s.confined(s.errOut, got)
}

// crew starts the workers of a scan.
type crew struct {
	*scanning
	options sandbox.Options
	mu      sync.Mutex
	first   *sandbox.Worker // until it is taken
}

// next is a worker that looks at images from now on. Its start is nothing that an image has done.
func (c *crew) next(ctx context.Context) (scan.Worker, error) {
	c.mu.Lock()
	w := c.first
	c.first = nil
	c.mu.Unlock()
	if w != nil {
		return outside{w}, nil
	}
	w, err := sandbox.Start(ctx, c.options)
	if err != nil {
		return nil, errors.Join(scan.ErrUnasked, fromDeath(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := w.Isolation(); string(got.Achieved) != c.summary.Isolation.Achieved && got.Achieved != got.Wanted {
		if err := c.achieved(got); err != nil {
			return nil, errors.Join(scan.ErrUnasked, err, w.Close())
		}
	}
	return outside{w}, nil
}
