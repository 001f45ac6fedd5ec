package scan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/units"
)

// ReportFile is a file of results, with labels for rows without these keys.
type ReportFile struct {
	Path   string
	Labels results.Labels
}

// ReportFiles parses the arguments of trueup report. KEY=VALUE labels the files after it.
func ReportFiles(args []string) (out []ReportFile, err error) {
	given := results.Labels{}
	for _, arg := range args {
		if key, _, is := strings.Cut(arg, "="); !is || strings.Contains(key, "/") {
			out = append(out, ReportFile{arg, given})
			continue
		}
		key, value, err := results.ParseLabel(arg)
		if err != nil {
			return nil, ondisk.In(ondisk.ErrUsage, "label: %w; a file with = in its name is written as ./FILE", err)
		}
		given = maps.Clone(given) // earlier files keep their labels
		given[key] = []string{value}
	}
	if len(out) == 0 {
		return nil, ondisk.In(ondisk.ErrUsage, "report takes a FILE, none given; see trueup report --help")
	}
	return out, nil
}

// MergeTask describes one report on the results of many scans, which are lines of JSON. Rows about one image become one
// row. The rows stay in their files: memory holds a record of some 200 bytes for each, to join and sort them.
type MergeTask struct {
	Files        []ReportFile
	Version      string // of the program
	Fail         results.FailOn
	AllowUnknown bool
	AllowEmpty   bool
}

// label adds the labels of the file to the labels of a row, except for keys that the row already has.
func (f ReportFile) label(l results.Labels) results.Labels {
	for key, values := range f.Labels {
		if l[key] == nil {
			l = l.Merge(results.Labels{key: values})
		}
	}
	return l
}

// Merged is a report that reads its rows from their files.
type Merged struct {
	*results.Report
	table *table
}

// Err returns the first error from reading rows. It ends the iteration.
func (m *Merged) Err() error {
	if m.table.err == nil {
		return nil
	}
	return cmp.Or(m.table.ctx.Err(), m.table.err)
}

// Close closes the files.
func (m *Merged) Close() error { return m.table.close() }

// merging is the state of a running MergeTask.
type merging struct {
	*MergeTask
	table     *table
	summary   *results.Summary
	boundary  align.Boundary // of all rows; zero before the first disk
	storages  map[string]bool
	shards    map[library]map[int]int // number of reads of each share
	libraries int                     // bytes of the PATHs in shards
}

// library identifies a set of images that is divided into shards, by its PATHs and the number of shards.
type library struct {
	paths string
	n     int
}

// Run reads all files and returns the ranked report. The caller must close it.
func (t *MergeTask) Run(ctx context.Context) (out *Merged, err error) {
	m := &merging{
		MergeTask: t, summary: results.NewSummary(), storages: map[string]bool{},
		shards: map[library]map[int]int{},
		table:  &table{ctx: ctx, labelAt: map[string]int32{}, seed: maphash.MakeSeed()},
	}
	defer func() {
		if err != nil {
			err = cmp.Or(ctx.Err(), errors.Join(err, m.table.close()))
		}
	}()
	s := m.summary
	s.Command, s.Version, s.AllowEmpty, s.FailOn = results.ReportCommand, t.Version, t.AllowEmpty, string(t.Fail)
	s.Complete, s.Merged = true, &results.Merged{}
	s.Isolation.Wanted, s.Isolation.Achieved = "none", "none"
	start := time.Now()
	for _, f := range t.Files {
		s.Paths = append(s.Paths, f.Path)
		if err := m.file(f); err != nil {
			return nil, err
		}
	}
	m.missing()
	m.table.join()
	if err := m.sumUp(); err != nil {
		return nil, err
	}
	m.finish(start)
	r := &results.Report{Summary: s, Fail: t.Fail, Images: m.table.sorted(m.complete), Rows: len(m.table.kept)}
	if r.NoneJudged() {
		s.ExitCode = t.Fail.Code(&results.Image{State: results.Failed})
	}
	return &Merged{r, m.table}, nil
}

// finish completes the sums.
func (m *merging) finish(start time.Time) {
	s := m.summary
	now := start.UTC().Format(time.RFC3339)
	if s.Started == "" {
		s.Started, s.Finished = now, now
	}
	s.Took = time.Since(start).Seconds()
	if s.Boundary = m.boundary; s.Boundary == (align.Boundary{}) {
		s.Boundary = align.DefaultBoundary
	}
	s.Storage = align.Generic().Name
	if len(m.storages) > 0 {
		s.Storage = strings.Join(slices.Sorted(maps.Keys(m.storages)), "+")
	}
}

// addRow adds a row of a file to the table. Only a runError ends the run; any other error concerns the row.
func (m *merging) addRow(i *results.Image, f ReportFile, l results.Line, rows *scanRows) error {
	if i.State == results.Gone {
		return nil
	}
	i.Labels = f.label(i.Labels)
	if err := i.Check(); err != nil {
		return err
	}
	for _, d := range i.Disks {
		if m.boundary == (align.Boundary{}) {
			m.boundary = d.Boundary
		}
		if d.Boundary != m.boundary {
			return runError{ondisk.In(ondisk.ErrUsage, "line %d: judged with --boundary %s, and rows before with "+
				"%s; a report needs results of one", l.Number, d.Boundary, m.boundary)}
		}
	}
	if rows.images++; i.Change == results.Same {
		rows.same++
	}
	m.summary.Merged.Rows++
	return m.table.put(i, l)
}

const maxStorages = 64

// sumUp adds the joined rows, one for each image, to the sums, and sorts the table.
func (m *merging) sumUp() error {
	sums, merged := labelSums{}, m.summary.Merged
	for k, i := range m.table.rows {
		m.complete(i)
		k.order = i.Order()
		m.summary.Add(i)
		m.summary.Exit(i, m.Fail)
		sums.add(i)
		if i.Joined != nil {
			merged.Joined++
		}
		if m.table.records[k.record].key == (sum{}) {
			merged.Unknown++
		}
	}
	merged.Labels = sums.sorted()
	m.table.sort()
	return m.table.err
}

// complete sets the fields of a row that depend on this report: verdict, priority, the path of the copy, and whether
// unknown content is accepted.
func (m *merging) complete(i *results.Image) {
	i.Tolerated, i.Change = m.AllowUnknown, ""
	i.Assess(results.BoundaryFlags(m.boundary))
	if i.Copied != "" { // the path in the row is not trusted
		i.Copied = i.CopyName()
	}
}

// lost records a missing or unreadable part of the input.
func (m *merging) lost(path, code, message string) {
	m.summary.Lose(results.Unreadable{Path: path, Error: report.Error{Code: code, Message: message}}, m.Fail)
}

// maxLabelSums bounds the number of labels with sums.
const maxLabelSums = 1000

// label is a key with one value.
type label struct{ key, value string }

// labelSums holds the sums of images by their labels.
type labelSums map[label]*results.LabelSum

// add counts an image for each of its labels.
func (l labelSums) add(i *results.Image) {
	for key, values := range i.Labels {
		for _, value := range values {
			at := label{key, value}
			if l[at] == nil && len(l) < maxLabelSums {
				l[at] = &results.LabelSum{Key: key, Value: value}
			}
			if sum := l[at]; sum != nil {
				sum.Add(i)
			}
		}
	}
}

// sorted returns the sums in the order of their labels.
func (l labelSums) sorted() []results.LabelSum {
	out := []results.LabelSum{}
	for _, sum := range l {
		out = append(out, *sum)
	}
	slices.SortFunc(out, func(a, b results.LabelSum) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value))
	})
	return out
}

// below returns a path relative to the only root. It returns an empty string for any other path, for the root itself,
// and for several roots, since their folders can contain images of the same name.
func below(r results.Roots, path string) string {
	for root := range r {
		switch rest, in := strings.CutPrefix(path, root+"/"); {
		case len(r) > 1:
		case in:
			return rest
		case root == "." && !strings.HasPrefix(path, "/"):
			return path
		}
	}
	return ""
}

// file reads a file into the table, which keeps the file open.
func (m *merging) file(f ReportFile) error {
	in, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	m.table.files = append(m.table.files, in)
	if err := m.rowsOf(f, in); err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	return nil
}

// rowsOf reads the rows of a file. A file may contain the results of several scans, each with its summary. Damaged
// lines are reported and skipped.
func (m *merging) rowsOf(f ReportFile, in io.Reader) error {
	good, rows := 0, scanRows{}
	var first error
	err := results.Lines(in, results.MaxLine, func(l results.Line) error {
		event, unknown, err := l.Kind()
		switch {
		case unknown != nil:
			return fmt.Errorf("line %d: %w", l.Number, unknown)
		case err != nil:
		case event == "summary":
			var s *results.Summary
			if s, err = l.Summary(); err == nil {
				m.endScan(s, rows, f, l.Number)
				good, rows = good+1, scanRows{}
			}
		default:
			var i *results.Image
			if i, err = l.Image(); err == nil {
				good, rows.open = good+1, true
				err = m.addRow(i, f, l, &rows)
			}
		}
		if _, ends := errors.AsType[runError](err); err == nil || ends {
			return err
		}
		if first == nil {
			first = fmt.Errorf("line %d: %w", l.Number, err)
		}
		m.lost(fmt.Sprintf("%s: line %d", f.Path, l.Number), "format", err.Error())
		return nil
	})
	switch {
	case err != nil:
		return err
	case good == 0 && first != nil:
		return ondisk.In(ondisk.ErrUnsupported, "no result of trueup scan -o json: %w", first)
	case rows.open || good == 0:
		m.lost(f.Path, "reference", "it does not end with a summary: the scan was killed, or the file is cut, "+
			"and images may be missing")
		m.table.end(nil)
	}
	return nil
}

// scanRows counts the rows of a scan that has no summary yet.
type scanRows struct {
	open         bool // a row was read, even if it was rejected
	images, same int  // images that still exist, and the unchanged images among them
}

// endScan adds the summary of a scan to the sums.
func (m *merging) endScan(p *results.Summary, rows scanRows, f ReportFile, line int) {
	s := m.summary
	m.table.end(p)
	if rows.open && p.Storage != "" && len(m.storages) < maxStorages {
		m.storages[p.Storage] = true
	}
	want := p.Images
	if c := p.Changes; c != nil && rows.same == 0 { // scan --changed writes no rows for unchanged images
		want -= c.Same
	}
	if want != rows.images { // files lose lines when they are copied or filtered
		m.lost(fmt.Sprintf("%s: line %d", f.Path, line), "reference", fmt.Sprintf("the summary counts %d rows, and "+
			"there are %d: copy the file from its source again, or repeat the scan", want, rows.images))
	}
	s.Merged.Scans++
	s.Started, s.Finished = least(s.Started, p.Started), max(s.Finished, p.Finished)
	if !p.Complete {
		m.lost(f.Path, "reference", "the scan was interrupted, and images may be missing")
	}
	if p.Shard != "" && m.shard(p, f) != 1 {
		return // the first shard counts these files
	}
	s.Skipped, s.Temporary = s.Skipped+min(p.Skipped, results.MaxCount), s.Temporary+min(p.Temporary, results.MaxCount)
	if p.Leftover != "" {
		s.Leftover = least(s.Leftover, p.Leftover)
	}
	s.Links += min(p.Links, results.MaxCount)
	for _, u := range p.Unreadable {
		s.Lose(u, m.Fail)
	}
	s.UnreadableCount += p.UnreadableCount - len(p.Unreadable)
}

// shard counts a share as read and returns its number, or 0 for an invalid one.
func (m *merging) shard(p *results.Summary, f ReportFile) int {
	shard, err := ParseShard(p.Shard)
	if err != nil {
		m.lost(f.Path, "format", fmt.Sprintf("the summary has shard %.40q: must be K/N", p.Shard))
		return 0
	}
	of := library{strings.Join(p.Paths, " "), shard.N}
	if m.shards[of] == nil {
		if m.libraries += len(of.paths); m.libraries > results.MaxLine {
			m.lost(f.Path, "limit", fmt.Sprintf("the PATHs of all shards have more than %s, the most that is kept",
				units.Format(results.MaxLine)))
			return 0
		}
		m.shards[of] = map[int]int{}
	}
	m.shards[of][shard.K]++
	return shard.K
}

// missing reports shares that were read less often than others of the same library. Their images are not in the report.
func (m *merging) missing() {
	order := func(a, b library) int { return cmp.Or(strings.Compare(a.paths, b.paths), cmp.Compare(a.n, b.n)) }
	for _, of := range slices.SortedFunc(maps.Keys(m.shards), order) {
		read := m.shards[of]
		most, first, left := slices.Max(slices.Collect(maps.Values(read))), 0, 0
		for k := of.n; k > 0; k-- {
			if read[k] < most {
				first, left = k, left+1
			}
		}
		if left > 0 {
			m.lost(of.paths, "reference", fmt.Sprintf("no FILE has the results of %d of %d shards, such as %d/%d: "+
				"their images are missing; scan them, or name the FILE", left, of.n, first, of.n))
		}
	}
}

// least returns the lesser of two texts, or b if a is empty. b must not be empty.
func least(a, b string) string {
	if a == "" || b < a {
		return b
	}
	return a
}
