// Package overview summarizes a fleet as metrics and as a page: totals over all jobs, and lists of running, failed and
// ended jobs. It does no I/O; records and the time are arguments.
package overview

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/trueup/trueup/fleet"
)

// Limits of the lists. The totals cover all jobs.
const (
	maxRunning = 200
	maxFailed  = 200
	maxEnded   = 100
	maxWorkers = 500
)

// Overview is the known state of a fleet. It is safe for concurrent use.
type Overview struct {
	mu      sync.Mutex
	jobs    map[string]job
	running map[string]*fleet.Record
	failed  []keyed // last refused or dead jobs, oldest first
	ended   []keyed // last done or cancelled jobs, oldest first
	sums    sums
	around  Around
	problem string
}

// keyed is a job with its key, which is expensive to compute.
type keyed struct {
	key string
	*fleet.Record
}

// job is the contribution of one job to the totals.
type job struct {
	kind
	code       string
	copied     int64 // bytes written, from its result
	done       int64 // bytes copied so far, while it runs
	total      int64
	deliveries int64
	scanned    time.Time // end of a finished scan
}

type kind struct {
	datastore string
	kind      fleet.Kind
	state     fleet.State
}

// failure is a reason why jobs of a datastore failed.
type failure struct {
	datastore string
	state     fleet.State
	code      string
}

type sums struct {
	jobs       map[kind]int
	failures   map[failure]int
	deliveries map[string]int64 // by datastore, like the maps below
	copied     map[string]int64
	done       map[string]int64
	total      map[string]int64
	scanned    map[string]time.Time
}

// Around is state of the queue other than jobs.
type Around struct {
	Backlogs map[string]fleet.Backlog
	Workers  []fleet.Announcement
	Drained  map[string]bool // by datastore
}

// New returns an overview without jobs.
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

// Set adds a job, or replaces its previous record.
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
	case fleet.Queued: // only the totals include it
	}
}

func last(list []keyed, most int) []keyed { return list[max(0, len(list)-most):] }

// jobOf returns the contribution of a job to the totals.
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

// add adds the contribution of a job, or subtracts it with sign -1.
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

// SetAround replaces the state of the queue other than jobs.
func (o *Overview) SetAround(a Around) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.around = a
}

// SetProblem sets the reason why the overview is not up to date. An empty text clears it.
func (o *Overview) SetProblem(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.problem = text
}

// view is a snapshot of an overview.
type view struct {
	sums
	Around
	running []*fleet.Record // sorted by image, limited to maxRunning
	failed  []*fleet.Record // newest first, like ended
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

// latest returns the jobs of a list, newest first.
func latest(list []keyed) (out []*fleet.Record) {
	for _, k := range slices.Backward(list) {
		out = append(out, k.Record)
	}
	return out
}

// datastores lists all datastores with jobs, workers or a backlog.
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

// count returns the number of jobs in a state, in one datastore or, if that is empty, in all.
func (v *view) count(datastore string, state fleet.State) (n int) {
	for k, jobs := range v.jobs {
		if k.state == state && (datastore == "" || k.datastore == datastore) {
			n += jobs
		}
	}
	return n
}
