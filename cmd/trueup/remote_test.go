package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// An export is read as its file is, in confinement: reports and copies are the same.
func TestRemoteSource(t *testing.T) {
	t.Parallel()
	src := filepath.Join(t.TempDir(), "xp.vmdk")
	require.NoError(t, os.WriteFile(src, disktest.ReadFile(t, "../../testdata/xp-lba63.vmdk"), 0o600))
	uri := serving(t, "--as-is", src).URI
	in := func(name string) string { return filepath.Join(filepath.Dir(src), name) }

	r := trueup(t, "inspect", "--require-sandbox", "--list", uri)
	require.Equal(t, 3, r.code, r.stderr)
	require.Empty(t, r.stderr)
	require.Contains(t, r.stdout, "63  7832     7770  3.79 MiB   7  NTFS/exFAT/HPFS  512 (off 4K)")
	require.Contains(t, trueup(t, "plan", "--require-sandbox", uri).stdout, "1 partition moves")

	r = trueup(t, "align", "--require-sandbox", uri, in("remote.img"))
	require.Zero(t, r.code, r.stderr)
	require.Zero(t, trueup(t, "align", "--to", "raw", src, in("local.img")).code)
	disktest.Run(t, "cmp", in("local.img"), in("remote.img"))
	require.Zero(t, trueup(t, "verify", "--require-sandbox", uri, in("remote.img")).code)
	require.Zero(t, trueup(t, "verify", src, in("remote.img")).code)
	require.Zero(t, trueup(t, "convert", "--to", "qcow2", uri, in("remote.qcow2")).code)
	require.Zero(t, trueup(t, "verify", uri, in("remote.qcow2")).code)

	for want, args := range map[string][]string{
		"--replace needs a file":          {"align", "--replace", uri},
		"--in-place needs a file":         {"align", "--in-place", uri},
		"--view needs a file":             {"align", "--view", uri, in("view.vmdk")},
		"--resumable needs a file":        {"align", "--resumable", uri, in("x.img")},
		"--boot-trial needs a file":       {"align", "--boot-trial", uri, in("x.img")},
		"--second-opinion needs a file":   {"convert", "--second-opinion", uri, in("x.img")},
		"a copy that is a package needs":  {"align", uri, in("x.ova")},
		"is an image of a server, which":  {"align", src, uri},
		"this command reads no images of": {"serve", uri},
		"it has no such export":           {"inspect", strings.Replace(uri, "///", "///x", 1)},
		"--allow-folder is for files":     {"inspect", "--allow-folder", in("."), uri},
	} {
		r := trueup(t, args...)
		require.NotZero(t, r.code, want)
		require.Contains(t, r.stderr, want)
	}
	require.NoFileExists(t, in("x.img"))
}

// An object of a web server is read as its file is, in confinement. One that changes leaves no copy.
func TestWebSource(t *testing.T) {
	t.Parallel()
	content := disktest.ReadFile(t, "../../testdata/xp-lba63.vmdk")
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	require.NoError(t, os.WriteFile(in("header"), []byte("Bearer secret\n"), 0o600))
	var requests, changes atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("ETag", `"one"`)
		if n := requests.Add(1); changes.Load() > 0 && n >= changes.Load() {
			w.Header().Set("ETag", `"two"`)
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}))
	t.Cleanup(web.Close)
	uri := web.URL + "/a/xp.vmdk"
	run := func(args ...string) result {
		r := trueup(t, append(args, "--authorization", in("header"))...)
		require.NotContains(t, r.stdout+r.stderr, "secret")
		return r
	}
	r := run("inspect", "--require-sandbox", uri)
	require.Equal(t, 3, r.code, r.stderr)
	require.Contains(t, r.stdout, "VMDK monolithicSparse")
	require.Contains(t, r.stdout, "xp-aligned.vmdk")
	requests.Store(0)
	r = run("align", "--require-sandbox", "--to", "raw", uri, in("remote.img"))
	require.Zero(t, r.code, r.stderr)
	needed := requests.Load()
	require.Zero(t, trueup(t, "verify", "../../testdata/xp-lba63.vmdk", in("remote.img")).code)
	require.Zero(t, run("verify", "--require-sandbox", uri, in("remote.img")).code)

	require.Contains(t, trueup(t, "inspect", uri).stderr, "--authorization FILE")
	r = trueup(t, "inspect", strings.Replace(web.URL, "://", "://user:secret@", 1))
	require.NotContains(t, r.stderr, "secret")
	require.Contains(t, r.stderr, "a name or a password")
	for n := range needed - 1 { // the object is another one from that request on
		requests.Store(0)
		changes.Store(n + 2)
		r = run("align", "--to", "raw", uri, in("changed.img"))
		require.NotZero(t, r.code, "%d of %d", n+2, needed)
		require.Contains(t, r.stderr, "changed while it was read")
		require.NoFileExists(t, in("changed.img"))
	}
}
