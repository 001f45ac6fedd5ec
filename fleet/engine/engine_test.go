package engine_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/engine"
	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// put writes a file, and returns its path.
func put(t *testing.T, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

// user makes an nkey, and returns the file of its seed.
func user(t *testing.T) (public, seed string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err = pair.PublicKey()
	require.NoError(t, err)
	secret, err := pair.Seed()
	require.NoError(t, err)
	return public, put(t, "seed", secret)
}

// Beyond loopback there is no server without TLS and keys. The refusal names what is missing.
func TestNoOpenServers(t *testing.T) {
	t.Parallel()
	cert, key := disktest.Certificate(t)
	for want, o := range map[string]engine.Options{
		"requires TLS":       {Host: "0.0.0.0"},
		"add --nkeys FILE":   {Host: "::", Cert: cert, Key: key},
		"must be an IP":      {Host: "localhost"},
		"require each other": {Host: "127.0.0.1", Cert: cert},
		"must be an IP ad":   {Host: ""},
	} {
		o.Store = t.TempDir()
		_, err := engine.Start(t.Context(), o)
		require.ErrorContains(t, err, want)
		require.ErrorIs(t, err, ondisk.ErrUsage)
	}
	public, _ := user(t)
	for want, text := range map[string]string{
		"must be reader":    public + " writer\n",
		"datastore \"a.b\"": public + " worker a.b\n",
		"no key":            "# none\n\n", "is not a public user nkey": "UABC\n", "no such file": "",
	} {
		o := engine.Options{
			Store: t.TempDir(), Host: "127.0.0.1", Nkeys: put(t, "keys", []byte(text)), Rights: queue.Rights,
		}
		if text == "" {
			o.Nkeys += ".absent"
		}
		_, err := engine.Start(t.Context(), o)
		require.ErrorContains(t, err, want)
	}
}

// A server with keys and TLS accepts clients with a key, and no others.
func TestKeys(t *testing.T) {
	t.Parallel()
	cert, key := disktest.Certificate(t)
	public, seed := user(t)
	_, stranger := user(t)
	e, err := engine.Start(t.Context(), engine.Options{
		Store: t.TempDir(), Host: "0.0.0.0", Cert: cert, Key: key, Nkeys: put(t, "keys", []byte(public+" # one\n")),
		Rights: queue.Rights,
	})
	require.NoError(t, err)
	t.Cleanup(e.Stop)
	_, port, err := net.SplitHostPort(e.URL()[len("tls://"):])
	require.NoError(t, err)
	url := "tls://127.0.0.1:" + port
	q, err := queue.Open(t.Context(), queue.Options{URL: url, Seed: seed, CA: cert})
	require.NoError(t, err)
	q.Close()
	for _, o := range []queue.Options{{URL: url, CA: cert}, {URL: url, CA: cert, Seed: stranger}} {
		_, err = queue.Open(t.Context(), o)
		require.ErrorIs(t, err, nats.ErrAuthorization)
	}
	_, err = queue.Open(t.Context(), queue.Options{URL: url, Seed: seed})
	require.ErrorAs(t, err, new(x509.UnknownAuthorityError))
	q, err = queue.Open(t.Context(), queue.Options{Inside: e.Inside()})
	require.NoError(t, err, "the program has a key of its own")
	q.Close()
}

// A store has one server. A second one is refused by name, and so is one whose port is taken, at once.
func TestOneServerOnAStore(t *testing.T) {
	t.Parallel()
	o := engine.Options{Store: t.TempDir(), Host: "127.0.0.1"}
	e, err := engine.Start(t.Context(), o)
	require.NoError(t, err)
	_, err = engine.Start(t.Context(), o)
	require.ErrorIs(t, err, ondisk.ErrBusy)
	require.ErrorContains(t, err, o.Store)
	e.Stop()
	e, err = engine.Start(t.Context(), o)
	require.NoError(t, err, "the store is free again")
	t.Cleanup(e.Stop)

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	addr, ok := taken.Addr().(*net.TCPAddr)
	require.True(t, ok)
	o = engine.Options{Store: t.TempDir(), Host: "127.0.0.1", Port: addr.Port}
	_, err = engine.Start(t.Context(), o)
	require.ErrorContains(t, err, "address already in use")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = engine.Start(ctx, engine.Options{Store: t.TempDir(), Host: "127.0.0.1"})
	require.ErrorIs(t, err, context.Canceled)
}

// A worker has the jobs of its datastores, and can neither order nor cancel any; nor can a reader. Jobs that a worker
// queues itself are not run.
func TestRights(t *testing.T) {
	t.Parallel()
	all, allSeed := user(t)
	worker, workerSeed := user(t)
	reader, readerSeed := user(t)
	keys := all + "\n" + worker + " worker ds1 # of one host\n" + reader + " reader\n"
	e, err := engine.Start(t.Context(), engine.Options{
		Store: t.TempDir(), Host: "127.0.0.1", Nkeys: put(t, "keys", []byte(keys)), Rights: queue.Rights,
	})
	require.NoError(t, err)
	t.Cleanup(e.Stop)
	denied := make(chan error, 100)
	open := func(seed string) *queue.Queue {
		q, err := queue.Open(t.Context(), queue.Options{
			URL: e.URL(), Seed: seed, Warn: func(err error) { denied <- err },
		})
		require.NoError(t, err)
		t.Cleanup(q.Close)
		return q
	}
	// refused requires that the server denies a request, which gets no answer.
	refused := func(ask func(ctx context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { cancel(<-denied) }()
		require.ErrorIs(t, ask(ctx), context.Canceled)
		require.ErrorIs(t, context.Cause(ctx), nats.ErrPermissionViolation)
	}
	job := func(datastore, path string) fleet.Job {
		return fleet.Job{Kind: fleet.Exchange, Datastore: datastore, Path: path}
	}
	client, w, r := open(allSeed), open(workerSeed), open(readerSeed)
	ordered := job("ds1", "a.img")
	_, err = client.Submit(t.Context(), ordered)
	require.NoError(t, err)
	for _, q := range []*queue.Queue{w, r} {
		refused(func(ctx context.Context) error {
			_, err := q.Submit(ctx, job("ds1", "b.img"))
			return err
		})
		refused(func(ctx context.Context) error {
			_, err := q.Cancel(ctx, ordered.Key())
			return err
		})
		refused(func(ctx context.Context) error { return q.Drain(ctx, "ds1", true) })
		refused(func(ctx context.Context) error {
			_, err := q.Source(ctx, "ds2", 0)
			return err
		})
		n := 0
		require.NoError(t, q.Each(t.Context(), "", func(*fleet.Record) { n++ }))
		require.Equal(t, 1, n)
	}
	own := fleet.Record{Job: job("ds1", "own.img"), State: fleet.Queued}
	b, err := json.Marshal(own)
	require.NoError(t, err)
	sign, err := nats.NkeyOptionFromSeed(workerSeed)
	require.NoError(t, err)
	conn, err := nats.Connect(e.URL(), sign)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.Publish("$KV.trueup-jobs."+own.Key(), b))
	require.NoError(t, conn.Publish("trueup.jobs."+own.Key(), nil))
	require.NoError(t, conn.Flush())

	s, err := w.Source(t.Context(), "ds1", 0)
	require.NoError(t, err)
	next := func() (*queue.Lease, error) {
		return s.Next(t.Context(), "w", disktest.Patience, func(key string, err error) {
			require.Equal(t, own.Key(), key, "%v", err)
		})
	}
	l, err := next()
	require.NoError(t, err)
	require.Equal(t, "a.img", l.Record.Path)
	require.NoError(t, l.Checkpoint(t.Context(), fleet.Progress{Phase: "copy"}))
	require.NoError(t, l.Return(t.Context(), func(*fleet.Record) {}))
	_, err = next()
	require.ErrorIs(t, err, jetstream.ErrKeyNotFound, "it was not ordered")
	l, err = next()
	require.NoError(t, err)
	require.NoError(t, l.End(t.Context(), fleet.Done, func(*fleet.Record) {}))
	drained, err := w.Drained(t.Context(), "ds1")
	require.NoError(t, err)
	require.False(t, drained)
}
