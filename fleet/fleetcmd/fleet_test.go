package fleetcmd_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/fleetcmd"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/cli"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/shell"
)

// asFleet makes a process of this test a trueup-fleet. With arguments of trueup, it is a trueup.
const asFleet = "TRUEUP_TEST_AS_FLEET"

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asFleet) != "":
		os.Unsetenv(asFleet) // it starts itself as trueup
		os.Exit(fleetcmd.Main("test", os.Args[1:]))
	case len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-"):
		os.Exit(cli.Main("test", os.Args[1:]))
	}
	os.Exit(m.Run())
}

// process is a running trueup-fleet.
type process struct {
	*exec.Cmd
	said lockedBuffer
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// site is a server with a datastore.
type site struct {
	url, root, store string
	temp             string   // for temporary files of a page
	env              []string // of the server
	server           *process
	q                *queue.Queue
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{root: t.TempDir(), store: t.TempDir()}
	s.serve(t, "127.0.0.1:0")
	q, err := queue.Open(t.Context(), queue.Options{URL: s.url})
	require.NoError(t, err)
	s.q = q
	t.Cleanup(q.Close)
	return s
}

// start starts a trueup-fleet, which is killed at the end of the test.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := &process{Cmd: exec.Command(self, args...)}
	p.Env = append(os.Environ(), asFleet+"=1")
	p.Stderr = &p.said
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%v\n%s", args[0], p.said.String())
		}
	})
	return p
}

// waitFor waits until the output of the process contains a text.
func (p *process) waitFor(t *testing.T, text string) {
	t.Helper()
	disktest.WaitFor(t, text, func() bool { return strings.Contains(p.said.String(), text) })
}

func (p *process) kill() {
	if p.Process != nil && p.ProcessState == nil {
		_ = p.Process.Kill()
		_ = p.Wait()
	}
}

// serve starts a server, and waits until it listens.
func (s *site) serve(t *testing.T, listen string) {
	t.Helper()
	p := start(t, "serve", "--store", s.store, "--listen", listen)
	p.Env = append(p.Env, s.env...)
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.Start())
	line := make([]byte, 100)
	n, err := out.Read(line)
	require.NoError(t, err, p.said.String())
	s.url, s.server = strings.TrimSpace(string(line[:n])), p
}

// worker starts a worker of the datastore.
func (s *site) worker(t *testing.T, flags ...string) *process {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p := start(t, append([]string{
		"worker", "--nats", s.url, "--datastore", "ds1=" + s.root, "--trueup", self, "--folder", t.TempDir(),
		"--ack-wait", "1s", "--retry-delay", "1s", "--at-once", "4", "--deliveries", "50",
	}, flags...)...)
	require.NoError(t, p.Start())
	return p
}

// run runs a command in this process, and returns its output.
func (s *site) run(t *testing.T, in string, args ...string) string {
	t.Helper()
	var out, errOut bytes.Buffer
	args = append([]string{"--nats", s.url}, args...)
	code := fleetcmd.Run(t.Context(), "test", args, strings.NewReader(in), &out, &errOut)
	require.Zero(t, code, errOut.String())
	return out.String()
}

// until waits for a state of the only job.
func (s *site) until(t *testing.T, is func(r *fleet.Record) bool) *fleet.Record {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var found *fleet.Record
	err := s.q.Watch(ctx, "ds1", func(r *fleet.Record) {
		if is(r) && found == nil {
			found = r
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	require.NotNil(t, found)
	return found
}

func ended(r *fleet.Record) bool { return r.State.Ended() }

func copying(r *fleet.Record) bool {
	return r.State == fleet.Running && r.Phase == "copy" && r.Done > 0
}

// slow gives a worker a trueup that takes some seconds to copy a disk: strace delays its writes.
func slow(t *testing.T) []string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "trueup")
	text := "#!/bin/sh\nexec " + disktest.Tool(t, "strace") + " -D -f -qq -o /dev/null -e trace=pwrite64 " +
		"-e inject=pwrite64:delay_enter=1s " + shell.Quote(self) + ` "$@"` + "\n"
	require.NoError(t, os.WriteFile(program, []byte(text), 0o755))
	return []string{"--trueup", program}
}

// disk makes a disk with data whose partition starts at LBA 63.
func (s *site) disk(t *testing.T, name string) string {
	t.Helper()
	const sectors = 24 << 11
	mbr := tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Start: 63, Sectors: sectors - 63})
	path := filepath.Join(s.root, name)
	mbr.Write(t, path)
	noise := make([]byte, 16<<20)
	rnd := rand.NewChaCha8([32]byte([]byte(strings.Repeat(name, 32)[:32])))
	_, _ = rnd.Read(noise)
	disktest.WriteAt(t, path, 4<<20, noise)
	return path
}

// want returns the expected bytes of the aligned copy of an image.
func want(t *testing.T, image string) []byte {
	t.Helper()
	dest := filepath.Join(t.TempDir(), "want.img")
	var out bytes.Buffer
	code := cli.Run(t.Context(), "test", []string{"align", "--no-progress", image, dest}, &out, &out)
	require.Zero(t, code, out.String())
	return disktest.ReadFile(t, dest)
}

// requireOnly requires that the datastore has only these files: no partial ones, and no journals.
func (s *site) requireOnly(t *testing.T, names ...string) {
	t.Helper()
	all, err := os.ReadDir(s.root)
	require.NoError(t, err)
	got := []string{}
	for _, e := range all {
		got = append(got, e.Name())
	}
	require.ElementsMatch(t, names, got)
}

// The worker of a job is killed, and its run ends. The next worker starts again.
func TestKilledWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	image := s.disk(t, "a.img")
	require.Equal(t, "1 job queued\n", s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img"))
	first := s.worker(t, slow(t)...)
	s.until(t, copying)
	first.kill()
	s.worker(t)
	r := s.until(t, ended)
	require.Equal(t, fleet.Done, r.State, r.Message)
	require.Greater(t, r.Delivery, 1)
	st, err := os.Stat(filepath.Join(s.root, "a-aligned.img"))
	require.NoError(t, err)
	require.Equal(t, fleet.IdentityOf(st.Size(), st.ModTime().UnixNano()), r.Named)
	s.requireOnly(t, "a.img", "a-aligned.img")
	require.True(t, bytes.Equal(want(t, image), disktest.ReadFile(t, filepath.Join(s.root, "a-aligned.img"))))
}

// A worker that is frozen until its run has ended does not publish when it wakes up, because the job has another
// worker. Two runs never write one image at once.
func TestFrozenWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	image := s.disk(t, "a.img")
	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	frozen := s.worker(t, slow(t)...)
	s.until(t, copying)
	require.NoError(t, frozen.Process.Signal(syscall.SIGSTOP))
	other := s.worker(t)
	// The run of the frozen worker holds the files, and waits for its reply.
	s.until(t, func(r *fleet.Record) bool { return r.Code == "busy" })
	require.NoFileExists(t, filepath.Join(s.root, "a-aligned.img"))
	require.NoError(t, frozen.Process.Signal(syscall.SIGCONT))
	frozen.waitFor(t, "the job is left to other workers")
	r := s.until(t, ended)
	require.Equal(t, fleet.Done, r.State, r.Message)
	require.Contains(t, other.said.String(), "by another run of trueup")
	s.requireOnly(t, "a.img", "a-aligned.img")
	require.True(t, bytes.Equal(want(t, image), disktest.ReadFile(t, filepath.Join(s.root, "a-aligned.img"))))
}

// frozenAt freezes a worker from its trueup: before a command runs, or when it has ended.
func frozenAt(t *testing.T, command string, behind bool) []string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	program := filepath.Join(t.TempDir(), "trueup")
	run, freeze := shell.Quote(self)+` "$@"; code=$?`, `[ "$1" != `+command+` ] || kill -STOP $PPID`
	if behind {
		run, freeze = freeze, run
	}
	text := "#!/bin/sh\ncode=0\n" + freeze + "\n" + run + "\nexit $code\n"
	require.NoError(t, os.WriteFile(program, []byte(text), 0o755))
	return []string{"--trueup", program}
}

// sums returns the digests of all files of the datastore.
func (s *site) sums(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(s.root, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			out[path] = fmt.Sprintf("%x", sha256.Sum256(disktest.ReadFile(t, path)))
		}
		return err
	}))
	return out
}

// A worker that is frozen at any point before the fence renames nothing when it wakes up after its lease.
func TestFrozenBeforeTheFence(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]struct {
		kind, command string
		behind        bool
	}{
		"align, before the copy":     {"align", "align", false},
		"align, behind the copy":     {"align", "align", true},
		"align, behind the proof":    {"align", "verify", true},
		"exchange, before the copy":  {"exchange", "align", false},
		"exchange, behind the copy":  {"exchange", "align", true},
		"exchange, behind the proof": {"exchange", "verify", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			image := s.disk(t, "a.img")
			aligned := want(t, image)
			s.run(t, "", "submit", at.kind, "--datastore", "ds1", "a.img")
			frozen := s.worker(t, frozenAt(t, at.command, at.behind)...)
			disktest.WaitFor(t, "a frozen worker", func() bool {
				stat := string(disktest.ReadFile(t, fmt.Sprintf("/proc/%d/stat", frozen.Process.Pid)))
				return strings.Contains(stat, ") T ")
			})
			s.worker(t)
			r := s.until(t, ended)
			require.Equal(t, fleet.Done, r.State, r.Message)
			before := s.sums(t)
			require.NoError(t, frozen.Process.Signal(syscall.SIGCONT))
			frozen.waitFor(t, "the job is left to other workers")
			require.Equal(t, before, s.sums(t))
			if at.kind == "align" {
				image = filepath.Join(s.root, "a-aligned.img")
			}
			require.True(t, bytes.Equal(aligned, disktest.ReadFile(t, image)))
		})
	}
}

// The server is killed and restarted on its store in the middle of a job, which continues without another delivery.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.disk(t, "a.img")
	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	s.worker(t, append([]string{"--jobs", "2"}, slow(t)...)...)
	s.until(t, copying)
	s.server.kill()
	s.serve(t, strings.TrimPrefix(s.url, "nats://"))
	r := s.until(t, ended)
	require.Equal(t, fleet.Done, r.State, r.Message)
	require.Equal(t, 1, r.Delivery, "the other slot of the worker does not take it")
	s.requireOnly(t, "a.img", "a-aligned.img")
}

// If no lock protects a copy from another run, the run ends before the server gives its job to another worker.
func TestServerIsAwayAndNoLocks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.root = oddfs.Mount(t, s.root, oddfs.Manners{Fail: map[string]syscall.Errno{"lock": syscall.ENOLCK}})
	s.disk(t, "a.img")
	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	w := s.worker(t, append(slow(t), "--ack-wait", "6s")...)
	s.until(t, copying)
	s.server.kill()
	w.waitFor(t, "the file system has no locks")
	require.NoFileExists(t, filepath.Join(s.root, "a-aligned.img"))
}

// A cancelled job ends, and its files are removed. Queued again, it succeeds.
func TestCancelledJob(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.disk(t, "a.img")
	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	first := s.worker(t, slow(t)...)
	r := s.until(t, copying)
	require.Contains(t, s.run(t, "", "cancel", r.Key()), "cancelled")
	first.waitFor(t, "the job was cancelled")
	s.requireOnly(t, "a.img")
	first.kill()
	s.run(t, "", "retry", r.Key())
	s.worker(t)
	require.Equal(t, fleet.Done, s.until(t, ended).State)
	s.requireOnly(t, "a.img", "a-aligned.img")
}

// A cancelled job leaves nothing, even if its worker was killed before.
func TestCancelledJobOfAKilledWorker(t *testing.T) {
	t.Parallel()
	for kind, own := range map[string]string{"exchange": "..trueup-%s-0.img.partial", "align": ".trueup-%s-0"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.disk(t, "a.img")
			s.run(t, "", "submit", kind, "--datastore", "ds1", "a.img")
			first := s.worker(t, slow(t)...)
			r := s.until(t, copying)
			s.requireOnly(t, "a.img", fmt.Sprintf(own, r.ID()))
			first.kill()
			s.run(t, "", "cancel", r.Key())
			second := s.worker(t)
			second.waitFor(t, "the job was cancelled")
			second.kill()
			s.requireOnly(t, "a.img")
			s.run(t, "", "retry", r.Key())
			s.worker(t, slow(t)...)
			s.until(t, copying)
			s.run(t, "", "cancel", r.Key())
			s.until(t, func(r *fleet.Record) bool { return r.State == fleet.Cancelled && !r.Begun })
			s.requireOnly(t, "a.img")
		})
	}
}

// A worker that is told to end returns its job, and the next one continues at once.
func TestEndedWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.disk(t, "a.img")
	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	first := s.worker(t, slow(t)...)
	s.until(t, copying)
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	require.NoError(t, first.Wait(), first.said.String())
	require.Contains(t, first.said.String(), "the job was returned to the queue")
	s.worker(t)
	require.Equal(t, fleet.Done, s.until(t, ended).State)
	s.requireOnly(t, "a.img", "a-aligned.img")
}
