//go:build !race

package library

// raced tells that the race detector watches, which makes everything ten times slower.
const raced = false
