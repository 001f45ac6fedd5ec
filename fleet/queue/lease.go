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

// ErrFenced marks a job that is another worker's by now, or was cancelled: its run is to be ended at once.
var ErrFenced = errors.New("the job is not this worker's any more")

// Lease is a delivery of a job to this worker. Its methods are for one goroutine. Record is what was last known of the
// job, also when it is another's.
type Lease struct {
	Record   fleet.Record
	q        *Queue
	source   *Source
	msg      jetstream.Msg
	revision uint64
	lost     bool // for good, or given back
}

// Source hands out the jobs of one datastore.
type Source struct {
	q        *Queue
	consumer jetstream.Consumer
	name     string

	mu   sync.Mutex
	held map[string]bool // keys of jobs that were taken here, and not left
}

// Source returns the jobs of a datastore. atOnce is how many of them may run at a time, whoever runs them; 0 leaves
// that as it is, which is 2 at first.
func (q *Queue) Source(ctx context.Context, datastore string, atOnce int) (*Source, error) {
	if err := fleet.CheckName(datastore); err != nil {
		return nil, err
	}
	c := jetstream.ConsumerConfig{
		Durable: datastore, FilterSubject: subjects + datastore + ".*", AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: q.o.AckWait, MaxDeliver: -1, MaxAckPending: 2, // records know how often a job was tried
	}
	got, err := q.jobs.Consumer(ctx, datastore)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		c.MaxAckPending = max(atOnce, 0)
		if atOnce == 0 {
			c.MaxAckPending = 2
		}
		got, err = q.jobs.CreateOrUpdateConsumer(ctx, c) // another worker may be as far
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

// Next returns the next job of the datastore for a worker, and waits for it so long; 0: not at all. It returns nil if
// no job waits. Messages that lead to no job that is to be done are acknowledged, with a word to refused.
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
			if err = ctx.Err(); wait > 0 && err == nil { // its worker's signs of life keep the message
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

// take claims a message, unless its job is at work: here, or at another worker. An outage of the server can be longer
// than a worker may be silent, and then the messages of all jobs that run are delivered again.
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

// keyOf returns the key of the job that a message is of. Whoever has published it, a job has one message at most.
func keyOf(msg jetstream.Msg) string { return strings.TrimPrefix(msg.Subject(), subjects) }

// hold reports whether a job is not held yet, and holds it.
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

// AckWait is the time after which a delivery without a sign of life is made again.
func (s *Source) AckWait() time.Duration { return s.consumer.CachedInfo().Config.AckWait }

// isAlive reports whether another worker has a job, and changes its record within the time. An end of ctx counts as
// that: nothing is to be claimed.
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

// errAlive marks a message whose job a worker does.
var errAlive = errors.New("the job is at work")

// postpone has a message wait whose record cannot be read or replaced now. Where jobs wait behind it, it goes to the
// end of the queue: a message that waits takes the place of a job that runs. A record that is absent can only be late.
func (s *Source) postpone(ctx context.Context, msg jetstream.Msg, why error) error {
	meta, err := msg.Metadata()
	if err != nil || meta.NumPending == 0 || errors.Is(why, jetstream.ErrKeyNotFound) {
		return askLater(msg)
	}
	if _, err := s.q.js.Publish(ctx, msg.Subject(), nil); err != nil { // the server removes the message
		return askLater(msg)
	}
	return msg.DoubleAck(ctx)
}

// askLater has a message be delivered again, after a longer time each time.
func askLater(msg jetstream.Msg) error {
	delay := time.Minute
	if meta, err := msg.Metadata(); err == nil && meta.NumDelivered < 7 {
		delay = time.Second << (meta.NumDelivered - 1)
	}
	return msg.NakWithDelay(delay)
}

// fetch returns one message, nil if none comes within the time.
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

// Ends of a message that is not a job to be done.
var (
	errNoJob = errors.New("the message is not that of a job")
	errEnded = errors.New("the job has ended")
)

// errAbsent marks a job without a record or an order.
var errAbsent = errors.New("it was not submitted")

// late returns err for a job whose record and order the leader of the servers has, and errAbsent for another: both are
// written before the message. A replica that is asked for them may be behind. A message without them must not wait,
// since it takes the place of a job that runs.
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

// claim makes a delivery the worker's. From now on no other worker's checkpoint succeeds. A job whose workers were gone
// each time is dead.
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
				r.Code, r.Message = "lost", "its workers were gone before they could say why"
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

// Leave ends the work on the job here. If it was not ended or given back, it is delivered again.
func (l *Lease) Leave() { l.source.leave(l.Record.Key()) }

// AckWait is how long this worker may be silent.
func (l *Lease) AckWait() time.Duration { return l.source.AckWait() }

// Beat tells the server that the job is being worked on.
func (l *Lease) Beat() error { return l.msg.InProgress() }

// Checkpoint records how far the job is. The error is ErrFenced if it is not this worker's any more.
func (l *Lease) Checkpoint(ctx context.Context, p fleet.Progress) error {
	return l.replace(ctx, func(r *fleet.Record) { r.Progress = p })
}

// Prove records that the result, a copy of that identity, may get its name, if the job is still this worker's.
func (l *Lease) Prove(ctx context.Context, copied string) error {
	return l.replace(ctx, func(r *fleet.Record) { r.Proved, r.Named = true, copied })
}

// End ends the job.
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

// Release gives a job back that has failed, to be delivered again after a delay. Behind the last try it is dead.
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

// Return gives the job back as if it had not been delivered, at the end of the queue.
func (l *Lease) Return(ctx context.Context, change func(r *fleet.Record)) error {
	err := l.replace(ctx, func(r *fleet.Record) {
		anew(r)
		change(r)
	})
	if err == nil {
		err = l.q.publish(ctx, &l.Record)
	}
	if err != nil {
		return err // the message is delivered again, and is that of the job
	}
	return l.msg.DoubleAck(ctx)
}

// Drop settles the message of a job that was cancelled, and records that nothing is left of it.
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

// Again has a cancelled job delivered again after a delay, since something is left of it.
func (l *Lease) Again(delay time.Duration) error {
	l.Leave()
	return l.msg.NakWithDelay(delay)
}

// replace changes the record by compare-and-set. An answer that was lost looks as if another had changed it: then what
// stands there is this worker's.
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
