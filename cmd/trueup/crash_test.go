package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// SIGQUIT in the middle of a copy ends the program by SIGABRT, never with a code that is a verdict.
func TestQuitIsNoVerdict(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	raw, stream := filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk.vmdk")
	require.NoError(t, os.WriteFile(raw, noise("quit", 1<<20), 0o600))
	run(t, disktest.Tool(t, "qemu-img"), "convert", "-O", "vmdk", "-o", "subformat=streamOptimized", raw, stream)
	content := disktest.ReadFile(t, stream)

	cmd := exec.Command(builtPath, "convert", "--to", "raw", "-", filepath.Join(dir, "dest.img"))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	// More than a pipe holds: when it is written the program is reading, and what it waits for never comes.
	_, err = in.Write(content[:len(content)-4<<10])
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGQUIT))
	_ = cmd.Wait()
	status := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, status.Signaled(), "exit status %d", status.ExitStatus())
	require.Equal(t, syscall.SIGABRT, status.Signal())
}
