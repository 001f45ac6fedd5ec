package overview

import (
	"io"
	"maps"
	"slices"

	"github.com/trueup/trueup/fleet"
)

// Metrics writes the sums as Prometheus reads them. No image is named: each would be a series of its own.
func (o *Overview) Metrics(w io.Writer, version string) error {
	v := o.view()
	m := fleet.NewMetrics(w)
	m.Gauge("trueup_fleet_jobs", "Jobs by what became of them.", sorted(v.jobs, func(k kind) string {
		return fleet.Labels("datastore", k.datastore, "kind", string(k.kind), "state", string(k.state))
	})...)
	m.Gauge("trueup_fleet_failures", "Jobs that were refused or are dead, by the code of the error.",
		sorted(v.failures, func(f failure) string {
			return fleet.Labels("datastore", f.datastore, "state", string(f.state), "code", f.code)
		})...)
	byDatastore := func(name, help string, of map[string]int64) {
		m.Gauge(name, help, sorted(of, func(name string) string { return fleet.Labels("datastore", name) })...)
	}
	byDatastore("trueup_fleet_deliveries", "How often the last messages of all jobs were delivered.", v.deliveries)
	byDatastore("trueup_fleet_copied_bytes", "Bytes of disks that jobs have copied which are done.", v.copied)
	byDatastore("trueup_fleet_running_done_bytes", "Bytes that copies have gone through which run.", v.done)
	byDatastore("trueup_fleet_running_total_bytes", "Bytes that these copies have in all.", v.total)
	scanned := map[string]int64{}
	for name, at := range v.scanned {
		scanned[name] = at.Unix()
	}
	byDatastore("trueup_fleet_last_scan_timestamp_seconds", "When a scan was done, in seconds since 1970.", scanned)
	waiting, delivered, limits := map[string]int64{}, map[string]int64{}, map[string]int64{}
	for name, b := range v.Backlogs {
		waiting[name], delivered[name] = int64(b.Waiting), int64(b.Delivered) //nolint:gosec // messages of a stream
		limits[name] = int64(b.AtOnce)
	}
	byDatastore("trueup_fleet_queue_waiting", "Messages that no worker has.", waiting)
	byDatastore("trueup_fleet_queue_delivered", "Messages that workers have, or that wait for another try.", delivered)
	byDatastore("trueup_fleet_queue_limit", "How many jobs may run at a time.", limits)
	workers, drained := map[string]int64{}, map[string]int64{}
	for _, name := range v.datastores() {
		workers[name], drained[name] = 0, number(v.Drained[name])
	}
	for _, a := range v.Workers {
		for _, name := range a.Datastores {
			workers[name]++
		}
	}
	byDatastore("trueup_fleet_workers", "Workers that are there.", workers)
	byDatastore("trueup_fleet_drained", "1 if workers take no jobs, by drain.", drained)
	m.Gauge("trueup_fleet_up", "1 if the queue answers.", fleet.SampleOf("", number(v.problem == "")))
	m.Gauge("trueup_fleet_info", "Always 1. Version of trueup-fleet.",
		fleet.SampleOf(fleet.Labels("version", version), 1))
	return m.Flush()
}

// sorted returns the numbers of a map, in the order of their labels.
func sorted[K comparable, V int | int64](of map[K]V, label func(K) string) (out []fleet.Sample) {
	texts := map[string]V{}
	for k, n := range of {
		texts[label(k)] = n
	}
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		out = append(out, fleet.SampleOf(text, texts[text]))
	}
	return out
}

// number returns 1 for a truth, else 0.
func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
