package catalog

import (
	"context"
	"database/sql"
	"errors"
	"iter"
	"maps"

	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/sys"
)

// Last is the last result of an image, and when the run began that found it.
type Last struct {
	Image *results.Image
	Found string        // RFC 3339
	Roots results.Roots // of the last run that has seen it
}

// Read returns the last results of all images of a catalogue that are not gone, one at a time, with absolute paths. A
// result that the catalogue does not keep as a whole, since it held for the moment only, is a failed row. No result is
// changed. The first error ends the rows.
func Read(path string) iter.Seq2[Last, error] {
	return func(yield func(Last, error) bool) {
		c := &Catalog{path: path, patience: patience}
		ended := false
		err := c.read(func(l Last) bool {
			ended = !yield(l, nil)
			return !ended
		})
		if err := errors.Join(c.fail(err), c.fail(c.disconnect())); err != nil && !ended {
			yield(Last{}, err)
		}
	}
}

func (c *Catalog) read(use func(Last) bool) (err error) {
	if c.file, err = place(c.path); err != nil {
		return err
	}
	if err := c.connect(sys.SharesMemory); err != nil {
		return err
	}
	ctx := context.Background()
	switch m, err := readMarks(ctx, c.conn); {
	case err != nil:
		return err
	case m == marks{}:
		return foreign{errors.New(noDatabase)}
	}
	if err := c.settle(ctx); err != nil {
		return err
	}
	roots, err := c.roots(ctx)
	if err != nil {
		return err
	}
	rows, err := c.conn.QueryContext(ctx, `SELECT f.path, i.state, i.error_code, i.error, i.format, r.json, n.started,
		n.id
		FROM image i JOIN file f ON f.id = i.id JOIN run n ON n.id = i.last_run LEFT JOIN result r ON r.id = i.id
		WHERE i.digest IS NOT NULL ORDER BY i.id`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		l, err := lastOf(rows, roots)
		if err != nil || !use(l) {
			return err
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// lastOf makes a result of a row.
func lastOf(rows *sql.Rows, roots map[int64]results.Roots) (l Last, err error) {
	var (
		path, state           string
		code, message, format sql.NullString
		packed                []byte
		run                   int64
	)
	if err := rows.Scan(&path, &state, &code, &message, &format, &packed, &l.Found, &run); err != nil {
		return l, err
	}
	i, ok := decode(packed)
	if !ok || i.Check() != nil {
		i = results.NewImage("")
		i.Format = format.String
		i.Fail("changed", "its result held for the moment only, and the catalogue does not keep it; scan it again")
		if state == string(results.Failed) && code.Valid {
			i.Fail(code.String, message.String)
		}
	}
	i.SetPath(path)
	l.Image, l.Roots = i, roots[run]
	return l, nil
}

// roots returns the paths of all runs that were the last to see an image.
func (c *Catalog) roots(ctx context.Context) (map[int64]results.Roots, error) {
	rows, err := c.conn.QueryContext(ctx, `SELECT run, path FROM run_path WHERE run IN (SELECT last_run FROM image)`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := map[int64]results.Roots{}
	for rows.Next() {
		var (
			run  int64
			path string
		)
		if err := rows.Scan(&run, &path); err != nil {
			return nil, err
		}
		if out[run] == nil {
			out[run] = results.NewRoots(nil)
		}
		maps.Copy(out[run], results.NewRoots([]string{path}))
	}
	return out, errors.Join(rows.Err(), rows.Close())
}
