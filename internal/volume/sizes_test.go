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
	assert.Equal(t, 148+22*16, binary.Size(bsdLabel{}), "BSD disklabel with 22 partitions")
	assert.Equal(t, 16, binary.Size(bsdSlice{}), "partition of a BSD disklabel")
	assert.Equal(t, 512, binary.Size(x86Label{}), "Solaris disk label")
	assert.Equal(t, 12, binary.Size(x86Slice{}), "slice of a Solaris VTOC")
	assert.Equal(t, 512, binary.Size(sunLabel{}), "Sun disk label")
	assert.Equal(t, 0x133+8, binary.Size(ldmHead{}), "LDM private header up to the size of the database")
	assert.Equal(t, 36+2*34, binary.Size(ldmTOC{}), "LDM table of contents")
	assert.Equal(t, 53+64, binary.Size(ldmVMDB{}), "LDM VMDB up to the GUID of the group")
	assert.Equal(t, 16, binary.Size(ldmBlock{}), "head of a VBLK")
	assert.Equal(t, 8, binary.Size(ldmRecord{}), "head of a record in VBLKs")
}
