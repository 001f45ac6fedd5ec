package layout

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/table"
)

// A role that no type has would be a slip of the pen: package table holds its types against sfdisk.
func TestRefusalsAreOfRoles(t *testing.T) {
	types := map[table.Role]bool{otherLabel: true} // known by its content
	for line := range strings.SplitSeq(string(disktest.ReadFile(t, "../table/types.txt")), "\n") {
		id, _, _ := strings.Cut(line, "\t")
		for _, role := range table.Roles(id) {
			types[role] = true
		}
	}
	require.Len(t, refusals(), 15)
	for role, r := range refusals() {
		require.True(t, types[role], role)
		require.NotEmpty(t, r.Text, role)
		require.NotEmpty(t, r.Remedy, role)
	}
	require.NotContains(t, refusals(), table.FreeBSD)
}
