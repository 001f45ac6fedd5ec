package disklabel

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Expected sizes are those of the specifications named at the structs.
func TestStructSizes(t *testing.T) {
	assert.Equal(t, 148+22*16, binary.Size(bsdLabel{}), "BSD disklabel with 22 partitions")
	assert.Equal(t, 16, binary.Size(bsdSlice{}), "partition of a BSD disklabel")
	assert.Equal(t, 512, binary.Size(x86Label{}), "Solaris disk label")
	assert.Equal(t, 12, binary.Size(x86Slice{}), "slice of a Solaris VTOC")
	assert.Equal(t, 512, binary.Size(sunLabel{}), "Sun disk label")
}

func TestSizesOfForeignTables(t *testing.T) {
	assert.Equal(t, 20, binary.Size(dasdCDL{}), "vtoc_volume_label_cdl up to the address of the table of contents")
	assert.Equal(t, 88, binary.Size(dasdLDL{}), "vtoc_volume_label_ldl")
	assert.Equal(t, 56, binary.Size(dasdCMS{}), "vtoc_cms_label up to the offset of the disk")
	assert.Equal(t, 115, binary.Size(dasdEntry{}), "vtoc_format1_label up to its first extent")
	assert.Equal(t, 80, binary.Size(appleEntry{}), "entry of an Apple partition map up to pmPartType")
	assert.Equal(t, 512, binary.Size(sgiLabel{}), "volume header")
	assert.Equal(t, 208, binary.Size(amigaBlock{}), "partition block up to the last word of its environment")
	assert.Equal(t, 512, binary.Size(atariRoot{}), "root sector")
}
