package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/trueup/trueup/internal/fleet"
)

// Each calls use for all jobs of a datastore, or of all with an empty name, in no order.
func (q *Queue) Each(ctx context.Context, datastore string, use func(r *fleet.Record)) error {
	return q.watch(ctx, datastore, false, use)
}

// Watch calls use for all jobs, and then for each change, until the context ends.
func (q *Queue) Watch(ctx context.Context, datastore string, use func(r *fleet.Record)) error {
	return q.watch(ctx, datastore, true, use)
}

func (q *Queue) watch(ctx context.Context, datastore string, goesOn bool, use func(r *fleet.Record)) error {
	keys := ">"
	if datastore != "" {
		if err := fleet.CheckName(datastore); err != nil {
			return err
		}
		keys = datastore + ".*"
	}
	w, err := q.records.Watch(ctx, keys, jetstream.IgnoreDeletes())
	if err != nil {
		return err
	}
	defer func() { _ = w.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, more := <-w.Updates():
			switch {
			case !more: // the end of the context can look so
				return cmp.Or(ctx.Err(), errors.New("the server has ended the list"))
			case e == nil && !goesOn:
				return nil
			case e == nil:
				continue
			}
			if r, err := fleet.ParseRecord(e.Value()); err == nil && r.Key() == e.Key() {
				use(r)
			}
		}
	}
}

// Drain has workers take no more jobs of a datastore, or of any with an empty name, until it is called with on false.
func (q *Queue) Drain(ctx context.Context, datastore string, on bool) error {
	key := drainKey(datastore)
	if !on {
		return q.control.Purge(ctx, key)
	}
	_, err := q.control.PutString(ctx, key, "drain")
	return err
}

func drainKey(datastore string) string {
	if datastore == "" {
		return "drain"
	}
	return "drain." + datastore
}

// Drained reports whether no job of a datastore is to be taken now.
func (q *Queue) Drained(ctx context.Context, datastore string) (bool, error) {
	for _, key := range []string{drainKey(""), drainKey(datastore)} {
		switch _, err := q.control.Get(ctx, key); {
		case err == nil:
			return true, nil
		case !errors.Is(err, jetstream.ErrKeyNotFound):
			return false, err
		}
	}
	return false, nil
}

// MoveDead moves jobs that were delivered as often as they may be out of the queue, and returns how many are dead. One
// that no worker could claim is queued anew. It waits so long for the first.
func (q *Queue) MoveDead(ctx context.Context, wait time.Duration) (n int, err error) {
	s, err := q.js.Stream(ctx, advisories)
	if err != nil {
		return 0, err
	}
	c, err := s.Consumer(ctx, advised)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		c, err = s.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: advised, AckPolicy: jetstream.AckExplicitPolicy, AckWait: q.o.AckWait,
		})
	}
	if err != nil {
		return 0, err
	}
	source := &Source{q: q, consumer: c}
	var failed error
	for ; ; wait = 0 {
		msg, err := source.fetch(ctx, wait)
		if err != nil || msg == nil {
			return n, errors.Join(failed, err)
		}
		var a struct {
			Seq uint64 `json:"stream_seq"`
		}
		if json.Unmarshal(msg.Data(), &a) == nil && a.Seq != 0 {
			dead, err := q.moveOne(ctx, a.Seq)
			if err != nil {
				failed = errors.Join(failed, err, askLater(msg))
				continue
			}
			n += dead
		}
		if err := msg.DoubleAck(ctx); err != nil {
			return n, errors.Join(failed, err)
		}
	}
}

// moveOne moves the job of one message, and returns 1 if it is dead.
func (q *Queue) moveOne(ctx context.Context, seq uint64) (dead int, err error) {
	msg, err := q.jobs.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil // it was done before the last delivery ran out, or is buried
	}
	if err != nil {
		return 0, err
	}
	if q.isAlive(ctx, string(msg.Data), seq, "", q.o.AckWait/2) {
		return 0, fmt.Errorf("job %.80s: %w", msg.Data, errAlive)
	}
	r, err := q.change(ctx, string(msg.Data), func(r *fleet.Record) (bool, error) {
		switch {
		case r.State.Ended():
			return false, nil
		case r.Seq == 0: // no delivery was claimed, so that none has failed
			anew(r)
			return true, nil
		case r.Seq != seq:
			return false, nil
		}
		if r.Message == "" {
			r.Code, r.Message = "lost", "its workers were gone before they could say why"
		}
		r.State = fleet.Dead
		return true, nil
	})
	switch {
	case err != nil:
	case r.State == fleet.Dead:
		dead = 1
		_, err = q.dead.Put(ctx, r.Key(), encode(r))
	case r.State == fleet.Queued && r.Seq == 0:
		err = q.publish(ctx, r)
	}
	if err == nil || errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrInvalidKey) {
		err = q.jobs.DeleteMsg(ctx, seq)
	}
	return dead, err
}

// Dead returns the jobs that failed as often as they were delivered.
func (q *Queue) Dead(ctx context.Context) (out []*fleet.Record, err error) {
	keys, err := q.dead.ListKeys(ctx)
	if err != nil {
		return nil, err
	}
	for key := range keys.Keys() {
		e, err := q.dead.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if r, err := fleet.ParseRecord(e.Value()); err == nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// mostRows bounds the rows of a scan that the queue keeps, in bytes. Larger ones stay in their file.
const mostRows = 512 << 10

// KeepRows keeps the rows of a scan, which are in a file, if they are few.
func (q *Queue) KeepRows(ctx context.Context, key, file string) error {
	st, err := os.Stat(file)
	if err != nil || st.Size() > mostRows {
		return err
	}
	b, err := os.ReadFile(file)
	if err == nil {
		_, err = q.rows.Put(ctx, key, b)
	}
	return err
}

// Rows returns the rows of a scan; nil if the queue does not keep them.
func (q *Queue) Rows(ctx context.Context, key string) ([]byte, error) {
	e, err := q.rows.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return e.Value(), nil
}
