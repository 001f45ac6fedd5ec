package trial_test

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/trial"
)

// A delegate prints what its caller says before it ends with the caller.
func TestLinesOfTheCaller(t *testing.T) {
	t.Parallel()
	in, caller := io.Pipe()
	go func() {
		_, _ = io.WriteString(caller, "\n\rtrueup: interrupted: removing the unfinished copy\n")
		_ = caller.Close()
	}()
	said := make(chan string, 1)
	ctx, err := trial.Called(t.Context(), in, func(line string) { said <- line })
	require.NoError(t, err)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), trial.ErrCallerGone)
	require.Equal(t, "trueup: interrupted: removing the unfinished copy", <-said)
}

// A caller that ends without a call wants no trial.
func TestCallerEndsWithoutACall(t *testing.T) {
	t.Parallel()
	in, caller := io.Pipe()
	go func() { _ = caller.Close() }()
	_, err := trial.Called(t.Context(), in, func(string) { t.Error("nothing was said") })
	require.ErrorIs(t, err, trial.ErrCallerGone)
}
