package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/report"
)

// A run that holds says what it does, above a bar where there is one.
func TestInterruptIsAnswered(t *testing.T) {
	const line = "trueup: interrupted: doing this; once more to end at once\n"
	var e ending
	var errs, bar bytes.Buffer
	e.Hold("doing this")
	require.True(t, e.Interrupted(&errs))
	require.Equal(t, line, errs.String())
	e.Above(&bar)
	require.True(t, e.Interrupted(&errs))
	require.Equal(t, "\r"+line, bar.String())
	e.Above(goneBar{})
	require.True(t, e.Interrupted(&errs))
	require.Equal(t, line+line, errs.String())
	e.Hold("")
	require.True(t, e.Interrupted(&errs))
	require.Equal(t, line+line, errs.String(), "a copy that is done is not removed")
}

// goneBar is a bar that has ended.
type goneBar struct{}

func (goneBar) Write([]byte) (int, error) { return 0, os.ErrClosed }

// Only a copy has a source that stays as it is.
func TestInterruptedResults(t *testing.T) {
	for command, want := range map[string]string{
		"align":   "no copy was made, and the source is unchanged",
		"convert": "no copy was made, and the source is unchanged",
		"bench":   "there is no result, and no scratch file is left", "inspect": "there is no result",
		"plan": "there is no result",
	} {
		require.Equal(t, "interrupted; "+want, interruptedText(command))
	}
}

// Before anything is begun the signal ends the run, and nothing else is printed.
func TestInterruptBeforeAnything(t *testing.T) {
	var e ending
	var out, errs bytes.Buffer
	require.False(t, e.Interrupted(&errs))
	require.Empty(t, errs.String())
	require.False(t, e.mu.TryLock(), "a report that comes now waits")
	for s, code := range map[syscall.Signal]int{syscall.SIGHUP: 129, syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		out.Reset()
		require.Equal(t, code, Finish(InterruptError{s, interruptedText("inspect")}, &Base{Asked: true}, "inspect",
			&out, &errs))
		var f report.Failure
		require.NoError(t, json.Unmarshal(out.Bytes(), &f))
		require.Equal(t, "interrupted", f.Error.Code)
		require.Equal(t, code, f.ExitCode)
	}
}
