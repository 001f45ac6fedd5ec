package queue

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/trueup/trueup/fleet"
)

// submitters is the number of concurrent submissions, each of which waits for a disk write of the server.
const submitters = 16

// SubmitAll queues the jobs from each, and returns the numbers of new and already known jobs.
func (q *Queue) SubmitAll(
	ctx context.Context, each func(take func(fleet.Job) error) error,
) (fresh, known int, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(submitters)
	var taken, isNew atomic.Int64
	err = each(func(j fleet.Job) error {
		group.Go(func() error {
			is, err := q.Submit(ctx, j)
			if is {
				isNew.Add(1)
			}
			if err == nil {
				taken.Add(1)
			}
			return err
		})
		return ctx.Err()
	})
	err = cmp.Or(group.Wait(), err)
	return int(isNew.Load()), int(taken.Load() - isNew.Load()), err
}

// Each calls use for every job of a datastore, or of all if the name is empty, in no particular order.
func (q *Queue) Each(ctx context.Context, datastore string, use func(r *fleet.Record)) error {
	return q.watch(ctx, datastore, false, use)
}

// Watch calls use for all jobs, then for each change, until the context is cancelled.
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
			case !more: // cancelling the context also closes the channel
				return cmp.Or(ctx.Err(), errors.New("the server ended the list"))
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

// Drain stops workers from taking jobs of a datastore, or of all if the name is empty. With on false, it ends that.
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

// Drains returns the drains in force: whether all datastores are drained, and the datastores drained by name.
func (q *Queue) Drains(ctx context.Context) (all bool, datastores []string, err error) {
	keys, err := q.control.Keys(ctx)
	if err != nil && !errors.Is(err, jetstream.ErrNoKeysFound) {
		return false, nil, err
	}
	for _, key := range keys {
		if name, ok := strings.CutPrefix(key, drainKey("")+"."); ok {
			datastores = append(datastores, name)
		}
	}
	slices.Sort(datastores)
	return slices.Contains(keys, drainKey("")), datastores, nil
}

// Drained reports whether workers must not take jobs of a datastore.
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

// Mend queues waiting and running jobs without a message again, for a datastore or, if the name is empty, for all. It
// returns their number. Such jobs exist because a client can end between writing the record and the message.
func (q *Queue) Mend(ctx context.Context, datastore string) (n int, err error) {
	var jobs []string
	err = q.Each(ctx, datastore, func(r *fleet.Record) {
		if !r.State.Ended() || r.State == fleet.Cancelled && r.Begun {
			jobs = append(jobs, r.Key())
		}
	})
	if err != nil || len(jobs) == 0 {
		return 0, err
	}
	info, err := q.jobs.Info(ctx, jetstream.WithSubjectFilter(subjects+">"))
	if err != nil {
		return 0, err
	}
	for _, key := range jobs {
		if info.State.Subjects[subjects+key] > 0 {
			continue
		}
		if err := q.ensure(ctx, key); err != nil { // if the job has ended by now, its message is acknowledged
			return n, err
		}
		n++
	}
	return n, nil
}

// mostRows limits the size of scan rows in the queue, in bytes. Larger results stay in their file.
const mostRows = 512 << 10

// KeepRows stores the rows of a scan from a file, unless the file is too large.
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

// Rows returns the rows of a scan, or nil if the queue does not have them.
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

// DropRows removes the rows of superseded scans of a datastore, or of all if the name is empty.
func (q *Queue) DropRows(ctx context.Context, datastore string) error {
	kept, err := q.rows.ListKeys(ctx)
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for key := range kept.Keys() {
		has[key] = true
	}
	var scans []*fleet.Record
	if err := q.Each(ctx, datastore, func(r *fleet.Record) {
		if r.Kind == fleet.Scan {
			scans = append(scans, r)
		}
	}); err != nil {
		return err
	}
	for _, r := range fleet.Superseded(scans) {
		if has[r.Key()] {
			if err := q.rows.Purge(ctx, r.Key()); err != nil {
				return err
			}
		}
	}
	return nil
}
