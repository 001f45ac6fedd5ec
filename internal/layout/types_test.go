package layout

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
)

// A type that no table of types has would be a slip of the pen: package table holds its names against sfdisk.
func TestRefusedTypesAreTypes(t *testing.T) {
	for id, r := range refusedTypes {
		p := table.Partition{Kind: table.Entry, TypeGUID: id}
		if n, err := strconv.ParseUint(id, 0, 8); err == nil {
			p = table.Partition{Kind: table.Primary, Type: byte(n)}
		}
		require.Equal(t, id, p.TypeID())
		require.NotEmpty(t, p.TypeName(), id)
		require.GreaterOrEqual(t, r.effect, ondisk.Unbootable, id)
		require.NotEmpty(t, r.remedy, id)
	}
	for id := range relativeLabels {
		require.NotContains(t, refusedTypes, id)
	}
}
