package main

import (
	"bytes"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
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

	r = trueup(t, "inspect", "--json", strings.Replace(uri, "///", "///x", 1), uri)
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stdout, `"exit_code":3`, "an error of one server is that of one image")
	for want, args := range map[string][]string{
		"--replace needs a file":          {"align", "--replace", uri},
		"--in-place needs a file":         {"align", "--in-place", uri},
		"--view needs a file":             {"align", "--view", uri, in("view.vmdk")},
		"--resumable needs a file":        {"align", "--resumable", uri, in("x.img")},
		"a copy that is a package needs":  {"align", uri, in("x.ova")},
		"is an image of a server, which":  {"align", src, uri},
		"trueup serve needs a file":       {"serve", uri},
		"trueup boot needs a file":        {"boot", uri},
		"trueup undo needs a file":        {"undo", uri},
		"this command reads no images of": {"serve", "--with", uri, src},
		"it has no such export":           {"inspect", strings.Replace(uri, "///", "///x", 1)},
		"--allow-folder is for files":     {"inspect", "--allow-folder", in("."), uri},
	} {
		r := trueup(t, args...)
		require.NotZero(t, r.code, want)
		require.Contains(t, r.stderr, want)
	}
	require.NoFileExists(t, in("x.img"))
}

// secure serves an image by HTTPS to those with a header, and has a request number asked before each.
func secure(
	t *testing.T, before func(w http.ResponseWriter, request int64),
) (web *httptest.Server, requests *atomic.Int64) {
	t.Helper()
	content := disktest.ReadFile(t, "../../testdata/xp-lba63.vmdk")
	requests = new(atomic.Int64)
	web = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.URL.RawQuery != "sign=secret&x=y" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("ETag", `"one"`)
		before(w, requests.Add(1))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}))
	web.EnableHTTP2 = true
	web.StartTLS()
	t.Cleanup(web.Close)
	return web, requests
}

// trusting returns a run with --authorization that trusts the certificate of a server.
func trusting(t *testing.T, web *httptest.Server, args ...string) *exec.Cmd {
	t.Helper()
	dir := t.TempDir()
	certificate, header := filepath.Join(dir, "certificate"), filepath.Join(dir, "header")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw}
	require.NoError(t, os.WriteFile(certificate, pem.EncodeToMemory(block), 0o600))
	require.NoError(t, os.WriteFile(header, []byte("Bearer secret\n"), 0o600))
	cmd := exec.Command(builtPath, append(args, "--authorization", header)...)
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+certificate, "TMPDIR="+dir)
	return cmd
}

// An object of a web server is read as its file is, in confinement. One that changes leaves no copy, and nothing shows
// what is secret in the command line.
func TestWebSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	var changes atomic.Int64
	web, requests := secure(t, func(w http.ResponseWriter, n int64) {
		if c := changes.Load(); c > 0 && n >= c {
			w.Header().Set("ETag", `"two"`)
		}
	})
	uri := web.URL + "/a/xp.vmdk?sign=secret&x=y"
	run := func(args ...string) result {
		cmd := trusting(t, web, append(args, "--log", in("log"))...)
		r, _ := end(t, cmd)
		require.NotContains(t, r.stdout+r.stderr+string(disktest.ReadFile(t, in("log"))), "secret")
		left, err := filepath.Glob(filepath.Join(filepath.Dir(cmd.Args[len(cmd.Args)-1]), "trueup-*"))
		require.NoError(t, err)
		require.Empty(t, left)
		return r
	}
	r := run("inspect", "--require-sandbox", uri)
	require.Equal(t, 3, r.code, r.stderr)
	require.Contains(t, r.stdout, web.URL+"/a/xp.vmdk?...: VMDK monolithicSparse")
	require.Regexp(t, `trueup align --authorization \S+/header '`+web.URL+`/a/xp.vmdk\?\.\.\.' xp-aligned.vmdk`,
		r.stdout)

	requests.Store(0)
	r = run("align", "--require-sandbox", "--to", "raw", uri, in("remote.img"))
	require.Zero(t, r.code, r.stderr)
	needed := requests.Load()
	require.Zero(t, trueup(t, "verify", "../../testdata/xp-lba63.vmdk", in("remote.img")).code)
	require.Zero(t, run("verify", "--json", uri, in("remote.img")).code)

	for _, n := range []int64{2, needed/2 + 1, needed} { // the object is another one from that request on
		requests.Store(0)
		changes.Store(n)
		r = run("align", "--to", "raw", uri, in("changed.img"))
		require.NotZero(t, r.code, "%d of %d", n, needed)
		require.Contains(t, r.stderr, "changed while it was read")
		require.NoFileExists(t, in("changed.img"))
	}
	r = trueup(t, "inspect", uri)
	require.Contains(t, r.stderr, web.URL+"/a/xp.vmdk?...: tls: failed to verify certificate")
	require.Contains(t, run("inspect", web.URL).stderr, "--authorization FILE")
	r = run("inspect", strings.Replace(uri, "://", "://user:secret@", 1))
	require.Contains(t, r.stderr, "a name or a password")
}

// A signal ends a run at once that waits for a server.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	silent, stop := make(chan struct{}), make(chan struct{})
	web, _ := secure(t, func(_ http.ResponseWriter, n int64) {
		if n == 12 {
			close(silent)
		}
		if n >= 12 { // of 16, when the copy is being written
			<-stop
		}
	})
	defer close(stop)
	dest := filepath.Join(t.TempDir(), "x.img")
	cmd := trusting(t, web, "align", "--to", "raw", web.URL+"/xp.vmdk?sign=secret&x=y", dest)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	<-silent
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode(), stderr.String())
	require.Contains(t, stderr.String(), "removing the unfinished copy")
	require.NoFileExists(t, dest)
}

// The recipes run as they stand, and give the same copy whatever the disk lies in.
func TestRecipes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	shell := func(line string) {
		cmd := exec.Command("sh", "-ec", line)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(builtPath)+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if strings.Contains(line, "trueup inspect") {
			require.Equal(t, 3, cmd.ProcessState.ExitCode(), "%s\n%s", line, out) // misaligned, as nbdkit passes it on
			return
		}
		require.NoError(t, err, "%s\n%s", line, out)
	}
	for _, tool := range []string{"nbdkit", "qemu-nbd", "qemu-img"} {
		disktest.Tool(t, tool)
	}
	source, err := filepath.Abs("../../testdata/xp-lba63.vmdk")
	require.NoError(t, err)
	shell("qemu-img convert -O raw " + source + " disk.img && qemu-img convert -O parallels " + source + " disk.hdd")
	shell("gzip -k disk.img && xz -k disk.img && tar cf box.tar disk.img && trueup align disk.img want.img")
	_, recipes, ok := strings.Cut(string(disktest.ReadFile(t, "../../docs/remote.md")), "`TestRecipes` runs these:\n")
	require.True(t, ok)
	recipes, _, _ = strings.Cut(recipes, "\nThe last one")
	lines := strings.Split(strings.TrimSpace(recipes), "\n")
	require.Len(t, lines, 5)
	for _, line := range lines {
		shell(line)
	}
	for _, from := range []string{"gz", "xz", "tar", "hdd"} {
		disktest.Run(t, "cmp", filepath.Join(dir, "want.img"), filepath.Join(dir, "from-"+from+".img"))
	}
}
