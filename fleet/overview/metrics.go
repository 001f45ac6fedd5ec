package overview

import (
	"io"
	"maps"
	"slices"

	"github.com/trueup/trueup/fleet"
)

// Metrics writes the totals in the Prometheus text format. Labels name no images, because each image would be a series.
func (o *Overview) Metrics(w io.Writer, version string) error {
	v := o.view()
	m := fleet.NewMetrics(w)
	m.Gauge("trueup_fleet_jobs", "Jobs, by state.", sorted(v.jobs, func(k kind) string {
		return fleet.Labels("datastore", k.datastore, "kind", string(k.kind), "state", string(k.state))
	})...)
	m.Gauge("trueup_fleet_failures", "Refused and dead jobs, by error code.",
		sorted(v.failures, func(f failure) string {
			return fleet.Labels("datastore", f.datastore, "state", string(f.state), "code", f.code)
		})...)
	byDatastore := func(name, help string, of map[string]int64) {
		m.Gauge(name, help, sorted(of, func(name string) string { return fleet.Labels("datastore", name) })...)
	}
	byDatastore("trueup_fleet_deliveries", "Deliveries of the current messages of all jobs.", v.deliveries)
	byDatastore("trueup_fleet_copied_bytes", "Bytes copied by finished jobs.", v.copied)
	byDatastore("trueup_fleet_running_done_bytes", "Bytes processed so far by running copies.", v.done)
	byDatastore("trueup_fleet_running_total_bytes", "Total bytes of running copies.", v.total)
	scanned := map[string]int64{}
	for name, at := range v.scanned {
		scanned[name] = at.Unix()
	}
	byDatastore("trueup_fleet_last_scan_timestamp_seconds", "End of the last scan, in seconds since 1970.", scanned)
	waiting, delivered, limits := map[string]int64{}, map[string]int64{}, map[string]int64{}
	for name, b := range v.Backlogs {
		waiting[name], delivered[name] = int64(b.Waiting), int64(b.Delivered) //nolint:gosec // messages of a stream
		limits[name] = int64(b.AtOnce)
	}
	byDatastore("trueup_fleet_queue_waiting", "Messages not delivered to a worker yet.", waiting)
	byDatastore("trueup_fleet_queue_delivered", "Messages held by workers or waiting for another try.", delivered)
	byDatastore("trueup_fleet_queue_limit", "Limit of concurrent jobs.", limits)
	workers, drained := map[string]int64{}, map[string]int64{}
	for _, name := range v.datastores() {
		workers[name], drained[name] = 0, number(v.Drained[name])
	}
	for _, a := range v.Workers {
		for _, name := range a.Datastores {
			workers[name]++
		}
	}
	byDatastore("trueup_fleet_workers", "Workers present.", workers)
	byDatastore("trueup_fleet_drained", "1 if drained: workers take no jobs.", drained)
	m.Gauge("trueup_fleet_up", "1 if the queue answers.", fleet.SampleOf("", number(v.problem == "")))
	m.Gauge("trueup_fleet_info", "Always 1. Version of trueup-fleet.",
		fleet.SampleOf(fleet.Labels("version", version), 1))
	return m.Flush()
}

// sorted returns the values of a map, ordered by their labels.
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

// number returns 1 for true and 0 for false.
func number(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
