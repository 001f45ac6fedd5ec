package vmdk_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/ondisk"
)

// A directory of 2^40 entries that is a hole of the file costs nothing to make, and nothing to look through.
func TestVMDKDirectoryOfAHole(t *testing.T) {
	const directory, sectors = 4 << 40, 1 << 40 * 512 * 8 // of grains of 4 KiB
	path := filepath.Join(t.TempDir(), "disk.vmdk")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", path, "1M")
	b := disktest.ReadFile(t, path)
	le := binary.LittleEndian
	le.PutUint32(b[8:], le.Uint32(b[8:])&^2) // no redundant directory
	le.PutUint64(b[12:], sectors)
	le.PutUint64(b[20:], 8)
	le.PutUint64(b[56:], mib/sector)
	text := b[sector : 21*sector]
	line := fmt.Appendf(nil, "RW %d SPARSE", int64(sectors))
	copy(text, bytes.Clone(regexp.MustCompile(`RW \d+ SPARSE`).ReplaceAll(text, line)))
	imagetest.Write(t, filepath.Dir(path), "disk.vmdk", b)
	if err := os.Truncate(path, directory+2*mib); err != nil {
		t.Skipf("the file system takes no file of 4 TiB: %v", err)
	}
	img := imagetest.Open(t, path)
	spent := disktest.Spent()
	issues, err := img.Check()
	require.NoError(t, err)
	require.Empty(t, imagetest.Codes(issues, ondisk.Broken))
	e, err := img.Disk.Extent(0, img.Disk.Size())
	require.NoError(t, err)
	require.True(t, e.Zero)
	require.Greater(t, e.Len, int64(1)<<48)
	require.Less(t, spent(), 2*time.Second)
}
