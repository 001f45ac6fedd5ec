package stack

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Of several segments the first of the device counts, and not what an encryption that is under way has kept.
func TestSegmentsOfLUKS2(t *testing.T) {
	const area = `{"segments":{"0":{"offset":"4096","flags":["backup-final"]},` +
		`"1":{"offset":"65536"},"2":{"offset":"32768","flags":["x"]}}}`
	start, err := luks2Payload([]byte(area))
	require.NoError(t, err)
	require.Equal(t, int64(32768), start)
}
