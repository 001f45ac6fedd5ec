package catalog

import (
	"errors"
	"fmt"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/trueup/trueup/internal/sys"
)

// ErrForeign marks the error of a file that is no catalogue. It was not written to.
var ErrForeign = errors.New("not a catalogue")

// foreign puts ErrForeign into an error without a word.
type foreign struct{ error }

func (f foreign) Unwrap() error      { return f.error }
func (foreign) Is(target error) bool { return target == ErrForeign }

// moveAway is the remedy for a catalogue that cannot be repaired.
const moveAway = "move it away, and the next scan makes a new one"

const (
	unwritable = "cannot be opened or written: make the file and its folder readable and writable, or name another file"
	noDatabase = "no catalogue, and no SQLite database at all: name another file"
)

// advice lists the meaning of result codes of SQLite, with a remedy (https://www.sqlite.org/rescode.html).
var advice = map[int]string{
	sqlite3.SQLITE_NOTADB:  noDatabase,
	sqlite3.SQLITE_CORRUPT: "damaged: save what can be read (sqlite3 FILE .recover), then " + moveAway,
	sqlite3.SQLITE_FULL: "no space left on its file system: make room and scan again; what was saved " +
		"before is kept",
	sqlite3.SQLITE_READONLY: unwritable,
	sqlite3.SQLITE_PERM:     unwritable,
	sqlite3.SQLITE_CANTOPEN: unwritable,
	sqlite3.SQLITE_BUSY: "another program holds it all the time: end that program or its transaction, " +
		"then scan again",
	sqlite3.SQLITE_LOCKED: "another program holds it all the time: end that program or its transaction, " +
		"then scan again",
	sqlite3.SQLITE_TOOBIG: "a value in it is too long: " + moveAway,
	sqlite3.SQLITE_IOERR:  "its storage fails: see the kernel's log; what was saved before is kept",
	sqlite3.SQLITE_SCHEMA: "its tables have changed: scan again",
	sqlite3.SQLITE_ERROR:  "its tables are not as expected: " + moveAway,
}

// failure is an error of SQLite in our words. Those of SQLite quote the file, which may hold anything.
type failure struct {
	text string
	err  error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.err }

// fail makes one line of an error: the catalogue, the problem, and the remedy.
func (c *Catalog) fail(err error) error {
	if err == nil {
		return nil
	}
	code, ok := resultCode(err)
	if !ok {
		return fmt.Errorf("catalogue %s: %w", c.path, err)
	}
	if code == sqlite3.SQLITE_IOERR_SHMSIZE { // the index of the log, which is made at once
		code = sqlite3.SQLITE_FULL
	}
	primary := code & 0xff
	text := advice[primary]
	if text == "" {
		text = moveAway
	}
	reason := fmt.Sprintf("SQLite result %d", code)
	switch primary {
	case sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM:
		if obstacle := c.obstacle(); obstacle != nil {
			reason = obstacle.Error()
		}
	}
	err = &failure{fmt.Sprintf("catalogue %s: %s (%s)", c.path, text, reason), err}
	if code == sqlite3.SQLITE_NOTADB {
		return foreign{err}
	}
	return err
}

// obstacle returns why the file or its folder cannot be written, in the words of the kernel.
func (c *Catalog) obstacle() error {
	if err := sys.MayChange(c.file); err != nil {
		return err
	}
	if err := sys.MayCreateIn(c.folder()); err != nil {
		return fmt.Errorf("folder: %w", err)
	}
	return nil
}

func resultCode(err error) (code int, ok bool) {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.Code(), true
}

// busy reports whether another process had the lock.
func busy(err error) bool {
	code, ok := resultCode(err)
	return ok && (code&0xff == sqlite3.SQLITE_BUSY || code&0xff == sqlite3.SQLITE_LOCKED)
}

func (c *Catalog) folder() string { return filepath.Dir(c.file) }
