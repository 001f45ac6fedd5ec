package table

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Expected sizes are those of the specifications named at the structs.
func TestStructSizes(t *testing.T) {
	assert.Equal(t, entrySize, binary.Size(mbrEntry{}), "MBR entry")
	assert.Equal(t, 16, entrySize, "MBR entry")
	assert.Equal(t, 512, binary.Size(mbrSector{}), "sector 0")
	assert.Equal(t, 92, binary.Size(gptHeader{}), "GPT header, UEFI 2.10 table 5-5")
	assert.Equal(t, 128, binary.Size(gptEntry{}), "GPT entry, UEFI 2.10 table 5-6")
}
