//go:build race

package plan_test

// raced tells that the race detector watches, which makes everything ten times slower.
const raced = true
