package trial

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/report"
)

// Each run has the geometry that its container states; one that states none has that of the table.
func TestGeometryOfTheContainer(t *testing.T) {
	t.Parallel()
	var p report.Plan
	require.NoError(t, json.Unmarshal([]byte(`{
		"bios_geometry": {"source": {"cylinders": 1023, "heads": 4, "sectors_per_track": 17}},
		"result": {"size_bytes": 36665344, "table": {"heads": 16, "sectors_per_track": 63}}
	}`), &p))
	m := Machine{}
	m.fit(p.Result)
	disk := func(m Machine) string { return strings.Join(m.disk(), " ") }
	require.Contains(t, disk(m.with(p.BIOS.Source)), ",lcyls=1024,lheads=4,lsecs=17")
	require.Contains(t, disk(m.with(p.BIOS.Result)), ",lcyls=71,lheads=16,lsecs=63")
}
