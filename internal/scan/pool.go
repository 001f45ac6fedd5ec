package scan

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/scan/sandbox"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// Job is one image to judge.
type Job struct {
	Path string `json:"-"` // absolute
	// Package is set for an OVA or OVF.
	Package bool `json:"package,omitempty"`
	// Beside lists the files around it; nil: the judge looks.
	Beside *image.Beside `json:"beside,omitempty"`
	// Doubt is set if the file has neither the format nor the name of an image: it is one only if a table or a volume
	// is found, or if it is an archive with an image.
	Doubt bool `json:"doubt,omitempty"`
	// Packed is set for a compressed file.
	Packed bool `json:"packed,omitempty"`
}

// Judge identifies and judges files. It runs in a worker, and may die of their bytes.
type Judge interface {
	// Identify identifies the file at an absolute path.
	Identify(path string) (image.Identity, error)
	// Image judges an image. It returns nil for a Doubt that was right.
	Image(j Job) *results.Image
}

// Request asks a worker to identify the file of a job, or to judge the image in it.
type Request struct {
	Job
	Name  []byte `json:"path"` // Path in JSON: names are bytes, and texts are not
	Judge bool   `json:"judge,omitempty"`
}

// Answer is the answer to a Request.
type Answer struct {
	Identity image.Identity `json:"identity"`
	Image    *results.Image `json:"image,omitempty"`
	Fleeting bool           `json:"fleeting,omitempty"` // of Image, whose own JSON does not have it
	Error    *report.Error  `json:"error,omitempty"`    // of Identify
}

// Worker answers requests, one at a time. After an error it is of no use any more.
type Worker interface {
	Call(ctx context.Context, r Request) (Answer, error)
	Close() error
}

// maxTime bounds the time of one request.
const maxTime = 30 * time.Second

// Pool is a number of workers, which it starts when they are needed and replaces when they die.
type Pool struct {
	start func(ctx context.Context) (Worker, error)
	idle  chan Worker  // nil: one that is not started yet
	left  atomic.Int32 // how many there can be
}

// NewPool returns a pool of so many workers.
func NewPool(jobs int, start func(ctx context.Context) (Worker, error)) *Pool {
	p := &Pool{start: start, idle: make(chan Worker, jobs)}
	for range jobs {
		p.idle <- nil
	}
	p.left.Store(int32(jobs)) //nolint:gosec // a few
	return p
}

// lostError is the error of a worker that may have died of something else than the image: so many workers are asked in
// all before the image has the error.
type lostError struct {
	error
	tries int
}

func (l lostError) Unwrap() error { return l.error }

// How many workers are asked.
const (
	triesUnasked = 3 // if one after the other has no thread, or dies before it has the request
	// triesStopped is for workers that give no answer in time, and may not have computed, or have no memory, and may
	// have used that up with earlier images: storage, or a machine with too much to do, can stand still for longer than
	// an image takes.
	triesStopped = 2
)

// errFewer is the error of a worker that could not be started while there are others: from now on there is one less.
var errFewer = errors.New("there is no worker more")

// errNoThread is the error of a worker that died since the machine had no thread for it.
var errNoThread = lostError{
	fmt.Errorf("what reads it could not start a thread: %w; scan again, with fewer --jobs", sys.ErrAgain),
	triesUnasked,
}

// do has a worker answer a request. The error is the cause of the worker's death.
func (p *Pool) do(ctx context.Context, r Request) (a Answer, err error) {
	for tried := map[int]int{}; ; { // by the number of tries that a death allows
		a, err = p.try(ctx, r)
		lost, _ := errors.AsType[lostError](err)
		switch {
		case errors.Is(err, errFewer):
		case tried[lost.tries] < lost.tries-1:
			tried[lost.tries]++
		default:
			return a, err
		}
	}
}

func (p *Pool) try(ctx context.Context, r Request) (a Answer, err error) {
	var w Worker
	select {
	case w = <-p.idle:
	case <-ctx.Done():
		return a, ctx.Err()
	}
	if w == nil {
		if w, err = p.start(ctx); err != nil {
			return a, errors.Join(fmt.Errorf("start a worker: %w", err), p.giveUp(ctx))
		}
	}
	if a, err = w.Call(ctx, r); err == nil {
		err = a.check(r)
	}
	if err != nil {
		a = Answer{}
		_ = w.Close() // it is dead, or must be
		w = nil
		if errors.Is(err, errNoThread) {
			return a, errors.Join(err, p.giveUp(ctx))
		}
	}
	p.idle <- w
	return a, err
}

// giveUp goes on without a worker that cannot be started or has no thread, where there is another: a machine that is
// short of memory, processes or threads must not cost the images of the run.
func (p *Pool) giveUp(ctx context.Context) error {
	if ctx.Err() == nil {
		if p.left.Add(-1) > 0 {
			return errFewer
		}
		p.left.Add(1)
	}
	p.idle <- nil
	return nil
}

// Close ends all workers, at once: each can take its time. No request is under way any more.
func (p *Pool) Close() error {
	var all sync.WaitGroup
	errs := make([]error, p.left.Load())
	for i := range errs {
		if w := <-p.idle; w != nil {
			all.Go(func() { errs[i] = w.Close() })
		}
	}
	all.Wait()
	return cmp.Or(errs...)
}

// handle answers a request by a judge, in this process.
func handle(judge Judge, r Request) (a Answer) {
	if r.Judge {
		i := judge.Image(r.Job)
		return Answer{Image: i, Fleeting: i != nil && i.Fleeting}
	}
	id, err := judge.Identify(r.Path)
	if err != nil {
		e := classify(err)
		return Answer{Error: &e}
	}
	return Answer{Identity: id}
}

// inProcess is a worker in this process: a panic costs the image only, and nothing else is kept away.
type inProcess struct{ Judge Judge }

// Call answers, and makes an error of a panic. What takes too long is left alone: nothing can end it but the end of the
// program.
func (w inProcess) Call(ctx context.Context, r Request) (Answer, error) {
	type end struct {
		a   Answer
		err error
	}
	done := make(chan end, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- end{err: fmt.Errorf("internal error, please report it: %v at %s", p, debug.Stack())}
			}
		}()
		done <- end{a: handle(w.Judge, r)}
	}()
	select {
	case e := <-done:
		return e.a, e.err
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	case <-time.After(maxTime):
		return Answer{}, ondisk.In(ondisk.ErrLimit, "it took longer than %s", maxTime)
	}
}

// Close has nothing to end.
func (inProcess) Close() error { return nil }

// check refuses an answer that no sound worker gives. A worker that was taken over by an image can lie about that image
// and all later ones, but must not stop the run. It knows no rows of other workers.
func (a Answer) check(r Request) error {
	err := a.wrong(r)
	if err != nil {
		return fmt.Errorf("internal error, please report it: answer of a worker: %w", err)
	}
	return nil
}

func (a Answer) wrong(r Request) error {
	if !r.Judge {
		return errors.Join(checkIdentity(a.Identity), results.CheckError(a.Error))
	}
	i := a.Image
	switch {
	case i == nil && !r.Doubt:
		return errors.New("no row")
	case i == nil:
		return nil
	case i.State == results.Orphan, i.State == results.Packed:
		return fmt.Errorf("a row that is %s, which a worker cannot know", i.State)
	}
	i.Change, i.Accepted, i.Priority, i.Reuse, i.Copied = "", nil, nil, nil, "" // a worker does not know these
	return i.Check()
}

// Limits of the names in a file; maxNames is beyond the 4096 extents that a VMDK may have.
const (
	maxNames  = 1 << 16
	maxFormat = 256 // bytes
)

// checkIdentity refuses an identity that no file has.
func checkIdentity(id image.Identity) error {
	kinds := []image.Kind{
		image.Other, image.Disk, image.Extent, image.Bare, image.Pack, image.Unsupported, image.Medium,
		image.Packed, image.Companion,
	}
	switch {
	case !slices.Contains(kinds, id.Kind):
		return fmt.Errorf("a file of the kind %.32q", id.Kind)
	case len(id.Format)+len(id.Remedy)+len(id.Lineage) > maxFormat:
		return fmt.Errorf("a format, its remedy and the identity of a parent of %d bytes, want at most %d",
			len(id.Format)+len(id.Remedy)+len(id.Lineage), maxFormat)
	case len(id.Claims) > len(id.Extents):
		return fmt.Errorf("a file that claims %d extents and names %d", len(id.Claims), len(id.Extents))
	case max(len(id.Extents), len(id.Parents), len(id.Views)) > maxNames:
		return fmt.Errorf("a file that names %d extents, %d of them of a view, and %d parents, want at most %d",
			len(id.Extents), len(id.Views), len(id.Parents), maxNames)
	}
	return nil
}

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
	_, died := errors.AsType[*sandbox.Death](err)
	switch {
	case err == nil:
		return a, nil
	case ctx.Err() != nil:
		return a, ctx.Err()
	case died:
		return a, fromDeath(err)
	}
	return a, fmt.Errorf("internal error, please report it: answer of a worker: %w", err)
}

// fromDeath makes the error of an image from the death of a worker. It returns any other error as it is.
func fromDeath(err error) error {
	d, died := errors.AsType[*sandbox.Death](err)
	if !died {
		return err
	}
	switch d.Cause {
	case sandbox.Threads:
		return errNoThread
	case sandbox.Killed:
		err = ondisk.In(ondisk.ErrLimit, "what reads it was %s; scan again, with fewer --jobs when memory is short",
			d.Text)
	case sandbox.Crash:
		err = fmt.Errorf("internal error, please report it: what reads it died: %s", d.Text)
	default:
		err = ondisk.In(ondisk.ErrLimit, "what reads it was stopped: %s; look at it alone with trueup inspect", d.Text)
	}
	switch {
	case d.Idle:
		return lostError{err, triesUnasked}
	case d.Cause == sandbox.Time, d.Cause == sandbox.Memory:
		return lostError{err, triesStopped}
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
	p := NewPool(r.Jobs, func(ctx context.Context) (Worker, error) { // a failed start is no fault of an image
		w, err := sandbox.Start(ctx, options)
		if err != nil {
			return nil, lostError{fromDeath(err), triesUnasked}
		}
		if err := r.achieved(w.Isolation()); err != nil {
			return nil, lostError{errors.Join(err, w.Close()), triesUnasked}
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
	return NewPool(r.Jobs, start)
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
