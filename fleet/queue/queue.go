// Package queue stores the jobs of a fleet in NATS JetStream: a message for each waiting or running job, and a record
// of its state. JetStream implements queueing, redelivery and limits.
package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/internal/ondisk"
)

// Names in JetStream.
const (
	stream   = "TRUEUP_JOBS"
	subjects = "trueup.jobs." // followed by the key of the job
	orders   = "trueup-orders"
	records  = "trueup-jobs"
	control  = "trueup-control"
	rows     = "trueup-rows"
)

// maxMessage limits job messages, in bytes with headers. They have no content but their subject.
const maxMessage = 1 << 10

// Options configure the connection to the queue, and the queue if it must be created.
type Options struct {
	URL      string
	Seed     string        // file with the seed of an nkey; may be empty
	CA       string        // file with CA certificates; empty for those of the system
	Name     string        // of the connection, in the server's log
	AckWait  time.Duration // time without a sign of life after which a delivery is repeated; a minute if 0
	Delivers int           // maximum number of tries; 8 if 0
	Replicas int           // of streams and buckets; 1 if 0
	Inside   []nats.Option // options of a connection within this process; if set, URL, Seed and CA are ignored
	Warn     func(error)   // receives errors of the connection, which reconnects by itself; may be nil
}

// Queue is a connection to the jobs of a fleet. It is safe for concurrent use.
type Queue struct {
	o       Options
	conn    *nats.Conn
	js      jetstream.JetStream
	jobs    jetstream.Stream
	orders  jetstream.KeyValue // requests of clients; workers may not write them
	records jetstream.KeyValue
	control jetstream.KeyValue
	rows    jetstream.KeyValue
	hosts   jetstream.KeyValue
}

// Open connects to a server, and creates missing streams and buckets.
func Open(ctx context.Context, o Options) (*Queue, error) {
	if o.AckWait == 0 {
		o.AckWait = time.Minute
	}
	if o.Delivers == 0 {
		o.Delivers = 8
	}
	o.Replicas = max(o.Replicas, 1)
	if o.Warn == nil {
		o.Warn = func(error) {}
	}
	conn, err := connect(o)
	if err != nil {
		return nil, err
	}
	q := &Queue{o: o, conn: conn}
	for range unanswered { // a cluster can be without a leader for some seconds
		if err = q.openAll(ctx); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return q, nil
}

// unanswered is the number of requests that a reachable server may leave unanswered, for some seconds each.
const unanswered = 6

func (q *Queue) openAll(ctx context.Context) (err error) {
	if q.js, err = jetstream.New(q.conn); err != nil {
		return err
	}
	if q.jobs, err = q.open(ctx, jetstream.StreamConfig{
		Name: stream, Subjects: []string{subjects + "*.*"}, Retention: jetstream.WorkQueuePolicy,
		MaxMsgsPerSubject: 1, MaxMsgSize: maxMessage, Description: "jobs of trueup, each at most once",
	}); err != nil {
		return err
	}
	for _, b := range []struct {
		to   *jetstream.KeyValue
		name string
		age  time.Duration // lifetime of values; unlimited if 0
	}{
		{&q.orders, orders, 0},
		{&q.records, records, 0},
		{&q.control, control, 0},
		{&q.rows, rows, 0},
		{&q.hosts, hosts, presence},
	} {
		if *b.to, err = q.bucket(ctx, b.name, b.age); err != nil {
			return err
		}
	}
	return nil
}

func connect(o Options) (*nats.Conn, error) {
	options := []nats.Option{
		nats.Name("trueup-fleet " + o.Name), nats.MaxReconnects(-1), nats.ReconnectWait(500 * time.Millisecond),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { o.Warn(err) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil { // nil after Close
				o.Warn(err)
			}
		}),
	}
	if o.Inside != nil {
		return nats.Connect("", append(options, o.Inside...)...)
	}
	if o.Seed != "" {
		sign, err := nats.NkeyOptionFromSeed(o.Seed)
		if err != nil {
			return nil, fmt.Errorf("--nkey %s: %w", o.Seed, err)
		}
		options = append(options, sign, inbox)
	}
	if o.CA != "" {
		options = append(options, nats.RootCAs(o.CA))
	}
	shown, local, err := place(o.URL)
	if err != nil {
		return nil, err
	}
	if !local {
		options = append(options, nats.Secure()) // refuses a server without TLS
	}
	conn, err := nats.Connect(o.URL, options...)
	switch {
	case errors.Is(err, nats.ErrSecureConnWanted):
		return nil, fmt.Errorf("NATS at %s: the server is not on loopback, and offers no TLS: %w", shown, err)
	case err != nil:
		return nil, fmt.Errorf("NATS at %s: %w; start a server with trueup-fleet serve, or name another with --nats",
			shown, err)
	}
	return conn, nil
}

// inbox restricts replies to subjects of the client's own key.
func inbox(o *nats.Options) error { return nats.CustomInboxPrefix(inboxOf(o.Nkey))(o) }

// place returns comma-separated URLs without passwords for messages, and reports whether all are on this machine.
func place(urls string) (shown string, local bool, err error) {
	local = true
	var all []string
	for text := range strings.SplitSeq(urls, ",") {
		if text = strings.TrimSpace(text); !strings.Contains(text, "://") {
			text = "nats://" + text
		}
		u, err := url.Parse(text)
		if err != nil || u.Host == "" { // url.Parse would show the password
			return "", false, ondisk.In(ondisk.ErrUsage, "--nats must be a URL such as nats://HOST:4222")
		}
		ip, _ := netip.ParseAddr(u.Hostname())
		local = local && (ip.IsLoopback() || u.Hostname() == "localhost")
		all = append(all, u.Redacted())
	}
	return strings.Join(all, ","), local, nil
}

// open returns a stream, and creates it if it does not exist.
func (q *Queue) open(ctx context.Context, c jetstream.StreamConfig) (jetstream.Stream, error) {
	c.Storage, c.Replicas = jetstream.FileStorage, q.o.Replicas
	s, err := q.js.Stream(ctx, c.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = q.js.CreateStream(ctx, c)
	}
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", c.Name, err)
	}
	if has := s.CachedInfo().Config.Replicas; has < q.o.Replicas {
		return nil, fmt.Errorf("stream %s has %d replicas, not %d; change it with nats stream edit", c.Name, has,
			q.o.Replicas)
	}
	return s, nil
}

// bucket returns a bucket, and creates it if it does not exist.
func (q *Queue) bucket(ctx context.Context, name string, age time.Duration) (jetstream.KeyValue, error) {
	kv, err := q.js.KeyValue(ctx, name)
	if err == nil { // checks the replicas of the underlying stream
		_, err = q.open(ctx, jetstream.StreamConfig{Name: "KV_" + name})
	}
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = q.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket: name, Storage: jetstream.FileStorage, Replicas: q.o.Replicas, TTL: age,
		})
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", name, err)
	}
	return kv, nil
}

// Close ends the connection.
func (q *Queue) Close() { q.conn.Close() }

// Submit queues a job. It reports whether the job is new: a job known in any state is not queued again.
func (q *Queue) Submit(ctx context.Context, j fleet.Job) (fresh bool, err error) {
	if err := j.Check(); err != nil {
		return false, err
	}
	r, _, err := q.Get(ctx, j.Key())
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		r = &fleet.Record{Job: j, State: fleet.Queued, Created: time.Now().UTC()}
		r.Updated = r.Created
		if err = q.order(ctx, j.Key(), "submit"); err == nil {
			_, err = q.records.Create(ctx, j.Key(), encode(r))
		}
		fresh = err == nil
		if errors.Is(err, jetstream.ErrKeyExists) {
			err = nil // another client created it at the same time
		}
	}
	if err != nil || r.State != fleet.Queued || r.Seq != 0 {
		return false, err
	}
	return fresh, q.ensure(ctx, j.Key()) // an earlier call may have ended before it published the message
}

// order records a client's request. Workers only run jobs with an order.
func (q *Queue) order(ctx context.Context, key, what string) error {
	_, err := q.orders.PutString(ctx, key, what)
	return err
}

// ensure publishes the message of a job, unless the queue has one.
func (q *Queue) ensure(ctx context.Context, key string) error {
	_, err := q.js.Publish(ctx, subjects+key, nil, jetstream.WithExpectLastSequencePerSubject(0))
	if api, ok := errors.AsType[*jetstream.APIError](err); ok &&
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
		return nil
	}
	return err
}

// publish puts the message of a job at the end of the queue. The server removes an earlier one.
func (q *Queue) publish(ctx context.Context, r *fleet.Record) error {
	_, err := q.js.Publish(ctx, subjects+r.Key(), nil)
	return err
}

func encode(r *fleet.Record) []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // cannot fail for plain values
	}
	return b
}

// Get returns the record of a job with its revision.
func (q *Queue) Get(ctx context.Context, key string) (*fleet.Record, uint64, error) {
	e, err := q.records.Get(ctx, key)
	if err != nil {
		return nil, 0, fmt.Errorf("job %.80s: %w", key, err)
	}
	r, err := fleet.ParseRecord(e.Value())
	if err == nil && r.Key() != key {
		err = errors.New("its record belongs to another job")
	}
	if err != nil {
		return nil, 0, fmt.Errorf("job %.80s: %w", key, err)
	}
	return r, e.Revision(), nil
}

// change updates a record with f, and repeats that after a conflict. If f returns false, the record stays. order is the
// request of a client, or empty for a worker.
func (q *Queue) change(
	ctx context.Context, key, order string, f func(r *fleet.Record) (bool, error),
) (*fleet.Record, error) {
	for {
		r, revision, err := q.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		changes, err := f(r)
		if err == nil && changes && order != "" {
			err = q.order(ctx, key, order)
		}
		if err != nil || !changes {
			return r, err
		}
		r.Updated = time.Now().UTC()
		if _, err = q.records.Update(ctx, key, encode(r), revision); !overtaken(err) {
			return r, err
		}
	}
}

// overtaken reports whether an update failed because the record has a newer revision.
func overtaken(err error) bool { return errors.Is(err, jetstream.ErrKeyRevisionMismatch) }

// Cancel cancels a job. Its worker ends the run and removes its files; a worker also does that for failed, refused and
// cancelled jobs that left files. A job whose copy is about to get its final name cannot be cancelled.
func (q *Queue) Cancel(ctx context.Context, key string) (*fleet.Record, error) {
	r, err := q.change(ctx, key, "cancel", func(r *fleet.Record) (bool, error) {
		switch left := r.Begun && r.State != fleet.Done; {
		case r.State.Ended() && left:
			anew(r)
		case r.State.Ended() || r.Proved:
			return false, fmt.Errorf("job %s is %s, and cannot be cancelled", key, stateOf(r))
		}
		r.State = fleet.Cancelled
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	if r.Begun && r.Seq == 0 {
		err = q.publish(ctx, r)
	}
	return r, err
}

func stateOf(r *fleet.Record) string {
	if r.Proved && !r.State.Ended() {
		return "complete"
	}
	return string(r.State)
}

// anew resets a job to its state before the first delivery.
func anew(r *fleet.Record) {
	r.State, r.Round, r.Seq, r.Delivery, r.Proved = fleet.Queued, r.Round+1, 0, 0, false
}

// Retry queues an ended job again: an unsuccessful one, or with done, any.
func (q *Queue) Retry(ctx context.Context, key string, done bool) (*fleet.Record, error) {
	r, err := q.change(ctx, key, "retry", func(r *fleet.Record) (bool, error) {
		if r.State == fleet.Queued && r.Seq == 0 {
			return false, nil // an earlier call may have ended before it published the message
		}
		if !r.State.Ended() || r.State == fleet.Done && !done {
			return false, fmt.Errorf("job %s is %s; only a job that ended without success can be queued again", key,
				stateOf(r))
		}
		anew(r)
		r.Code, r.Message, r.Log, r.Busy = "", "", "", 0
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return r, q.publish(ctx, r)
}
