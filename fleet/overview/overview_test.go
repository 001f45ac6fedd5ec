package overview_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/trueup/trueup/fleet"
	"github.com/trueup/trueup/fleet/overview"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/pagetest"
)

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// record returns a job of an image.
func record(datastore, path string, state fleet.State, change func(r *fleet.Record)) *fleet.Record {
	r := &fleet.Record{
		Job:   fleet.Job{Kind: fleet.Align, Datastore: datastore, Path: path},
		State: state, Created: noon, Updated: noon, Worker: "esx1/42/abc", Delivery: 1,
	}
	if change != nil {
		change(r)
	}
	return r
}

// sample is a fleet with jobs of each kind.
func sample() *overview.Overview {
	o := overview.New()
	o.Set(record("ds7", "win/xp.vmdk", fleet.Running, func(r *fleet.Record) {
		left := 75.0
		r.Progress = fleet.Progress{Phase: "copy", Done: 3 << 30, Total: 12 << 30, Seconds: &left}
	}))
	o.Set(record("ds7", ".", fleet.Running, func(r *fleet.Record) {
		r.Kind = fleet.Scan
		r.Progress = fleet.Progress{Images: 30, Found: 120}
	}))
	o.Set(record("nas", "linux/suse.qcow2", fleet.Refused, func(r *fleet.Record) {
		r.Code, r.Message = "unsupported", "strange boot code; boot the guest once, and scan again"
	}))
	o.Set(record("nas", "old/nt4.vmdk", fleet.Dead, func(r *fleet.Record) {
		r.Code, r.Message, r.Delivery = "io", "input/output error", 8
		r.Log = "reading\nread nt4.vmdk: input/output error\n"
	}))
	o.Set(record("nas", "old/nt4-2.vmdk", fleet.Cancelled, nil))
	o.Set(record("nas", "", fleet.Done, func(r *fleet.Record) { r.Kind, r.Path = fleet.Scan, "." }))
	for n := range 5 {
		o.Set(record("ds7", fmt.Sprintf("queue/%d.vmdk", n), fleet.Queued, func(r *fleet.Record) { r.Delivery = 0 }))
		o.Set(record("ds7", fmt.Sprintf("done/%d.vmdk", n), fleet.Done, func(r *fleet.Record) {
			r.Result = json.RawMessage(`{"copied_bytes": 1000}`)
		}))
	}
	o.SetAround(overview.Around{
		Backlogs: map[string]fleet.Backlog{"ds7": {Waiting: 5, Delivered: 2, AtOnce: 4}, "nas": {AtOnce: 2}},
		Workers: []fleet.Announcement{
			{
				Worker: "esx1/42/abc", Version: "v1.2.3", Began: noon, Datastores: []string{"ds7", "nas"}, Slots: 2,
				Window: "22:00-06:00",
			},
			{Worker: "esx2/7/def", Version: "v1.2.3", Began: noon, Datastores: []string{"ds7"}, Slots: 1},
		},
		Drained: map[string]bool{"nas": true},
	})
	return o
}

// metricsOf returns the series of an overview, by name and labels.
func metricsOf(t *testing.T, o *overview.Overview, version string) map[string]float64 {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, o.Metrics(&b, version))
	out := map[string]float64{}
	for _, s := range disktest.ReadMetrics(t, b.String())[0] {
		key := strings.TrimPrefix(s.Name, "trueup_fleet_")
		for _, name := range []string{"datastore", "kind", "state", "code", "version"} {
			if v, ok := s.Labels[name]; ok {
				key += " " + v
			}
		}
		out[key] = s.Value
	}
	return out
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	require.Equal(t, map[string]float64{
		"jobs ds7 align running": 1, "jobs ds7 scan running": 1, "jobs ds7 align queued": 5, "jobs ds7 align done": 5,
		"jobs nas align refused": 1, "jobs nas align dead": 1, "jobs nas align cancelled": 1, "jobs nas scan done": 1,
		"failures nas refused unsupported": 1, "failures nas dead io": 1,
		"deliveries ds7": 7, "deliveries nas": 11, "copied_bytes ds7": 5000, "copied_bytes nas": 0,
		"running_done_bytes ds7": 3 << 30, "running_done_bytes nas": 0,
		"running_total_bytes ds7": 12 << 30, "running_total_bytes nas": 0,
		"last_scan_timestamp_seconds nas": float64(noon.Unix()),
		"queue_waiting ds7":               5, "queue_waiting nas": 0, "queue_delivered ds7": 2,
		"queue_delivered nas": 0,
		"queue_limit ds7":     4, "queue_limit nas": 2, "workers ds7": 2, "workers nas": 1, "drained ds7": 0,
		"drained nas": 1, "up": 1, "info v1.2.3": 1,
	}, metricsOf(t, sample(), "v1.2.3"))
}

// A job counts once, in its last state, and an empty fleet has metrics too.
func TestChanges(t *testing.T) {
	t.Parallel()
	o := overview.New()
	require.Equal(t, map[string]float64{"up": 1, `info "v\`: 1}, metricsOf(t, o, `"v\`))
	for _, state := range []fleet.State{
		fleet.Queued, fleet.Running, fleet.Dead, fleet.Queued, fleet.Running, fleet.Done,
	} {
		o.Set(record("ds1", "a.img", state, func(r *fleet.Record) {
			r.Code, r.Phase, r.Done, r.Total = "io", "copy", 5, 9
		}))
	}
	o.SetProblem("connection refused")
	require.Equal(t, map[string]float64{
		"jobs ds1 align queued": 0, "jobs ds1 align running": 0, "jobs ds1 align dead": 0, "jobs ds1 align done": 1,
		"failures ds1 dead io": 0, "deliveries ds1": 1, "copied_bytes ds1": 0, "running_done_bytes ds1": 0,
		"running_total_bytes ds1": 0, "workers ds1": 0, "drained ds1": 0, "up": 0, "info v": 1,
	}, metricsOf(t, o, "v"))
	text := textOf(t, o)
	require.Contains(t, text, "connection refused")
	require.Contains(t, text, "No job was refused, and none is dead.")
	require.Contains(t, text, "No job runs.")
}

// page parses the page of an overview.
func page(t *testing.T, o *overview.Overview) *html.Node {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, o.Page(&b, "v1.2.3", noon))
	n, err := html.Parse(&b)
	require.NoError(t, err)
	return n
}

func textOf(t *testing.T, o *overview.Overview) string {
	t.Helper()
	return strings.Join(strings.Fields(pagetest.TextOf(pagetest.Elements(page(t, o), "main")[0])), " ")
}

func TestPage(t *testing.T) {
	t.Parallel()
	text := textOf(t, sample())
	for _, want := range []string{
		"As of 2026-11-26 12:00:00 UTC.",
		"The report of the last scans; 1 scan done, the last at 2026-11-26 12:00:00 UTC.",
		"ds7: win/xp.vmdk", "copy 25 %, 3.0 of 12.0 GiB, 1m15s left", "scan 25 %, 30 of 120 images",
		"refused nas: linux/suse.qcow2 strange boot code; boot the guest once, and scan again",
		"dead nas: old/nt4.vmdk input/output error", "after delivery 8", "read nt4.vmdk: input/output error",
		"done ds7: done/4.vmdk", "cancelled nas: old/nt4-2.vmdk", "nas drained", "22:00-06:00, always",
		"4.88 KiB",
	} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "queue/1.vmdk", "what waits is counted")
}

// Lists are bounded, with the number of omitted entries.
func TestManyJobs(t *testing.T) {
	t.Parallel()
	o := overview.New()
	for n := range 1000 {
		path := fmt.Sprintf("%04d.img", n)
		o.Set(record("ds1", "r"+path, fleet.Running, nil))
		o.Set(record("ds1", "d"+path, fleet.Dead, nil))
		o.Set(record("ds1", "e"+path, fleet.Done, nil))
	}
	n := page(t, o)
	require.Less(t, len(pagetest.Elements(n, "li")), 600)
	text := textOf(t, o)
	require.Contains(t, text, "800 more run")
	require.Contains(t, text, "800 more: see trueup-fleet status --state dead")
	require.Contains(t, text, "900 more: see trueup-fleet status --state done")
	require.Contains(t, text, "ds1: e0999.img")
	require.NotContains(t, text, "ds1: e0899.img")
}

// Texts of images, workers and other programs appear only as text on the page.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, "{{.Version}}",
		"</pre></details><script>alert(1)</script>", "\u202egpj.exe", "a\x00b",
		"a\r\ndata: x\r\n\r\nevent: sums", "\xff\xfe",
		"<!--", "]]>", "javascript:alert(1)",
	} {
		o := sample()
		plain := len(pagetest.Elements(page(t, o), "script"))
		for _, state := range fleet.States {
			o.Set(record("ds1", text, state, func(r *fleet.Record) {
				r.Suffix += string(state)
				r.Message, r.Log, r.Worker, r.Phase = text, text, text, text
			}))
		}
		a := fleet.Announcement{Worker: text, Version: text, Window: text}
		o.SetAround(overview.Around{Workers: []fleet.Announcement{a}})
		o.SetProblem(text)
		n := page(t, o)
		require.Len(t, pagetest.Elements(n, "script"), plain)
		require.Empty(t, pagetest.Elements(n, "img"))
		for d := range n.Descendants() {
			for _, a := range d.Attr {
				require.False(t, strings.HasPrefix(a.Key, "on"), a.Key)
			}
		}
		require.Contains(t, pagetest.TextOf(n), fleet.Plain(strings.ToValidUTF8(text, "\ufffd")), "%q", text)
		events, err := o.Events("v", noon)
		require.NoError(t, err)
		for _, e := range events {
			require.NotContains(t, e.Data, "\r")
			require.NotContains(t, e.Data, "\u202e")
		}
	}
}
