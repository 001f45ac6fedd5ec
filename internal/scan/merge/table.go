package merge

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	_ "modernc.org/sqlite" // the table

	"github.com/trueup/trueup/internal/scan/catalog"
	"github.com/trueup/trueup/internal/scan/labels"
	"github.com/trueup/trueup/internal/scan/results"
)

// table holds the rows in a temporary file, which SQLite removes as soon as it has made it.
type table struct {
	ctx  context.Context //nolint:containedctx // of the run that the table belongs to
	db   *sql.DB
	conn *sql.Conn
	err  error // the first of sorted

	since string // as in Task

	find, insert, replace, add, order *sql.Stmt
}

// errTable marks an error that ends the run, as opposed to one of a row.
var errTable = errors.New("table")

type tableError struct{ error }

func (e tableError) Unwrap() error      { return e.error }
func (tableError) Is(target error) bool { return target == errTable }

// errTableOf marks an error.
func errTableOf(err error) error {
	if err == nil {
		return nil
	}
	return tableError{err}
}

// The memory of SQLite is its cache, and that of sorting, which is as large.
var pragmas = []string{
	"journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE", "temp_store = FILE", "cache_size = -8192",
}

// seen has a row for each image; key is NULL where nothing identifies it. place has what reports are sorted by.
const tables = `CREATE TABLE seen (id INTEGER PRIMARY KEY, key BLOB, stamp TEXT NOT NULL, labels TEXT NOT NULL,
	joined TEXT NOT NULL, count INTEGER NOT NULL, place TEXT NOT NULL, path BLOB NOT NULL, file TEXT NOT NULL,
	json BLOB NOT NULL, spot BLOB, digest BLOB, change TEXT NOT NULL DEFAULT '');
CREATE UNIQUE INDEX seen_key ON seen (key) WHERE key IS NOT NULL;
CREATE TABLE place (grp INTEGER, class INTEGER, cost REAL, stored INTEGER, path BLOB, id INTEGER);
BEGIN`

func newTable(ctx context.Context, since string) (t *table, err error) {
	t = &table{ctx: ctx, since: since}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.db, err = sql.Open("sqlite", ""); err != nil { // a file without a name is temporary
		return t, err
	}
	if t.conn, err = t.db.Conn(ctx); err != nil {
		return t, err
	}
	for _, p := range pragmas {
		if _, err := t.conn.ExecContext(ctx, "PRAGMA "+p); err != nil {
			return t, err
		}
	}
	for _, text := range []string{past, tables} {
		if _, err := t.conn.ExecContext(ctx, text); err != nil {
			return t, err
		}
	}
	for s, text := range map[**sql.Stmt]string{
		&t.find: `SELECT id, stamp, labels, path, file FROM seen WHERE key = ?`,
		&t.insert: `INSERT INTO seen (key, stamp, labels, joined, count, place, path, file, json, spot, digest)
			VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?)`,
		&t.replace: `UPDATE seen SET stamp = ?, joined = ?, place = ?, path = ?, file = ?, json = ?, spot = ?,
			digest = ? WHERE id = ?`,
		&t.add:   `UPDATE seen SET labels = ?, count = count + 1 WHERE id = ?`,
		&t.order: `INSERT INTO place (grp, class, cost, stored, path, id) VALUES (?, ?, ?, ?, ?, ?)`,
	} {
		if *s, err = t.conn.PrepareContext(ctx, text); err != nil {
			return t, err
		}
	}
	return t, nil
}

func (t *table) close() error {
	var errs []error
	for _, s := range []*sql.Stmt{t.find, t.insert, t.replace, t.add, t.order} {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if t.conn != nil {
		errs = append(errs, t.conn.Close())
	}
	if t.db != nil {
		errs = append(errs, t.db.Close())
	}
	return errors.Join(errs...)
}

// What shows that two rows are about one image.
const (
	byDatastore  = "datastore"   // the same label datastore, and the same path below the one folder that was scanned
	byFileSystem = "file_system" // the UUID of the file system, inode, size and times of the main file
)

// identity returns what identifies the image of a row, and how; empty if nothing does.
func identity(i *results.Image, at source) (key, by string) {
	if store := i.Labels[byDatastore]; len(store) == 1 && at.roots != nil {
		if name := below(at.roots, i.ExactPath()); name != "" {
			return fmt.Sprintf("%q %q", store[0], name), byDatastore
		}
	}
	if i.FileSystem != "" && len(i.Files) > 0 {
		f := i.Files[0]
		return fmt.Sprintf("%q %d %d %d %d", i.FileSystem, f.Inode, f.Size, f.Modified, f.Changed), byFileSystem
	}
	return "", ""
}

// fileOf has what shows that the main files of two rows are one: size and times. Empty if a row has no file.
func fileOf(i *results.Image) string {
	if len(i.Files) == 0 {
		return ""
	}
	f := i.Files[0]
	return fmt.Sprint(f.Size, f.Modified, f.Changed)
}

// placeOf is the place in which the path of a row means one file: a datastore, a file system, or one file of results.
func placeOf(i *results.Image, at source) string {
	_, by := identity(i, at)
	switch by {
	case byDatastore:
		return "d" + i.Labels[byDatastore][0]
	case byFileSystem:
		return "u" + i.FileSystem
	}
	return "f" + at.Path
}

// kept is a row in the table. A datastore can be scanned from several folders, in which other images have the same
// path: rows of one path below them are about one image if the whole path is the same, too, or the main file.
type kept struct {
	id           int64
	stamp, marks string
	path         []byte
	file         string
}

func (k kept) is(i *results.Image, by string) bool {
	path := i.ExactPath()
	return by == byFileSystem || strings.HasPrefix(path, "/") && path == string(k.path) ||
		k.file != "" && k.file == fileOf(i)
}

// put keeps a row. Of rows of one image the last run counts; of runs that ended at once the first row.
func (t *table) put(i *results.Image, at source, raw []byte) error {
	key, by := identity(i, at)
	var (
		stamp string
		where spot
		facts []byte
	)
	if at.part.Summary != nil {
		stamp = at.part.Finished
	}
	if t.since != "" {
		where, facts = spotOf(i, at), catalog.Digest(i)
	}
	insert := func(sum []byte) error {
		marks, err := jsonv2.Marshal(i.Labels)
		if err == nil {
			_, err = t.insert.ExecContext(t.ctx, sum, stamp, marks, by, placeOf(i, at), []byte(i.ExactPath()),
				fileOf(i), raw, where.sum(), facts)
		}
		return errTableOf(errors.Join(err, t.note(i, where, stamp, sum, facts)))
	}
	if key == "" {
		return insert(nil)
	}
	sum := sha256.Sum256([]byte(by + key))
	var k kept
	err := t.find.QueryRowContext(t.ctx, sum[:]).Scan(&k.id, &k.stamp, &k.marks, &k.path, &k.file)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return insert(sum[:])
	case err != nil:
		return errTableOf(err)
	case !k.is(i, by):
		return insert(nil)
	}
	was := labels.Labels{}
	if err := jsonv2.Unmarshal([]byte(k.marks), &was); err != nil {
		return errTableOf(err)
	}
	marks, err := jsonv2.Marshal(was.Merge(i.Labels))
	if err == nil && stamp > k.stamp {
		_, err = t.replace.ExecContext(t.ctx, stamp, by, placeOf(i, at), []byte(i.ExactPath()), fileOf(i), raw,
			where.sum(), facts, k.id)
	}
	if err == nil {
		_, err = t.add.ExecContext(t.ctx, marks, k.id)
	}
	return errTableOf(errors.Join(err, t.note(i, where, stamp, sum[:], facts)))
}

// columns are those that decode reads.
const columns = `s.id, s.labels, s.joined, s.count, s.place, s.json, s.change`

// row is a row with its number, and the place in which its path means one file.
type row struct {
	*results.Image
	id     int64
	place  string
	change results.Change // since then; empty: nothing says it
}

func decode(rows *sql.Rows) (out row, err error) {
	var (
		marks, by string
		count     int
		raw       []byte
	)
	out.Image = results.NewImage("")
	if err := rows.Scan(&out.id, &marks, &by, &count, &out.place, &raw, &out.change); err != nil {
		return out, err
	}
	if err := jsonv2.Unmarshal(raw, out.Image); err != nil {
		return out, err
	}
	out.Command, out.Labels, out.Joined = results.Command, nil, nil
	if err := jsonv2.Unmarshal([]byte(marks), &out.Labels); err != nil {
		return out, err
	}
	if count > 1 {
		out.Joined = &results.Joined{By: by, Rows: count}
	}
	out.SetPath(out.ExactPath())
	if out.change == results.Removed {
		out.Image = goneOf(out.Image)
	}
	return out, nil
}

// batch is the number of rows between which other statements can run.
const batch = 512

// each passes on all rows, in the order in which they came.
func (t *table) each(use func(r row) error) error {
	for last := int64(0); ; {
		list, err := t.some(`SELECT `+columns+` FROM seen s WHERE id > ? ORDER BY id LIMIT ?`, last, batch)
		if err != nil || len(list) == 0 {
			return err
		}
		for _, s := range list {
			if err := use(s); err != nil {
				return err
			}
			last = s.id
		}
	}
}

func (t *table) some(query string, args ...any) (out []row, err error) {
	rows, err := t.conn.QueryContext(t.ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		s, err := decode(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, errors.Join(rows.Err(), rows.Close())
}

// place notes where a row stands in the report.
func (t *table) place(r row) error {
	o := r.Order()
	_, err := t.order.ExecContext(t.ctx, o.Group, o.Class, o.Cost, r.Stored, []byte(r.Path), r.id)
	return err
}

// unidentified counts the rows that nothing identifies.
func (t *table) unidentified() (n int, err error) {
	err = t.conn.QueryRowContext(t.ctx, `SELECT count(*) FROM seen WHERE key IS NULL`).Scan(&n)
	return n, err
}

// index sorts the rows.
func (t *table) index() error {
	_, err := t.conn.ExecContext(t.ctx,
		`CREATE INDEX sorted ON place (grp, class, cost DESC, stored DESC, path, id)`)
	return err
}

// sorted passes on all rows as a report has them, as results.Compare sorts. The first error ends them.
func (t *table) sorted(complete func(r row)) iter.Seq[*results.Image] {
	return func(yield func(*results.Image) bool) {
		if t.err == nil {
			number := results.Numbers()
			t.err = t.inOrder(func(r row) bool {
				complete(r)
				number(r.Image)
				return yield(r.Image)
			})
		}
	}
}

func (t *table) inOrder(use func(r row) bool) error {
	rows, err := t.conn.QueryContext(t.ctx, `SELECT `+columns+` FROM place p CROSS JOIN seen s ON s.id = p.id
		ORDER BY p.grp, p.class, p.cost DESC, p.stored DESC, p.path, p.id`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for t.ctx.Err() == nil && rows.Next() {
		r, err := decode(rows)
		if err != nil {
			return err
		}
		if !use(r) {
			return nil
		}
	}
	return errors.Join(t.ctx.Err(), rows.Err(), rows.Close())
}
