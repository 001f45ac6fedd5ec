package fleetcmd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/fleetcmd"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/fleet/work"
	"github.com/trueup/trueup/internal/cli"
	"github.com/trueup/trueup/internal/disktest"
)

// once runs all waiting jobs with a worker in this process, and requires its exit code. It returns the log.
func (s *site) once(t *testing.T, code int) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	var log bytes.Buffer
	args := []string{
		"worker", "--once", "--nats", s.url, "--datastore", "ds1=" + s.root, "--trueup", self, "--folder", t.TempDir(),
		"--retry-delay", "0s", "--deliveries", "2",
	}
	require.Equal(t, code, fleetcmd.Run(t.Context(), "test", args, strings.NewReader(""), &log, &log), log.String())
	return log.String()
}

// jobs returns the states of jobs, by path.
func (s *site) jobs(t *testing.T) map[string]*fleet.Record {
	t.Helper()
	out := map[string]*fleet.Record{}
	require.NoError(t, s.q.Each(t.Context(), "", func(r *fleet.Record) { out[r.Path] = r }))
	return out
}

// strange gives a disk unknown boot code.
func strange(t *testing.T, path string) {
	t.Helper()
	disktest.WriteAt(t, path, 0, []byte("\xfa\x33\xc0strange code"))
}

// Images of a scan are realigned once, and refused ones are no jobs.
func TestLibrary(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.disk(t, "a.img")
	s.disk(t, "b.img")
	strange(t, s.disk(t, "strange.img"))
	var list, errOut bytes.Buffer
	scan := []string{"scan", "-o", "json", "--no-progress", "--isolation", "none", s.root}
	require.Equal(t, 3, cli.Run(t.Context(), "test", scan, &list, &errOut), errOut.String())
	submit := func() (got struct {
		Jobs, Known int
		Refused     []fleet.Refusal
	},
	) {
		said := s.run(t, list.String(), "submit", "align", "--json", "--datastore", "ds1="+s.root, "--worklist", "-")
		require.NoError(t, json.Unmarshal([]byte(said), &got))
		return got
	}
	var out bytes.Buffer
	elsewhere := []string{"submit", "align", "--nats", s.url, "--datastore", "ds1=/elsewhere", "--worklist", "-"}
	require.Equal(t, 1, fleetcmd.Run(t.Context(), "test", elsewhere, bytes.NewReader(list.Bytes()), &out, &out))
	require.Contains(t, out.String(), "--worklist: 3 images, none below /elsewhere")
	got := submit()
	require.Equal(t, 2, got.Jobs)
	var waits struct{ Jobs []fleet.Record }
	require.NoError(t, json.Unmarshal([]byte(s.run(t, "", "status", "--json", "--state", "queued")), &waits))
	require.Len(t, waits.Jobs, 2)
	require.Len(t, got.Refused, 1)
	require.Equal(t, "strange.img", got.Refused[0].Path)
	require.Equal(t, 2, submit().Known)
	s.once(t, 0)
	require.Equal(t, 2, submit().Known)
	s.requireOnly(t, "a.img", "a-aligned.img", "b.img", "b-aligned.img", "strange.img")
	require.True(t, bytes.Equal(want(t, a), disktest.ReadFile(t, filepath.Join(s.root, "a-aligned.img"))))

	s.run(t, "", "submit", "scan", "--datastore", "ds1", "--shards", "2")
	s.once(t, 0)
	self, err := os.Executable()
	require.NoError(t, err)
	report := strings.Split(strings.TrimSpace(s.report(t, self)), "\n")
	var summary struct{ Images, Aligned, Misaligned int }
	require.NoError(t, json.Unmarshal([]byte(report[len(report)-1]), &summary))
	require.Equal(t, 5, summary.Images)
	require.Equal(t, 2, summary.Aligned)
	require.Equal(t, 3, summary.Misaligned)
}

// report returns the report of the fleet as JSON.
func (s *site) report(t *testing.T, trueup string) string {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "report"))
	require.NoError(t, err)
	defer out.Close()
	args := []string{"report", "--nats", s.url, "--trueup", trueup, "--", "-o", "json"}
	require.Equal(t, 3, fleetcmd.Run(t.Context(), "test", args, strings.NewReader(""), out, os.Stderr))
	return string(disktest.ReadFile(t, out.Name()))
}

// A job that trueup refuses ends with the reason. Nothing is written, and other jobs are unaffected.
func TestRefusedJobs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	strange(t, s.disk(t, "strange.img"))
	s.disk(t, "taken.img")
	require.NoError(t, os.WriteFile(filepath.Join(s.root, "taken-aligned.img"), []byte("mine"), 0o600))
	torn := []byte("KDMV" + strings.Repeat("x", 2000))
	require.NoError(t, os.WriteFile(filepath.Join(s.root, "torn.vmdk"), torn, 0o600))
	outside := filepath.Join(t.TempDir(), "outside.img")
	require.NoError(t, os.Rename(s.disk(t, "outside.img"), outside))
	require.NoError(t, os.Symlink(outside, filepath.Join(s.root, "outside.img")))
	changed := s.disk(t, "changed.img")
	j := fleet.Job{
		Kind: fleet.Align, Datastore: "ds1", Path: "changed.img", Options: fleet.Options{Suffix: "-aligned"},
		Identity: "17@4",
	}
	_, err := s.q.Submit(t.Context(), j)
	require.NoError(t, err)
	require.FileExists(t, changed)
	s.run(t, "", "submit", "align", "--datastore", "ds1",
		"strange.img", "taken.img", "torn.vmdk", "outside.img", "absent.img")
	log := s.once(t, 1)
	jobs := s.jobs(t)
	for path, message := range map[string]string{
		"strange.img": "boot code", "torn.vmdk": "", "outside.img": "a link leads out of the datastore",
		"changed.img": "scan it again", "taken.img": "taken-aligned.img exists: rename it",
	} {
		require.Equal(t, fleet.Refused, jobs[path].State, "%s: %s\n%s", path, jobs[path].Message, log)
		require.Contains(t, jobs[path].Message, message)
	}
	for path, message := range map[string]string{"absent.img": "no such file"} {
		require.Equal(t, fleet.Dead, jobs[path].State, "%s: %s\n%s", path, jobs[path].Message, log)
		require.Contains(t, jobs[path].Message, message)
		require.Contains(t, s.run(t, "", "dead"), message)
	}
	require.Equal(t, "mine", string(disktest.ReadFile(t, filepath.Join(s.root, "taken-aligned.img"))))
	s.requireOnly(t, "strange.img", "taken.img", "taken-aligned.img", "torn.vmdk", "outside.img", "changed.img")
	require.Contains(t, s.run(t, "", "status", "--state", "refused"), "strange.img")
}

// If a worker ends after the copy got its name, the next worker of the job verifies the copy. A copy that another
// program wrote there is not trusted.
func TestPublishedBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	source, err := s.q.Source(t.Context(), "ds1", 0)
	require.NoError(t, err)
	leases := map[string]*queue.Lease{}
	for _, name := range []string{"a", "b"} {
		image, dest := s.disk(t, name+".img"), filepath.Join(s.root, name+"-aligned.img")
		s.run(t, "", "submit", "align", "--datastore", "ds1", name+".img")
		l, err := source.Next(t.Context(), "gone", time.Minute, func(string, error) {})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(dest, want(t, image), 0o600))
		st, err := os.Stat(dest)
		require.NoError(t, err)
		copied := fleet.IdentityOf(st.Size(), st.ModTime().UnixNano())
		if name == "b" {
			copied = "7@7"
		}
		require.NoError(t, l.Prove(t.Context(), copied))
		leases[name] = l
	}
	for _, l := range leases {
		require.NoError(t, l.Release(t.Context(), 0, func(*fleet.Record) {}))
	}
	s.once(t, 4)
	r := s.jobs(t)["a.img"]
	require.Equal(t, fleet.Done, r.State, r.Message)
	require.Contains(t, string(r.Result), `"verify"`)
	require.Equal(t, fleet.Refused, s.jobs(t)["b.img"].State)
	require.Equal(t, "exists", s.jobs(t)["b.img"].Code)
	s.requireOnly(t, "a.img", "a-aligned.img", "b.img", "b-aligned.img")
}

// A worker whose trueup has another version takes no job, and returns the one in which it notices: a flag that an old
// program lacks is no fault of the job.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.disk(t, "a.img")
	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	dir := t.TempDir()
	version, program := filepath.Join(dir, "version"), filepath.Join(dir, "trueup")
	script := "#!/bin/sh\nif [ $1 = version ]; then exec cat " + version + `; fi
echo '{"version":"old"}' >` + version + `
echo '{"error":{"code":"usage","message":"unknown flag"}}'
exit 64
`
	require.NoError(t, os.WriteFile(program, []byte(script), 0o700))
	worker := func(is string) string {
		require.NoError(t, os.WriteFile(version, []byte(`{"version":"`+is+`"}`), 0o600))
		var log bytes.Buffer
		args := []string{
			"worker", "--once", "--nats", s.url, "--datastore", "ds1=" + s.root, "--trueup", program, "--folder", dir,
		}
		require.Equal(t, 1, fleetcmd.Run(t.Context(), "test", args, strings.NewReader(""), &log, &log), log.String())
		require.Contains(t, log.String(), "has version old, but this worker has version test")
		return log.String()
	}
	require.NotContains(t, worker("old"), "the job starts")
	require.Contains(t, worker("test"), "the job was returned to the queue")
	require.Equal(t, fleet.Queued, s.jobs(t)["a.img"].State)
	s.once(t, 0)
	require.Equal(t, fleet.Done, s.jobs(t)["a.img"].State)
}

// An exchange gives the copy the name of the image, and keeps the image.
func TestExchangeJob(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	image := s.disk(t, "a.img")
	old, aligned := disktest.ReadFile(t, image), want(t, image)
	s.run(t, "", "submit", "exchange", "--datastore", "ds1", "a.img")
	s.once(t, 0)
	require.Equal(t, fleet.Done, s.jobs(t)["a.img"].State, s.jobs(t)["a.img"].Message)
	require.True(t, bytes.Equal(aligned, disktest.ReadFile(t, image)))
	require.True(t, bytes.Equal(old, disktest.ReadFile(t, filepath.Join(s.root, "a.orig.img"))))
}

// No job is taken while a datastore is drained.
func TestDrainedDatastore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.disk(t, "a.img")
	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	const byName = "Workers take no jobs of datastore ds1. To undo: trueup-fleet drain --off --datastore ds1\n"
	require.Equal(t, byName, s.run(t, "", "drain", "--datastore", "ds1"))
	require.Contains(t, s.run(t, "", "status"), "drained")
	require.Equal(t, "Workers take no jobs of any datastore. To undo: trueup-fleet drain --off\n"+byName,
		s.run(t, "", "drain"))
	require.Equal(t, byName, s.run(t, "", "drain", "--off"), "one of the two stays in force")
	s.once(t, 0)
	require.Equal(t, fleet.Queued, s.jobs(t)["a.img"].State)
	require.JSONEq(t, `{"all": false, "datastores": []}`,
		s.run(t, "", "drain", "--datastore", "ds1", "--off", "--json"))
	s.once(t, 0)
	require.Equal(t, fleet.Done, s.jobs(t)["a.img"].State)
}

// Command lines that cannot be right are refused before anything is done.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"serve", "--listen", "0.0.0.0:0", "--store", t.TempDir()},
		{"serve", "--listen", "here", "--store", t.TempDir()},
		{"worker"},
		{"worker", "--datastore", "a"},
		{"worker", "--datastore", "a.b=/"},
		{"worker", "--datastore", "a=/absent"},
		{"worker", "--datastore", "a=/", "--window", "22-6"},
		{"submit"},
		{"submit", "undo"},
		{"submit", "align", "a.img"},
		{"submit", "align", "--datastore", "a"},
		{"submit", "align", "--datastore", "a", "--worklist", "-"},
		{"submit", "align", "--datastore", "a=/x", "--worklist", "-", "--match", "[a"},
		{"submit", "scan", "--datastore", "a", "--shards", "0"},
		{"status", "--state", "new"},
		{"status", "more"},
		{"cancel"},
		{"nothing"},
	} {
		var out bytes.Buffer
		code := fleetcmd.Run(t.Context(), "test", args, strings.NewReader(""), &out, &out)
		require.Equal(t, 64, code, "%v: %s", args, &out)
		require.NotEmpty(t, out.String(), args)
	}
	var out bytes.Buffer
	args := []string{"status", "--nats", "nats://127.0.0.1:1"}
	require.Equal(t, 1, fleetcmd.Run(t.Context(), "test", args, strings.NewReader(""), &out, &out))
	require.Contains(t, out.String(), "nats://127.0.0.1:1")
	require.Contains(t, out.String(), "start a server with trueup-fleet serve")
	for _, c := range fleetcmd.Commands("test").Commands() {
		out.Reset()
		args := []string{c.Name(), "--help"}
		require.Zero(t, fleetcmd.Run(t.Context(), "test", args, strings.NewReader(""), &out, &out))
		require.Regexp(t, `(?m)^Exit codes:\n( +[0-9]* +.+\n)+ +64 +wrong usage\n\z`, out.String())
	}
}

// A job whose files are in use returns to the queue, but not for ever.
func TestBusyForEver(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.disk(t, "a.img")
	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	program := filepath.Join(t.TempDir(), "trueup")
	require.NoError(t, os.WriteFile(program, []byte(`#!/bin/sh
if [ "$1" = version ]; then echo '{"version":"test"}'; exit 0; fi
echo '{"error":{"code":"busy","message":"a.img: in use"}}'; exit 4
`), 0o700))
	w := work.Worker{
		Queue: s.q, Datastores: []work.Datastore{{Name: "ds1", Root: s.root}}, Program: program, Version: "test",
		ID: "w", Folder: t.TempDir(), Waits: 3, Log: slog.New(slog.DiscardHandler),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	r := s.until(t, func(r *fleet.Record) bool { return r.State.Ended() })
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, fleet.Dead, r.State)
	require.Equal(t, 3, r.Busy)
	require.Equal(t, "a.img: in use", r.Message)
	require.Contains(t, s.run(t, "", "dead"), "a.img: in use")
	s.run(t, "", "retry", r.Key())
	require.Zero(t, s.jobs(t)["a.img"].Busy)
}

// A worker that starts without a connection waits for the server.
func TestServerIsAwayAtFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.disk(t, "a.img")
	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	at, err := url.Parse(s.url)
	require.NoError(t, err)
	p := newProxy(t, at.Host)
	q, err := queue.Open(t.Context(), queue.Options{URL: "nats://" + p.Addr().String()})
	require.NoError(t, err)
	defer q.Close()
	p.set(true, false)
	self, err := os.Executable()
	require.NoError(t, err)
	var log lockedBuffer
	w := work.Worker{
		Queue: q, Datastores: []work.Datastore{{Name: "ds1", Root: s.root}}, Program: self, Version: "test",
		ID: "w", Folder: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	disktest.WaitFor(t, "the worker to miss the server", func() bool {
		return strings.Contains(log.String(), "jobs cannot be taken now")
	})
	p.set(false, false)
	require.Equal(t, fleet.Done, s.until(t, func(r *fleet.Record) bool { return r.State.Ended() }).State)
	cancel()
	require.NoError(t, <-ended)
}
