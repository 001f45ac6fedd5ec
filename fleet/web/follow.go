package web

import (
	"context"
	"time"

	"github.com/trueup/trueup/fleet/overview"
	"github.com/trueup/trueup/fleet/queue"
)

// look is the interval between reads of the queue's state, and pause the delay before a retry.
const (
	look  = 5 * time.Second
	pause = time.Second
)

// Follow keeps an overview up to date until stop is called.
func Follow(q *queue.Queue, o *overview.Overview) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = q.Watch(ctx, "", o.Set) // the other goroutine reports the same error
			wait(ctx, pause)
		}
	}()
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		for ctx.Err() == nil {
			a, err := around(ctx, q)
			if err == nil {
				o.SetAround(a)
				o.SetProblem("")
			} else if ctx.Err() == nil {
				o.SetProblem("The queue does not answer, so this page is not up to date: " + err.Error())
			}
			wait(ctx, look)
		}
	}()
	return func() {
		cancel()
		<-ended
		<-looked
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// around reads the state of the queue other than jobs.
func around(ctx context.Context, q *queue.Queue) (a overview.Around, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*look)
	defer cancel()
	if a.Backlogs, err = q.Backlogs(ctx); err != nil {
		return a, err
	}
	if a.Workers, err = q.Workers(ctx); err != nil {
		return a, err
	}
	a.Drained = map[string]bool{}
	for name := range a.Backlogs {
		if a.Drained[name], err = q.Drained(ctx, name); err != nil {
			return a, err
		}
	}
	return a, nil
}
