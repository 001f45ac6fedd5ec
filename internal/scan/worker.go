package scan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/sandbox"
	"github.com/trueup/trueup/internal/units"
)

// Serve runs a worker process: it answers the requests of a crew.
func Serve(in io.Reader, out io.Writer) error { return sandbox.Serve(in, out, startInspector) }

// startInspector makes the Judge of a worker from the first request of the scan.
func startInspector(hello []byte) (sandbox.Handle, error) {
	j := &Inspector{}
	if err := json.Unmarshal(hello, j); err != nil {
		return nil, fmt.Errorf("judge of a worker: %w", err)
	}
	return func(request []byte) []byte {
		var r Request
		if err := json.Unmarshal(request, &r); err != nil {
			panic(err) // our own parent wrote it
		}
		r.Path = string(r.Name)
		answer, err := json.Marshal(handle(j, r))
		if err != nil {
			panic(err)
		}
		return answer
	}, nil
}

// outside is a worker in a process of its own.
type outside struct{ *sandbox.Worker }

// Call has the worker answer. The error names the cause of its death, and has the class for the row of the image.
func (o outside) Call(ctx context.Context, r Request) (a Answer, err error) {
	r.Name = []byte(r.Path)
	request, err := json.Marshal(r)
	if err != nil {
		return a, fmt.Errorf("request for a worker: %w", err)
	}
	answer, err := o.Worker.Call(ctx, request)
	if err == nil {
		err = jsonv2.Unmarshal(answer, &a) // in half of the time
	}
	d, died := errors.AsType[*sandbox.Death](err)
	switch {
	case err == nil:
		return a, nil
	case ctx.Err() != nil:
		return a, ctx.Err()
	case died && d.Idle:
		return a, errors.Join(errUnasked, fromDeath(err))
	case died && d.Cause == sandbox.Time:
		return a, slowError{fromDeath(err)}
	case died:
		return a, fromDeath(err)
	}
	return a, fmt.Errorf("internal error, please report it: answer of a worker: %w", err)
}

// fromDeath makes the error of an image from the death of a worker. It returns any other error as it is.
func fromDeath(err error) error {
	d, died := errors.AsType[*sandbox.Death](err)
	switch {
	case died && d.Cause == sandbox.Killed:
		return ondisk.In(ondisk.ErrLimit, "what reads it was %s; scan again, with fewer --jobs when memory is short",
			d.Text)
	case died && d.Cause != sandbox.Crash:
		return ondisk.In(ondisk.ErrLimit, "what reads it was stopped: %s; look at it alone with trueup inspect", d.Text)
	case died:
		return fmt.Errorf("internal error, please report it: what reads it died: %s", d.Text)
	}
	return err
}

// maxAnswer bounds the answer about one image, in bytes: the names of 4096 extents or results.MostItems of all kinds
// are far less. Decoded, it takes many times that in memory.
const maxAnswer = 8 * units.MiB

// crew starts the workers of a scan.
type crew struct {
	*running
	inspector *Inspector
	options   sandbox.Options
	mu        sync.Mutex
	first     *sandbox.Worker // until it is taken
	level     sandbox.Level   // the least that was achieved
}

// pool returns the workers. The first is started at once, since its isolation must be known. The process that starts
// them reads nothing of an image.
func (r *running) pool(ctx context.Context) (*Pool, error) {
	c := &crew{running: r, inspector: &Inspector{
		Boundary: r.Boundary, Storage: r.Storage, Check: r.Check, Allow: allowedOf(r.Paths),
	}}
	if c.Level == sandbox.None {
		return c.inside(), nil
	}
	if c.Confine != nil {
		c.Confine(sandbox.Access{Workers: true})
	}
	hello, err := json.Marshal(c.inspector)
	if err != nil {
		return nil, fmt.Errorf("judge for a worker: %w", err)
	}
	c.options = sandbox.Options{
		Args: c.Args, Level: c.Level, Roots: rootsOf(c.Paths), Hello: hello,
		Limits: sandbox.Limits{Answer: maxAnswer},
	}
	first, err := sandbox.Start(ctx, c.options)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		none := sandbox.Isolation{
			Wanted: c.Level, Achieved: sandbox.None, Layers: []string{},
			Note: report.Message(err),
		}
		return c.inside(), c.achieved(none)
	}
	c.first, c.level = first, first.Isolation().Achieved
	if err := c.achieved(first.Isolation()); err != nil {
		return nil, errors.Join(err, first.Close())
	}
	return NewPool(c.Jobs, c.inspector, c.next), nil
}

// inside is a pool without workers. The process itself looks at the images, and is restricted to them.
func (c *crew) inside() *Pool {
	if c.Confine != nil {
		c.Confine(sandbox.Access{Read: rootsOf(c.Paths)})
	}
	start := func(context.Context) (Worker, error) { return inProcess{Judge: c.inspector}, nil }
	return NewPool(c.Jobs, c.inspector, start)
}

// next returns a worker that was not used yet. A failed start is not the fault of an image.
func (c *crew) next(ctx context.Context) (Worker, error) {
	c.mu.Lock()
	w := c.first
	c.first = nil
	c.mu.Unlock()
	if w != nil {
		return outside{w}, nil
	}
	w, err := sandbox.Start(ctx, c.options)
	if err != nil {
		return nil, errors.Join(errUnasked, fromDeath(err))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if got := w.Isolation(); got.Achieved != c.level && got.Achieved != got.Wanted {
		c.level = got.Achieved
		if err := c.achieved(got); err != nil {
			return nil, errors.Join(errUnasked, err, w.Close())
		}
	}
	return outside{w}, nil
}
