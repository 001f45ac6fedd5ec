package scan

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image"
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
	p := NewPool(8, nil, func(context.Context) (Worker, error) {
		if started++; started > 1 {
			return nil, errors.Join(ErrUnasked, errors.New("no memory"))
		}
		return willing{}, nil
	})
	for range 20 {
		_, err := p.Do(t.Context(), Request{})
		require.NoError(t, err)
	}
	require.Equal(t, 8, started, "each place is tried once")
	require.NoError(t, p.Close())
}

func TestNoWorkerCanBeStarted(t *testing.T) {
	p := NewPool(3, nil, func(context.Context) (Worker, error) { return nil, errors.Join(ErrUnasked, errors.New("no memory")) })
	for range 5 {
		_, err := p.Do(t.Context(), Request{})
		require.ErrorContains(t, err, "no memory")
	}
	require.NoError(t, p.Close())
}
