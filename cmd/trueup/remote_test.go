package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// If an object on a web server changes under the same ETag between the copy and its proof, the run ends with the code
// changed, and leaves no copy.
func TestWebObjectThatChanges(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "nbdkit")
	dir := t.TempDir()
	dest := filepath.Join(dir, "copy.img")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", "../../testdata/xp-lba63.vmdk", filepath.Join(dir, "disk.img"))
	content := disktest.ReadFile(t, filepath.Join(dir, "disk.img"))
	const watched = 5 << 19 // in the volume: an inspection does not read it, so the second request is of the proof
	var answers atomic.Int64
	var changes atomic.Bool
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b := content
		var from, to int64
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err == nil &&
			from <= watched && watched <= to && answers.Add(1) > 1 && changes.Load() {
			b = slices.Clone(content)
			b[watched] ^= 1
		}
		w.Header().Set("ETag", `"one"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}))
	t.Cleanup(web.Close)
	run := func() result {
		answers.Store(0)
		cmd := exec.Command("nbdkit", "-U", "-", "curl", web.URL+"/disk.img", "--run",
			fmt.Sprintf("'%s' align --json --require-sandbox \"$uri\" '%s'", builtPath, dest))
		r, _ := end(t, cmd)
		return r
	}
	r := run()
	require.Zero(t, r.code, r.stderr)
	require.Equal(t, int64(2), answers.Load(), "one answer for the copy and one for the proof")
	require.Zero(t, trueup(t, "verify", filepath.Join(dir, "disk.img"), dest).code)
	require.NoError(t, os.Remove(dest))

	changes.Store(true)
	r = run()
	require.Equal(t, 1, r.code, r.stderr)
	var failed struct {
		Error struct{ Code, Message string }
	}
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &failed), r.stdout)
	require.Equal(t, "changed", failed.Error.Code)
	require.Contains(t, failed.Error.Message, "a second reading returned other bytes")
	require.Equal(t, []string{"disk.img"}, disktest.Names(t, dir))
}

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
