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

// maxAnswer is the most that a worker says of one image, in bytes: the names of 4096 extents or library.MostItems of all kinds are far
// less. What is read takes many times that in memory.
const maxAnswer = 8 * units.MiB

// startPool makes the workers of a scan. The first is started at once, to know what isolation there is.
func (s *scanning) startPool(ctx context.Context) (*scan.Pool, error) {
	j := newJudge(s.boundary, s.storage)
	sum := s.summary
	sum.Isolation = library.Isolation{Wanted: s.isolation, Achieved: string(sandbox.None), Layers: []string{}}
	inside := func(context.Context) (scan.Worker, error) { return scan.Inside{Judge: j}, nil }
	if s.isolation == string(sandbox.None) {
		return scan.NewPool(s.jobs, j, inside), nil
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
		sum.Isolation.Note = message(err)
		return scan.NewPool(s.jobs, j, inside), nil
	}
	got := first.Isolation()
	sum.Isolation = library.Isolation{Wanted: string(got.Wanted), Achieved: string(got.Achieved), Layers: append([]string{}, got.Layers...), Note: got.Note}
	var mu sync.Mutex
	return scan.NewPool(s.jobs, j, func(ctx context.Context) (scan.Worker, error) {
		mu.Lock()
		w := first
		first = nil
		mu.Unlock()
		if w == nil {
			var err error
			if w, err = sandbox.Start(ctx, o); err != nil {
				return nil, errors.Join(scan.ErrUnasked, fromDeath(err)) // nothing that the image has done
			}
		}
		return outside{w}, nil
	}), nil
}
