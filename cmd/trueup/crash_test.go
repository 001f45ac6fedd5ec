package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// SIGQUIT ends a program that works by SIGABRT, never with a code that is a verdict.
func TestQuitIsNoVerdict(t *testing.T) {
	t.Parallel()
	raw := filepath.Join(t.TempDir(), "disk.img")
	require.NoError(t, os.WriteFile(raw, noise("quit", 1<<20), 0o600))
	s := serving(t, "--as-is", raw)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGQUIT))
	<-s.done
	status := s.cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, status.Signaled(), "exit status %d", status.ExitStatus())
	require.Equal(t, syscall.SIGABRT, status.Signal())
}
