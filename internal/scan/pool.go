package scan

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/library"
	"github.com/trueup/trueup/internal/report"
)

// Request is what a worker is asked about a file: what it is, or to judge the image that it is. Names are bytes, and texts of JSON are not.
type Request struct {
	Path  []byte `json:"path"` // absolute
	Judge bool   `json:"judge,omitempty"`
	// The rest is for a judge, see Job.
	Package bool          `json:"package,omitempty"`
	Beside  *image.Beside `json:"beside,omitempty"`
	Doubt   bool          `json:"doubt,omitempty"`
}

// Answer is what it says.
type Answer struct {
	Identity image.Identity `json:"identity"`
	Image    *library.Image `json:"image,omitempty"`
	Error    *report.Error  `json:"error,omitempty"` // of Identify
}

// Worker answers requests, one at a time. After an error it is of no use any more.
type Worker interface {
	Call(ctx context.Context, r Request) (Answer, error)
	Close() error
}

// Pool is a number of workers, which it starts when they are needed and replaces when they die.
type Pool struct {
	judge Judge
	start func(ctx context.Context) (Worker, error)
	idle  chan Worker // nil: one that is not started yet
}

// NewPool has so many workers.
func NewPool(jobs int, judge Judge, start func(ctx context.Context) (Worker, error)) *Pool {
	p := &Pool{judge: judge, start: start, idle: make(chan Worker, jobs)}
	for range jobs {
		p.idle <- nil
	}
	return p
}

// Do has a worker answer a request. The error is what the worker died of.
func (p *Pool) Do(ctx context.Context, r Request) (a Answer, err error) {
	var w Worker
	select {
	case w = <-p.idle:
	case <-ctx.Done():
		return a, ctx.Err()
	}
	if w == nil {
		if w, err = p.start(ctx); err != nil {
			p.idle <- nil
			return a, fmt.Errorf("start a worker: %w", err)
		}
	}
	if a, err = w.Call(ctx, r); err != nil {
		_ = w.Close() // it is dead, or must be
		w = nil
	}
	p.idle <- w
	return a, err
}

// Close ends all workers. No request is under way any more.
func (p *Pool) Close() error {
	var err error
	for range cap(p.idle) {
		if w := <-p.idle; w != nil {
			if cerr := w.Close(); err == nil {
				err = cerr
			}
		}
	}
	return err
}

// Handle answers a request by a judge, in this process.
func Handle(judge Judge, r Request) (a Answer) {
	if r.Judge {
		return Answer{Image: judge.Image(Job{string(r.Path), r.Package, r.Beside, r.Doubt})}
	}
	id, err := judge.Identify(string(r.Path))
	if err != nil {
		e := judge.Classify(err)
		return Answer{Error: &e}
	}
	return Answer{Identity: id}
}

// Inside is a worker in this process: a panic costs the image only, and nothing else is kept away.
type Inside struct{ Judge Judge }

// Call answers, and makes an error of a panic.
func (w Inside) Call(_ context.Context, r Request) (a Answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("internal error, please report it: %v at %s", p, debug.Stack())
		}
	}()
	return Handle(w.Judge, r), nil
}

// Close has nothing to end.
func (Inside) Close() error { return nil }
