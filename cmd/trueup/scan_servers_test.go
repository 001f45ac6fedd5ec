package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

// store is a web server with the files of a folder, which counts what is asked.
type store struct {
	*httptest.Server
	mu   sync.Mutex
	asks map[string]int    // by path
	tags map[string]string // by path, instead of the usual one
}

func newStore(t *testing.T, dir string, before func(w http.ResponseWriter, r *http.Request) (done bool)) *store {
	t.Helper()
	s := &store{asks: map[string]int{}, tags: map[string]string{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before != nil && before(w, r) {
			return
		}
		s.mu.Lock()
		s.asks[r.URL.Path]++
		tag := s.tags[r.URL.Path]
		s.mu.Unlock()
		b, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(r.URL.Path)))
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("ETag", `"one`+tag+`"`)
		http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(b))
	}))
	t.Cleanup(s.Close)
	return s
}

// list writes a list for --files-from.
func list(t *testing.T, addresses ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "list")
	require.NoError(t, os.WriteFile(name, []byte(strings.Join(addresses, "\n")), 0o644))
	return name
}

// alike returns a row without what differs between a file and the same one on a server.
func alike(t *testing.T, i *results.Image) string {
	t.Helper()
	row := *i
	row.Path, row.Files, row.Stored, row.Read, row.Server, row.FileSystem = path.Base(i.Path), nil, 0, 0, "", ""
	if row.Priority != nil {
		p := *row.Priority
		p.Command = ""
		row.Priority = &p
	}
	b, err := json.Marshal(row)
	require.NoError(t, err)
	return string(b)
}

// Images on servers have the rows of the same files, whatever the isolation. What names other files, and packages, have
// an error.
func TestScanOfServers(t *testing.T) {
	t.Parallel()
	k := newEveryKind(t)
	s := newStore(t, k.dir, nil)
	local := scan(t, k.dir)
	var addresses []string
	for name := range local.rows {
		addresses = append(addresses, s.URL+"/"+strings.TrimPrefix(name, k.dir+"/"))
	}
	slices.Sort(addresses)
	const names = "it names "
	for _, level := range []string{"none", "process", "sandbox"} {
		args := []string{"--isolation", level, "--files-from", list(t, addresses...), s.URL + "/nothing.img"}
		r := scan(t, args...)
		require.Equal(t, 1, r.code, r.stderr)
		require.Equal(t, level, r.sum.Isolation.Achieved)
		require.Len(t, r.rows, len(addresses)+1)
		require.Equal(t, "io", r.rows[s.URL+"/nothing.img"].Error.Code)
		errs := map[string]string{}
		for name, want := range local.rows {
			name = strings.TrimPrefix(name, k.dir+"/")
			got := r.rows[s.URL+"/"+name]
			require.NotNil(t, got, name)
			require.Equal(t, s.URL, got.Server)
			require.NotNil(t, got.Files)
			if alike(t, want) != alike(t, got) {
				errs[name] = string(got.Content)
				if got.Error != nil {
					_, why, _ := strings.Cut(got.Error.Message, "refused: ")
					errs[name], _, _ = strings.Cut(why, `"`) // of a name
				}
				continue
			}
			require.Equal(t, path.Base(name), got.Files[0].Name)
			require.Equal(t, int64(1e18), got.Files[0].Modified)
			require.LessOrEqual(t, got.Read, got.Files[0].Size+64<<10)
		}
		require.Equal(t, map[string]string{
			"deep/two.ova":   "it is a package (ova), which is read from files only; download it",
			"lost-flat.vmdk": "unknown_content", "backed.qcow2": names, "flat.vmdk": names, "json.qcow2": names,
			"link.vmdk": names, "network.qcow2": names, "pipe.vmdk": names,
			"shadow.vmdk": names, "split.vmdk": names, "up.vmdk": names,
		}, errs)
	}
}

// exported has a command serve a file at a socket, $0 and $1, to the end of the test, and returns the address of the
// socket.
func exported(t *testing.T, command, path string) string {
	t.Helper()
	tool, _, _ := strings.Cut(command, " ")
	disktest.Tool(t, tool)
	socket := filepath.Join(t.TempDir(), "socket")
	cmd := exec.Command("sh", "-c", "exec "+command, path, socket)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		_ = cmd.Wait()
	})
	disktest.WaitFor(t, tool, func() bool {
		_, err := os.Stat(socket)
		return err == nil
	})
	return "nbd+unix:///?socket=" + socket
}

// Exports of two servers are scanned beside files and objects, one client at a time.
func TestScanOfExports(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	smallDisk(t, in("disk.raw"), 63)
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", in("disk.raw"), in("disk.qcow2"))
	ours := serving(t, "--as-is", in("disk.raw")).URI
	theirs := exported(t, `qemu-nbd -r -f qcow2 -t -k "$1" "$0"`, in("disk.qcow2"))
	gone := "nbd+unix:///?socket=" + in("nothing")
	want := scan(t, in("disk.raw")).rows[in("disk.raw")]
	catalogue := in("catalogue")
	for n := range 2 {
		r := scan(t, "--require-sandbox", "--catalog", catalogue, ours, theirs, in("disk.raw"), gone)
		require.Equal(t, 1, r.code, r.stderr)
		require.Len(t, r.rows, 4)
		require.Equal(t, "io", r.rows[gone].Error.Code)
		for _, uri := range []string{ours, theirs} {
			i := r.rows[uri]
			require.Equal(t, want.Verdict, i.Verdict)
			require.Equal(t, want.Size, i.Size)
			require.Equal(t, want.Disks[0].Partitions, i.Disks[0].Partitions)
			require.Positive(t, i.Read, "an export is always read")
			require.Equal(t, []results.Change{results.New, results.Same}[n], i.Change)
		}
		require.Equal(t, theirs, r.rows[theirs].Server)
	}
}

// A catalogue knows objects by their validators. Nothing is read of one that has not changed.
func TestScanOfServersWithCatalogue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var addresses []string
	for n := range 3 {
		smallDisk(t, filepath.Join(dir, fmt.Sprintf("%d.raw", n)), 63)
	}
	smallDisk(t, filepath.Join(dir, "late.raw"), 2048)
	s := newStore(t, dir, nil)
	for n := range 3 {
		addresses = append(addresses, fmt.Sprintf("%s/%d.raw?X-Amz-Credential=me&X-Amz-Signature=secret", s.URL, n))
	}
	catalogue := filepath.Join(t.TempDir(), "catalogue")
	run := func(want map[string]results.Change, more ...string) scanResult {
		s.asks = map[string]int{}
		r := scan(t, slices.Concat(more, []string{"--catalog", catalogue}, addresses)...)
		require.Empty(t, r.stderr)
		got := map[string]results.Change{}
		for name, i := range r.rows {
			got[path.Base(name)] = i.Change
			require.Equal(t, i.Change == results.Same && s.asks["/"+strings.TrimSuffix(path.Base(name), "?...")] == 1,
				i.Read == 0, name)
		}
		require.Equal(t, want, got)
		return r
	}
	first := run(map[string]results.Change{"0.raw?...": "new", "1.raw?...": "new", "2.raw?...": "new"})
	for n := range addresses { // as a signature that holds for an hour
		addresses[n] = strings.Replace(addresses[n], "secret", "another", 1)
	}
	again := run(map[string]results.Change{"0.raw?...": "same", "1.raw?...": "same", "2.raw?...": "same"})
	for name, i := range first.rows {
		require.Equal(t, i.Files, again.rows[name].Files)
		require.Equal(t, alike(t, i), strings.Replace(alike(t, again.rows[name]), "same", "new", 1))
	}
	require.NoError(t, os.Rename(filepath.Join(dir, "late.raw"), filepath.Join(dir, "1.raw")))
	s.tags["/1.raw"], s.tags["/2.raw"] = "two", "two"
	r := run(map[string]results.Change{"0.raw?...": "same", "1.raw?...": "changed", "2.raw?...": "changed"})
	require.Len(t, r.rows, 3)
	run(map[string]results.Change{}, "--changed")
	for _, file := range []string{catalogue, catalogue + "-wal"} {
		b, err := os.ReadFile(file)
		require.True(t, err == nil || os.IsNotExist(err))
		require.NotContains(t, string(b), "secret")
		require.NotContains(t, string(b), "another")
	}
	require.Contains(t, trueup(t, "report", catalogue).stdout, s.URL+"/0.raw?...")
}

// A query can select the object: of another query no row is taken from a catalogue, and none has a name by its place in
// the list.
func TestScanOfServersByQuery(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	smallDisk(t, filepath.Join(dir, "bad"), 63)
	smallDisk(t, filepath.Join(dir, "good"), 2048)
	s := newStore(t, dir, func(_ http.ResponseWriter, r *http.Request) bool {
		r.URL.Path = "/" + r.URL.Query().Get("ds") // as a datastore browser has it, with alike tags
		return false
	})
	good, bad := s.URL+"/folder/vm.img?ds=good", s.URL+"/folder/vm.img?ds=bad"
	catalogue := filepath.Join(t.TempDir(), "catalogue")
	names := map[string]string{}
	for _, uri := range []string{good, bad} {
		r := scan(t, "--catalog", catalogue, uri)
		require.Len(t, r.rows, 1)
		for name, i := range r.rows {
			require.Equal(t, results.New, i.Change)
			names[path.Base(uri)] = name
			require.Equal(t, map[string]string{good: "aligned", bad: "misaligned"}[uri], string(i.Verdict))
		}
	}
	for _, uris := range [][]string{{good, bad}, {bad, good}} {
		r := scan(t, append([]string{"--catalog", catalogue}, uris...)...)
		require.EqualValues(t, "aligned", r.rows[names["vm.img?ds=good"]].Verdict)
		require.EqualValues(t, "misaligned", r.rows[names["vm.img?ds=bad"]].Verdict)
		require.Equal(t, 2, r.sum.Changes.Same)
		shards := 0
		for _, shard := range []string{"1/2", "2/2"} {
			// Each shard is of the list in another order, as two machines make it.
			slices.Reverse(uris)
			shards += len(scan(t, append([]string{"--shard", shard, "--allow-empty"}, uris...)...).rows)
		}
		require.Equal(t, 2, shards)
	}
}

// No report shows what is secret, and commands have ?... for the user to fill in.
func TestScanOfServersHidesSecrets(t *testing.T) {
	t.Parallel()
	web, _ := secure(t, func(http.ResponseWriter, int64) {})
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	uri := web.URL + "/a/xp.vmdk?sign=secret&x=y"
	wrong := strings.Replace(uri, "://", "://user:secret@", 1)
	for _, format := range []string{"text", "json", "html", "csv", "junit", "prometheus"} {
		cmd := trusting(t, web, "scan", "-o", format, "-v", "--log", in("log"), "--script", in("fix.sh"), uri, wrong)
		r, _ := end(t, cmd)
		require.Equal(t, 1, r.code, r.stderr)
		all := r.stdout + r.stderr
		for _, name := range []string{"log", "fix.sh"} {
			all += string(disktest.ReadFile(t, in(name)))
		}
		require.NotContains(t, all, "secret")
		if format != "prometheus" {
			require.Contains(t, r.stdout, web.URL+"/a/xp.vmdk?...", format)
		}
		if format == "text" {
			require.Regexp(t, `trueup align --authorization \S+/header '`+web.URL+
				`/a/xp.vmdk\?\.\.\.#[0-9a-f]{12}' xp-aligned.vmdk`, r.stdout)
			require.Regexp(t, `trueup scan --authorization \S+/header -o html --out report.html '`, r.stdout)
			require.Contains(t, r.stdout, "a name or a password")
		}
		require.Contains(t, string(disktest.ReadFile(t, in("fix.sh"))), "not realigned: the address has parts that are")
	}
	for _, word := range []string{
		"\ufeff" + web.URL + "/vm folder/xp.vmdk?sign=secret", web.URL + "/xp.vmdk?name=my vm&sign=secret",
		" " + uri, `"` + uri + `"`, "# " + uri, "https:/h/x?sign=secret", "s3://h/x?sign=secret",
	} {
		r, _ := end(t, trusting(t, web, "scan", "--log", in("log"), "--files-from", list(t, word)))
		require.Equal(t, 64, r.code, word)
		require.NotContains(t, r.stdout+r.stderr, "secret")
		if strings.Contains(word, web.URL) {
			r, _ = end(t, trusting(t, web, "scan", "--log", in("log"), strings.TrimPrefix(word, "\ufeff")))
			require.Equal(t, 64, r.code, word)
		}
		require.NotContains(t, r.stdout+r.stderr+string(disktest.ReadFile(t, in("log"))), "secret")
	}
	other := newStore(t, dir, nil)
	r, _ := end(t, trusting(t, web, "scan", uri, other.URL+"/a"))
	require.Equal(t, 64, r.code)
	require.Contains(t, r.stderr, "--authorization is for one web server")
	require.Empty(t, other.asks)
}

// An image that fails on a server, in whatever way, is one row.
func TestScanOfBadServers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"good", "cut", "busy", "moved", "whole", "changes"} {
		smallDisk(t, filepath.Join(dir, name), 63)
	}
	var once sync.Map
	s := newStore(t, dir, func(w http.ResponseWriter, r *http.Request) bool {
		_, again := once.LoadOrStore(r.URL.Path, true)
		switch r.URL.Path {
		case "/cut":
			if !again {
				panic(http.ErrAbortHandler)
			}
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/moved":
			http.Redirect(w, r, "http://other.invalid/moved", http.StatusFound)
		case "/whole":
			r.Header.Del("Range")
			return false
		case "/range":
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		case "/changes":
			if again {
				w.Header().Set("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
				w.WriteHeader(http.StatusPreconditionFailed)
				return true
			}
			return false
		default:
			return false
		}
		return r.URL.Path != "/cut"
	})
	var addresses []string
	for name := range maps.Keys(map[string]bool{
		"good": true, "cut": true, "busy": true, "moved": true, "whole": true, "range": true, "changes": true,
		"absent": true,
	}) {
		addresses = append(addresses, s.URL+"/"+name)
	}
	r := scan(t, addresses...)
	require.Equal(t, 1, r.code)
	require.Equal(t, map[string]string{
		"good": "misaligned", "cut": "misaligned", "busy": "io", "moved": "reference",
		"whole": "unsupported", "range": "io", "changes": "changed", "absent": "io",
	}, r.words(s.URL))
}

// A signal ends a scan at once that waits for a server, and the report has what was done.
func TestScanOfSilentServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	smallDisk(t, filepath.Join(dir, "good"), 63)
	asked, stop := make(chan struct{}), make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(asked)
		<-stop
	}))
	defer silent.Close()
	defer close(stop)
	good := newStore(t, dir, nil)
	cmd := exec.Command(builtPath, "scan", "-o", "json", silent.URL+"/a", silent.URL+"/b", good.URL+"/good")
	var stdout, stderr lockedBuffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	<-asked
	disktest.WaitFor(t, "the row of the good server", func() bool { return strings.Contains(stdout.String(), "\n") })
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Error(t, cmd.Wait())
	r := readScan(t, result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()})
	require.Equal(t, 130, r.code)
	requireScanInterrupted(t, r.stderr)
	require.False(t, r.sum.Complete)
	require.Equal(t, 1, r.sum.Images)
	require.Equal(t, map[string]string{"good": "misaligned"}, r.words(good.URL))
}
