package scan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
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

// workers returns the workers of a scan. The first is started at once, since its isolation must be known. The process
// that starts them reads nothing of an image.
func (r *search) workers(ctx context.Context) (*Pool, error) {
	inspector := &Inspector{Boundary: r.Boundary, Storage: r.Storage, Check: r.Tables, Allow: allowedOf(r.Paths)}
	if r.Isolation == string(sandbox.None) {
		return r.inside(inspector), nil
	}
	if r.Confine != nil {
		r.Confine(sandbox.Access{Workers: true})
	}
	hello, err := json.Marshal(inspector)
	if err != nil {
		return nil, fmt.Errorf("judge for a worker: %w", err)
	}
	options := sandbox.Options{
		Args: r.Args, Level: sandbox.Level(r.Isolation), Roots: rootsOf(r.Paths), Hello: hello,
		Limits: sandbox.Limits{Answer: maxAnswer},
	}
	first, err := sandbox.Start(ctx, options)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		none := sandbox.Isolation{
			Wanted: options.Level, Achieved: sandbox.None, Layers: []string{}, Note: report.Message(err),
		}
		return r.inside(inspector), r.achieved(none)
	}
	if err := r.achieved(first.Isolation()); err != nil {
		return nil, errors.Join(err, first.Close())
	}
	p := NewPool(r.Jobs, inspector, func(ctx context.Context) (Worker, error) { // a failed start is no fault of an image
		w, err := sandbox.Start(ctx, options)
		if err != nil {
			return nil, errors.Join(errUnasked, fromDeath(err))
		}
		if err := r.achieved(w.Isolation()); err != nil {
			return nil, errors.Join(errUnasked, err, w.Close())
		}
		return outside{w}, nil
	})
	<-p.idle
	p.idle <- outside{first}
	return p, nil
}

// inside is a pool without workers. The process itself looks at the images, and is restricted to them.
func (r *search) inside(inspector *Inspector) *Pool {
	if r.Confine != nil {
		r.Confine(sandbox.Access{Read: rootsOf(r.Paths)})
	}
	start := func(context.Context) (Worker, error) { return inProcess{Judge: inspector}, nil }
	return NewPool(r.Jobs, inspector, start)
}

// achieved notes the isolation of the first worker, and of a later one that has less than was wanted.
func (r *search) achieved(got sandbox.Isolation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	whole := got.Achieved == got.Wanted
	if got.Achieved == r.level || whole && r.level != "" {
		return nil
	}
	r.level = got.Achieved
	r.summary.Isolation = results.Isolation{
		Wanted: string(got.Wanted), Achieved: string(got.Achieved), Layers: append([]string{}, got.Layers...),
		Note: got.Note,
	}
	if whole {
		return nil
	}
	return r.Weaker(got)
}

// rootsOf are the places that workers must be able to read, absolute and without links: folders with all that is in
// them, and the folder of a file that is named itself. A device is a place of its own: a folder of devices has those of
// others.
func rootsOf(paths []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, p := range paths {
		real, kind, err := resolve(p)
		if err != nil {
			continue // the walk reports it
		}
		if kind.IsRegular() {
			real = filepath.Dir(real)
		}
		if !seen[real] {
			seen[real] = true
			out = append(out, real)
		}
	}
	return out
}

// allowedOf are the folders in which parents may lie: those that the user named, with all below.
func allowedOf(paths []string) (out []string) {
	for _, p := range paths {
		if _, all, err := gate.Allow([]string{p}); err == nil {
			out = append(out, all...)
		}
	}
	return out
}
