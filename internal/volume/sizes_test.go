package volume

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Expected sizes are those of the specifications named at the structs.
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 148+22*16, binary.Size(bsdLabel{}), "BSD disklabel with 22 partitions")
	assert.Equal(t, 16, binary.Size(bsdSlice{}), "partition of a BSD disklabel")
}

func TestStructSizesOfStack(t *testing.T) {
	assert.Equal(t, 32, binary.Size(lvmLabel{}), "LVM2 label header")
	assert.Equal(t, 40, binary.Size(lvmPV{}), "LVM2 physical volume header without its lists")
	assert.Equal(t, 16, binary.Size(lvmArea{}), "LVM2 disk location")
	assert.Equal(t, 24, binary.Size(lvmText{}), "LVM2 raw location")
	assert.Equal(t, 512, binary.Size(lvmMetadata{}), "LVM2 metadata area header")
	assert.Equal(t, 208, binary.Size(luks1Header{}), "LUKS1 partition header without its key slots")
	assert.Equal(t, luks2Fixed, binary.Size(luks2Header{}), "LUKS2 binary header")
	assert.Equal(t, 4096, luks2Fixed, "LUKS2 binary header")
	assert.Equal(t, 44, binary.Size(swapHeader{}), "swap header up to the label")
	assert.Equal(t, 512, binary.Size(fveHeader{}), "BitLocker volume header")
	assert.Equal(t, fveBlockSize, binary.Size(fveBlock{}),
		"BitLocker metadata block header and metadata header, 64 and 48 bytes")
	assert.Equal(t, 8, binary.Size(fveEntry{}), "BitLocker metadata entry header")
}
