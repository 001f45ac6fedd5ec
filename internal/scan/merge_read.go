package scan

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/scan/results"
)

// part is where the summary of one scan stands in a file: results of several may follow each other.
type part struct {
	line int // its number
	*results.Summary
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
		out = append(out, part{l.Number, s})
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
	sum := newRowSums() // of the rows since the last summary
	err := results.Lines(in, results.MaxLine, func(l results.Line) error {
		event, unknown, err := l.Kind()
		if unknown != nil {
			return fmt.Errorf("line %d: %w", l.Number, unknown)
		}
		at := source{ReportFile: f, Line: l}
		if len(parts) > 0 {
			at.part, at.roots = parts[0], m.rootsOf(parts[0])
		}
		switch {
		case err != nil:
		case event == "summary":
			if len(parts) > 0 && parts[0].line == l.Number {
				m.addUp(parts[0], sum, f)
				m.endOf(parts[0], f)
				parts, open, good = parts[1:], 0, good+1
				sum = newRowSums()
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

// rowSums are the sums of rows, to compare with their summary.
type rowSums struct {
	*results.Summary
	same int // rows of images that have not changed
}

func newRowSums() *rowSums { return &rowSums{Summary: results.NewSummary()} }

// Add counts a row that was checked.
func (s *rowSums) Add(i *results.Image) {
	s.Summary.Add(i)
	if i.Change == results.Same {
		s.same++
	}
}

// addUp notes the first sum of a summary that its rows do not have: files lose lines when they are copied or filtered.
func (m *merging) addUp(p part, rows *rowSums, f ReportFile) {
	name, stated, found := p.differs(rows)
	if name == "" {
		return
	}
	m.lost(fmt.Sprintf("%s: line %d", f.Path, p.line), "reference", fmt.Sprintf("the summary counts %d %s, and its "+
		"rows are %d: lines are missing or were changed; copy the file from its source again, or repeat the scan",
		stated, name, found))
}

// differs returns the first sum of a summary that its rows do not have.
func (p part) differs(rows *rowSums) (name string, stated, found int) {
	if c := p.Changes; c != nil && c.Same > 0 && rows.same == 0 { // only scan --changed writes no such rows
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
	k, n := shardOf(p.Shard)
	if n == 0 {
		m.lost(f.Path, "format", fmt.Sprintf("a summary with the shard %.40q, want K/N", p.Shard))
		return 0
	}
	of := library{strings.Join(p.Paths, " "), n}
	if m.shards[of] == nil {
		m.shards[of] = map[int]int{}
	}
	m.shards[of][k]++
	return k
}

// shardOf returns share k of n; 0 of 0 for any other text.
func shardOf(s string) (k, n int) {
	if _, err := fmt.Sscanf(s, "%d/%d", &k, &n); err != nil || k < 1 || k > n || n > maxShards {
		return 0, 0
	}
	return k, n
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
