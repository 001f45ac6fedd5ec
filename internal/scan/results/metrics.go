package results

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/fragments"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/units"
)

var metricsFormat = Format{
	Name: "prometheus", Write: func(w io.Writer, r *Report) error { return writeMetrics(w, r.Summary, r.Images) },
}

// writeMetrics writes the sums for the textfile collector of Prometheus's node_exporter, which takes no time stamps.
// Every sample has the label library, the paths that were scanned, so that one machine can have a file for each of
// several libraries. Images are not named: each would be a series of its own. See docs/scan-reports.md.
func writeMetrics(w io.Writer, s *Summary, images iter.Seq[*Image]) error {
	finished, err := time.Parse(time.RFC3339, s.Finished)
	if err != nil {
		return fmt.Errorf("metrics: end of the run: %w", err)
	}
	m := &metrics{bufio.NewWriter(w), label("library", strings.Join(s.Paths, " "))}
	if s.Shard != "" {
		m.common += "," + label("shard", s.Shard)
	}
	m.images(s)
	m.fix(s)
	if s.Merged != nil {
		m.labels(s.Merged.Labels)
		if b := s.Merged.Before; b != nil {
			m.gauge("trueup_images_before", "Images at the time of --since, by verdict.", b.samples("")...)
		}
	}
	if s.Fragmentation {
		m.fragments(images)
	}
	m.gauge("trueup_last_run_timestamp_seconds", "When the run ended, in seconds since 1970.",
		sample{"", finished.Unix()})
	m.gauge("trueup_last_run_duration_seconds", "How long the run took.", sample{"", s.Took})
	m.gauge("trueup_last_run_complete", "1 if all images were looked at, 0 if the run was interrupted.",
		sample{"", one(s.Complete)})
	m.gauge("trueup_last_run_exit_code", "Exit code of the run: 1 for errors, 2 and 3 for partitions off a boundary.",
		sample{"", int64(s.ExitCode)})
	m.gauge("trueup_last_run_read_bytes", "Bytes read from images.", sample{"", s.Read})
	m.gauge("trueup_scan_info", "Always 1. Version of trueup, criterion, storage, and how far images were isolated.",
		sample{strings.Join([]string{
			label("version", s.Version), label("boundary", units.Short(s.Boundary)), label("storage", s.Storage),
			label("isolation", s.Isolation.Achieved),
		}, ","), 1})
	return m.w.Flush() // an earlier error comes again
}

func (m *metrics) images(s *Summary) {
	m.gauge("trueup_images", "Images by verdict; failed: no verdict, orphan: an extent that no image names, packed: "+
		"compressed and not read, original: of an exchanged disk, kept.",
		sample{`verdict="aligned"`, int64(s.Aligned)}, sample{`verdict="below_boundary"`, int64(s.Below)},
		sample{`verdict="misaligned"`, int64(s.Misaligned)},
		sample{`verdict="nothing_to_judge"`, int64(s.Nothing)}, sample{`verdict="packed"`, int64(s.Packed)},
		sample{`verdict="failed"`, int64(s.Failed)}, sample{`verdict="orphan"`, int64(s.Orphans)},
		sample{`verdict="original"`, int64(s.Originals)})
	m.gauge("trueup_images_with_nothing_to_judge", "Images with neither partition nor volume, by what they hold.",
		samplesOf("content", s.Contents)...)
	m.gauge("trueup_images_accepted", "Images of any verdict that the ignore file accepts.",
		sample{"", int64(s.Accepted)})
	m.gauge("trueup_images_by_format", "Images whose format is known.", samplesOf("format", s.Formats)...)
	m.gauge("trueup_errors", "Images without a verdict, by the code of the error.", samplesOf("code", s.Errors)...)
	m.gauge("trueup_unreadable_places", "Folders and files that could not be looked at.",
		sample{"", int64(len(s.Unreadable))})
	m.gauge("trueup_skipped_files", "Files that are no images.", sample{"", int64(s.Skipped)})
	if c := s.Changes; c != nil {
		m.gauge("trueup_changes",
			"Images by what became of them since the last run with the same catalogue, or since --since.",
			sample{`change="new"`, int64(c.New)}, sample{`change="changed"`, int64(c.Changed)},
			sample{`change="same"`, int64(c.Same)}, sample{`change="removed"`, int64(c.Removed)})
	}
}

func (m *metrics) fix(s *Summary) {
	m.gauge("trueup_fix_images",
		"Images off the boundary and not accepted, by whether an aligned copy can be made, or stands beside the image.",
		sample{`outcome="possible"`, int64(s.Fix.Images)}, sample{`outcome="refused"`, int64(s.Fix.Refused)},
		sample{`outcome="copied"`, int64(s.Copied)})
	m.gauge("trueup_fix_copy_bytes", "Bytes to read and to write for all aligned copies that can be made.",
		sample{"", s.Fix.Copies})
	m.gauge("trueup_fix_growth_bytes", "How much larger the disks of these copies are.", sample{"", s.Fix.Grows})
}

// fragments writes the sums of the files that were counted, of all volumes.
func (m *metrics) fragments(images iter.Seq[*Image]) {
	var all *report.Fragmentation
	for i := range images {
		for _, d := range i.Disks {
			for _, f := range d.Fragmentation {
				all = all.With(f)
			}
		}
	}
	if all == nil {
		return
	}
	files, free := all.Files, cmp.Or(all.Free, &fragments.Free{})
	const one, several = `pieces="one"`, `pieces="several"`
	m.gauge("trueup_guest_files", "Files of guests that have blocks, by the pieces that they lie in.",
		sample{one, files.Placed - files.Fragmented}, sample{several, files.Fragmented})
	m.gauge("trueup_guest_file_bytes", "Bytes that these files take.", sample{one, files.Bytes - files.Apart},
		sample{several, files.Apart})
	m.gauge("trueup_guest_free_bytes", "Free space of volumes whose files were counted.", sample{"", free.Bytes})
	m.gauge("trueup_guest_free_pieces", "Pieces that this free space lies in.", sample{"", free.Pieces})
}

// metrics writes the text format of Prometheus, version 0.0.4.
type metrics struct {
	w      *bufio.Writer
	common string // the label of all samples
}

// sample is a number and the labels that distinguish it.
type sample struct {
	labels string
	value  any // an integer or a float
}

// gauge writes a metric. One without samples is left out: nothing was counted under any of its labels.
func (m *metrics) gauge(name, help string, samples ...sample) {
	if len(samples) == 0 {
		return
	}
	fmt.Fprintf(m.w, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
	for _, s := range samples {
		labels := m.common
		if s.labels != "" {
			labels += "," + s.labels
		}
		fmt.Fprintf(m.w, "%s{%s} %v\n", name, labels, s.value)
	}
}

// samplesOf returns the numbers of a map, sorted by their names.
func samplesOf(name string, counts map[string]int) (out []sample) {
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, sample{label(name, k), int64(counts[k])})
	}
	return out
}

// label writes a label with its value, cut as for a terminal. No line feed is left to escape.
func label(name, value string) string {
	return name + `="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(report.Safe(value)) + `"`
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
