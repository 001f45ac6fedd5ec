// Package catalog keeps the results of scans in an SQLite file: the last result of each file, so that an unchanged one
// is not read again, and the state of each image, so that a run knows what is new. Its tables are documented in
// docs/catalog.md.
//
// A result is on the disk within a second, even if the process is killed then. Any number of processes may use one
// catalogue.
package catalog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	_ "modernc.org/sqlite" // the database

	"github.com/trueup/trueup/internal/sys"
)

// Settings are the options that results depend on. Results found with others are compared with, and not used again.
type Settings struct {
	Version string // of trueup
	Options string // boundary, storage and so on, as one line
}

// patience bounds how long another process may hold the catalogue. A scan holds it for milliseconds.
const patience = time.Minute

// Catalog is an open catalogue. Its methods, and those of its runs, may be called at the same time.
type Catalog struct {
	path     string // as the user wrote it
	file     string // with links followed
	settings int64
	patience time.Duration

	mu   sync.Mutex // holds conn for more than one statement
	db   *sql.DB
	conn *sql.Conn // the only one
	sql  prepared
	runs []*Run // with results that may wait to be written
}

// Open opens a catalogue, and makes it when the file does not exist or is empty. A file that is anything else is
// refused and stays as it is. Every error begins with the file's name and has a remedy.
func Open(path string, s Settings) (*Catalog, error) {
	return open(path, s, sys.SharesMemory, patience)
}

func open(path string, s Settings, shares func(folder string) (bool, error), patience time.Duration) (*Catalog, error) {
	c := &Catalog{path: path, patience: patience}
	file, err := place(path)
	if err != nil {
		return nil, c.fail(err)
	}
	c.file = file
	if err := c.connect(shares); err != nil {
		return nil, errors.Join(c.fail(err), c.disconnect())
	}
	err = c.patiently(func() error { return c.begin(context.Background(), s) })
	if err != nil {
		return nil, errors.Join(c.fail(err), c.disconnect())
	}
	return c, nil
}

// Close writes the results that wait and closes the catalogue. A run that was not finished counts as killed.
func (c *Catalog) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, r := range c.runs {
		errs = append(errs, r.flush())
	}
	c.runs = nil
	return errors.Join(append(errs, c.fail(c.disconnect()))...)
}

// Files are the names of all files that the catalogue has or may have. No other code of this process may open them
// while the catalogue is open: closing one would take the locks away that keep other processes off (fcntl, POSIX).
func (c *Catalog) Files() (out []string) {
	for _, s := range suffixes {
		out = append(out, c.file+s)
	}
	return out
}

func (c *Catalog) connect(shares func(folder string) (bool, error)) (err error) {
	if c.db, err = sql.Open("sqlite", source(c.file)); err != nil {
		return err
	}
	ctx := context.Background()
	if c.conn, err = c.db.Conn(ctx); err != nil {
		return err
	}
	return c.patiently(func() error { return c.configure(ctx, shares) })
}

// configure sets the options of this connection, and how the file is kept consistent.
func (c *Catalog) configure(ctx context.Context, shares func(folder string) (bool, error)) error {
	// A write-ahead log needs shared memory (https://www.sqlite.org/wal.html: "WAL does not work over a network
	// filesystem"). On any other file system the rollback journal is used, which needs locks only.
	wal, err := shares(c.folder())
	if err != nil {
		return err
	}
	pragmas := []string{
		fmt.Sprintf("busy_timeout = %d", c.patience.Milliseconds()),
		"trusted_schema = OFF", "cell_size_check = ON", // the file is untrusted
		"temp_store = MEMORY",
		"cache_size = -8192",  // 8 MiB
		"synchronous = EXTRA", // a commit is on the disk before it returns, also in a journal's folder
	}
	if !wal {
		// A file that has a log from elsewhere is read without shared memory, by holding it alone for that moment.
		pragmas = append(pragmas, "locking_mode = EXCLUSIVE")
	}
	if err := c.pragmas(ctx, pragmas...); err != nil {
		return err
	}
	m, err := readMarks(ctx, c.conn)
	switch {
	case err != nil:
		return err
	case m != (marks{}) && m.application != applicationID:
		return nil // settle refuses it; until then it stays as it is
	case wal:
		return c.pragmas(ctx, "journal_mode = WAL")
	}
	if err := c.pragmas(ctx, "journal_mode = DELETE", "locking_mode = NORMAL"); err != nil {
		return err
	}
	_, err = readMarks(ctx, c.conn) // lets go of the file
	return err
}

func (c *Catalog) pragmas(ctx context.Context, pragmas ...string) error {
	for _, p := range pragmas {
		if _, err := c.conn.ExecContext(ctx, "PRAGMA "+p); err != nil {
			return err
		}
	}
	return nil
}

// begin makes or checks the tables and notes the settings.
func (c *Catalog) begin(ctx context.Context, s Settings) error {
	if err := c.settle(ctx); err != nil {
		return err
	}
	if err := c.sql.prepare(ctx, c.conn); err != nil {
		return err
	}
	err := c.transaction(ctx, func() error {
		const add = `INSERT OR IGNORE INTO settings (version, options) VALUES (?, ?)`
		_, err := c.conn.ExecContext(ctx, add, s.Version, s.Options)
		return err
	})
	if err != nil {
		return err
	}
	const find = `SELECT id FROM settings WHERE version = ? AND options = ?`
	return c.conn.QueryRowContext(ctx, find, s.Version, s.Options).Scan(&c.settings)
}

// transaction runs f with the exclusive right to write. It is rolled back if f or the commit fails.
func (c *Catalog) transaction(ctx context.Context, f func() error) error {
	if _, err := c.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := f()
	if err == nil {
		_, err = c.conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		// SQLite has rolled back by itself after some errors, so that this one may find nothing to do.
		_, _ = c.conn.ExecContext(ctx, "ROLLBACK")
	}
	return err
}

// patiently repeats f while another process has the lock: SQLite waits for most locks, but gives up at once if it could
// wait for ever.
func (c *Catalog) patiently(f func() error) error {
	const pause = 20 * time.Millisecond
	for end := time.Now().Add(c.patience); ; time.Sleep(pause) {
		if err := f(); !busy(err) || time.Now().After(end) {
			return err
		}
	}
}

func (c *Catalog) disconnect() error {
	errs := []error{c.sql.close()}
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
	}
	if c.db != nil {
		errs = append(errs, c.db.Close())
	}
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.Is(err, sql.ErrConnDone) })...)
}
