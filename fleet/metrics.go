package fleet

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Metrics writes the Prometheus text format, version 0.0.4. Flush returns errors.
type Metrics struct{ w *bufio.Writer }

// NewMetrics returns metrics that are written to w.
func NewMetrics(w io.Writer) *Metrics { return &Metrics{bufio.NewWriter(w)} }

// Sample is a value with its labels.
type Sample struct {
	labels string
	value  any
}

// SampleOf returns a sample of an integer or a float.
func SampleOf(labels string, value any) Sample { return Sample{labels, value} }

// Labels formats label names and values, given in pairs.
func Labels(pairs ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	var out []string
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, pairs[i]+`="`+escape.Replace(Plain(pairs[i+1]))+`"`) // Plain has replaced line feeds
	}
	return strings.Join(out, ",")
}

// Gauge writes a gauge. Without samples it writes nothing.
func (m *Metrics) Gauge(name, help string, samples ...Sample) { m.write("gauge", name, help, samples) }

// Counter writes a counter.
func (m *Metrics) Counter(name, help string, samples ...Sample) {
	m.write("counter", name, help, samples)
}

func (m *Metrics) write(kind, name, help string, samples []Sample) {
	if len(samples) == 0 {
		return
	}
	fmt.Fprintf(m.w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	for _, s := range samples {
		labels := ""
		if s.labels != "" {
			labels = "{" + s.labels + "}"
		}
		fmt.Fprintf(m.w, "%s%s %v\n", name, labels, s.value)
	}
}

// Flush writes buffered data and returns the first error.
func (m *Metrics) Flush() error { return m.w.Flush() }
