// Package overview says how a fleet is: sums of all jobs, those that run, have failed and have ended, as metrics and as
// a page. It is pure: records and the time come in.
package overview

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trueup/trueup/fleet"
)

// Bounds of lists. Sums are those of all jobs.
const (
	maxRunning = 200
	maxFailed  = 200
	maxEnded   = 100
	maxWorkers = 500
)

// Overview is what is known of a fleet. Its methods may be called by several goroutines.
type Overview struct {
	mu      sync.Mutex
	jobs    map[string]job
	running map[string]*fleet.Record
	failed  []keyed // the last that were refused or are dead, in their order
	ended   []keyed // the last that are done or cancelled
	sums    sums
	around  Around
	problem string
}

// keyed is a job with its key, which takes long to compute.
type keyed struct {
	key string
	*fleet.Record
}

// job is what the sums have of a job.
type job struct {
	kind
	code       string
	copied     int64 // bytes that its result says were written
	done       int64 // bytes of its copy, while it runs
	total      int64
	deliveries int64
	scanned    time.Time // when a scan was done
}

type kind struct {
	datastore string
	kind      fleet.Kind
	state     fleet.State
}

// failure is why jobs of a datastore have failed.
type failure struct {
	datastore string
	state     fleet.State
	code      string
}

type sums struct {
	jobs       map[kind]int
	failures   map[failure]int
	deliveries map[string]int64 // by datastore, as those below
	copied     map[string]int64
	done       map[string]int64
	total      map[string]int64
	scanned    map[string]time.Time
}

// Around is what the queue knows beside the jobs.
type Around struct {
	Backlogs map[string]fleet.Backlog
	Workers  []fleet.Announcement
	Drained  map[string]bool // datastores
}

// New returns an overview that knows of no job.
func New() *Overview {
	return &Overview{
		jobs: map[string]job{}, running: map[string]*fleet.Record{},
		sums: sums{
			map[kind]int{},
			map[failure]int{},
			map[string]int64{},
			map[string]int64{},
			map[string]int64{},
			map[string]int64{},
			map[string]time.Time{},
		},
	}
}

// Set takes a job, which replaces what was known of it.
func (o *Overview) Set(r *fleet.Record) {
	o.mu.Lock()
	defer o.mu.Unlock()
	key, now := r.Key(), jobOf(r)
	if old, known := o.jobs[key]; known {
		o.sums.add(old, -1)
	}
	o.jobs[key] = now
	o.sums.add(now, 1)
	same := func(k keyed) bool { return k.key == key }
	o.failed, o.ended = slices.DeleteFunc(o.failed, same), slices.DeleteFunc(o.ended, same)
	delete(o.running, key)
	kept := *r
	kept.Result, kept.Files = nil, nil
	switch r.State {
	case fleet.Running:
		o.running[key] = &kept
	case fleet.Refused, fleet.Dead:
		o.failed = last(append(o.failed, keyed{key, &kept}), maxFailed)
	case fleet.Done, fleet.Cancelled:
		o.ended = last(append(o.ended, keyed{key, &kept}), maxEnded)
	case fleet.Queued: // the sums have it
	}
}

func last(list []keyed, most int) []keyed { return list[max(0, len(list)-most):] }

// jobOf returns what the sums have of a job.
func jobOf(r *fleet.Record) job {
	j := job{kind: kind{r.Datastore, r.Kind, r.State}, deliveries: int64(r.Delivery)}
	switch r.State {
	case fleet.Refused, fleet.Dead:
		j.code = r.Code
	case fleet.Running:
		if r.Phase == "copy" {
			j.done, j.total = r.Done, r.Total
		}
	case fleet.Done:
		j.copied = r.Copied()
		if r.Kind == fleet.Scan {
			j.scanned = r.Updated
		}
	case fleet.Queued, fleet.Cancelled: // nothing more
	}
	return j
}

// add adds a job, or takes one away that was added.
func (s *sums) add(j job, sign int) {
	s.jobs[j.kind] += sign
	s.deliveries[j.datastore] += int64(sign) * j.deliveries
	s.copied[j.datastore] += int64(sign) * j.copied
	s.done[j.datastore] += int64(sign) * j.done
	s.total[j.datastore] += int64(sign) * j.total
	if j.state == fleet.Refused || j.state == fleet.Dead {
		s.failures[failure{j.datastore, j.state, j.code}] += sign
	}
	if j.scanned.After(s.scanned[j.datastore]) {
		s.scanned[j.datastore] = j.scanned
	}
}

// SetAround takes what the queue knows beside the jobs.
func (o *Overview) SetAround(a Around) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.around = a
}

// SetProblem takes why nothing is learnt now; empty: that is over.
func (o *Overview) SetProblem(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.problem = text
}

// view is a copy of what is known.
type view struct {
	sums
	Around
	running []*fleet.Record // sorted by their images, as many as are shown
	failed  []*fleet.Record // the last is the first, as are those of ended
	ended   []*fleet.Record
	problem string
}

func (o *Overview) view() view {
	o.mu.Lock()
	defer o.mu.Unlock()
	v := view{
		sums: sums{
			maps.Clone(o.sums.jobs), maps.Clone(o.sums.failures), maps.Clone(o.sums.deliveries),
			maps.Clone(o.sums.copied), maps.Clone(o.sums.done), maps.Clone(o.sums.total), maps.Clone(o.sums.scanned),
		},
		Around: o.around, failed: latest(o.failed), ended: latest(o.ended), problem: o.problem,
	}
	v.running = slices.SortedFunc(maps.Values(o.running), func(a, b *fleet.Record) int {
		return cmp.Or(cmp.Compare(a.Datastore, b.Datastore), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Kind, b.Kind))
	})
	v.running = v.running[:min(len(v.running), maxRunning)]
	return v
}

// latest returns the jobs of a list, the last first.
func latest(list []keyed) (out []*fleet.Record) {
	for _, k := range slices.Backward(list) {
		out = append(out, k.Record)
	}
	return out
}

// datastores lists all that have jobs, workers or a backlog.
func (v *view) datastores() []string {
	names := map[string]bool{}
	for k := range v.jobs {
		names[k.datastore] = true
	}
	for name := range v.Backlogs {
		names[name] = true
	}
	for _, w := range v.Workers {
		for _, name := range w.Datastores {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// count counts jobs of a datastore, or of all with an empty name, in a state.
func (v *view) count(datastore string, state fleet.State) (n int) {
	for k, jobs := range v.jobs {
		if k.state == state && (datastore == "" || k.datastore == datastore) {
			n += jobs
		}
	}
	return n
}
