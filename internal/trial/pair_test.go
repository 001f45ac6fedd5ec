package trial

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each run has the geometry that its container states; one that states none has that of the table.
func TestGeometryOfTheContainer(t *testing.T) {
	t.Parallel()
	var p Plan
	require.NoError(t, json.Unmarshal([]byte(`{
		"bios_geometry": {"source": {"cylinders": 1023, "heads": 4, "sectors_per_track": 17}},
		"result": {"size_bytes": 36665344, "table": {"heads": 16, "sectors_per_track": 63}}
	}`), &p))
	m := Machine{}
	p.Fit(&m)
	disk := func(m Machine) string { return strings.Join(m.disk(), " ") }
	require.Contains(t, disk(p.BIOS.Source.fit(m)), ",lcyls=1024,lheads=4,lsecs=17")
	require.Contains(t, disk(p.BIOS.Result.fit(m)), ",lcyls=71,lheads=16,lsecs=63")
}
