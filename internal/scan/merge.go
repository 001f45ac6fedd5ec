package scan

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
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
)

// ReportFile is a file with results, and labels of its rows that have none of these keys.
type ReportFile struct {
	Path   string
	Labels results.Labels
}

// ReportFiles divides the arguments of a command line: KEY=VALUE labels the files behind it.
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
		given = maps.Clone(given) // earlier files keep theirs
		given[key] = []string{value}
	}
	if len(out) == 0 {
		return nil, ondisk.In(ondisk.ErrUsage, "report takes a FILE, none given; see trueup report --help")
	}
	return out, nil
}

// MergeTask is one report of the results of many scans, which are lines of JSON, as a value. Rows about one image
// become one. The rows stay in their files: memory has some 200 bytes for each, by which they are joined and sorted.
type MergeTask struct {
	Files        []ReportFile
	Version      string // of the program
	Fail         results.FailOn
	AllowUnknown bool
	AllowEmpty   bool
}

// label adds the labels of a file that have none of these keys.
func (f ReportFile) label(l results.Labels) results.Labels {
	for key, values := range f.Labels {
		if l[key] == nil {
			l = l.Merge(results.Labels{key: values})
		}
	}
	return l
}

// Merged is a report whose rows are read from their files.
type Merged struct {
	*results.Report
	table *table
}

// Err returns the first error of reading rows, which ends them.
func (m *Merged) Err() error {
	if m.table.err == nil {
		return nil
	}
	return cmp.Or(m.table.ctx.Err(), m.table.err)
}

// Close closes the files.
func (m *Merged) Close() error { return m.table.close() }

// merging is a Task at work.
type merging struct {
	*MergeTask
	table    *table
	summary  *results.Summary
	copies   map[string]*results.Copies // by where paths lie: names beside each other in one place only
	boundary align.Boundary             // of all rows; 0: none has one yet
	storages map[string]bool
	shards   map[library]map[int]int // how often each share was read
}

// library is what shards are of: PATHs, and how many shares they have.
type library struct {
	paths string
	n     int
}

// source is where a row stands.
type source struct {
	ReportFile
	results.Line
	part part // without a summary if the file ends before one
}

// Run reads all files and returns the report, ranked. Close it.
func (t *MergeTask) Run(ctx context.Context) (out *Merged, err error) {
	m := &merging{
		MergeTask: t, summary: results.NewSummary(), copies: map[string]*results.Copies{}, storages: map[string]bool{},
		shards: map[library]map[int]int{},
		table:  &table{ctx: ctx, textAt: map[string]int32{}, labelAt: map[string]int32{}},
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
	if err := m.settle(); err != nil {
		return nil, err
	}
	m.finish(start)
	r := &results.Report{Summary: s, Fail: t.Fail, Images: m.table.sorted(m.complete)}
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

// take keeps a row. Only a runError ends the run, any other is one of the row.
func (m *merging) take(i *results.Image, at source) error {
	if i.State == results.Gone {
		return nil
	}
	i.Labels = at.label(i.Labels)
	if err := i.Check(); err != nil {
		return err
	}
	for _, d := range i.Disks {
		if m.boundary == (align.Boundary{}) {
			m.boundary = d.Boundary
		}
		if d.Boundary != m.boundary {
			return runError{ondisk.In(ondisk.ErrUsage, "line %d: judged with --boundary %s, and rows before with "+
				"%s; a report needs results of one", at.Number, d.Boundary, m.boundary)}
		}
	}
	i.Settle(results.BoundaryFlags(m.boundary))
	if at.part.Summary != nil && at.part.Storage != "" && len(m.storages) < maxStorages {
		m.storages[at.part.Storage] = true
	}
	i.SetPath(i.ExactPath())
	if i.Verdict == align.Aligned {
		m.copiesIn(placeOf(i, at)).Add(i)
	}
	m.summary.Merged.Rows++
	return m.table.put(i, at)
}

const maxStorages = 64

// copiesIn returns the copies in a place.
func (m *merging) copiesIn(place string) *results.Copies {
	c := m.copies[place]
	if c == nil {
		c = results.NewCopies()
		m.copies[place] = c
	}
	return c
}

// settle takes the rows that are left, one for each image, into the sums, and has the table sort them.
func (m *merging) settle() error {
	sums := labelSums{map[label]*results.LabelSum{}, map[label]bool{}}
	err := m.table.each(func(r row) error {
		m.complete(r)
		r.kept.order = r.Order()
		m.summary.Add(r.Image)
		m.summary.Exit(r.Image, m.Fail)
		sums.add(r.Image)
		if r.Joined != nil {
			m.summary.Merged.Joined++
		}
		return nil
	})
	if err != nil {
		return err
	}
	merged := m.summary.Merged
	merged.Labels, merged.LabelsCut, merged.Unknown = sums.sorted(), len(sums.left), m.table.unidentified()
	m.table.sort()
	return nil
}

// complete completes a row as a scan does. Of copies all that are aligned are known by now.
func (m *merging) complete(r row) {
	i := r.Image
	i.Tolerated, i.Change = m.AllowUnknown, ""
	i.Settle(results.BoundaryFlags(m.boundary))
	if c := m.copies[m.table.placeOf(r)]; c != nil && c.Wants(i) {
		c.Add(i)
		c.Mark(i)
	}
}

// lost notes a part of the input that could not be read.
func (m *merging) lost(path, code, message string) {
	m.summary.Lose(results.Unreadable{Path: path, Error: report.Error{Code: code, Message: message}}, m.Fail)
}

// maxLabelSums bounds the labels of which there are sums.
const maxLabelSums = 1000

// label is a key with one value.
type label struct{ key, value string }

// labelSums adds up images by their labels.
type labelSums struct {
	sums map[label]*results.LabelSum
	left map[label]bool // labels without a sum; as many as there are sums
}

// add counts an image for each of its labels.
func (l *labelSums) add(i *results.Image) {
	for key, values := range i.Labels {
		for _, value := range values {
			at := label{key, value}
			if l.sums[at] == nil && len(l.sums) < maxLabelSums {
				l.sums[at] = &results.LabelSum{Key: key, Value: value}
			}
			if sum := l.sums[at]; sum != nil {
				sum.Add(i)
			} else if len(l.left) < maxLabelSums {
				l.left[at] = true
			}
		}
	}
}

// sorted returns the sums by their labels.
func (l *labelSums) sorted() []results.LabelSum {
	out := []results.LabelSum{}
	for _, sum := range l.sums {
		out = append(out, *sum)
	}
	slices.SortFunc(out, func(a, b results.LabelSum) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value))
	})
	return out
}

// below returns a path below the only root; empty if there are several, where folders can have images of one name, or
// if it does not lie there. A root that is an image has no path below itself.
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

// part is where the summary of one scan stands in a file: results of several may follow each other.
type part struct {
	line int // its number
	*results.Summary
	roots results.Roots // the paths of the scan
}

// summaries returns those of a file, in their order.
func summaries(r io.Reader) (out []part, err error) {
	size := 0
	err = results.Lines(r, results.MaxLine, func(l results.Line) error {
		if !bytes.Contains(l.Text, []byte(`"summary"`)) {
			return nil
		}
		if event, unknown, err := l.Kind(); event != "summary" || unknown != nil || err != nil {
			return nil //nolint:nilerr // said when the rows are read
		}
		s, err := l.Summary()
		if err != nil {
			return nil //nolint:nilerr // as above
		}
		if size += len(l.Text); size > results.MaxLine {
			return fmt.Errorf("line %d: %w of %d bytes for all summaries of a file", l.Number, ondisk.ErrLimit,
				results.MaxLine)
		}
		out = append(out, part{l.Number, s, results.NewRoots(s.Paths)})
		return nil
	})
	return out, err
}

// file reads one file into the table, which keeps it open.
func (m *merging) file(f ReportFile) error {
	in, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	m.table.files = append(m.table.files, in)
	parts, err := summaries(in)
	if err == nil {
		_, err = in.Seek(0, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	return m.rowsOf(f, in, parts)
}

// rowsOf reads the rows of a file. Damaged lines are noted, and the others are read all the same.
func (m *merging) rowsOf(f ReportFile, in io.Reader, parts []part) error {
	good, open := 0, 0 // lines that are results; rows without a summary yet
	var first error
	sum := newSums() // of the rows since the last summary
	err := results.Lines(in, results.MaxLine, func(l results.Line) error {
		event, unknown, err := l.Kind()
		if unknown != nil {
			return fmt.Errorf("line %d: %w", l.Number, unknown)
		}
		at := source{ReportFile: f, Line: l}
		if len(parts) > 0 {
			at.part = parts[0]
		}
		switch {
		case err != nil:
		case event == "summary":
			if len(parts) > 0 && parts[0].line == l.Number {
				m.addUp(parts[0], sum, f)
				m.endOf(parts[0], f)
				parts, open, good = parts[1:], 0, good+1
				sum = newSums()
				return nil
			}
			_, err = l.Summary()
		default:
			var i *results.Image
			if i, err = l.Image(); err == nil {
				good, open = good+1, open+1
				err = m.take(i, at)
			}
			if err == nil {
				sum.Add(i)
			}
		}
		if _, ends := errors.AsType[runError](err); err != nil && !ends {
			if first == nil {
				first = fmt.Errorf("line %d: %w", l.Number, err)
			}
			m.lost(fmt.Sprintf("%s: line %d", f.Path, l.Number), "format", err.Error())
			return nil
		}
		return err
	})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", f.Path, err)
	case good == 0 && first != nil:
		return ondisk.In(ondisk.ErrUnsupported, "%s: no result of trueup scan -o json: %w", f.Path, first)
	case open > 0 || good == 0:
		m.lost(f.Path, "reference", "it does not end with a summary: the scan was killed, or the file is cut, "+
			"and images may be missing")
	}
	return nil
}

func newSums() *results.Summary {
	s := results.NewSummary()
	s.Changes = &results.Changes{}
	return s
}

// addUp notes the first sum of a summary that its rows do not have: files lose lines when they are copied or filtered.
func (m *merging) addUp(p part, rows *results.Summary, f ReportFile) {
	name, stated, found := p.differs(rows)
	if name == "" {
		return
	}
	m.lost(fmt.Sprintf("%s: line %d", f.Path, p.line), "reference", fmt.Sprintf("the summary counts %d %s, and its "+
		"rows are %d: lines are missing or were changed; copy the file from its source again, or repeat the scan",
		stated, name, found))
}

// differs returns the first sum of a summary that its rows do not have.
func (p part) differs(rows *results.Summary) (name string, stated, found int) {
	if c := p.Changes; c != nil && c.Same > 0 && rows.Changes.Same == 0 { // only scan --changed writes no such rows
		if want := p.Images - c.Same; rows.Images != want {
			return "new or changed images", want, rows.Images
		}
		return "", 0, 0
	}
	for _, n := range []struct {
		name         string
		stated, rows int
	}{
		{"images", p.Images, rows.Images},
		{"failed images", p.Failed, rows.Failed},
		{"misaligned images", p.Misaligned, rows.Misaligned},
		{"images below the boundary", p.Below, rows.Below},
		{"aligned images", p.Aligned, rows.Aligned},
	} {
		if n.stated != n.rows {
			return n.name, n.stated, n.rows
		}
	}
	return "", 0, 0
}

// endOf takes the sums of a scan.
func (m *merging) endOf(p part, f ReportFile) {
	s := m.summary
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

// shard notes a share that was read, and returns its number.
func (m *merging) shard(p part, f ReportFile) int {
	shard, err := ParseShard(p.Shard)
	if err != nil {
		m.lost(f.Path, "format", fmt.Sprintf("a summary with the shard %.40q, want K/N", p.Shard))
		return 0
	}
	of := library{strings.Join(p.Paths, " "), shard.N}
	if m.shards[of] == nil {
		m.shards[of] = map[int]int{}
	}
	m.shards[of][shard.K]++
	return shard.K
}

// missing notes shares that were read less often than others of the same library: their images are not in the report.
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

// least returns the lesser of two times that are not empty.
func least(a, b string) string {
	if a == "" || b < a {
		return b
	}
	return a
}
