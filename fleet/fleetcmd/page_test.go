package fleetcmd_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet/fleetcmd"
	"github.com/trueup/trueup/internal/disktest"
)

// body returns the content at a URL.
func body(t *testing.T, url string) string {
	t.Helper()
	w, err := http.Get(url)
	require.NoError(t, err)
	defer w.Body.Close()
	b, err := io.ReadAll(w.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, w.StatusCode, "%s", b)
	return string(b)
}

// shown starts the page of a site, and returns its URL and that of its metrics.
func (s *site) shown(t *testing.T) (page, metrics string) {
	t.Helper()
	p := start(t, "serve", "--nats", s.url, "--page", ":0", "--metrics", ":0", "--trueup", "/proc/self/exe")
	s.temp = t.TempDir()
	p.Env = append(p.Env, "TMPDIR="+s.temp)
	var out lockedBuffer
	p.Stdout = &out
	require.NoError(t, p.Start())
	where := regexp.MustCompile(`^metrics: (http://\S+/)\npage: (http://\S+/)\n$`)
	var m []string
	disktest.WaitFor(t, "the addresses", func() bool {
		m = where.FindStringSubmatch(out.String())
		return m != nil
	})
	return m[2], m[1] + "metrics"
}

// series returns the values of metrics, by the values of the given labels.
func series(t *testing.T, text, name string, labels ...string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, s := range disktest.ReadMetrics(t, text)[0] {
		if s.Name == name && s.Value != 0 {
			var key []string
			for _, l := range labels {
				key = append(key, s.Labels[l])
			}
			out[strings.Join(key, " ")] = s.Value
		}
	}
	return out
}

// The page of a fleet shows the outcome of each job, and the report of the last scan. The exit code of a worker with
// --once tells whether its jobs are done.
func TestPageOfAFleet(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.disk(t, "a.img")
	strange(t, s.disk(t, "strange.img"))
	page, metrics := s.shown(t)
	require.Contains(t, body(t, page), "There are no jobs, and no workers.")

	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	s.run(t, "", "submit", "scan", "--datastore", "ds1")
	s.once(t, 0)
	s.run(t, "", "submit", "align", "--datastore", "ds1", "strange.img")
	s.once(t, 4) // one is refused
	s.run(t, "", "submit", "align", "--datastore", "ds1", "absent.img")
	s.once(t, 1) // one is dead

	jobs := map[string]float64{"align done": 1, "scan done": 1, "align refused": 1, "align dead": 1}
	disktest.WaitFor(t, "the jobs", func() bool {
		got := series(t, body(t, metrics), "trueup_fleet_jobs", "kind", "state")
		return len(got) == len(jobs) && got["align refused"] == 1 && got["align dead"] == 1
	})
	text := body(t, metrics)
	require.Equal(t, jobs, series(t, text, "trueup_fleet_jobs", "kind", "state"))
	require.Len(t, series(t, text, "trueup_fleet_failures", "state"), 2)
	require.Greater(t, series(t, text, "trueup_fleet_copied_bytes")[""], float64(16<<20))
	text = body(t, page)
	for _, want := range []string{"ds1: a.img", "ds1: strange.img", "boot code", `<a href="report">`} {
		require.Contains(t, text, want)
	}
	report := body(t, page+"report")
	require.Contains(t, report, "strange.img")
	require.Contains(t, report, "Content-Security-Policy")
	require.Equal(t, report, body(t, page+"report"), "it is read again")
	left, err := os.ReadDir(s.temp)
	require.NoError(t, err)
	require.Empty(t, left, "a kill would leave it")
}

// The metrics of a worker count its work.
func TestMetricsOfAWorker(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.disk(t, "a.img")
	s.run(t, "", "submit", "align", "--datastore", "ds1", "a.img")
	w := s.worker(t, "--metrics", ":0", "--window", "00:00-00:00", "--log-json")
	s.until(t, ended)
	var log struct{ URL string }
	for line := range strings.Lines(w.said.String()) {
		if strings.Contains(line, "metrics are served") {
			require.NoError(t, json.Unmarshal([]byte(line), &log))
		}
	}
	var text string
	disktest.WaitFor(t, "the end of the attempt", func() bool {
		text = body(t, log.URL)
		return len(series(t, text, "trueup_fleet_worker_attempts_total", "kind", "outcome")) > 0
	})
	require.Equal(t, map[string]float64{"align done": 1},
		series(t, text, "trueup_fleet_worker_attempts_total", "kind", "outcome"))
	require.Greater(t, series(t, text, "trueup_fleet_worker_copied_bytes_total", "datastore")["ds1"], float64(16<<20))
	page, _ := s.shown(t)
	disktest.WaitFor(t, "the worker", func() bool {
		return strings.Contains(body(t, page), "1 job at once for each of: ds1")
	})
}

func TestVersion(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	require.Zero(t, fleetcmd.Run(t.Context(), "v1.2.3", []string{"version"}, nil, &out, &errOut))
	require.Equal(t, "trueup-fleet v1.2.3\n", out.String())
	out.Reset()
	require.Zero(t, fleetcmd.Run(t.Context(), "v1.2.3", []string{"version", "--json"}, nil, &out, &errOut))
	require.JSONEq(t, `{"version": "v1.2.3", "go": "`+runtime.Version()+`"}`, out.String())
}

// TestExamples runs the examples of the fleet's page, with a server.
func TestExamples(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	self, err := os.Executable()
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(self, filepath.Join(bin, "trueup")))
	program := fmt.Sprintf("#!/bin/sh\n%s=1 exec '%s' \"$@\" --nats %s\n", asFleet, self, s.url)
	require.NoError(t, os.WriteFile(filepath.Join(bin, "trueup-fleet"), []byte(program), 0o755))
	require.Positive(t, disktest.RunExamples(t, "../../docs/fleet.md", bin))
}
