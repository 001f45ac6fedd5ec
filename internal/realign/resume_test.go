package realign

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// An order comes back from its journal as it was. One that no command line could give is refused.
func TestOrders(t *testing.T) {
	disktest.OnUnix(t, "absolute paths")
	t.Parallel()
	o, err := NewOrder("1.0", "align", "/a.vmdk", []string{"/b.vmdk"}, Reading{SectorSize: 512},
		Goal{Boundary: 1 << 20},
		Target{Format: "vmdk", Subformat: "monolithicFlat", Round: 4096}, true)
	require.NoError(t, err)
	require.Equal(t, []string{"/b.vmdk"}, o.With)
	o.Files, o.Seed = json.RawMessage(`[]`), []byte{1}
	b, err := json.Marshal(o)
	require.NoError(t, err)
	back, err := parseOrder(b)
	require.NoError(t, err)
	require.Equal(t, o, back)
	for name, change := range map[string]func(o *Order){
		"a relative source":      func(o *Order) { o.Source = "a.vmdk" },
		"another command":        func(o *Order) { o.Command = "scan" },
		"an odd boundary":        func(o *Order) { o.Goal.Boundary = 5000 },
		"an odd size of sectors": func(o *Order) { o.Reading.SectorSize = 513 },
		"an odd size":            func(o *Order) { o.Target.Round = 1000 },
		"a target with options":  func(o *Order) { o.Target.Format = "raw,align=4096" },
		"two choices":            func(o *Order) { o.Goal.DataOnly, o.Goal.Only = true, []int{1} },
	} {
		bad := *o
		change(&bad)
		b, err := json.Marshal(bad)
		require.NoError(t, err)
		_, err = parseOrder(b)
		require.Error(t, err, name)
	}
	for _, text := range []string{"", "null", "{}", `{"Command": "align", "Source": "/a", "Unknown": 1}`} {
		_, err := parseOrder([]byte(text))
		require.Error(t, err, text)
	}
}

// FuzzOrder reads any bytes as an order. What is understood can be written and read again.
func FuzzOrder(f *testing.F) {
	f.Add([]byte(`{"Command": "align", "Source": "/a", "Target": {"Format": "raw"}, "Goal": {"Boundary": 65536}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseOrder(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(o)
		require.NoError(t, err)
		_, err = parseOrder(again)
		require.NoError(t, err)
	})
}
