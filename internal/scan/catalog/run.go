package catalog

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/scan/results"
)

// Run is one scan. Its results are compared with those of the last run that has ended: a run that was killed made no
// report.
type Run struct {
	// Since is when the last run ended, as RFC 3339; empty when none has.
	Since string

	c       *Catalog
	id      int64
	paths   []string // absolute and clean, none below another
	started time.Time
	queue   queue
}

// Begin notes a new run over some paths, which are absolute.
func (c *Catalog) Begin(paths []string, now time.Time) (*Run, error) {
	r := &Run{c: c, paths: roots(paths), started: now}
	r.queue.done = map[string]bool{}
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx := context.Background()
	err := c.patiently(func() error { return c.transaction(ctx, func() error { return r.insert(ctx) }) })
	if err != nil {
		return nil, c.fail(err)
	}
	c.runs = append(c.runs, r)
	return r, nil
}

func (r *Run) insert(ctx context.Context) error {
	c := r.c.conn
	const last = `SELECT coalesce(max(finished), '') FROM run`
	if err := c.QueryRowContext(ctx, last).Scan(&r.Since); err != nil {
		return err
	}
	res, err := c.ExecContext(ctx, `INSERT INTO run (settings, started) VALUES (?, ?)`, r.c.settings, stamp(r.started))
	if err != nil {
		return err
	}
	if r.id, err = res.LastInsertId(); err != nil {
		return err
	}
	for n, p := range r.paths {
		const add = `INSERT INTO run_path (run, number, path) VALUES (?, ?, ?)`
		if _, err := c.ExecContext(ctx, add, r.id, n+1, p); err != nil {
			return err
		}
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// roots are paths without those that lie below others.
func roots(paths []string) (out []string) {
	var sorted []string
	for _, p := range paths {
		if !filepath.IsAbs(p) {
			panic(fmt.Sprintf("catalog: path %q of a run is not absolute", p))
		}
		sorted = append(sorted, filepath.Clean(p))
	}
	slices.Sort(sorted)
	kept := map[string]bool{} // a folder comes before all that lies in it
	for _, p := range slices.Compact(sorted) {
		if !inOne(kept, p) {
			kept[p] = true
			out = append(out, p)
		}
	}
	return out
}

// inOne reports whether a path lies below one of the roots. There can be as many of them as images.
func inOne(roots map[string]bool, p string) bool {
	for up := filepath.Dir(p); up != p; up = filepath.Dir(p) {
		if roots[up] {
			return true
		}
		p = up
	}
	return false
}

// below is what the paths of all files in a folder begin with.
func below(root string) string { return strings.TrimSuffix(root, separator) + separator }

const separator = string(filepath.Separator)

// Finish ends the run with its sum. A complete run over all images deletes the files that it has not seen and that are
// no images.
func (r *Run) Finish(s *results.Summary) error {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := r.flush(); err != nil {
		return err
	}
	c.runs = slices.DeleteFunc(c.runs, func(other *Run) bool { return other == r })
	ctx := context.Background()
	return c.fail(c.patiently(func() error {
		return c.transaction(ctx, func() error {
			if s.Complete && s.Shard == "" {
				if err := r.forget(ctx); err != nil {
					return err
				}
			}
			return r.end(ctx, s)
		})
	}))
}

func (r *Run) end(ctx context.Context, s *results.Summary) error {
	changes := results.Changes{}
	if s.Changes != nil {
		changes = *s.Changes
	}
	finished := s.Finished
	if finished == "" {
		finished = stamp(r.started)
	}
	_, err := r.c.conn.ExecContext(ctx, `UPDATE run SET finished = ?, complete = ?, storage = ?, boundary_bytes = ?,
		images = ?, aligned = ?, below_boundary = ?, misaligned = ?, nothing_to_judge = ?, failed = ?, orphans = ?,
		originals = ?, packed = ?, accepted = ?, new = ?, changed = ?, same = ?, removed = ?, skipped_files = ?,
		unreadable = ?, copies_bytes = ?, grows_bytes = ?, read_bytes = ?, exit_code = ? WHERE id = ?`,
		finished, s.Complete, s.Storage, s.Boundary,
		s.Images, s.Aligned, s.Below, s.Misaligned, s.Nothing, s.Failed, s.Orphans, s.Originals, s.Packed, s.Accepted,
		changes.New, changes.Changed, changes.Same, changes.Removed, s.Skipped, s.UnreadableCount,
		s.Fix.Copies, s.Fix.Grows, s.Read, s.ExitCode, r.id)
	return err
}

// forget deletes the files that were no images and that this run has not met. Their rows would pile up.
func (r *Run) forget(ctx context.Context) error {
	for _, root := range r.paths {
		_, err := r.c.conn.ExecContext(ctx, `DELETE FROM file WHERE is_image = 0 AND last_run < ?1 AND `+inside+`
			AND id NOT IN (SELECT id FROM image)`, r.id, root, below(root), above(root))
		if err != nil {
			return err
		}
	}
	return nil
}

// inside selects a path and all below it, with the index on paths. ?2 to ?4 are the path, what those below begin with,
// and the first text behind all of them: '0' follows '/' in ASCII, and ']' the backslash. Between a path and those
// below it may lie others, such as one with a dash.
const inside = `path >= ?2 AND path < ?4 AND (path = ?2 OR path >= ?3)`

func above(root string) string {
	return strings.TrimSuffix(root, separator) + string(filepath.Separator+1)
}
