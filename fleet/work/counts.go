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

// Counts are what a worker has done since it began. Its methods may be called by several goroutines.
type Counts struct {
	mu       sync.Mutex
	running  map[string]int64 // by datastore
	copied   map[string]int64 // bytes
	attempts map[attempted]int64
	failed   map[string]fleet.State // jobs whose last attempt here failed, by their keys
}

// attempted says how attempts ended.
type attempted struct{ datastore, kind, outcome, code string }

// add counts attempts that begin, or, with a negative number, that end.
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

// settled counts the end of an attempt by what became of its job. Only a run with Once asks later which have failed.
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

// Failed returns how many jobs were refused, and how many failed or are dead, by their last attempt here.
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

// Metrics writes the counts as Prometheus reads them.
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
	m.Gauge("trueup_fleet_worker_running", "Jobs that this worker does now.", by(c.running)...)
	m.Counter("trueup_fleet_worker_copied_bytes_total", "Bytes of disks that jobs have copied which are done.",
		by(c.copied)...)
	var ends []fleet.Sample
	for _, a := range slices.SortedFunc(maps.Keys(c.attempts), func(a, b attempted) int {
		return cmp.Or(cmp.Compare(a.datastore, b.datastore), cmp.Compare(a.kind, b.kind),
			cmp.Compare(a.outcome, b.outcome), cmp.Compare(a.code, b.code))
	}) {
		ends = append(ends, fleet.SampleOf(fleet.Labels("datastore", a.datastore, "kind", a.kind, "outcome", a.outcome,
			"code", a.code), c.attempts[a]))
	}
	m.Counter("trueup_fleet_worker_attempts_total", "Attempts at jobs that have ended, by what became of the job.",
		ends...)
	m.Gauge("trueup_fleet_worker_info", "Always 1. Version of trueup-fleet.",
		fleet.SampleOf(fleet.Labels("version", version), 1))
	return m.Flush()
}

// announce tells the queue each minute that the worker is there, until the function that it returns is called.
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
