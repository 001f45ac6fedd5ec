package catalog

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"slices"

	"github.com/trueup/trueup/internal/scan/results"
)

// lostImage is an image that this run has not seen.
type lostImage struct {
	path string
	seen bool // as a file that is no image of its own any more
	id   int64
	row  *results.Image
}

// Removed returns the images below the paths of this run that the catalogue knows and this run has not seen, and marks
// them as gone. It is to be asked when all of the paths were walked, before Finish. there reports whether a path still
// exists: an image that was only left out this time is not removed. A row has the absolute path, the format and the
// sizes. The catalogue can be used between two rows.
func (r *Run) Removed(there func(path string) bool) iter.Seq2[*results.Image, error] {
	return func(yield func(*results.Image, error) bool) {
		for _, root := range r.paths {
			images, err := r.missing(root)
			images = slices.DeleteFunc(images, func(m lostImage) bool { return !m.seen && there(m.path) })
			if err == nil {
				err = r.markGone(images)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, m := range images {
				if !yield(m.row, nil) {
					return
				}
			}
		}
	}
}

// missing returns the images at or below root, in the order of their paths.
func (r *Run) missing(root string) (out []lostImage, err error) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := r.flush(); err != nil {
		return nil, err
	}
	rows, err := c.sql.missing.QueryContext(context.Background(), r.id, root, below(root), above(root))
	if err != nil {
		return nil, c.fail(err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			m                 = lostImage{row: results.NewImage("")}
			format, subformat sql.NullString
		)
		if err := rows.Scan(&m.path, &m.seen, &m.id, &format, &subformat, &m.row.Size, &m.row.Stored); err != nil {
			return nil, c.fail(err)
		}
		m.row.SetPath(m.path)
		m.row.State, m.row.Change = results.Gone, results.Removed
		m.row.Format, m.row.Subformat = format.String, subformat.String
		out = append(out, m)
	}
	return out, c.fail(errors.Join(rows.Err(), rows.Close()))
}

// markGone notes that images are gone. Results of their files no longer hold if they come back.
func (r *Run) markGone(images []lostImage) error {
	if len(images) == 0 {
		return nil
	}
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx := context.Background()
	return c.fail(c.patiently(func() error {
		return c.transaction(ctx, func() error {
			for _, m := range images {
				res, err := c.sql.gone.ExecContext(ctx, r.id, m.id)
				if err != nil {
					return err
				}
				if n, err := res.RowsAffected(); n == 0 {
					if err != nil {
						return err
					}
					continue // another run has seen it meanwhile
				}
				for _, drop := range []*sql.Stmt{c.sql.dropResult, c.sql.dropPartitions, c.sql.stale} {
					if err := execute(ctx, drop, m.id); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}))
}
