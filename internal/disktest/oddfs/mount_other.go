//go:build !linux || 386

package oddfs

import "testing"

// Mount skips the test: the file system library does not support this system.
func Mount(t testing.TB, _ string, _ Manners) (mounted string) {
	t.Helper()
	t.Skip("no file system in user space can be served on this system")
	return ""
}
