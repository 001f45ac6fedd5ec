package results

import (
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
	"github.com/trueup/trueup/internal/report/metrics"
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
	common := label("library", strings.Join(s.Paths, " "))
	if s.Shard != "" {
		common += "," + label("shard", s.Shard)
	}
	m := metrics.New(w, common)
	imageMetrics(m, s)
	fixMetrics(m, s)
	if s.Merged != nil {
		labelMetrics(m, s.Merged.Labels)
		if b := s.Merged.Before; b != nil {
			m.Gauge("trueup_images_before", "Images at the time of --since, by verdict.", b.samples("")...)
		}
	}
	if s.Fragmentation {
		fragmentMetrics(m, images)
	}
	m.Gauge("trueup_last_run_timestamp_seconds", "When the run ended, in seconds since 1970.",
		metrics.Of("", finished.Unix()))
	m.Gauge("trueup_last_run_duration_seconds", "How long the run took.", metrics.Of("", s.Took))
	m.Gauge("trueup_last_run_complete", "1 if all images were looked at, 0 if the run was interrupted.",
		metrics.Of("", metrics.Bool(s.Complete)))
	m.Gauge("trueup_last_run_exit_code", "Exit code of the run: 1 for errors, 2 and 3 for partitions off a boundary.",
		metrics.Of("", int64(s.ExitCode)))
	m.Gauge("trueup_last_run_read_bytes", "Bytes read from images.", metrics.Of("", s.Read))
	m.Gauge("trueup_scan_info", "Always 1. Version of trueup, criterion, storage, and how far images were isolated.",
		metrics.Of(strings.Join([]string{
			label("version", s.Version), label("boundary", units.Short(s.Boundary)), label("storage", s.Storage),
			label("isolation", s.Isolation.Achieved),
		}, ","), 1))
	return m.Flush() // an earlier error comes again
}

func imageMetrics(m *metrics.Writer, s *Summary) {
	m.Gauge("trueup_images", "Images by verdict; failed: no verdict, orphan: an extent that no image names, packed: "+
		"compressed and not judged, original: of an exchanged disk, kept.",
		metrics.Of(`verdict="aligned"`, int64(s.Aligned)), metrics.Of(`verdict="below_boundary"`, int64(s.Below)),
		metrics.Of(`verdict="misaligned"`, int64(s.Misaligned)),
		metrics.Of(`verdict="nothing_to_judge"`, int64(s.Nothing)), metrics.Of(`verdict="packed"`, int64(s.Packed)),
		metrics.Of(`verdict="failed"`, int64(s.Failed)), metrics.Of(`verdict="orphan"`, int64(s.Orphans)),
		metrics.Of(`verdict="original"`, int64(s.Originals)))
	m.Gauge("trueup_images_with_nothing_to_judge", "Images with neither partition nor volume, by what they hold.",
		samplesOf("content", s.Contents)...)
	m.Gauge("trueup_images_by_head", "Images of any verdict that are packed and were judged by their first bytes.",
		metrics.Of("", int64(s.Heads)))
	m.Gauge("trueup_images_accepted", "Images of any verdict that the ignore file accepts.",
		metrics.Of("", int64(s.Accepted)))
	m.Gauge("trueup_images_by_format", "Images whose format is known.", samplesOf("format", s.Formats)...)
	m.Gauge("trueup_errors", "Images without a verdict, by the code of the error.", samplesOf("code", s.Errors)...)
	m.Gauge("trueup_unreadable_places", "Folders and files that could not be looked at.",
		metrics.Of("", int64(len(s.Unreadable))))
	m.Gauge("trueup_skipped_files", "Files that are no images.", metrics.Of("", int64(s.Skipped)))
	if c := s.Changes; c != nil {
		m.Gauge("trueup_changes",
			"Images by what became of them since the last run with the same catalogue, or since --since.",
			metrics.Of(`change="new"`, int64(c.New)), metrics.Of(`change="changed"`, int64(c.Changed)),
			metrics.Of(`change="same"`, int64(c.Same)), metrics.Of(`change="removed"`, int64(c.Removed)))
	}
}

func fixMetrics(m *metrics.Writer, s *Summary) {
	m.Gauge("trueup_fix_images",
		"Images off the boundary and not accepted, by whether an aligned copy can be made, stands beside the image, "+
			"or would have worse places.",
		metrics.Of(`outcome="possible"`, int64(s.Fix.Images)), metrics.Of(`outcome="refused"`, int64(s.Fix.Refused)),
		metrics.Of(`outcome="copied"`, int64(s.Copied)), metrics.Of(`outcome="stays"`, int64(s.Fix.Stays)))
	m.Gauge("trueup_fix_copy_bytes", "Bytes to read and to write for all aligned copies that can be made.",
		metrics.Of("", s.Fix.Copies))
	m.Gauge("trueup_fix_growth_bytes", "How much larger the disks of these copies are.", metrics.Of("", s.Fix.Grows))
}

// fragments writes the sums of the files that were counted, of all volumes.
func fragmentMetrics(m *metrics.Writer, images iter.Seq[*Image]) {
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
	m.Gauge("trueup_guest_files", "Files of guests that have blocks, by the pieces that they lie in.",
		metrics.Of(one, files.Placed-files.Fragmented), metrics.Of(several, files.Fragmented))
	m.Gauge("trueup_guest_file_bytes", "Bytes that these files take.", metrics.Of(one, files.Bytes-files.Apart),
		metrics.Of(several, files.Apart))
	m.Gauge("trueup_guest_free_bytes", "Free space of volumes whose files were counted.", metrics.Of("", free.Bytes))
	m.Gauge("trueup_guest_free_pieces", "Pieces that this free space lies in.", metrics.Of("", free.Pieces))
}

// label returns a label with its value, cut as for a terminal. No line feed is left to escape.
func label(name, value string) string { return metrics.Label(name, report.Safe(value)) }

// samplesOf returns the numbers of a map, sorted by their names.
func samplesOf(name string, counts map[string]int) (out []metrics.Sample) {
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, metrics.Of(label(name, k), counts[k]))
	}
	return out
}
