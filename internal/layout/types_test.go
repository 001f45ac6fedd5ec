package layout

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/table"
)

// A role that no type has, or that nothing asks for, would be a slip of the pen: package table compares its types with
// sfdisk.
func TestRefusalsAreOfRoles(t *testing.T) {
	asked := []table.Role{
		table.ESP, table.PReP, table.BIOSBoot, table.FreeBSDBoot, table.FreeBSD, table.LDM, table.LDMDatabase,
		table.BeOS, table.NoFiles, table.Reserved,
	}
	types := map[table.Role]bool{otherLabel: true} // known by its content
	for line := range strings.SplitSeq(string(disktest.ReadFile(t, "../table/types.txt")), "\n") {
		id, _, _ := strings.Cut(line, "\t")
		roles := table.Roles(id)
		for _, role := range roles {
			types[role] = true
			require.True(t, slices.Contains(asked, role) || refusals()[role].Text != "", "%s: %s", id, role)
		}
		if slices.ContainsFunc(roles, func(r table.Role) bool { return slices.Contains(asked[:4], r) }) {
			require.Contains(t, roles, table.NoFiles, id)
		}
	}
	require.Len(t, refusals(), 15)
	for role, r := range refusals() {
		require.True(t, types[role], role)
		require.NotEmpty(t, r.Text, role)
		require.NotEmpty(t, r.Remedy, role)
		wide := []table.Role{table.LDM, "storage-spaces", "disk-manager"} // what else is on the disk counts from them
		require.Equal(t, slices.Contains(wide, role), r.Wide, role)
		require.Equal(t, role == table.BeOS, r.Unbootable, role)
	}
	require.NotContains(t, refusals(), table.FreeBSD)
}
