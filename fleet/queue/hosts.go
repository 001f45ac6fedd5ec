package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/trueup/trueup/fleet"
)

// hosts is the bucket of announcements of workers, which expire after presence.
const (
	hosts    = "trueup-workers"
	presence = 3 * time.Minute
)

// Announce announces a worker and its datastores. It must be called at least every presence.
func (q *Queue) Announce(ctx context.Context, a fleet.Announcement) error {
	b, err := json.Marshal(a)
	if err == nil {
		_, err = q.hosts.Put(ctx, a.Key(), b)
	}
	return err
}

// Withdraw removes the announcement of a worker.
func (q *Queue) Withdraw(ctx context.Context, a fleet.Announcement) error {
	return q.hosts.Purge(ctx, a.Key())
}

// Workers returns all announced workers.
func (q *Queue) Workers(ctx context.Context) (out []fleet.Announcement, err error) {
	w, err := q.hosts.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Stop() }()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case e, more := <-w.Updates():
			switch {
			case !more:
				return nil, cmp.Or(ctx.Err(), errors.New("the server ended the list"))
			case e == nil:
				slices.SortFunc(out, func(a, b fleet.Announcement) int { return cmp.Compare(a.Worker, b.Worker) })
				return out, nil
			}
			if a, err := fleet.ParseAnnouncement(e.Value()); err == nil && a.Key() == e.Key() {
				out = append(out, *a)
			}
		}
	}
}

// Backlogs returns the backlog of each datastore that had workers.
func (q *Queue) Backlogs(ctx context.Context) (out map[string]fleet.Backlog, err error) {
	out = map[string]fleet.Backlog{}
	list := q.jobs.ListConsumers(ctx)
	for c := range list.Info() {
		if fleet.CheckName(c.Name) == nil {
			out[c.Name] = fleet.Backlog{
				Waiting: c.NumPending, Delivered: c.NumAckPending, AtOnce: c.Config.MaxAckPending,
			}
		}
	}
	return out, list.Err()
}
