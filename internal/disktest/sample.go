package disktest

import (
	"hash/crc32"
	"os"
	"testing"
)

// Exhaustive reports whether tests try all that they have, as make exhaustive and make boots want it, and not a share
// of it.
var Exhaustive = os.Getenv("TRUEUP_EXHAUSTIVE") == "1"

// Sample returns how many of the random cases of a test are tried: all of them where that is wanted, a tenth otherwise,
// and a hundredth with -short or the race detector. The cases of a sample are the first ones of the whole.
func Sample(whole int) int {
	switch {
	case Exhaustive:
		return whole
	case testing.Short() || Raced:
		return whole / 100
	}
	return whole / 10
}

// Share reports whether a test runs one of many similar cases: every case if all are requested or Exhaustive is set,
// otherwise about a sixth of them, selected by name.
func Share(name string) bool {
	return Exhaustive || os.Getenv("TRUEUP_SHARES") == "all" || crc32.ChecksumIEEE([]byte(name))%6 == 0
}
