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
			return nil, errors.Join(errUnasked, errors.New("no memory"))
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
		return nil,
			errors.Join(errUnasked, errors.New("no memory"))
	})
	for range 5 {
		_, err := p.do(t.Context(), Request{})
		require.ErrorContains(t, err, "no memory")
	}
	require.NoError(t, p.Close())
}

// starved has no thread for the first requests of all its kind.
type starved struct{ left *int }

func (s starved) Call(context.Context, Request) (Answer, error) {
	if *s.left--; *s.left >= 0 {
		return Answer{}, fromDeath(&sandbox.Death{Cause: sandbox.Threads})
	}
	return willing{}.Call(nil, Request{}) //nolint:staticcheck // which it does not ask
}
func (starved) Close() error { return nil }

// A machine that is short of threads works with fewer workers, and an image is not blamed for it.
func TestWorkersWithoutThreads(t *testing.T) {
	for _, late := range []int{1, 3, 5, 6} {
		left := late
		p := NewPool(4, func(context.Context) (Worker, error) { return starved{&left}, nil })
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

// slow gives no answer to the first requests of all its kind.
type slow struct{ left *int }

func (s slow) Call(context.Context, Request) (Answer, error) {
	if *s.left--; *s.left >= 0 {
		return Answer{}, slowError{errors.New("no answer within 30s")}
	}
	return willing{}.Call(nil, Request{}) //nolint:staticcheck // which it does not ask
}
func (slow) Close() error { return nil }

// A worker that does not answer in time may wait for a storage that stands still: another is asked, once.
func TestWorkersThatAreSlow(t *testing.T) {
	for _, c := range []struct {
		late, started int
		text          string
	}{{0, 1, ""}, {1, 2, ""}, {2, 2, "no answer within 30s"}, {9, 2, "no answer within 30s"}} {
		started, left := 0, c.late
		p := NewPool(2, func(context.Context) (Worker, error) {
			started++
			return slow{&left}, nil
		})
		_, err := p.do(t.Context(), Request{})
		if c.text == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, c.text)
		}
		require.Equal(t, c.started, started, "late %d times", c.late)
		require.NoError(t, p.Close())
	}
}
