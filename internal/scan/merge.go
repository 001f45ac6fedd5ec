package scan

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/units"
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
	boundary int64                      // of all rows; 0: none has one yet
	storages map[string]bool
	roots    results.Roots // of the part at rootsLine
	rootsOfN *results.Summary
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
	part  part // without a summary if the file ends before one
	roots results.Roots
}

// Run reads all files and returns the report, ranked. Close it.
func (t *MergeTask) Run(ctx context.Context) (out *Merged, err error) {
	m := &merging{
		MergeTask: t, summary: results.NewSummary(), copies: map[string]*results.Copies{}, storages: map[string]bool{},
		shards: map[library]map[int]int{}, table: &table{ctx: ctx, textAt: map[string]int32{}},
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
	if err := m.table.join(); err != nil {
		return nil, err
	}
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
	if s.Boundary = m.boundary; s.Boundary == 0 {
		s.Boundary = align.DefaultBoundary
	}
	s.Storage = align.Generic().Name
	if len(m.storages) > 0 {
		s.Storage = strings.Join(slices.Sorted(maps.Keys(m.storages)), "+")
	}
}

// rootsOf returns the paths of a scan, kept for the rows that follow.
func (m *merging) rootsOf(p part) results.Roots {
	if m.rootsOfN != p.Summary {
		m.rootsOfN, m.roots = p.Summary, results.NewRoots(p.Paths)
	}
	return m.roots
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
		if m.boundary == 0 {
			m.boundary = d.Boundary
		}
		if d.Boundary != m.boundary {
			return runError{ondisk.In(ondisk.ErrUsage, "line %d: judged with --boundary %s, and rows before with "+
				"%s; a report needs results of one", at.Number, units.Short(d.Boundary), units.Short(m.boundary))}
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
	sums := labelSums{}
	err := m.table.each(func(r row) error {
		m.complete(r)
		r.kept.order(r.Image)
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
	sums.put(m.summary.Merged)
	m.summary.Merged.Unknown = m.table.unidentified()
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

// labelSums adds up images by their labels.
type labelSums struct {
	sums map[[2]string]*results.LabelSum
	left map[[2]string]bool // labels without a sum; as many as there are sums
}

// add counts an image for each of its labels.
func (l *labelSums) add(i *results.Image) {
	if l.sums == nil {
		l.sums, l.left = map[[2]string]*results.LabelSum{}, map[[2]string]bool{}
	}
	for key, values := range i.Labels {
		for _, value := range values {
			at := [2]string{key, value}
			sum := l.sums[at]
			switch {
			case sum == nil && len(l.sums) < maxLabelSums:
				sum = &results.LabelSum{Key: key, Value: value}
				l.sums[at] = sum
			case sum == nil:
				if len(l.left) < maxLabelSums {
					l.left[at] = true
				}
				continue
			}
			sum.Add(i)
		}
	}
}

// put puts the sums into those of a report, sorted.
func (l *labelSums) put(m *results.Merged) {
	m.Labels, m.LabelsCut = []results.LabelSum{}, len(l.left)
	order := func(a, b [2]string) int { return cmp.Or(strings.Compare(a[0], b[0]), strings.Compare(a[1], b[1])) }
	for _, at := range slices.SortedFunc(maps.Keys(l.sums), order) {
		m.Labels = append(m.Labels, *l.sums[at])
	}
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
