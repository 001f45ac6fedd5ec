package catalog

import (
	"errors"
	"fmt"
	"path/filepath"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// ErrForeign marks the error of a file that is something else than a catalogue. It was not written to.
var ErrForeign = errors.New("not a catalogue")

// foreign puts ErrForeign into an error without a word.
type foreign struct{ error }

func (f foreign) Unwrap() error      { return f.error }
func (foreign) Is(target error) bool { return target == ErrForeign }

// moveAway is what helps where a catalogue cannot be mended.
const moveAway = "move it away, and the next scan makes a new one"

// advice says what a result code of SQLite means to the user, and what to do (https://www.sqlite.org/rescode.html).
var advice = map[int]string{
	sqlite3.SQLITE_NOTADB:   "no catalogue, and no SQLite database at all: name another file",
	sqlite3.SQLITE_CORRUPT:  "damaged: save what can be read (sqlite3 FILE .recover), then " + moveAway,
	sqlite3.SQLITE_FULL:     "no space left on its file system: make room and scan again; what was saved before is kept",
	sqlite3.SQLITE_READONLY: "cannot be written: make the file and its folder writable, or name another file",
	sqlite3.SQLITE_PERM:     "cannot be written: make the file and its folder writable, or name another file",
	sqlite3.SQLITE_CANTOPEN: "cannot be opened or made: make the file and its folder readable and writable, or name another file",
	sqlite3.SQLITE_BUSY:     "another program holds it all the time: end that program or its transaction, then scan again",
	sqlite3.SQLITE_LOCKED:   "another program holds it all the time: end that program or its transaction, then scan again",
	sqlite3.SQLITE_TOOBIG:   "a value in it is too long: " + moveAway,
	sqlite3.SQLITE_IOERR:    "its storage fails: see the kernel's log; what was saved before is kept",
	sqlite3.SQLITE_SCHEMA:   "its tables have changed: scan again",
	sqlite3.SQLITE_ERROR:    "its tables are not as expected: " + moveAway,
}

// fail names the catalogue in front of what went wrong, and says what to do. It is one line.
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
	text := advice[code&0xff] // the primary code
	if text == "" {
		text = moveAway
	}
	err = fmt.Errorf("catalogue %s: %s (%w)", c.path, text, err)
	if code == sqlite3.SQLITE_NOTADB {
		return foreign{err}
	}
	return err
}

func resultCode(err error) (code int, ok bool) {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0, false
	}
	return e.Code(), true
}

// busy tells that another process was in the way.
func busy(err error) bool {
	code, ok := resultCode(err)
	return ok && (code&0xff == sqlite3.SQLITE_BUSY || code&0xff == sqlite3.SQLITE_LOCKED)
}

func (c *Catalog) folder() string { return filepath.Dir(c.file) }
