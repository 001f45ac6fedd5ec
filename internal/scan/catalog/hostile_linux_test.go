package catalog

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// What is no catalogue is refused in one line that says what to do, and stays as it is.
func TestRefusals(t *testing.T) {
	sqlite3 := disktest.Tool(t, "sqlite3")
	sql := func(script string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			t.Helper()
			used(t, path)
			disktest.RunInput(t, script, sqlite3, path)
		}
	}
	write := func(content string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			t.Helper()
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		}
	}
	for name, row := range map[string]struct {
		make func(t *testing.T, path string)
		want string
	}{
		"text": {
			write(strings.Repeat("no database\n", 1000)),
			"no catalogue, and no SQLite database at all: name another file",
		},
		"one byte": {write("x"), "no catalogue, and no SQLite database at all: name another file"},
		"a folder": {
			func(t *testing.T, path string) { t.Helper(); require.NoError(t, os.Mkdir(path, 0o700)) },
			"a folder: name a file",
		},
		"a pipe": {
			func(t *testing.T, path string) { t.Helper(); require.NoError(t, syscall.Mkfifo(path, 0o600)) },
			"not an ordinary file: name another one",
		},
		"another program": {func(t *testing.T, path string) {
			t.Helper()
			disktest.Run(t, sqlite3, path, "CREATE TABLE x (y); PRAGMA application_id = 5")
		}, "a database of another program (application_id 0x5, want 0x74727570): name another file"},
		"unmarked": {func(t *testing.T, path string) {
			t.Helper()
			disktest.Run(t, sqlite3, path, "CREATE TABLE x (y)")
		}, "a database of another program (application_id 0x0, want 0x74727570): name another file"},
		"newer": {
			sql("PRAGMA user_version = 5"),
			"made by a newer trueup (schema 5, this one knows 4): use that one, or name another file",
		},
		"older": {
			sql("PRAGMA user_version = 3"),
			"schema 3, want 4: move it away, and the next scan makes a new one",
		},
		"a trigger": {
			sql("CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM file; END"),
			`it has the trigger "t", which trueup did not make: remove it with sqlite3, or move it away, and the ` +
				`next scan makes a new one`,
		},
		"other columns": {
			sql("ALTER TABLE file ADD COLUMN x"),
			"1 of its tables and views are not those of schema 4: move it away",
		},
		"a table less": {
			sql("DROP TABLE partition"),
			"1 of its tables and views are not those of schema 4: move it away",
		},
		"half of it": {
			func(t *testing.T, path string) { t.Helper(); write(string(used(t, path)[:8192]))(t, path) },
			"damaged: save what can be read (sqlite3 FILE .recover), then move it away, and the next scan makes a " +
				"new one",
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "c")
			row.make(t, path)
			before := contents(path)
			_, err := Open(path, v1)
			require.ErrorContains(t, err, "catalogue "+path+": "+row.want)
			require.NotContains(t, err.Error(), "\n")
			after := contents(path)
			require.True(t, bytes.Equal(before, after), "the file is as it was")
			left, err := filepath.Glob(path + "-*")
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}
