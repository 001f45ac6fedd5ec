package image_test

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
)

// TestDamagedQED has the name of its backing file outside of the file, or cut off: it can name any file.
func TestDamagedQED(t *testing.T) {
	t.Parallel()
	headed := func(flags byte, size uint32) []byte {
		b := make([]byte, 64)
		copy(b, "QED\x00")
		b[16] = flags // 1: QED_F_BACKING_FILE
		binary.LittleEndian.PutUint32(b[56:], 64)
		binary.LittleEndian.PutUint32(b[60:], size)
		return append(b, "disk"...)
	}
	for what, c := range map[string]struct {
		bytes []byte
		named bool
		user  string
	}{
		"behind the end": {headed(1, 5), true, ""}, "too long": {headed(1, 1<<20), true, ""},
		"a part of a header": {headed(1, 4)[:20], true, ""}, "complete": {headed(1, 4), true, "overlay"},
		"without a backing file": {headed(0, 4), false, ""}, "of another": {headed(1, 3), false, ""},
	} {
		dir := t.TempDir()
		imagetest.Write(t, dir, "overlay", c.bytes)
		d, err := gate.OpenFolder(dir)
		require.NoError(t, err)
		named, err := image.IsNamed(d, "disk")
		require.NoError(t, err)
		require.Equal(t, c.named, named, what)
		user, err := image.UserOf(d, "disk")
		require.NoError(t, err)
		require.Equal(t, c.user, user, what)
		require.NoError(t, d.Close())
	}
}
