package results

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/report"
)

// metricsOf are the series of each of several runs.
func metricsOf(t *testing.T, runs ...*Summary) [][]disktest.Series {
	t.Helper()
	var texts []string
	for _, s := range runs {
		texts = append(texts, written(t, func(w io.Writer) error { return write(w, metricsFormat, s, nil) }))
	}
	return disktest.ReadMetrics(t, texts...)
}

func TestMetricsAreTheSums(t *testing.T) {
	s, _ := smallLibrary()
	s.Read = 1 << 40
	got := map[string]float64{}
	for _, m := range metricsOf(t, s)[0] {
		key := m.Name
		for _, name := range []string{"verdict", "content", "format", "code", "change", "outcome"} {
			if v, ok := m.Labels[name]; ok {
				key += " " + v
			}
		}
		require.Equal(t, "/t", m.Labels["library"])
		got[key] = m.Value
	}
	require.Equal(t, map[string]float64{
		"trueup_images aligned": 2, "trueup_images below_boundary": 2, "trueup_images misaligned": 5,
		"trueup_images nothing_to_judge": 2, "trueup_images packed": 1, "trueup_images_with_nothing_to_judge blank": 1,
		"trueup_images_with_nothing_to_judge unknown_content": 1, "trueup_images failed": 1, "trueup_images orphan": 1,
		"trueup_images original": 0, "trueup_images_by_head": 0, "trueup_images_accepted": 1, "trueup_errors format": 1,
		"trueup_unreadable_places": 1, "trueup_skipped_files": 4, "trueup_images_by_format vmdk": 5,
		"trueup_images_by_format ova": 2, "trueup_images_by_format raw": 3, "trueup_images_by_format gzip": 1,
		"trueup_images_by_format qcow2": 1, "trueup_changes new": 0, "trueup_changes changed": 0,
		"trueup_changes same": 14, "trueup_changes removed": 1, "trueup_fix_images possible": 3,
		"trueup_fix_images copied": 0, "trueup_fix_images refused": 3, "trueup_fix_images stays": 0,
		"trueup_fix_copy_bytes":   9 << 30,
		"trueup_fix_growth_bytes": 3 << 20, "trueup_last_run_timestamp_seconds": 1795291290,
		"trueup_last_run_duration_seconds": 90.3, "trueup_last_run_complete": 1, "trueup_last_run_exit_code": 1,
		"trueup_last_run_read_bytes": 1 << 40, "trueup_scan_info": 1,
	}, got)
}

// A library without an earlier scan and without errors has no series of them, and an interrupted run says so.
func TestMetricsOfNothing(t *testing.T) {
	s := NewSummary()
	s.Started, s.Finished = "2026-11-21T20:00:00Z", "2026-11-21T20:00:00.5Z"
	for _, m := range metricsOf(t, s)[0] {
		require.NotContains(t, []string{"trueup_changes", "trueup_errors", "trueup_images_by_format"}, m.Name)
		if m.Name == "trueup_last_run_complete" {
			require.Zero(t, m.Value)
		}
	}
}

func TestHostileTextsInMetrics(t *testing.T) {
	var runs []*Summary
	for _, text := range hostile {
		s, _ := smallLibrary()
		s.Paths, s.Version, s.Errors = []string{text}, text, map[string]int{text: 3}
		runs = append(runs, s)
	}
	for n, all := range metricsOf(t, runs...) {
		require.Equal(t, report.Safe(hostile[n]), all[0].Labels["library"])
		require.Equal(t, report.Safe(hostile[n]), all[len(all)-1].Labels["version"])
	}
}

// A time that is not one is our own fault, and no metric is better than a wrong one.
func TestMetricsNeedTimes(t *testing.T) {
	s, _ := smallLibrary()
	s.Finished = ""
	require.ErrorContains(t, write(&strings.Builder{}, metricsFormat, s, nil), "end of the run")
}
