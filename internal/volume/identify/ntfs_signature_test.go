package identify

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
)

// ntfs-3g reads a volume whose boot sector does not end in 0xaa55, and so must be seen what it is.
func TestNTFSWithoutSignature(t *testing.T) {
	path := blank(t, 4<<20)
	disktest.Run(t, "mkntfs", "--quiet", "--fast", "--force", path)
	want := probe(t, path)
	disktest.WriteAt(t, path, 510, []byte{0, 0})
	disktest.Run(t, "ntfsinfo", "--mft", path)
	v := probe(t, path)
	require.Equal(t, want.Kind, v.Kind)
	require.Equal(t, want.UUID, v.UUID)
	require.Equal(t, want.Boot, v.Boot)
	require.Len(t, v.Issues, len(want.Issues)+1)
	require.Equal(t, "ntfs-signature", v.Issues[0].Code)
	require.Equal(t, ondisk.Warn, v.Issues[0].Effect)
}
