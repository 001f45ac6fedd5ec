package merge

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/scan/labels"
	"github.com/trueup/trueup/internal/scan/results"
)

// A report since a point in time compares the last results of images with the last ones that they had then. An image is
// found again by its spot: by where it is and not by what it is, since one that was realigned has other times, and
// often another inode.

// ParseSince returns the time of --since as a summary has it.
func ParseSince(s string) (string, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, s); err == nil {
			return at.UTC().Format(time.RFC3339), nil
		}
	}
	return "", ondisk.In(ondisk.ErrUsage, "--since %.40q, want a day, as 2026-11-01 (its beginning in UTC), or a "+
		"time, as 2026-11-01T06:00:00+01:00", s)
}

// byHost is the label of the host that scanned.
const byHost = "host"

// spot is where an image is from scan to scan.
type spot struct {
	name  string // empty: nothing says where it is
	scope string // the scans that would find it there; empty: nothing says which
	path  string // what one of these must have walked
}

// sum identifies a spot in the table; nil for none.
func (s spot) sum() []byte {
	if s.name == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(s.name))
	return sum[:]
}

// spotOf returns the spot of a row. Below a relative path it has none.
func spotOf(i *results.Image, at source) (s spot) {
	s.path = i.ExactPath()
	store, host := scopeOf(i.Labels, byDatastore), scopeOf(i.Labels, byHost)
	if s.scope = cmp.Or(store, host); at.part.Summary == nil || !strings.HasPrefix(s.path, "/") {
		return s
	}
	switch {
	case store == "" && i.FileSystem != "":
		s.name = fmt.Sprintf("%s %q %q", byFileSystem, i.FileSystem, s.path)
	case s.scope != "":
		s.name = fmt.Sprintf("%s %q", s.scope, s.path)
	}
	return s
}

// scopeOf returns what scans with a label have looked at; empty without one value of it.
func scopeOf(l labels.Labels, key string) string {
	if len(l[key]) != 1 {
		return ""
	}
	return fmt.Sprintf("%s %q", key, l[key][0])
}

// walk is a scan that has found all images below its paths.
type walk struct {
	started string
	roots   results.Roots
}

// walked notes a scan. One that could not read a place has not found what lies there, and a shard counts when all of
// them were read.
func (m *merging) walked(p part, f File) {
	if m.Since == "" || !p.Complete || !p.Whole || p.UnreadableCount > 0 {
		return
	}
	marks, started := f.label(p.Labels), p.Started
	scope := cmp.Or(scopeOf(marks, byDatastore), scopeOf(marks, byHost))
	if p.Shard != "" {
		k, n := shardOf(p.Shard)
		of := library{scope + "\x00" + strings.Join(p.Paths, "\x00"), n}
		if m.shares[of] == nil {
			m.shares[of] = map[int]string{}
		}
		m.shares[of][k] = max(m.shares[of][k], started)
		if len(m.shares[of]) < n {
			return
		}
		started = slices.Min(slices.Collect(maps.Values(m.shares[of])))
	}
	m.walks[scope] = append(m.walks[scope], walk{started, results.NewRoots(p.Paths)})
}

// missed reports whether a later scan would have found an image.
func (m *merging) missed(p pastRow) bool {
	return slices.ContainsFunc(m.walks[p.scope], func(w walk) bool { return w.started > p.last && w.roots.Has(p.path) })
}

// compare finds out what has become of all images since then.
func (m *merging) compare() error {
	if m.Since == "" {
		return nil
	}
	if m.earliest > m.Since {
		return ondisk.In(ondisk.ErrUsage, "--since %s: no scan had ended by then, the first did on %s; give a later "+
			"time, or an older FILE too", m.Since, m.earliest)
	}
	if err := m.table.supersede(m.missed); err != nil {
		return err
	}
	m.summary.Changes = &results.Changes{Since: m.Since}
	return m.table.each(func(r row) error {
		if r.change == "" {
			m.summary.Changes.Unplaced++
		}
		if r.change != results.Removed && r.Verdict == align.Aligned {
			m.copiesIn(r.place).Add(r.Image)
		}
		return nil
	})
}

// before adds what was known then to the sums.
func (m *merging) before(sums labelSums) error {
	m.summary.Merged.Before = &results.Sums{}
	return m.table.before(func(marks labels.Labels, was results.Sums) {
		m.summary.Merged.Before.Plus(was)
		sums.add(marks, func(l *results.LabelSum) {
			if l.Before == nil {
				l.Before = &results.Sums{}
			}
			l.Before.Plus(was)
		})
	})
}

// goneOf returns the row of an image that is not there any more.
func goneOf(i *results.Image) *results.Image {
	gone := results.NewImage("")
	gone.SetPath(i.ExactPath())
	gone.State, gone.Format, gone.Subformat = results.Gone, i.Format, i.Subformat
	gone.Size, gone.Stored, gone.Labels = i.Size, i.Stored, i.Labels
	return gone
}

// past has what a report since then needs of the spot of an image: the last scan that has seen it there, and what was
// known of it then.
const past = `CREATE TABLE past (spot BLOB PRIMARY KEY, scope TEXT NOT NULL, path BLOB NOT NULL, last TEXT NOT NULL,
	stamp TEXT, key BLOB, labels TEXT, digest BLOB, sums TEXT) WITHOUT ROWID`

type pastRow struct {
	spot        []byte
	scope, path string
	last        string
}

// note keeps a row as what was known of its spot.
func (t *table) note(i *results.Image, s spot, stamp string, key, facts []byte) error {
	if s.name == "" {
		return nil
	}
	var sums results.Sums
	sums.Add(i)
	marks, err := jsonv2.Marshal(i.Labels)
	if err != nil {
		return err
	}
	text, err := jsonv2.Marshal(sums)
	if err != nil {
		return err
	}
	then := sql.NullString{String: stamp, Valid: stamp <= t.since}
	_, err = t.conn.ExecContext(t.ctx, `INSERT INTO past VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
		ON CONFLICT (spot) DO UPDATE SET last = max(last, excluded.last)`, s.sum(), s.scope, []byte(s.path), stamp,
		then, key, marks, facts, text)
	if err == nil && then.Valid {
		_, err = t.conn.ExecContext(t.ctx, `UPDATE past SET stamp = ?2, key = ?3, labels = ?4, digest = ?5, sums = ?6
			WHERE spot = ?1 AND coalesce(stamp, '') <= ?2`, s.sum(), stamp, key, marks, facts, text)
	}
	return err
}

// spots returns the next spots behind one of which there are scans.
func (t *table) spots(last []byte) (out []pastRow, err error) {
	rows, err := t.conn.QueryContext(t.ctx, `SELECT spot, scope, path, last FROM past WHERE spot > ? AND scope <> ''
		ORDER BY spot LIMIT ?`, last, batch)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var p pastRow
		if err := rows.Scan(&p.spot, &p.scope, &p.path, &p.last); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}

// before passes on what was known then of each image, which can have had several spots.
func (t *table) before(use func(labels.Labels, results.Sums)) error {
	rows, err := t.conn.QueryContext(t.ctx, `SELECT key, labels, sums FROM past WHERE stamp IS NOT NULL
		ORDER BY coalesce(key, spot), stamp DESC`)
	if err != nil {
		return err
	}
	defer rows.Close()
	var (
		last  []byte
		marks labels.Labels
		sums  results.Sums
	)
	for begun := false; rows.Next(); begun = true {
		var key, its, text []byte
		if err := rows.Scan(&key, &its, &text); err != nil {
			return err
		}
		same := begun && key != nil && bytes.Equal(key, last)
		if begun && !same {
			use(marks, sums)
		}
		l := labels.Labels{}
		if err := jsonv2.Unmarshal(its, &l); err != nil {
			return err
		}
		if same {
			marks = marks.Merge(l)
			continue
		}
		last, marks, sums = key, l, results.Sums{}
		if err := jsonv2.Unmarshal(text, &sums); err != nil {
			return err
		}
	}
	if marks != nil {
		use(marks, sums)
	}
	return errors.Join(rows.Err(), rows.Close())
}

// supersede leaves the last row of each spot, with what has changed.
func (t *table) supersede(missed func(pastRow) bool) error {
	exec := func(query string, args ...any) error {
		_, err := t.conn.ExecContext(t.ctx, query, args...)
		return err
	}
	err := errors.Join(exec(`CREATE INDEX seen_spot ON seen (spot, stamp, id) WHERE spot IS NOT NULL`),
		exec(`DELETE FROM seen WHERE EXISTS (SELECT 1 FROM seen o WHERE o.spot = seen.spot AND
			(o.stamp > seen.stamp OR o.stamp = seen.stamp AND o.id < seen.id))`),
		exec(`UPDATE seen SET change = CASE WHEN p.stamp IS NULL THEN ?1 WHEN p.digest = seen.digest THEN ?2 ELSE ?3 END
			FROM past p WHERE p.spot = seen.spot`, results.New, results.Same, results.Changed))
	for last := []byte{}; err == nil; {
		list, err := t.spots(last)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, p := range list {
			last = p.spot
			if !missed(p) {
				continue
			}
			err := errors.Join(exec(`DELETE FROM seen WHERE spot = ? AND change = ?`, p.spot, results.New),
				exec(`UPDATE seen SET change = ? WHERE spot = ?`, results.Removed, p.spot))
			if err != nil {
				return err
			}
		}
	}
	return err
}
