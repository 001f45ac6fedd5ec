package stack

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
)

// Of several segments the first of the device counts, and not what an encryption that is under way has kept.
func TestSegmentsOfLUKS2(t *testing.T) {
	const area = `{"segments":{"0":{"offset":"4096","flags":["backup-final"]},` +
		`"1":{"offset":"65536"},"2":{"offset":"32768","size":"dynamic","flags":["x"]}}}`
	first, err := luks2Payload([]byte(area))
	require.NoError(t, err)
	require.Equal(t, disk.Range{Off: 32768}, first)
}

// A segment can have a size. Spec: LUKS2 On-Disk Format Specification 1.1.1, table 4: a number of bytes, or "dynamic".
func TestSegmentOfAFixedSize(t *testing.T) {
	for size, want := range map[string]int64{
		"4096": 4096, "dynamic": 0, "-1": 0, "9223372036854775807": 0, "9223372036854775808": 0, "": 0,
	} {
		first, err := luks2Payload([]byte(`{"segments":{"0":{"offset":"32768","size":"` + size + `"}}}`))
		require.NoError(t, err)
		require.Equal(t, disk.Range{Off: 32768, Len: want}, first, size)
	}
}
