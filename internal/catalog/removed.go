package catalog

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"slices"

	"github.com/trueup/trueup/internal/library"
)

// page is how many images Removed holds at a time.
const page = 1024

// lostImage is an image that this run has not seen.
type lostImage struct {
	path string
	seen bool // as a file that is no image of its own any more
	id   int64
	row  *library.Image
}

// Removed gives the images below the paths of this run that the catalogue knows and this run has not seen, and notes that they are
// gone. It is to be asked when all of the paths was walked, before Finish. there reports whether a path still exists: an image that was
// only left out this time is not removed. A row has the absolute path, the format and the sizes. The catalogue can be used between two
// rows. A loop that is left early leaves up to a page of images noted that it has not seen.
func (r *Run) Removed(there func(path string) bool) iter.Seq2[*library.Image, error] {
	return func(yield func(*library.Image, error) bool) {
		for _, root := range r.paths {
			for from, more := root, true; more; {
				images, err := r.missing(root, from)
				if err != nil {
					yield(nil, err)
					return
				}
				if more = len(images) == page; more {
					from = images[page-1].path + "\x01" // no path has a byte below that
				}
				images = slices.DeleteFunc(images, func(m lostImage) bool { return !m.seen && there(m.path) })
				if err := r.bury(images); err != nil {
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
}

// missing gives a page of images at or below root, in the order of their paths, from one of them on.
func (r *Run) missing(root, from string) (out []lostImage, err error) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := r.flush(); err != nil {
		return nil, err
	}
	rows, err := c.sql.missing.QueryContext(context.Background(), r.id, root, below(root), above(root), from, page)
	if err != nil {
		return nil, c.fail(err)
	}
	defer rows.Close()
	for rows.Next() {
		var (
			m                 = lostImage{row: library.NewImage("")}
			format, subformat sql.NullString
		)
		if err := rows.Scan(&m.path, &m.seen, &m.id, &format, &subformat, &m.row.Size, &m.row.Stored); err != nil {
			return nil, c.fail(err)
		}
		m.row.SetPath(m.path)
		m.row.State, m.row.Change, m.row.Format, m.row.Subformat = library.Gone, library.Removed, format.String, subformat.String
		out = append(out, m)
	}
	return out, c.fail(errors.Join(rows.Err(), rows.Close()))
}

// bury notes that images are gone. What was known of their files is worth nothing when they come back.
func (r *Run) bury(images []lostImage) error {
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
				if err := r.buryOne(ctx, m); err != nil {
					return err
				}
			}
			return nil
		})
	}))
}

func (r *Run) buryOne(ctx context.Context, m lostImage) error {
	s := &r.c.sql
	var first bool // false when the history has it, of a run that was killed
	err := s.gone.QueryRowContext(ctx, r.id, m.id).Scan(&first)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // another run has seen it meanwhile
	}
	if err != nil {
		return err
	}
	for _, drop := range []*sql.Stmt{s.dropResult, s.dropPartitions, s.stale} {
		if err := execute(ctx, drop, m.id); err != nil {
			return err
		}
	}
	if !first {
		return nil
	}
	i := m.row
	return execute(ctx, s.addEvent, m.id, r.id, string(library.Removed), string(library.Gone), nil, null(i.Format), i.Size, nil, nil)
}
