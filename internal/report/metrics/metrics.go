// Package metrics writes the text format of Prometheus, version 0.0.4.
package metrics

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// Writer writes metrics. Errors come from Flush.
type Writer struct {
	w      *bufio.Writer
	common string
}

// New returns a writer whose samples all have some labels, with commas between; empty: none.
func New(w io.Writer, common string) *Writer { return &Writer{bufio.NewWriter(w), common} }

// Sample is a number and the labels that distinguish it.
type Sample struct {
	labels string
	value  any
}

// Of returns a sample, of an integer or a float.
func Of(labels string, value any) Sample { return Sample{labels, value} }

// Label returns a label with its value, which is printable.
func Label(name, value string) string {
	return name + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(value) + `"`
}

// Bool returns the number of a truth.
func Bool(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// Gauge writes a metric. One without samples is left out: nothing was counted under any of its labels.
func (m *Writer) Gauge(name, help string, samples ...Sample) { m.write("gauge", name, help, samples) }

// Counter writes a metric that only grows while the program runs.
func (m *Writer) Counter(name, help string, samples ...Sample) {
	m.write("counter", name, help, samples)
}

func (m *Writer) write(kind, name, help string, samples []Sample) {
	if len(samples) == 0 {
		return
	}
	fmt.Fprintf(m.w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	for _, s := range samples {
		labels := strings.Trim(m.common+","+s.labels, ",")
		if labels != "" {
			labels = "{" + labels + "}"
		}
		fmt.Fprintf(m.w, "%s%s %v\n", name, labels, s.value)
	}
}

// Flush writes what is left, and returns the first error.
func (m *Writer) Flush() error { return m.w.Flush() }
