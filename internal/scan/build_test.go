package scan

import (
	"crypto/sha256"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

func TestBuildsWithoutAVersionDifferByTheirBytes(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	program := disktest.ReadFile(t, self)
	hash := fmt.Sprintf(" %x", sha256.Sum256(program))[:17]
	for version, want := range map[string]string{
		"v1.2.3": "v1.2.3", "v1.2.3-4-gabcdef0": "v1.2.3-4-gabcdef0",
		"devel": "devel" + hash, "unknown": "unknown" + hash, "v1.2.3-dirty": "v1.2.3-dirty" + hash,
	} {
		got, err := buildOf(version)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
