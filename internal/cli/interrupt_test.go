package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
)

// Ctrl-C before there is anything to tell leaves a report that says so.
func TestScanInterruptedAtOnce(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "disk.raw"), make([]byte, 1<<20), 0o644))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := &common{}
	root := newRoot("test", c)
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs([]string{"scan", "-o", "json", "--isolation", "none", dir})
	cmd, err := root.ExecuteContextC(ctx)
	require.Equal(t, 128+int(syscall.SIGINT), finish(err, c, cmd.Name(), &out, &errs))
	var sum results.Summary
	require.NoError(t, json.Unmarshal(out.Bytes(), &sum), out.String())
	require.False(t, sum.Complete)
	require.Zero(t, sum.Images)
	require.Equal(t, 128+int(syscall.SIGINT), sum.ExitCode)
	require.Contains(t, errs.String(), "interrupted")
}

// A run that holds says what it does, above a bar where there is one.
func TestInterruptIsAnswered(t *testing.T) {
	const line = "trueup: interrupted: doing this; once more to end at once\n"
	var e ending
	var errs, bar bytes.Buffer
	e.hold("doing this")
	require.True(t, e.interrupted(&errs))
	require.Equal(t, line, errs.String())
	e.shows(&bar)
	require.True(t, e.interrupted(&errs))
	require.Equal(t, "\r"+line, bar.String())
	e.shows(goneBar{})
	require.True(t, e.interrupted(&errs))
	require.Equal(t, line+line, errs.String())
	e.hold("")
	require.True(t, e.interrupted(&errs))
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
	require.False(t, e.interrupted(&errs))
	require.Empty(t, errs.String())
	require.False(t, e.mu.TryLock(), "a report that comes now waits")
	for s, code := range map[syscall.Signal]int{syscall.SIGHUP: 129, syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		out.Reset()
		require.Equal(t, code, finish(interrupt{s, interruptedText("inspect")}, &common{asked: true}, "inspect", &out,
			&errs))
		var f report.Failure
		require.NoError(t, json.Unmarshal(out.Bytes(), &f))
		require.Equal(t, "interrupted", f.Error.Code)
		require.Equal(t, code, f.ExitCode)
	}
}

// TestInterruptBeforeMove interrupts a move in place before its first write: both messages say that the disk stays.
func TestInterruptBeforeMove(t *testing.T) {
	t.Chdir(t.TempDir())
	disk := tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	put(t, "disk.img", disk)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := &common{}
	root := newRoot("test", c)
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs([]string{"align", "--in-place", "--allow-unbootable", "disk.img"})
	cmd, err := root.ExecuteContextC(ctx)
	require.Equal(t, 128+int(syscall.SIGINT), finish(err, c, cmd.Name(), &out, &errs))
	require.Equal(t, "trueup: interrupted; nothing was moved, and the disk is as it was\n", errs.String())
	require.Equal(t, still, c.ending.does)
	now, err := os.ReadFile("disk.img")
	require.NoError(t, err)
	require.Equal(t, []byte(disk), now)
	require.NoFileExists(t, "disk.img.trueup")
}

// moving is a context that is cancelled as soon as a file is there.
type moving struct {
	context.Context
	file string
}

func (m moving) Err() error {
	if _, err := os.Stat(m.file); err == nil {
		return context.Canceled
	}
	return nil
}

// TestInterruptInMove interrupts a move, and the resume of that: both say which commands go on, and not in the words of
// Go. An undo brings the disk back.
func TestInterruptInMove(t *testing.T) {
	t.Chdir(t.TempDir())
	disk := tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	put(t, "disk.img", disk)
	command := func(ctx context.Context, args ...string) (int, string) {
		c := &common{}
		root := newRoot("test", c)
		var out, errs bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&errs)
		root.SetArgs(args)
		cmd, err := root.ExecuteContextC(ctx)
		return finish(err, c, cmd.Name(), &out, &errs), errs.String()
	}
	stopped := moving{t.Context(), "disk.img.trueup"}
	for _, args := range [][]string{{"align", "--in-place", "--allow-unbootable", "disk.img"}, {"resume", "disk.img"}} {
		code, says := command(stopped, args...)
		require.Equal(t, 128+int(syscall.SIGINT), code, says)
		require.Contains(t, says, "interrupted: ")
		require.Contains(t, says, "disk is in the middle of the move: trueup resume disk.img goes on, trueup undo disk.img "+
			"takes it back\n")
		require.NotContains(t, says, "canceled")
	}
	code, says := command(t.Context(), "undo", "disk.img")
	require.Zero(t, code, says)
	now, err := os.ReadFile("disk.img")
	require.NoError(t, err)
	require.Equal(t, []byte(disk), now)
}
