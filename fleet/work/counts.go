package work

import (
	"cmp"
	"context"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trueup/trueup/fleet"
)

// Counts counts the work of a worker since its start. It is safe for concurrent use.
type Counts struct {
	mu       sync.Mutex
	running  map[string]int64 // by datastore
	copied   map[string]int64 // bytes
	attempts map[attempted]int64
	failed   map[string]fleet.State // jobs whose last attempt here failed, by their keys
}

// attempted is a kind and outcome of attempts.
type attempted struct{ datastore, kind, outcome, code string }

// add changes the number of running attempts by n.
func (c *Counts) add(datastore string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running == nil {
		c.running, c.copied = map[string]int64{}, map[string]int64{}
		c.attempts, c.failed = map[attempted]int64{}, map[string]fleet.State{}
	}
	c.running[datastore] += n
	c.copied[datastore] += 0
}

// settled counts the outcome of an attempt. With remember, it notes a failed job for Failed.
func (c *Counts) settled(r *fleet.Record, remember bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	outcome := string(r.State)
	if r.State == fleet.Queued {
		outcome = "failed"
		if r.Seq == 0 {
			outcome = "given_back"
		}
	}
	c.attempts[attempted{r.Datastore, string(r.Kind), outcome, r.Code}]++
	c.copied[r.Datastore] += r.Copied()
	delete(c.failed, r.Key())
	if remember && outcome != string(fleet.Done) && outcome != "given_back" {
		c.failed[r.Key()] = r.State
	}
}

// Failed returns the numbers of jobs that were refused, and that failed or died, in their last attempt here.
func (c *Counts) Failed() (refused, failed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, state := range c.failed {
		if state == fleet.Refused {
			refused++
		} else {
			failed++
		}
	}
	return refused, failed
}

// Metrics writes the counts in the Prometheus text format.
func (c *Counts) Metrics(w io.Writer, version string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := fleet.NewMetrics(w)
	by := func(counts map[string]int64) (out []fleet.Sample) {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			out = append(out, fleet.SampleOf(fleet.Labels("datastore", name), counts[name]))
		}
		return out
	}
	m.Gauge("trueup_fleet_worker_running", "Jobs running on this worker.", by(c.running)...)
	m.Counter("trueup_fleet_worker_copied_bytes_total", "Bytes copied by finished jobs.",
		by(c.copied)...)
	var ends []fleet.Sample
	for _, a := range slices.SortedFunc(maps.Keys(c.attempts), func(a, b attempted) int {
		return cmp.Or(cmp.Compare(a.datastore, b.datastore), cmp.Compare(a.kind, b.kind),
			cmp.Compare(a.outcome, b.outcome), cmp.Compare(a.code, b.code))
	}) {
		ends = append(ends, fleet.SampleOf(fleet.Labels("datastore", a.datastore, "kind", a.kind, "outcome", a.outcome,
			"code", a.code), c.attempts[a]))
	}
	m.Counter("trueup_fleet_worker_attempts_total", "Ended attempts at jobs, by outcome.",
		ends...)
	m.Gauge("trueup_fleet_worker_info", "Always 1. Version of trueup-fleet.",
		fleet.SampleOf(fleet.Labels("version", version), 1))
	return m.Flush()
}

// announce announces the worker every minute, until the returned function is called.
func (w *Worker) announce(ctx context.Context) func() {
	a := fleet.Announcement{
		Worker: w.ID, Version: w.Version, Began: time.Now().UTC(), Slots: max(w.Slots, 1), Window: w.Window.String(),
	}
	for _, d := range w.Datastores {
		a.Datastores = append(a.Datastores, d.Name)
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	say := func(how func(context.Context, fleet.Announcement) error) {
		ctx, cancel := bounded(ctx)
		defer cancel()
		if err := how(ctx, a); err != nil {
			w.Log.Warn("the worker cannot announce itself", "error", err)
		}
	}
	go func() {
		defer close(ended)
		tick := time.NewTicker(time.Minute)
		defer tick.Stop()
		for {
			say(w.Queue.Announce)
			select {
			case <-ctx.Done():
				say(w.Queue.Withdraw)
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		stop()
		<-ended
	}
}
