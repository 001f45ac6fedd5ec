package suggested

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A copy goes beside its image, and one of a block device into the current folder: /dev is no place for it.
func TestNamesOfCopies(t *testing.T) {
	for path, want := range map[string]string{
		"lib/disk.img":                    "trueup align lib/disk.img lib/disk-aligned.img",
		"lib.d/disk":                      "trueup align lib.d/disk lib.d/disk-aligned",
		"/dev/loop0":                      "trueup align /dev/loop0 loop0-aligned.img",
		"/dev/vg/lv-root":                 "trueup align /dev/vg/lv-root lv-root-aligned.img",
		"/dev/disk/by-id/ata-disk.1-part": "trueup align /dev/disk/by-id/ata-disk.1-part ata-disk.1-part-aligned.img",
		"/dev/shm/disk.img":               "trueup align /dev/shm/disk.img /dev/shm/disk-aligned.img",
	} {
		require.Equal(t, want, Align(path, "raw", nil), path)
	}
}
