package vmdk

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Expected sizes and places are those of Virtual Disk Format 1.1, "Hosted Sparse Extents".
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 512, binary.Size(sparseHeader{}), "sparse header")
	b, err := binary.Append(nil, binary.LittleEndian, sparseHeader{Capacity: 1, GrainSize: 2, NumGTEsPerGT: 3, GDOffset: 4, UncleanShutdown: 5, CompressAlgo: 6})
	require.NoError(t, err)
	for at, want := range map[int]byte{atCap: 1, atGrain: 2, atGTEs: 3, atGD: 4, 72: 5, 77: 6} {
		assert.Equal(t, want, b[at], "byte %d", at)
	}
}
