package queue_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/engine"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/disktest"
)

// serve starts a server, and returns its URL.
func serve(t *testing.T) string {
	t.Helper()
	url, _ := serveFrom(t, t.TempDir(), 0)
	return url
}

// serveFrom starts a server on its store, and returns its URL and a function that stops it: an embedded server, or the
// nats-server in TRUEUP_NATS.
func serveFrom(t *testing.T, store string, port int) (url string, stop func()) {
	t.Helper()
	program := os.Getenv("TRUEUP_NATS")
	if program == "" {
		e, err := engine.Start(t.Context(), engine.Options{Store: store, Host: "127.0.0.1", Port: port})
		require.NoError(t, err)
		t.Cleanup(e.Stop)
		return e.URL(), e.Stop
	}
	dir := t.TempDir()
	cmd := exec.Command(program, "-js", "-sd", store, "-a", "127.0.0.1", "-p", strconv.Itoa(cmp.Or(port, -1)),
		"--ports_file_dir", dir)
	require.NoError(t, cmd.Start())
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	var ports struct{ Nats []string }
	disktest.WaitFor(t, "the ports of the server", func() bool {
		b, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("nats-server_%d.ports", cmd.Process.Pid)))
		return err == nil && json.Unmarshal(b, &ports) == nil && len(ports.Nats) > 0
	})
	return ports.Nats[0], stop
}

func open(t *testing.T, o queue.Options) *queue.Queue {
	t.Helper()
	q, err := queue.Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(q.Close)
	return q
}

func job(path string) fleet.Job {
	return fleet.Job{Kind: fleet.Align, Datastore: "ds1", Path: path, Options: fleet.Options{Suffix: "-aligned"}}
}

func submit(t *testing.T, q *queue.Queue, j fleet.Job) {
	t.Helper()
	fresh, err := q.Submit(t.Context(), j)
	require.NoError(t, err)
	require.True(t, fresh)
}

// long exceeds the time of any reply on a busy machine.
const long = disktest.Patience

// taker takes jobs of a datastore as one worker, and records refusals.
type taker struct {
	*queue.Source
	worker  string
	refused []string
}

func take(t *testing.T, q *queue.Queue, worker, datastore string) *taker {
	t.Helper()
	s, err := q.Source(t.Context(), datastore, 0)
	require.NoError(t, err)
	return &taker{Source: s, worker: worker}
}

// next returns the next job, or nil if none comes in time.
func (k *taker) next(t *testing.T, wait time.Duration) *queue.Lease {
	t.Helper()
	l, err := k.Next(t.Context(), k.worker, wait, k.refuse)
	require.NoError(t, err)
	return l
}

func (k *taker) refuse(key string, err error) {
	k.refused = append(k.refused, fmt.Sprintf("%s: %v", key, err))
}

func nothing(*fleet.Record) {}

// A job that is submitted twice is one job, before and after it is done.
func TestJobsAreKnown(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t)})
	submit(t, q, job("a.vmdk"))
	again := func() {
		fresh, err := q.Submit(t.Context(), job("a.vmdk"))
		require.NoError(t, err)
		require.False(t, fresh)
	}
	again()
	k := take(t, q, "w", "ds1")
	l := k.next(t, long)
	require.Equal(t, "a.vmdk", l.Record.Path)
	require.Equal(t, fleet.Running, l.Record.State)
	again()
	require.NoError(t, l.End(t.Context(), fleet.Done, nothing))
	again()
	require.Nil(t, k.next(t, 0))
	other := job("a.vmdk")
	other.Boundary = "1M"
	submit(t, q, other)
	require.NotNil(t, k.next(t, long))
}

// A worker that was silent for too long has lost its job, and its updates fail.
func TestSilentWorkersAreFenced(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t), AckWait: time.Second})
	submit(t, q, job("a.vmdk"))
	frozen := take(t, q, "frozen", "ds1").next(t, long)
	require.NoError(t, frozen.Checkpoint(t.Context(), fleet.Progress{Phase: "copy", Done: 7}))
	other := take(t, q, "other", "ds1").next(t, long)
	require.Equal(t, 2, other.Record.Delivery)
	require.Equal(t, int64(7), other.Record.Done)
	require.ErrorIs(t, frozen.Checkpoint(t.Context(), fleet.Progress{}), queue.ErrFenced)
	require.ErrorIs(t, frozen.Prove(t.Context(), "7@7"), queue.ErrFenced)
	require.ErrorIs(t, frozen.End(t.Context(), fleet.Done, nothing), queue.ErrFenced)
	require.ErrorIs(t, frozen.Release(t.Context(), 0, nothing), queue.ErrFenced)
	require.NoError(t, other.Prove(t.Context(), "7@7"))
	require.NoError(t, other.End(t.Context(), fleet.Done, nothing))
	r, _, err := q.Get(t.Context(), other.Record.Key())
	require.NoError(t, err)
	require.Equal(t, "other", r.Worker)
	require.Equal(t, fleet.Done, r.State)
}

// Of two workers that try to pass the fence, only one succeeds.
func TestOneWorkerProves(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t), AckWait: time.Second})
	submit(t, q, job("a.vmdk"))
	leases := []*queue.Lease{take(t, q, "a", "ds1").next(t, long), take(t, q, "b", "ds1").next(t, long)}
	errs := make([]error, len(leases))
	var all sync.WaitGroup
	for i, l := range leases {
		all.Go(func() { errs[i] = l.Prove(t.Context(), "7@7") })
	}
	all.Wait()
	require.ErrorIs(t, errs[0], queue.ErrFenced)
	require.NoError(t, errs[1])
}

// Invalid messages are refused: of another datastore, of no job, without a key, too large, or of an ended job. A
// duplicate makes no second worker.
func TestForeignMessages(t *testing.T) {
	t.Parallel()
	url := serve(t)
	q := open(t, queue.Options{URL: url, AckWait: time.Second})
	submit(t, q, job("a.vmdk"))
	key := new(job("a.vmdk")).Key()
	k := take(t, q, "w", "ds1")
	l := k.next(t, long)
	js := stranger(t, url)
	send := func(subject string, data []byte) error {
		_, err := js.Publish(t.Context(), subject, data)
		return err
	}
	require.ErrorContains(t, send("trueup.jobs."+key, make([]byte, 1<<10+1)), "message size exceeds maximum allowed")
	require.ErrorIs(t, send("trueup.jobs."+key, make([]byte, 2<<20)), nats.ErrMaxPayload)
	require.ErrorIs(t, send("trueup.jobs.ds1", []byte(key)), jetstream.ErrNoStreamResponse)
	require.NoError(t, send("trueup.jobs."+key, []byte("ds1.other")))
	require.Equal(t, uint64(1), messages(t, js), "it is the message of the job now")
	require.Nil(t, k.next(t, long), "the worker has the job")
	require.NoError(t, l.Checkpoint(t.Context(), fleet.Progress{}), "which goes on")
	require.NoError(t, l.End(t.Context(), fleet.Done, nothing))
	for messages(t, js) > 0 {
		require.Nil(t, k.next(t, time.Second))
	}
	require.Equal(t, []string{key + ": the job has ended"}, k.refused)
	require.NoError(t, send("trueup.jobs."+key, nil))
	require.Nil(t, k.next(t, time.Second))
	require.Len(t, k.refused, 2)

	require.NoError(t, send("trueup.jobs.ds1.a*b", nil))
	require.Nil(t, k.next(t, time.Second))
	require.Contains(t, k.refused[2], "ds1.a*b: the message belongs to no job")
	require.NoError(t, send("trueup.jobs.ds2."+strings.TrimPrefix(key, "ds1."), nil))
	other := take(t, q, "w", "ds2")
	_, err := other.Next(t.Context(), "w", long, other.refuse)
	require.ErrorIs(t, err, jetstream.ErrKeyNotFound, "the record may be late")
	require.Empty(t, other.refused)
}

// Messages of jobs that nobody submitted, without an order, or with unreadable records, do not count against the limit
// of two running jobs.
func TestForeignMessagesKeepNoPlace(t *testing.T) {
	t.Parallel()
	url := serve(t)
	q := open(t, queue.Options{URL: url, AckWait: time.Second})
	js := stranger(t, url)
	bucket, err := js.KeyValue(t.Context(), "trueup-jobs")
	require.NoError(t, err)
	var refused []string
	const each = 3
	for i := range 3 * each {
		j := job(fmt.Sprintf("%d.vmdk", i))
		record, err := json.Marshal(fleet.Record{Job: j, State: fleet.Queued})
		require.NoError(t, err)
		if i >= 2*each {
			record = []byte(`{"kind":"later"}`)
		} else {
			refused = append(refused, j.Key()+": the message belongs to no job: it was not submitted")
		}
		if i >= each {
			_, err = bucket.Put(t.Context(), j.Key(), record)
			require.NoError(t, err)
		}
		_, err = js.Publish(t.Context(), "trueup.jobs."+j.Key(), nil)
		require.NoError(t, err)
	}
	submit(t, q, job("a.vmdk"))
	k := take(t, q, "w", "ds1")
	var l *queue.Lease
	for looks := 0; l == nil; looks++ {
		require.Less(t, looks, 3*each+1, "a look at each message is enough")
		if l, err = k.Next(t.Context(), "w", long, k.refuse); err != nil {
			require.True(t, errors.Is(err, jetstream.ErrKeyNotFound) ||
				strings.Contains(err.Error(), "must be scan, align or exchange"), "%v", err)
		}
	}
	require.Equal(t, "a.vmdk", l.Record.Path)
	for len(k.refused) < len(refused) { // a message without a record is tried again after a second
		x, err := k.Next(t.Context(), "w", long, k.refuse)
		require.True(t, x == nil && err != nil, "%v %v", x, err)
	}
	require.ElementsMatch(t, refused, k.refused)
	require.Equal(t, uint64(each+1), messages(t, js), "another program may read these records")
}

// A job whose tries all fail is dead, with its last error. It can be queued again.
func TestPoison(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t), Delivers: 2, AckWait: time.Second})
	submit(t, q, job("a.vmdk"))
	k := take(t, q, "w", "ds1")
	var key string
	for range 2 {
		l := k.next(t, long)
		key = l.Record.Key()
		require.Equal(t, "a.vmdk", l.Record.Path)
		require.NoError(t, l.Release(t.Context(), 0, func(r *fleet.Record) { r.Code, r.Message = "io", "broken" }))
	}
	require.Nil(t, k.next(t, 0))
	submit(t, q, job("b.vmdk"))
	for range 2 { // no report for this failure
		l := k.next(t, long)
		require.Equal(t, "b.vmdk", l.Record.Path)
		l.Leave()
	}
	for len(k.refused) == 0 {
		require.Nil(t, k.next(t, time.Second))
	}
	said := map[string]string{}
	require.NoError(t, q.Each(t.Context(), "", func(r *fleet.Record) {
		require.Equal(t, fleet.Dead, r.State)
		require.Equal(t, 2, r.Delivery)
		said[r.Path] = r.Message
	}))
	require.Equal(t, map[string]string{
		"a.vmdk": "broken", "b.vmdk": "its workers were lost before they reported a reason",
	}, said)
	_, err := q.Retry(t.Context(), key, false)
	require.NoError(t, err)
	l := k.next(t, long)
	require.Equal(t, "a.vmdk", l.Record.Path)
	require.Equal(t, 1, l.Record.Delivery)
	require.NoError(t, l.End(t.Context(), fleet.Done, nothing))
	_, err = q.Retry(t.Context(), key, false)
	require.ErrorContains(t, err, "is done")
	_, err = q.Retry(t.Context(), key, true)
	require.NoError(t, err)
	require.Equal(t, "a.vmdk", k.next(t, long).Record.Path)
}

// A job that a worker returns because it ends keeps all its deliveries.
func TestReturnedJob(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t), Delivers: 2})
	submit(t, q, job("a.vmdk"))
	k := take(t, q, "w", "ds1")
	for range 5 {
		l := k.next(t, long)
		require.Equal(t, 1, l.Record.Delivery)
		require.NoError(t, l.Checkpoint(t.Context(), fleet.Progress{Phase: "copy"}))
		require.NoError(t, l.Return(t.Context(), nothing))
		require.ErrorIs(t, l.Prove(t.Context(), "7@7"), queue.ErrFenced)
	}
	l := k.next(t, long)
	require.Equal(t, "copy", l.Record.Phase)
	require.Nil(t, k.next(t, 0))
	require.Empty(t, k.refused)
}

// A cancelled job is not run. If it has written files, it is delivered once more for cleanup.
func TestCancel(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t), AckWait: time.Second})
	submit(t, q, job("a.vmdk"))
	submit(t, q, job("b.vmdk"))
	k := take(t, q, "w", "ds1")
	l := k.next(t, long)
	for _, path := range []string{"a.vmdk", "b.vmdk"} {
		_, err := q.Cancel(t.Context(), new(job(path)).Key())
		require.NoError(t, err)
	}
	require.ErrorIs(t, l.Checkpoint(t.Context(), fleet.Progress{}), queue.ErrFenced)
	require.Equal(t, fleet.Cancelled, l.Record.State)
	l.Leave()
	again := k.next(t, long)
	require.Equal(t, "a.vmdk", again.Record.Path)
	require.Equal(t, fleet.Cancelled, again.Record.State)
	require.NoError(t, again.Drop(t.Context()))
	require.Nil(t, k.next(t, 0))
	_, err := q.Cancel(t.Context(), l.Record.Key())
	require.ErrorContains(t, err, "cannot be cancelled")

	submit(t, q, job("c.vmdk"))
	l = k.next(t, long)
	require.NoError(t, l.Prove(t.Context(), "7@7"))
	_, err = q.Cancel(t.Context(), l.Record.Key())
	require.ErrorContains(t, err, "is complete", "its result is about to get its name")
	require.NoError(t, l.Release(t.Context(), 0, nothing))
	l = k.next(t, long)
	require.False(t, l.Record.Proved, "another run begins")
	require.Equal(t, "7@7", l.Record.Named)
	_, err = q.Cancel(t.Context(), l.Record.Key())
	require.NoError(t, err)
}

// A failed job that is cancelled is cleaned up by a worker. That can be tried again.
func TestCancelOfDeadJobs(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t), Delivers: 1})
	submit(t, q, job("a.vmdk"))
	k := take(t, q, "w", "ds1")
	l := k.next(t, long)
	key := l.Record.Key()
	require.NoError(t, l.Release(t.Context(), 0, nothing))
	for range 2 {
		r, err := q.Cancel(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, fleet.Cancelled, r.State)
		for range 2 { // as often as it fails
			l = k.next(t, long)
			require.Equal(t, fleet.Cancelled, l.Record.State)
			require.NoError(t, l.Again(0))
		}
	}
	_, err := q.Cancel(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, k.next(t, long).Drop(t.Context()))
	_, err = q.Cancel(t.Context(), key)
	require.ErrorContains(t, err, "is cancelled, and cannot be cancelled")
	require.Nil(t, k.next(t, 0))
}

// The limit of concurrent jobs of a datastore holds, regardless of other datastores.
func TestJobsAtOnce(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t)})
	for n := range 3 {
		submit(t, q, job(fmt.Sprintf("%d.vmdk", n)))
	}
	other := job("x.vmdk")
	other.Datastore = "ds2"
	submit(t, q, other)
	s, err := q.Source(t.Context(), "ds1", 1)
	require.NoError(t, err)
	k := &taker{Source: s, worker: "w"}
	l := k.next(t, long)
	require.Nil(t, k.next(t, 0))
	require.NotNil(t, take(t, q, "w", "ds2").next(t, long))
	require.NoError(t, l.End(t.Context(), fleet.Done, nothing))
	require.NotNil(t, k.next(t, long))
	require.Nil(t, k.next(t, 0))
	_, err = q.Source(t.Context(), "ds1", 2)
	require.NoError(t, err)
	require.NotNil(t, k.next(t, long))
}

func TestDrain(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t)})
	drained := func(datastore string) bool {
		is, err := q.Drained(t.Context(), datastore)
		require.NoError(t, err)
		return is
	}
	inForce := func(all bool, names ...string) {
		t.Helper()
		gotAll, got, err := q.Drains(t.Context())
		require.NoError(t, err)
		require.Equal(t, all, gotAll)
		require.Equal(t, names, got)
	}
	inForce(false)
	require.False(t, drained("ds1"))
	require.NoError(t, q.Drain(t.Context(), "ds1", true))
	require.True(t, drained("ds1"))
	require.False(t, drained("ds2"))
	require.NoError(t, q.Drain(t.Context(), "", true))
	require.True(t, drained("ds2"))
	require.NoError(t, q.Drain(t.Context(), "a", true))
	inForce(true, "a", "ds1")
	require.NoError(t, q.Drain(t.Context(), "", false))
	require.False(t, drained("ds2"))
	require.True(t, drained("ds1"), "it was drained by its name")
	inForce(false, "a", "ds1")
	require.NoError(t, q.Drain(t.Context(), "ds1", false))
	require.False(t, drained("ds1"))
	inForce(false, "a")
}

// A server that is restarted on its store has all jobs, and workers continue with theirs.
func TestServerStartsAgain(t *testing.T) {
	t.Parallel()
	store := t.TempDir()
	at, stop := serveFrom(t, store, 0)
	q := open(t, queue.Options{URL: at})
	submit(t, q, job("a.vmdk"))
	submit(t, q, job("b.vmdk"))
	k := take(t, q, "w", "ds1")
	l := k.next(t, long)
	var port int
	_, err := fmt.Sscanf(at, "nats://127.0.0.1:%d", &port)
	require.NoError(t, err)
	stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = l.Checkpoint(ctx, fleet.Progress{})
	require.Error(t, err)
	require.NotErrorIs(t, err, queue.ErrFenced, "a server that is away has taken nothing back")
	serveFrom(t, store, port)
	for err = l.Prove(t.Context(), "7@7"); err != nil; err = l.Prove(t.Context(), "7@7") {
		require.NotErrorIs(t, err, queue.ErrFenced)
	}
	require.NoError(t, l.End(t.Context(), fleet.Done, nothing))
	require.Equal(t, "b.vmdk", k.next(t, long).Record.Path)
}

func TestEachAndWatch(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t)})
	submit(t, q, job("a.vmdk"))
	other := job("b.vmdk")
	other.Datastore = "ds2"
	submit(t, q, other)
	all := map[string]fleet.State{}
	note := func(r *fleet.Record) { all[r.Path] = r.State }
	require.NoError(t, q.Each(t.Context(), "", note))
	require.Equal(t, map[string]fleet.State{"a.vmdk": fleet.Queued, "b.vmdk": fleet.Queued}, all)
	clear(all)
	require.NoError(t, q.Each(t.Context(), "ds2", note))
	require.Equal(t, map[string]fleet.State{"b.vmdk": fleet.Queued}, all)
	require.Error(t, q.Each(t.Context(), "*", note))
	ctx, cancel := context.WithCancel(t.Context())
	seen := []fleet.State{}
	require.ErrorIs(t, q.Watch(ctx, "ds1", func(r *fleet.Record) {
		if seen = append(seen, r.State); r.State == fleet.Cancelled {
			cancel()
			return
		}
		_, err := q.Cancel(t.Context(), r.Key())
		require.NoError(t, err)
	}), context.Canceled)
	require.Equal(t, []fleet.State{fleet.Queued, fleet.Cancelled}, seen)
}

// A server where another program's stream has these subjects has no queue, and this is an error.
func TestForeignStream(t *testing.T) {
	t.Parallel()
	url := serve(t)
	shop := jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"trueup.jobs.>"}}
	_, err := stranger(t, url).CreateStream(t.Context(), shop)
	require.NoError(t, err)
	_, err = queue.Open(t.Context(), queue.Options{URL: url})
	require.ErrorContains(t, err, "stream TRUEUP_JOBS: ")
}

// Beyond loopback, a server without TLS is refused. No message contains the password of a URL.
func TestNoPlainConnections(t *testing.T) {
	t.Parallel()
	at, err := url.Parse(serve(t))
	require.NoError(t, err)
	at.Host = "0.0.0.0:" + at.Port() // Linux connects it to this machine
	_, err = queue.Open(t.Context(), queue.Options{URL: at.String()})
	require.ErrorIs(t, err, nats.ErrSecureConnWanted)
	require.ErrorContains(t, err, "offers no TLS")
	for _, text := range []string{"nats://u:secret@127.0.0.1:1", "nats://u:secret@[::1", "u:secret@127.0.0.1:1"} {
		_, err = queue.Open(t.Context(), queue.Options{URL: text})
		require.ErrorContains(t, err, "--nats")
		require.NotContains(t, err.Error(), "secret")
	}
}
