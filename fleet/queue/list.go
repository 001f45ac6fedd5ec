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

// submitters is how many jobs are queued at once: each waits for the disk of the server.
const submitters = 16

// SubmitAll queues the jobs that each passes on, and returns how many are new, and how many known already.
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

// Drains lists the calls of Drain that are in force: whether there is one of all datastores, and the names of others.
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

// Mend queues jobs of a datastore anew, or of all with an empty name, that wait or run and have no message. It returns
// how many those were: a call can end between the record of a job and its message.
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
		if err := q.ensure(ctx, key); err != nil { // a message of a job that has ended since is acknowledged
			return n, err
		}
		n++
	}
	return n, nil
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

// DropRows drops the rows of scans of a datastore, or of all with an empty name, which later ones supersede.
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
