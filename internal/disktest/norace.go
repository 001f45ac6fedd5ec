//go:build !race

package disktest

// Raced reports whether the race detector watches, which makes everything ten times slower and needs memory far above
// any limit.
const Raced = false
