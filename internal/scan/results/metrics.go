package results

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/report"
)

var metricsFormat = Format{
	Name: "prometheus", Write: func(w io.Writer, r *Report) error {
		m := runMetrics{Summary: r.Summary}
		finished, err := time.Parse(time.RFC3339, m.Finished)
		if err != nil {
			return fmt.Errorf("metrics: end of the run: %w", err)
		}
		m.Ended = finished.Unix()
		return metricsTemplate(w, m)
	},
}

// metricsTemplate lays out the sums in the text format of Prometheus, version 0.0.4. See docs/scan-reports.md.
var metricsTemplate = builtIn("scan.prometheus.tmpl")

// runMetrics are the sums of a run.
type runMetrics struct {
	*Summary
	Ended int64 // seconds since 1970
}

// With returns the labels of a sample, of pairs of names and values. Every sample has the label library, the paths that
// were scanned, so that one machine can have a file for each of several libraries.
func (m runMetrics) With(pairs ...string) string {
	all := []string{"library", strings.Join(m.Paths, " ")}
	if m.Shard != "" {
		all = append(all, "shard", m.Shard)
	}
	all = append(all, pairs...)
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	var out []string
	for n := 0; n < len(all); n += 2 {
		out = append(out, all[n]+`="`+escape.Replace(report.Safe(all[n+1]))+`"`) // no line feed is left
	}
	return "{" + strings.Join(out, ",") + "}"
}
