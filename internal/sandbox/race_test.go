//go:build race

package sandbox_test

// raced tells that the race detector watches, whose shadow memory is far above any limit.
const raced = true
