package disktest

import (
	"path/filepath"
	"testing"
)

// Python is the interpreter with the packages that scripts/install-tools.sh takes from PyPI.
func Python(t testing.TB) string {
	t.Helper()
	return DataFile(t, "/usr/local/lib/trueup-tests/python/bin/python3")
}

// PythonFile is a file of one of these packages.
func PythonFile(t testing.TB, name string) string {
	t.Helper()
	ofThisMachine()
	pattern := "/usr/local/lib/trueup-tests/python/lib/python3*/site-packages/" + name
	found, _ := filepath.Glob(pattern) // the only error is of the pattern
	if len(found) == 0 {
		missing(t, pattern)
	}
	return found[0]
}
