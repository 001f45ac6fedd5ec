package scan

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// A script is for bash, and names are quoted for other shells on Windows.
func TestNoScriptOnWindows(t *testing.T) {
	c := Choices{Script: "fix.sh"}
	for system, refused := range map[string]bool{"linux": false, "darwin": false, "freebsd": false, "windows": true} {
		require.NoError(t, (&Choices{}).scriptOn(system))
		err := c.scriptOn(system)
		require.Equal(t, refused, err != nil, system)
		if refused {
			require.ErrorIs(t, err, ondisk.ErrUsage)
			require.ErrorContains(t, err, "--script writes a script for bash")
		}
	}
}
