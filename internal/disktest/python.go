package disktest

import "testing"

// Python is the interpreter with the packages that scripts/install-tools.sh takes from PyPI.
func Python(t testing.TB) string {
	t.Helper()
	return DataFile(t, "/usr/local/lib/trueup-tests/python/bin/python3")
}
