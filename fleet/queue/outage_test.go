package queue_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/queue"
)

// stranger is another client of the server.
func stranger(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	conn, err := nats.Connect(url)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	return js
}

// messages returns the number of job messages.
func messages(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	s, err := js.Stream(t.Context(), "TRUEUP_JOBS")
	require.NoError(t, err)
	return s.CachedInfo().State.Msgs
}

// Jobs whose records cannot be written for a while are not lost, and keep all their tries.
func TestUnclaimedJob(t *testing.T) {
	t.Parallel()
	url := serve(t)
	q := open(t, queue.Options{URL: url, Delivers: 1})
	submit(t, q, job("a.vmdk"))
	k := take(t, q, "w", "ds1")
	js := stranger(t, url)
	s, err := js.Stream(t.Context(), "KV_trueup-jobs")
	require.NoError(t, err)
	c := s.CachedInfo().Config
	was := c
	c.MaxMsgSize = 1
	_, err = js.UpdateStream(t.Context(), c)
	require.NoError(t, err)
	for range 2 {
		_, err := k.Next(t.Context(), "w", long, k.refuse)
		require.ErrorContains(t, err, "message size exceeds maximum allowed")
	}
	_, err = js.UpdateStream(t.Context(), was)
	require.NoError(t, err)
	l := k.next(t, long)
	require.Equal(t, "a.vmdk", l.Record.Path)
	require.Equal(t, 1, l.Record.Delivery)
	require.Empty(t, k.refused)
}

// A job whose message was lost is queued again, once. A running job continues, and an ended one stays ended.
func TestLostMessages(t *testing.T) {
	t.Parallel()
	url := serve(t)
	q := open(t, queue.Options{URL: url, AckWait: 2 * time.Second})
	k := take(t, q, "w", "ds1")
	js := stranger(t, url)
	s, err := js.Stream(t.Context(), "TRUEUP_JOBS")
	require.NoError(t, err)
	mended := func(want int) {
		n, err := q.Mend(t.Context(), "ds1")
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	submit(t, q, job("done.vmdk"))
	require.NoError(t, k.next(t, long).End(t.Context(), fleet.Done, nothing))
	submit(t, q, job("runs.vmdk"))
	runs := k.next(t, long)
	submit(t, q, job("waits.vmdk"))
	mended(0)
	require.NoError(t, s.Purge(t.Context()))
	n, err := q.Mend(t.Context(), "ds2")
	require.NoError(t, err)
	require.Zero(t, n)
	mended(2)
	mended(0)
	require.NoError(t, runs.Checkpoint(t.Context(), fleet.Progress{Phase: "copy"}))
	var waits *queue.Lease
	for waits == nil { // the message of the running job is unaffected
		waits = k.next(t, long)
	}
	require.Equal(t, "waits.vmdk", waits.Record.Path)
	require.NoError(t, waits.End(t.Context(), fleet.Done, nothing))
	require.NoError(t, runs.End(t.Context(), fleet.Done, nothing))
	require.Equal(t, 1, runs.Record.Delivery)
	for messages(t, js) > 0 {
		require.Nil(t, k.next(t, time.Second))
	}
	mended(0)
}

// A record that this version cannot read keeps its message, for another version.
func TestStrangeRecord(t *testing.T) {
	t.Parallel()
	url := serve(t)
	q := open(t, queue.Options{URL: url})
	submit(t, q, job("a.vmdk"))
	key := new(job("a.vmdk")).Key()
	js := stranger(t, url)
	kv, err := js.KeyValue(t.Context(), "trueup-jobs")
	require.NoError(t, err)
	e, err := kv.Get(t.Context(), key)
	require.NoError(t, err)
	_, err = kv.PutString(t.Context(), key, `{"kind":"later"}`)
	require.NoError(t, err)
	k := take(t, q, "w", "ds1")
	_, err = k.Next(t.Context(), "w", long, k.refuse)
	require.ErrorContains(t, err, "must be scan, align or exchange")
	_, err = kv.Put(t.Context(), key, e.Value())
	require.NoError(t, err)
	require.Equal(t, 1, k.next(t, long).Record.Delivery)
	require.Empty(t, k.refused)
}

// A retry that ended before the message of the job was published can be repeated.
func TestRetryAgain(t *testing.T) {
	t.Parallel()
	url := serve(t)
	q := open(t, queue.Options{URL: url, Delivers: 1})
	submit(t, q, job("a.vmdk"))
	k := take(t, q, "w", "ds1")
	l := k.next(t, long)
	require.NoError(t, l.Release(t.Context(), 0, nothing))
	js := stranger(t, url)
	s, err := js.Stream(t.Context(), "TRUEUP_JOBS")
	require.NoError(t, err)
	c := s.CachedInfo().Config
	was := c.Subjects
	c.Subjects = []string{"elsewhere"}
	_, err = js.UpdateStream(t.Context(), c)
	require.NoError(t, err)
	_, err = q.Retry(t.Context(), l.Record.Key(), false)
	require.ErrorIs(t, err, jetstream.ErrNoStreamResponse)
	n, err := q.Mend(t.Context(), "")
	require.ErrorIs(t, err, jetstream.ErrNoStreamResponse)
	require.Zero(t, n)
	c.Subjects = was
	_, err = js.UpdateStream(t.Context(), c)
	require.NoError(t, err)
	r, err := q.Retry(t.Context(), l.Record.Key(), false)
	require.NoError(t, err)
	require.Equal(t, fleet.Queued, r.State)
	require.Equal(t, "a.vmdk", k.next(t, long).Record.Path)
	require.Equal(t, uint64(1), messages(t, js))
}

// A message that is delivered again while its worker is alive is not claimed by any worker.
func TestLivingWorker(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t), AckWait: 4 * time.Second})
	submit(t, q, job("a.vmdk"))
	k := take(t, q, "w", "ds1")
	l := k.next(t, long)
	require.Nil(t, k.next(t, 4500*time.Millisecond), "the worker has the job")
	require.NoError(t, l.Checkpoint(t.Context(), fleet.Progress{Phase: "copy"}))

	other := take(t, q, "other", "ds1")
	got := make(chan *queue.Lease, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
	defer cancel()
	go func() {
		l, _ := other.Next(ctx, "other", long, other.refuse)
		got <- l
	}()
	for done := int64(1); ctx.Err() == nil; done++ { // records are written, but signs of life do not arrive
		require.NoError(t, l.Checkpoint(t.Context(), fleet.Progress{Phase: "copy", Done: done}))
	}
	require.Nil(t, <-got)
	require.NoError(t, l.End(t.Context(), fleet.Done, nothing))
	require.Equal(t, 1, l.Record.Delivery)
}

// Workers use the times of the queue, whatever their own options are.
func TestTimeOfTheQueue(t *testing.T) {
	t.Parallel()
	url := serve(t)
	q := open(t, queue.Options{URL: url, AckWait: 2 * time.Second})
	submit(t, q, job("a.vmdk"))
	take(t, q, "w", "ds1")
	l := take(t, open(t, queue.Options{URL: url, AckWait: time.Hour}), "other", "ds1").next(t, long)
	require.Equal(t, 2*time.Second, l.AckWait())
}

// Jobs for several replicas are not queued in a cluster with one.
func TestReplicas(t *testing.T) {
	t.Parallel()
	url := serve(t)
	open(t, queue.Options{URL: url, Replicas: 1})
	_, err := queue.Open(t.Context(), queue.Options{URL: url, Replicas: 3})
	require.ErrorContains(t, err, "stream TRUEUP_JOBS has 1 replicas, not 3")
}

// Rows of scans are removed when a later scan of the same folder has ended, and not before.
func TestRowsOfEarlierScans(t *testing.T) {
	t.Parallel()
	q := open(t, queue.Options{URL: serve(t)})
	k := take(t, q, "w", "ds1")
	rows := filepath.Join(t.TempDir(), "rows")
	require.NoError(t, os.WriteFile(rows, []byte("{}"), 0o600))
	var keys []string
	kept := func() (out []bool) {
		require.NoError(t, q.DropRows(t.Context(), "ds1"))
		for _, key := range keys {
			b, err := q.Rows(t.Context(), key)
			require.NoError(t, err)
			out = append(out, b != nil)
		}
		return out
	}
	for _, again := range []string{"1", "2"} {
		j := fleet.Job{Kind: fleet.Scan, Datastore: "ds1", Path: ".", Options: fleet.Options{Again: again}}
		keys = append(keys, j.Key())
		submit(t, q, j)
		l := k.next(t, long)
		require.NoError(t, q.KeepRows(t.Context(), j.Key(), rows))
		if again == "2" {
			require.Equal(t, []bool{true, true}, kept())
		}
		require.NoError(t, l.End(t.Context(), fleet.Done, nothing))
	}
	require.Equal(t, []bool{false, true}, kept())
}
