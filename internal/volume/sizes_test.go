package volume

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Expected sizes are those of the specifications named at the structs.
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 32, binary.Size(lvmLabel{}), "LVM2 label header")
	assert.Equal(t, 40, binary.Size(lvmPV{}), "LVM2 physical volume header without its lists")
	assert.Equal(t, 16, binary.Size(lvmArea{}), "LVM2 disk location")
	assert.Equal(t, 24, binary.Size(lvmText{}), "LVM2 raw location")
	assert.Equal(t, 512, binary.Size(lvmMetadata{}), "LVM2 metadata area header")
	assert.Equal(t, md0Size, binary.Size(md0Super{}), "md 0.90 superblock")
	assert.Equal(t, md1Size, binary.Size(md1Super{}), "md 1 superblock without roles")
	assert.Equal(t, 208, binary.Size(luks1Header{}), "LUKS1 partition header without its key slots")
	assert.Equal(t, luks2Fixed, binary.Size(luks2Header{}), "LUKS2 binary header")
	assert.Equal(t, 4096, luks2Fixed, "LUKS2 binary header")
	assert.Equal(t, bcacheFixed, binary.Size(bcacheSuper{}), "bcache superblock up to the journal buckets")
	assert.Equal(t, 44, binary.Size(swapHeader{}), "swap header up to the label")
	assert.Equal(t, 512, binary.Size(fveHeader{}), "BitLocker volume header")
	assert.Equal(t, fveBlockSize, binary.Size(fveBlock{}), "BitLocker metadata block header and metadata header, 64 and 48 bytes")
	assert.Equal(t, 8, binary.Size(fveEntry{}), "BitLocker metadata entry header")
	assert.Equal(t, 0x92, binary.Size(vmfsDevice{}), "VMFS device header up to the identifier")
	assert.Equal(t, 0xa9, binary.Size(vmfsHeader{}), "VMFS header up to the block size")
	assert.Equal(t, 148+22*16, binary.Size(bsdLabel{}), "BSD disklabel with 22 partitions")
	assert.Equal(t, 16, binary.Size(bsdSlice{}), "partition of a BSD disklabel")
	assert.Equal(t, 512, binary.Size(x86Label{}), "Solaris disk label")
	assert.Equal(t, 12, binary.Size(x86Slice{}), "slice of a Solaris VTOC")
	assert.Equal(t, 512, binary.Size(sunLabel{}), "Sun disk label")
	assert.Equal(t, 0x133+8, binary.Size(ldmHead{}), "LDM private header up to the size of the database")
	assert.Equal(t, 36+2*34, binary.Size(ldmTOC{}), "LDM table of contents")
	assert.Equal(t, 16, binary.Size(ldmVMDB{}), "LDM VMDB up to its first block")
	assert.Equal(t, 16, binary.Size(ldmBlock{}), "head of a VBLK")
	assert.Equal(t, 8, binary.Size(ldmRecord{}), "head of a record in VBLKs")
	assert.Equal(t, 512, binary.Size(exfatBoot{}), "exFAT boot sector")
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
