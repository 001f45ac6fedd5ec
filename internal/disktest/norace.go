//go:build !race

package disktest

// Raced reports whether the race detector is on, which makes everything ten times slower and uses memory far above any
// limit.
const Raced = false
