package boot_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/boot"
)

// A slip of the pen in codes.json would make code unknown, or let it read another partition.
func TestListedCodes(t *testing.T) {
	d := json.NewDecoder(bytes.NewReader(boot.ListedText))
	d.DisallowUnknownFields()
	var rows []boot.ListedCode
	require.NoError(t, d.Decode(&rows))
	seen := map[string]bool{}
	for _, r := range rows {
		require.False(t, seen[r.ID], r.ID)
		seen[r.ID] = true
		require.NotEmpty(t, r.Name, r.ID)
		require.NotEmpty(t, r.Like, r.ID)
		require.NotEmpty(t, r.About, r.ID)
		if r.Picks != "" {
			require.Contains(t, boot.Picks, r.Picks, r.ID)
		}
		require.Equal(t, r.ID, boot.Named(r.ID).ID)
	}
	require.Len(t, rows, 25)
}
