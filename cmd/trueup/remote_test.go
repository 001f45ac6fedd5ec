package main

import (
	"bufio"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// A few bytes can expand to any number of bytes: a full folder or a signal ends the unpacking, and no file is left.
func TestBombs(t *testing.T) {
	t.Parallel()
	dir, spool := t.TempDir(), t.TempDir()
	bomb := filepath.Join(dir, "bomb.img.zst")
	bombs := exec.Command("sh", "-ec", `yes 'not a zero' | head -c 300M | zstd -q --stream-size=314572800 > bomb.img.zst
		head -c 256M /dev/zero | zstd -q > zeros
		for i in $(seq 800); do cat zeros; done > zeros.img.zst`)
	bombs.Dir = dir
	said, err := bombs.CombinedOutput()
	require.NoError(t, err, string(said))
	r := privateMount(t, "size=160m", spool, builtPath, "inspect", "--spool", spool, bomb)
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, "trying anyway")
	require.Contains(t, r.stderr, "were unpacked; choose a folder")
	require.Empty(t, r.stdout, "names of files that are left")

	cmd := exec.Command(builtPath, "convert", "--progress", "json", filepath.Join(dir, "zeros.img.zst"),
		filepath.Join(spool, "zeros.img"))
	out, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines, signalled := bufio.NewScanner(out), false
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"phase":"unpack"`) && !signalled {
			signalled = true
			require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		}
	}
	require.Error(t, cmd.Wait())
	require.True(t, signalled)
	require.Equal(t, 130, cmd.ProcessState.ExitCode())
	require.Empty(t, disktest.Names(t, spool))
}
