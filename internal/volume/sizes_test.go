package volume

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Expected sizes are those of the specifications named at the structs.
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 16, binary.Size(lvmArea{}), "LVM2 disk location")
	assert.Equal(t, 24, binary.Size(lvmText{}), "LVM2 raw location")
	assert.Equal(t, 512, binary.Size(lvmMetadata{}), "LVM2 metadata area header")
	assert.Equal(t, 44, binary.Size(swapHeader{}), "swap header up to the label")
	assert.Equal(t, 512, binary.Size(fveHeader{}), "BitLocker volume header")
	assert.Equal(t, fveBlockSize, binary.Size(fveBlock{}),
		"BitLocker metadata block header and metadata header, 64 and 48 bytes")
	assert.Equal(t, 8, binary.Size(fveEntry{}), "BitLocker metadata entry header")
}
