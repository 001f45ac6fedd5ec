package driver_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/driver"
)

// A chain of the greatest length keeps what the limits of an inspection allow: 64 MiB for all.
func TestCachesOfAChainAreBoundedTogether(t *testing.T) {
	const limit = 12 << 20 // of a qcow2, which has the largest
	total := int64(0)
	for level := range 17 {
		n := (&driver.Source{Level: level}).Memory(limit)
		require.Positive(t, n)
		total += n
	}
	require.Equal(t, int64(limit), (&driver.Source{}).Memory(limit))
	require.Less(t, total, int64(48<<20))
}
