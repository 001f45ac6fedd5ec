package progress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTrialLines(t *testing.T) {
	t.Parallel()
	c := trialCounts{Disk: "source", Elapsed: 61.5, Longest: 120}
	for width, want := range map[int]string{
		97: "boot source 01:01, limit 02:00 [==============>---------------]",
		50: "boot source 01:01, limit 02:00 [=======>---------]",
		40: "boot source 01:01, limit 02:00 [==>----]",
		33: "boot source 01:01, limit 02:00 ",
		8:  "boot sou",
		-1: "",
	} {
		require.Equal(t, want, c.line(width), "%d", width)
	}
}

// Each run has a line at its end, and Stop may be called again.
func TestTrialHasRuns(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := NewTrial(Output{W: &out, Kind: "json"}, "boot")
	p.Begin("source", time.Minute)
	p.Begin("aligned", 90*time.Second)
	p.Stop()
	p.Stop()
	var disks []string
	for line := range strings.Lines(out.String()) {
		var c trialCounts
		require.NoError(t, json.Unmarshal([]byte(line), &c))
		disks = append(disks, fmt.Sprint(c.Disk, c.Longest))
	}
	require.Equal(t, []string{"source60", "aligned90"}, disks)
	none := NewTrial(Output{W: &out, Kind: "none"}, "boot")
	none.Begin("source", time.Minute)
	none.Stop()
}
