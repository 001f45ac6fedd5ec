package progress

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

func TestBenchLines(t *testing.T) {
	c := benchCounts{Phase: "measure", Percent: 25}.after(time.Hour, 30*time.Second, 250, 1000)
	require.Equal(t, "measure 25 % [======>-----------------------] 01:30 left", c.line(97))
	require.Equal(t, "measure 25 % [==>------------]", c.line(30))
	require.Equal(t, "measure", strings.TrimSpace(c.line(8)))
	require.Equal(t, "measure 0 % [------------------------------]", benchCounts{Phase: "measure"}.line(97))
}

func TestBenchHasPhases(t *testing.T) {
	var out bytes.Buffer
	b := NewBench(Output{W: &out, Kind: "json"})
	b.Begin("fill", 1000)
	b.Add(1024) // the last piece may be larger than what is left
	b.Begin("measure", 200)
	b.Add(100)
	b.Stop()
	ends, schema := map[string]int64{}, progressSchema(t)
	for line := range strings.Lines(out.String()) {
		object, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		require.NoError(t, err)
		require.NoError(t, schema.Validate(object), line)
		var c benchCounts
		require.NoError(t, json.Unmarshal([]byte(line), &c))
		ends[c.Phase] = c.Percent
	}
	require.Equal(t, map[string]int64{"fill": 100, "measure": 50}, ends)
	NewBench(Output{W: &out, Kind: "none"}).Stop()
}
