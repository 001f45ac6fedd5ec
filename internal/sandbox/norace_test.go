//go:build !race

package sandbox_test

// raced tells that the race detector watches.
const raced = false
