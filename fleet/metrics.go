package fleet

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Metrics writes the text format of Prometheus, version 0.0.4. Errors come from Flush.
type Metrics struct{ w *bufio.Writer }

// NewMetrics returns a writer of metrics to w.
func NewMetrics(w io.Writer) *Metrics { return &Metrics{bufio.NewWriter(w)} }

// Sample is a number and the labels that distinguish it.
type Sample struct {
	labels string
	value  any
}

// SampleOf returns a sample, of an integer or a float.
func SampleOf(labels string, value any) Sample { return Sample{labels, value} }

// Labels returns the labels of a sample, of pairs of names and values.
func Labels(pairs ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	var out []string
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, pairs[i]+`="`+escape.Replace(Plain(pairs[i+1]))+`"`) // no line feed is left
	}
	return strings.Join(out, ",")
}

// Gauge writes a metric. One without samples is left out: nothing was counted under any of its labels.
func (m *Metrics) Gauge(name, help string, samples ...Sample) { m.write("gauge", name, help, samples) }

// Counter writes a metric that only grows while the program runs.
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

// Flush writes what is left, and returns the first error.
func (m *Metrics) Flush() error { return m.w.Flush() }
