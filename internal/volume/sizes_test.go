package volume

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Expected sizes are those of the specifications named at the structs.
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 512, binary.Size(ntfsBoot{}), "NTFS boot sector")
	assert.Equal(t, 0x24, binary.Size(fatBoot{}), "FAT BPB up to the extension")
	assert.Equal(t, 26, binary.Size(fatExt{}), "FAT extension")
	assert.Equal(t, 0x40-0x24, binary.Size(fat32Ext{}), "FAT32 extension")
	assert.Equal(t, 0x154, binary.Size(extSuper{}), "ext superblock up to s_blocks_count_hi")
}
