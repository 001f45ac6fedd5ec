package scan

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
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
	// Beside lists the files around it. If it is nil, the judge reads the folder.
	Beside *image.Beside `json:"beside,omitempty"`
	// Doubt is set if the file has neither the format nor the name of an image. It counts as an image only if a table
	// or a volume is found in it, or if it is an archive with an image.
	Doubt bool `json:"doubt,omitempty"`
	// Packed is set for a compressed file.
	Packed bool `json:"packed,omitempty"`
}

// Judge identifies and judges files. It runs in a worker, since malformed files may kill it.
type Judge interface {
	// Identify identifies the file at an absolute path.
	Identify(path string) (image.Identity, error)
	// Image judges an image. It returns nil for a doubtful file without an image.
	Image(j Job) *results.Image
}

// Request tells a worker to identify the file of a job, or to judge the image in it.
type Request struct {
	Job
	Name  []byte `json:"path"` // Path for JSON: names are arbitrary bytes, JSON strings are UTF-8
	Judge bool   `json:"judge,omitempty"`
}

// Answer is the answer to a Request.
type Answer struct {
	Identity image.Identity `json:"identity"`
	Image    *results.Image `json:"image,omitempty"`
	Fleeting bool           `json:"fleeting,omitempty"` // Image.Fleeting, which the JSON of Image omits
	Error    *report.Error  `json:"error,omitempty"`    // from Identify
}

// Worker answers requests one at a time, in their order. It cannot be used after an error.
type Worker interface {
	// Call sends requests and returns the answer to the oldest one without an answer, which may be of an earlier call.
	Call(ctx context.Context, requests ...Request) (Answer, error)
	Close() error
}

// maxTime bounds the time of one request.
const maxTime = 30 * time.Second

// Pool is a set of workers. It starts workers on demand and replaces dead ones.
type Pool struct {
	start func(ctx context.Context) (Worker, error)
	calls chan call
	each  int          // most requests of one worker at a time
	jobs  int          // most requests of all workers at a time
	free  atomic.Int32 // workers without a request, started or not
	left  atomic.Int32 // workers not given up, started or not
	ended chan error   // the error of each worker's end
}

// call is a request of a caller that waits for the answer.
type call struct {
	Request
	ctx  context.Context //nolint:containedctx // of the caller
	done chan end
}

// end is the answer to a request, or the cause of its failure.
type end struct {
	Answer
	err error
}

// newPool returns a pool of up to jobs workers, with up to each requests each. first is a worker that is started
// already, or nil.
func newPool(jobs, each int, first Worker, start func(ctx context.Context) (Worker, error)) *Pool {
	p := &Pool{start: start, calls: make(chan call), each: each, jobs: jobs * each, ended: make(chan error, jobs)}
	p.free.Store(int32(jobs)) //nolint:gosec // a few
	p.left.Store(int32(jobs)) //nolint:gosec // a few
	for range jobs {
		go (&lane{Pool: p, worker: first}).work()
		first = nil
	}
	return p
}

// lostError is the error of a worker whose death may have another cause than the image. tries is the number of attempts
// before the image gets the error.
type lostError struct {
	error
	tries int
}

func (l lostError) Unwrap() error { return l.error }

// Numbers of attempts.
const (
	triesUnasked = 3 // for workers without a thread, or dead before the request
	// triesStopped is for workers that exceed the time or the memory limit. Storage or a busy machine can stall for
	// longer than an image takes, and earlier images may have used up the memory.
	triesStopped = 2
)

// errFewer reports that a worker could not be started while others exist. The pool has one worker less from then on.
var errFewer = errors.New("there is no worker more")

// errNoThread is the error of a worker that died because the machine had no thread for it.
var errNoThread = lostError{
	fmt.Errorf("what reads it could not start a thread: %w; scan again, with fewer --jobs", sys.ErrAgain),
	triesUnasked,
}

// do sends a request to a worker. It repeats the request a few times if the worker's death may have another cause than
// the image. The error is the cause of the death.
func (p *Pool) do(ctx context.Context, r Request) (a Answer, err error) {
	for tried := map[int]int{}; ; { // keyed by lostError.tries
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

func (p *Pool) try(ctx context.Context, r Request) (Answer, error) {
	c := call{r, ctx, make(chan end, 1)}
	select {
	case p.calls <- c:
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
	e := <-c.done
	return e.Answer, e.err
}

// lane is the place of one worker in a pool.
type lane struct {
	*Pool
	worker Worker // nil if it is not started
	calls  []call // without an answer
	sent   int    // number of calls that the worker has
}

// work answers calls until the pool is closed or the worker is given up.
func (l *lane) work() {
	for l.take() {
		e := l.ask()
		if errors.Is(e.err, errFewer) {
			for _, c := range l.calls {
				c.done <- e
			}
			break
		}
		l.calls[0].done <- e
		if l.calls = l.calls[1:]; len(l.calls) == 0 {
			l.free.Add(1)
		}
	}
	var err error
	if l.worker != nil {
		err = l.worker.Close()
	}
	l.ended <- err
}

// take waits for a call, and takes more if all other workers have one. It returns false if the pool is closed.
func (l *lane) take() bool {
	if len(l.calls) == 0 {
		c, open := <-l.Pool.calls
		if !open {
			return false
		}
		l.free.Add(-1)
		l.calls = append(l.calls, c)
	}
	for len(l.calls) < l.each && l.free.Load() == 0 {
		select {
		case c := <-l.Pool.calls:
			l.calls = append(l.calls, c)
		default:
			return true
		}
	}
	return true
}

// ask returns the answer to the oldest call. The death of a worker fails only this call: its successor gets the others.
func (l *lane) ask() (e end) {
	first := l.calls[0]
	if l.worker == nil {
		w, err := l.start(first.ctx)
		if err != nil {
			return end{err: errors.Join(fmt.Errorf("start a worker: %w", err), l.giveUp(first.ctx))}
		}
		l.worker = w
	}
	var next []Request
	for _, c := range l.calls[l.sent:] {
		next = append(next, c.Request)
	}
	a, err := l.worker.Call(first.ctx, next...)
	if err == nil {
		if err = a.check(first.Request); err != nil {
			err = fmt.Errorf("internal error, please report it: answer of a worker: %w", err)
		}
	}
	if err == nil {
		l.sent = len(l.calls) - 1
		return end{Answer: a}
	}
	_ = l.worker.Close() // dead, or to be killed
	l.worker, l.sent = nil, 0
	if errors.Is(err, errNoThread) {
		err = errors.Join(err, l.giveUp(first.ctx))
	}
	return end{err: err}
}

// giveUp removes a worker that cannot be started or has no thread, unless it is the last one. A shortage of memory,
// processes or threads must not cost the images of the run.
func (p *Pool) giveUp(ctx context.Context) error {
	if ctx.Err() == nil {
		if p.left.Add(-1) > 0 {
			return errFewer
		}
		p.left.Add(1)
	}
	return nil
}

// Close ends all workers concurrently, since each may take time. No request may be running.
func (p *Pool) Close() error {
	close(p.calls)
	errs := make([]error, cap(p.ended))
	for i := range errs {
		errs[i] = <-p.ended
	}
	return cmp.Or(errs...)
}

// handle answers a request with a judge in this process.
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

// inProcess is a worker in this process. It contains a panic, but isolates nothing else.
type inProcess struct{ Judge Judge }

// Call answers a request and turns a panic into an error. It abandons a request that takes too long: only the end of
// the program can stop it.
func (w inProcess) Call(ctx context.Context, requests ...Request) (Answer, error) {
	done := make(chan end, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- end{err: fmt.Errorf("internal error, please report it: %v at %s", p, debug.Stack())}
			}
		}()
		done <- end{Answer: handle(w.Judge, requests[0])}
	}()
	select {
	case e := <-done:
		return e.Answer, e.err
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	case <-time.After(maxTime):
		return Answer{}, ondisk.In(ondisk.ErrLimit, "it took longer than %s", maxTime)
	}
}

// Close does nothing.
func (inProcess) Close() error { return nil }

// check returns an error for an answer that no sound worker gives. A worker compromised by an image can falsify the row
// of that image and all its later rows, but must not stop the run. It has no access to rows of other workers.
func (a Answer) check(r Request) error {
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
	i.Change, i.Accepted, i.Priority, i.Reuse, i.Copied = "", nil, nil, nil, "" // only this process sets these
	return i.Check()
}

// Limits of an identity. maxNames exceeds the 4096 extents of a VMDK.
const (
	maxNames  = 1 << 16
	maxFormat = 256 // bytes
)

// checkIdentity returns an error for an identity that no file can have.
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

// Serve runs a worker process: it answers the requests of a Pool.
func Serve(in *os.File, out io.Writer) error { return sandbox.Serve(in, out, startInspector) }

// startInspector returns the handler of a worker. The first request of the scan contains its Inspector.
func startInspector(hello []byte) (sandbox.Handle, error) {
	j := &Inspector{}
	if err := json.Unmarshal(hello, j); err != nil {
		return nil, fmt.Errorf("judge of a worker: %w", err)
	}
	return func(request []byte) []byte {
		var r Request
		if err := json.Unmarshal(request, &r); err != nil {
			panic(err) // written by our own parent
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

// Call sends requests to the worker process. The error names the cause of its death, with the class for the row of the
// image.
func (o outside) Call(ctx context.Context, requests ...Request) (a Answer, err error) {
	texts := make([][]byte, len(requests))
	for i, r := range requests {
		r.Name = []byte(r.Path)
		if texts[i], err = json.Marshal(r); err != nil {
			return a, fmt.Errorf("request for a worker: %w", err)
		}
	}
	answer, err := o.Worker.Call(ctx, texts...)
	if err == nil {
		err = jsonv2.Unmarshal(answer, &a) // takes half the time of encoding/json
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

// fromDeath turns the death of a worker into the error of an image. It returns any other error unchanged.
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

// maxAnswer bounds the answer about one image, in bytes. The names of 4096 extents or results.MostItems of all kinds
// take far less. Decoded, an answer takes many times its size in memory.
const maxAnswer = 8 * units.MiB

// workers returns the workers of a scan. It starts the first worker at once, to learn its isolation. This process
// itself reads no image.
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
		if err := r.achieved(none); err != nil {
			return nil, err
		}
		return r.inside(inspector), nil
	}
	if err := r.achieved(first.Isolation()); err != nil {
		return nil, errors.Join(err, first.Close())
	}
	start := func(ctx context.Context) (Worker, error) { // a failed start is no fault of an image
		w, err := sandbox.Start(ctx, options)
		if err != nil {
			return nil, lostError{fromDeath(err), triesUnasked}
		}
		if err := r.achieved(w.Isolation()); err != nil {
			return nil, lostError{errors.Join(err, w.Close()), triesUnasked}
		}
		return outside{w}, nil
	}
	return newPool(r.Jobs, sandbox.MostRequests, outside{first}, start), nil
}

// inside returns a pool without worker processes. This process inspects the images itself, and confines itself to them.
func (r *search) inside(inspector *Inspector) *Pool {
	if r.Confine != nil {
		r.Confine(sandbox.Access{Read: rootsOf(r.Paths)})
	}
	start := func(context.Context) (Worker, error) { return inProcess{Judge: inspector}, nil }
	return newPool(r.Jobs, 1, nil, start)
}

// achieved records the isolation of the first worker, and of a later worker with less than the wanted level.
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

// rootsOf returns the paths that workers must be able to read, absolute and without symlinks: folders with all below,
// and the folders of named files. A device is a path of its own, since its folder contains other devices.
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

// allowedOf returns the folders that may contain parents: the folders named by the user, with all below.
func allowedOf(paths []string) (out []string) {
	for _, p := range paths {
		if _, all, err := gate.Allow([]string{p}); err == nil {
			out = append(out, all...)
		}
	}
	return out
}
