package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/trueup/trueup/fleet"
)

// ErrFenced is the error of a job that belongs to another worker or was cancelled. Its run must end at once.
var ErrFenced = errors.New("the job no longer belongs to this worker")

// Lease is a delivery of a job to this worker. It is not safe for concurrent use. Record is the last known record of
// the job, even if another worker has taken it.
type Lease struct {
	Record   fleet.Record
	q        *Queue
	source   *Source
	msg      jetstream.Msg
	revision uint64
	lost     bool // fenced, or returned to the queue
}

// Source delivers the jobs of one datastore.
type Source struct {
	q        *Queue
	consumer jetstream.Consumer
	name     string

	mu   sync.Mutex
	held map[string]bool // keys of jobs that this process works on
}

// Source returns the source of jobs of a datastore. atOnce limits the jobs that all workers run at a time; 0 keeps the
// current limit, initially 2.
func (q *Queue) Source(ctx context.Context, datastore string, atOnce int) (*Source, error) {
	if err := fleet.CheckName(datastore); err != nil {
		return nil, err
	}
	c := jetstream.ConsumerConfig{
		Durable: datastore, FilterSubject: subjects + datastore + ".*", AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: q.o.AckWait, MaxDeliver: -1, MaxAckPending: 2, // records count the tries
	}
	got, err := q.jobs.Consumer(ctx, datastore)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		c.MaxAckPending = max(atOnce, 0)
		if atOnce == 0 {
			c.MaxAckPending = 2
		}
		got, err = q.jobs.CreateOrUpdateConsumer(ctx, c) // another worker may create it at the same time
	case err == nil && atOnce != 0 && got.CachedInfo().Config.MaxAckPending != atOnce:
		c = got.CachedInfo().Config
		c.MaxAckPending = atOnce
		got, err = q.jobs.UpdateConsumer(ctx, c)
	}
	if err != nil {
		return nil, fmt.Errorf("jobs of datastore %s: %w", datastore, err)
	}
	return &Source{q: q, consumer: got, name: datastore, held: map[string]bool{}}, nil
}

// Next returns the next job of the datastore, and waits for one up to the given time. It returns nil if there is none.
// It acknowledges messages without a runnable job, and calls refused for them.
func (s *Source) Next(
	ctx context.Context, worker string, wait time.Duration, refused func(key string, err error),
) (*Lease, error) {
	for {
		msg, err := s.fetch(ctx, wait)
		if err != nil || msg == nil {
			return nil, err
		}
		l, err := s.take(ctx, msg, worker)
		switch {
		case err == nil:
			return l, nil
		case errors.Is(err, errAlive):
			if err = ctx.Err(); wait > 0 && err == nil { // the worker that runs it extends the delivery
				return nil, nil //nolint:nilnil // none is to be taken
			}
		case errors.Is(err, errNoJob):
			refused(keyOf(msg), err)
			err = msg.Term()
		case errors.Is(err, errEnded):
			refused(keyOf(msg), err)
			err = msg.DoubleAck(ctx)
		default:
			err = errors.Join(err, s.postpone(ctx, msg, err))
		}
		if err != nil {
			return nil, err
		}
	}
}

// take claims a message unless its job is already running, here or at another worker: after a long outage of the
// server, the messages of all running jobs are delivered again.
func (s *Source) take(ctx context.Context, msg jetstream.Msg, worker string) (*Lease, error) {
	key := keyOf(msg)
	if !s.hold(key) {
		return nil, errors.Join(errAlive, msg.InProgress())
	}
	if s.q.isAlive(ctx, key, worker, s.AckWait()/2) {
		s.leave(key)
		return nil, errAlive
	}
	l, err := s.claim(ctx, msg, worker)
	if err != nil {
		s.leave(key)
		return nil, err
	}
	return l, nil
}

// keyOf returns the key of the job of a message. A job has at most one message.
func keyOf(msg jetstream.Msg) string { return strings.TrimPrefix(msg.Subject(), subjects) }

// hold marks a job as held. It reports false if it was held already.
func (s *Source) hold(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	is := s.held[key]
	s.held[key] = true
	return !is
}

func (s *Source) leave(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, key)
}

// AckWait returns the time after which a delivery without a sign of life is repeated.
func (s *Source) AckWait() time.Duration { return s.consumer.CachedInfo().Config.AckWait }

// isAlive reports whether another worker runs a job and updates its record within the given time. It also reports true
// if ctx is cancelled, so that the caller claims nothing.
func (q *Queue) isAlive(ctx context.Context, key, worker string, within time.Duration) bool {
	r, revision, err := q.Get(ctx, key)
	if err != nil || r.State != fleet.Running || r.Worker == worker {
		return false
	}
	const looks = 8
	tick := time.NewTicker(within / looks)
	defer tick.Stop()
	for range looks {
		select {
		case <-ctx.Done():
			return true
		case <-tick.C:
		}
		if _, now, err := q.Get(ctx, key); err == nil && now != revision {
			return true
		}
	}
	return ctx.Err() != nil
}

// errAlive is the error of a message whose job is being run.
var errAlive = errors.New("another worker is running the job")

// postpone delays a message whose record cannot be read or replaced now. If other jobs are waiting, it moves the
// message to the end of the queue, because a delayed message counts against the limit of running jobs. An absent record
// can only be late.
func (s *Source) postpone(ctx context.Context, msg jetstream.Msg, why error) error {
	meta, err := msg.Metadata()
	if err != nil || meta.NumPending == 0 || errors.Is(why, jetstream.ErrKeyNotFound) {
		return askLater(msg)
	}
	if _, err := s.q.js.Publish(ctx, msg.Subject(), nil); err != nil { // replaces the message
		return askLater(msg)
	}
	return msg.DoubleAck(ctx)
}

// askLater requests redelivery of a message after a delay that grows each time.
func askLater(msg jetstream.Msg) error {
	delay := time.Minute
	if meta, err := msg.Metadata(); err == nil && meta.NumDelivered < 7 {
		delay = time.Second << (meta.NumDelivered - 1)
	}
	return msg.NakWithDelay(delay)
}

// fetch returns one message, or nil if none arrives in time.
func (s *Source) fetch(ctx context.Context, wait time.Duration) (jetstream.Msg, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var batch jetstream.MessageBatch
	var err error
	if wait == 0 {
		batch, err = s.consumer.FetchNoWait(1)
	} else {
		within, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		batch, err = s.consumer.Fetch(1, jetstream.FetchContext(within))
	}
	if err != nil {
		return nil, err
	}
	var got jetstream.Msg
	for msg := range batch.Messages() {
		got = msg
	}
	switch err := batch.Error(); {
	case got != nil:
		return got, nil
	case err == nil, errors.Is(err, context.DeadlineExceeded), errors.Is(err, jetstream.ErrNoMessages):
		return nil, ctx.Err()
	default:
		return nil, err
	}
}

// Errors of a message without a runnable job.
var (
	errNoJob = errors.New("the message belongs to no job")
	errEnded = errors.New("the job has ended")
)

// errAbsent is the error of a job without a record or an order.
var errAbsent = errors.New("it was not submitted")

// late returns err if the leader has the record and the order of a job, otherwise errAbsent. Both are written before
// the message, but a replica may lag behind. A message without them must not wait, because it counts against the limit
// of running jobs.
func (q *Queue) late(ctx context.Context, key string, err error) error {
	for _, bucket := range []string{records, orders} {
		s, failed := q.js.Stream(ctx, "KV_"+bucket)
		if failed != nil {
			return failed
		}
		subject := "$KV." + bucket + "." + key
		info, failed := s.Info(ctx, jetstream.WithSubjectFilter(subject))
		if failed != nil {
			return failed
		}
		if info.State.Subjects[subject] == 0 {
			return errAbsent
		}
	}
	return err
}

// claim assigns a delivery to the worker. From then on, checkpoints of other workers fail. A job that lost its worker
// on every delivery becomes dead.
func (s *Source) claim(ctx context.Context, msg jetstream.Msg, worker string) (*Lease, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoJob, err)
	}
	for {
		r, revision, err := s.q.Get(ctx, keyOf(msg))
		if err == nil {
			_, err = s.q.orders.Get(ctx, keyOf(msg))
		}
		if errors.Is(err, jetstream.ErrKeyNotFound) && meta.NumDelivered > 1 {
			err = s.q.late(ctx, keyOf(msg), err)
		}
		switch {
		case errors.Is(err, jetstream.ErrInvalidKey), errors.Is(err, errAbsent):
			return nil, fmt.Errorf("%w: %w", errNoJob, err)
		case err != nil:
			return nil, err
		case r.State.Ended() && (r.State != fleet.Cancelled || !r.Begun):
			return nil, errEnded
		case r.State == fleet.Running && r.Delivery >= s.q.o.Delivers:
			r.State = fleet.Dead
			if r.Message == "" {
				r.Code, r.Message = "lost", "its workers were lost before they reported a reason"
			}
		default:
			if r.State != fleet.Cancelled {
				r.State = fleet.Running
			}
			r.Seq, r.Worker, r.Begun, r.Proved = meta.Sequence.Stream, worker, true, false
			r.Delivery++
		}
		r.Updated = time.Now().UTC()
		revision, err = s.q.records.Update(ctx, r.Key(), encode(r), revision)
		switch {
		case overtaken(err):
			continue
		case err == nil && r.State == fleet.Dead:
			err = errEnded
		}
		return &Lease{Record: *r, q: s.q, source: s, msg: msg, revision: revision}, err
	}
}

// Leave ends the work on the job in this process. If the job was not ended or returned, it is delivered again.
func (l *Lease) Leave() { l.source.leave(l.Record.Key()) }

// AckWait returns the time that this worker may be silent.
func (l *Lease) AckWait() time.Duration { return l.source.AckWait() }

// Beat extends the delivery.
func (l *Lease) Beat() error { return l.msg.InProgress() }

// Checkpoint records the progress of the job. It returns ErrFenced if the job no longer belongs to this worker.
func (l *Lease) Checkpoint(ctx context.Context, p fleet.Progress) error {
	return l.replace(ctx, func(r *fleet.Record) { r.Progress = p })
}

// Prove records that the copy with this identity may get its final name. It returns ErrFenced if the job no longer
// belongs to this worker.
func (l *Lease) Prove(ctx context.Context, copied string) error {
	return l.replace(ctx, func(r *fleet.Record) { r.Proved, r.Named = true, copied })
}

// End records the final state of the job.
func (l *Lease) End(ctx context.Context, state fleet.State, change func(r *fleet.Record)) error {
	err := l.replace(ctx, func(r *fleet.Record) {
		r.State = state
		change(r)
	})
	if err != nil {
		return err
	}
	return l.msg.DoubleAck(ctx)
}

// Release returns a failed job to the queue for another delivery after a delay. After the last try, it makes the job
// dead.
func (l *Lease) Release(ctx context.Context, delay time.Duration, change func(r *fleet.Record)) error {
	if l.Record.Delivery >= l.q.o.Delivers {
		return l.End(ctx, fleet.Dead, change)
	}
	err := l.replace(ctx, func(r *fleet.Record) {
		r.State = fleet.Queued
		change(r)
	})
	if err != nil {
		return err
	}
	return l.msg.NakWithDelay(delay)
}

// Return puts the job at the end of the queue, as if it had not been delivered.
func (l *Lease) Return(ctx context.Context, change func(r *fleet.Record)) error {
	err := l.replace(ctx, func(r *fleet.Record) {
		anew(r)
		change(r)
	})
	if err == nil {
		err = l.q.publish(ctx, &l.Record)
	}
	if err != nil {
		return err // the message is delivered again
	}
	return l.msg.DoubleAck(ctx)
}

// Drop removes the message of a cancelled job, and records that no files of it are left.
func (l *Lease) Drop(ctx context.Context) error {
	_, err := l.q.change(ctx, l.Record.Key(), "", func(r *fleet.Record) (bool, error) {
		mine := r.State == fleet.Cancelled && r.Seq == l.Record.Seq
		r.Begun, r.Progress = false, fleet.Progress{}
		return mine, nil
	})
	if err != nil {
		return err
	}
	return l.msg.DoubleAck(ctx)
}

// Again requests redelivery of a cancelled job whose files could not be removed.
func (l *Lease) Again(delay time.Duration) error {
	l.Leave()
	return l.msg.NakWithDelay(delay)
}

// replace updates the record by compare-and-set. After a lost reply, the update looks like a conflict, but the stored
// record is this worker's.
func (l *Lease) replace(ctx context.Context, change func(r *fleet.Record)) error {
	for !l.lost {
		next := l.Record
		change(&next)
		next.Updated = time.Now().UTC()
		revision, err := l.q.records.Update(ctx, l.Record.Key(), encode(&next), l.revision)
		if err == nil {
			l.Record, l.revision, l.lost = next, revision, next.State != fleet.Running
			if l.lost {
				l.Leave()
			}
			return nil
		}
		if !overtaken(err) {
			return err
		}
		now, revision, err := l.q.Get(ctx, l.Record.Key())
		if err != nil {
			return err
		}
		if now.Worker != l.Record.Worker || now.Delivery != l.Record.Delivery || now.Round != l.Record.Round ||
			now.State != fleet.Running {
			l.Record, l.lost = *now, true
			break
		}
		l.revision = revision
	}
	return ErrFenced
}
