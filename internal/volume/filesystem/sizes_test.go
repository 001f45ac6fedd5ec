package filesystem

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Expected sizes are those of the specifications named at the structs.
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 0x92, binary.Size(vmfsDevice{}), "VMFS device header up to the identifier")
	assert.Equal(t, 0xa9, binary.Size(vmfsHeader{}), "VMFS header up to the block size")
	assert.Equal(t, 0x40, binary.Size(refsBoot{}), "ReFS boot sector up to the serial number")
	assert.Equal(t, 228, binary.Size(xfsSuper{}), "XFS superblock up to sb_crc")
	assert.Equal(t, 98, binary.Size(btrfsDevice{}), "btrfs_dev_item")
	assert.Equal(t, 0x22b, binary.Size(btrfsSuper{}), "btrfs_super_block up to the label")
	assert.Equal(t, 184, binary.Size(jfsSuper{}), "jfs_superblock")
	assert.Equal(t, 20, binary.Size(hpfsSuper{}), "hpfs_super_block up to n_sectors")
	assert.Equal(t, 512, binary.Size(hpfsBoot{}), "hpfs_boot_block")
	assert.Equal(t, 116, binary.Size(reiserSuper{}), "reiserfs_super_block up to the label")
	assert.Equal(t, 68, binary.Size(f2fsDevice{}), "f2fs_device")
	assert.Equal(t, 3072, binary.Size(f2fsSuper{}), "f2fs_super_block")
	assert.Equal(t, 1376, binary.Size(ufsSuper{}), "struct fs")
	assert.Equal(t, 130, binary.Size(hfsBlock{}), "HFS master directory block up to drEmbedExtent")
	assert.Equal(t, 80, binary.Size(hfsFork{}), "HFSPlusForkData")
	assert.Equal(t, 352, binary.Size(hfsPlusHeader{}), "HFSPlusVolumeHeader up to the catalog file")
	assert.Equal(t, 14, binary.Size(hfsNode{}), "BTNodeDescriptor")
	assert.Equal(t, 14+20, binary.Size(hfsTree{}), "BTHeaderRec up to nodeSize")
	assert.Equal(t, 14+8+512, binary.Size(hfsKey{}), "HFSPlusCatalogKey in a node")
	assert.Equal(t, 88, binary.Size(apfsSuper{}), "nx_superblock_t up to the UUID")
	assert.Equal(t, 882, binary.Size(isoDescriptor{}), "volume descriptor up to the file structure version")
}
