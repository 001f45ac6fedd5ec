package scan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/ondisk"
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
func scopeOf(l results.Labels, key string) string {
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
func (m *merging) walked(p part, f ReportFile) {
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

// missed reports whether a later scan would have found an image that was last seen at a time.
func (m *merging) missed(s spot, last string) bool {
	return slices.ContainsFunc(m.walks[s.scope], func(w walk) bool { return w.started > last && w.roots.Has(s.path) })
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
	m.table.supersede(m.missed)
	m.summary.Changes = &results.Changes{Since: m.Since}
	return m.table.each(func(r row) error {
		if r.kept.is("") {
			m.summary.Changes.Unplaced++
		}
		if !r.kept.is(results.Removed) && r.Verdict == align.Aligned {
			m.copiesIn(m.table.placeOf(r)).Add(r.Image)
		}
		return nil
	})
}

// before adds what was known then to the sums.
func (m *merging) before(sums labelSums) error {
	m.summary.Merged.Before = &results.Sums{}
	return m.table.before(results.BoundaryFlags(m.boundary), func(marks results.Labels, was results.Sums) {
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

// seen is what a report since then needs of a record beside it.
type seen struct {
	spot, digest sum   // zero spot: nothing says where it is
	scope        int32 // index of texts
}

// past is what became of a spot: the last scan that has seen an image there, and the record that counted then.
type past struct {
	scope int32 // index of texts
	last  string
	then  int32 // index of records; below 0: nothing was known of it
}

// see notes the spot of the last record.
func (t *table) see(i *results.Image, at source) {
	where := spotOf(i, at)
	s := seen{digest: sum(results.Digest(i)), scope: t.text(where.scope)}
	if where.name != "" {
		s.spot = sumOf(where.name)
	}
	t.spots = append(t.spots, s)
}

// history returns the past of all spots, in the order of their first records.
func (t *table) history() (order []sum, all map[sum]*past) {
	all = map[sum]*past{}
	for n, s := range t.spots {
		if s.spot == (sum{}) {
			continue
		}
		p, stamp := all[s.spot], t.texts[t.records[n].stamp]
		if p == nil {
			p = &past{scope: s.scope, then: -1}
			all[s.spot], order = p, append(order, s.spot)
		}
		p.last = max(p.last, stamp)
		if stamp <= t.since && (p.then < 0 || stamp >= t.texts[t.records[p.then].stamp]) {
			p.then = small(n)
		}
	}
	return order, all
}

// supersede leaves the last row of each spot, with what has changed.
func (t *table) supersede(missed func(s spot, last string) bool) {
	lastAt := map[sum]*kept{} // of the rows that stay
	for n := range t.kept {
		k := &t.kept[n]
		where := t.spots[k.record].spot
		if was := lastAt[where]; was == nil || t.stampOf(k) > t.stampOf(was) {
			lastAt[where] = k
		}
	}
	_, all := t.history()
	gone := func(k *kept) bool {
		s := t.spots[k.record]
		if s.spot == (sum{}) {
			return false
		}
		if lastAt[s.spot] != k {
			return true
		}
		p := all[s.spot]
		switch {
		case p.then < 0:
			k.become(results.New)
		case t.spots[p.then].digest == s.digest:
			k.become(results.Same)
		default:
			k.become(results.Changed)
		}
		where := spot{scope: t.texts[p.scope], path: string(t.pathOf(k.record))}
		if where.scope == "" || !missed(where, p.last) {
			return false
		}
		if k.is(results.New) {
			return true
		}
		k.become(results.Removed)
		return false
	}
	left := make([]kept, 0, len(t.kept))
	for n := range t.kept {
		if !gone(&t.kept[n]) {
			left = append(left, t.kept[n])
		}
	}
	t.kept = left
}

func (t *table) stampOf(k *kept) string { return t.texts[t.records[k.record].stamp] }

// before passes on what was known then of each image, which can have had several spots.
func (t *table) before(flags []string, use func(results.Labels, results.Sums)) error {
	order, all := t.history()
	type known struct {
		labels results.Labels
		sums   results.Sums
		stamp  string
	}
	var images []*known
	byKey := map[sum]*known{}
	for _, s := range order {
		n := all[s].then
		if n < 0 {
			continue
		}
		r := &t.records[n]
		marks, err := t.labelsOf(r.labels)
		if err != nil {
			return err
		}
		k := byKey[r.key]
		if k == nil || r.key == (sum{}) {
			k = &known{}
			byKey[r.key], images = k, append(images, k)
		}
		k.labels = k.labels.Merge(marks)
		if stamp := t.texts[r.stamp]; k.stamp != "" && stamp <= k.stamp {
			continue
		}
		i, err := t.read(n)
		if err != nil {
			return err
		}
		i.Settle(flags)
		k.stamp, k.sums = t.texts[r.stamp], results.Sums{}
		k.sums.Add(i)
	}
	for _, k := range images {
		use(k.labels, k.sums)
	}
	return nil
}
