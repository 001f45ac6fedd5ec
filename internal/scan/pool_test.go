package scan

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

// willing says about each file that it is a disk.
type willing struct{}

func (willing) Call(context.Context, Request) (Answer, error) {
	return Answer{Identity: image.Identity{Kind: image.Disk, Format: "raw"}}, nil
}
func (willing) Close() error { return nil }

// A machine that has no room for more workers works with those that it has.
func TestWorkersThatCannotBeStarted(t *testing.T) {
	started := 0
	p := NewPool(8, func(context.Context) (Worker, error) {
		if started++; started > 1 {
			return nil, lostError{errors.New("no memory"), triesUnasked}
		}
		return willing{}, nil
	})
	for range 20 {
		_, err := p.do(t.Context(), Request{})
		require.NoError(t, err)
	}
	require.Equal(t, 8, started, "each place is tried once")
	require.NoError(t, p.Close())
}

func TestNoWorkerCanBeStarted(t *testing.T) {
	p := NewPool(3, func(context.Context) (Worker, error) {
		return nil, lostError{errors.New("no memory"), triesUnasked}
	})
	for range 5 {
		_, err := p.do(t.Context(), Request{})
		require.ErrorContains(t, err, "no memory")
	}
	require.NoError(t, p.Close())
}

// A machine that is short of threads works with fewer workers, and an image is not blamed for it.
func TestWorkersWithoutThreads(t *testing.T) {
	for _, late := range []int{1, 3, 5, 6} {
		left := late
		p := NewPool(4, func(context.Context) (Worker, error) { return stopped{&left, sandbox.Threads}, nil })
		_, err := p.do(t.Context(), Request{})
		if late < 6 {
			require.NoError(t, err, "%d deaths", late)
		} else {
			require.ErrorContains(t, err, "could not start a thread: resource temporarily unavailable; scan again")
			require.Equal(t, "io", classify(err).Code)
		}
		require.Equal(t, max(1, int32(4-late)), p.left.Load())
		require.NoError(t, p.Close())
	}
}

// stopped dies of a cause at the first requests of all its kind.
type stopped struct {
	left  *int
	cause sandbox.Cause
}

func (s stopped) Call(context.Context, Request) (Answer, error) {
	if *s.left--; *s.left >= 0 {
		return Answer{}, fromDeath(&sandbox.Death{Cause: s.cause, Text: "no answer within 30s"})
	}
	return willing{}.Call(nil, Request{}) //nolint:staticcheck // which it does not ask
}
func (stopped) Close() error { return nil }

// A worker that does not answer in time may wait for a storage that stands still, and one without memory may have used
// it up before: another is asked, once. One that computes for too long does that for the image.
func TestWorkersThatAreStopped(t *testing.T) {
	for _, c := range []struct {
		cause         sandbox.Cause
		late, started int
		dies          bool
	}{
		{sandbox.Time, 0, 1, false},
		{sandbox.Time, 1, 2, false},
		{sandbox.Time, 2, 2, true},
		{sandbox.Time, 9, 2, true},
		{sandbox.Memory, 1, 2, false},
		{sandbox.Memory, 2, 2, true},
		{sandbox.CPU, 1, 1, true},
		{sandbox.Crash, 1, 1, true},
		{sandbox.Killed, 1, 1, true},
	} {
		started, left := 0, c.late
		p := NewPool(2, func(context.Context) (Worker, error) {
			started++
			return stopped{&left, c.cause}, nil
		})
		_, err := p.do(t.Context(), Request{})
		if c.dies {
			require.ErrorContains(t, err, "no answer within 30s")
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, c.started, started, "%s, %d times", c.cause, c.late)
		require.NoError(t, p.Close())
	}
}
