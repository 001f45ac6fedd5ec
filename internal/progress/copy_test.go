package progress

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestCopyLines(t *testing.T) {
	const mib, gib = 1 << 20, 1 << 30
	at := func(c copyCounts, phase time.Duration) copyCounts { return c.after(phase+time.Minute, phase) }
	long := at(copyCounts{Phase: "copy", Done: 27 * gib / 10, Total: 6 * gib}, 20*time.Second)
	for _, tc := range []struct {
		counts copyCounts
		width  int
		want   string
	}{
		{long, 97, "copy 2.7 of 6.0 GiB [============>-----------------] 138.24 MiB/s 00:24 left"},
		{long, 50, "copy 2.7 of 6.0 GiB [========>-------------] 00:24"},
		{long, 27, "copy 2.7 of 6.0 GiB "},
		{long, 9, "copy 2.7 "},
		{long, -1, ""},
		{
			at(copyCounts{Phase: "prove", Total: 300 * mib}, 0), 97,
			"prove 0.0 of 300.0 MiB [------------------------------]",
		},
		{
			at(copyCounts{Phase: "prove", Done: 512, Total: 512}, time.Second), 97,
			"prove 512 of 512 B [==============================] 512 B/s 00:00 left",
		},
		{at(copyCounts{Phase: "copy"}, time.Second), 97, "copy 0 of 0 B [------------------------------]"},
	} {
		require.Equal(t, tc.want, tc.counts.line(tc.width), "%d", tc.width)
	}
}

// The line never runs over: a terminal would begin a new one each time.
func TestCopyLinesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<50)
		c := copyCounts{
			Phase: rapid.SampledFrom([]string{"copy", "flush", "prove", "digest"}).Draw(t, "phase"),
			Done:  n.Draw(t, "done"),
		}
		c.Total = c.Done + n.Draw(t, "more")
		width := rapid.IntRange(-3, 250).Draw(t, "width")
		took := time.Duration(n.Draw(t, "time"))
		require.LessOrEqual(t, len(c.after(took, took).line(width)), max(width, 0))
	})
}

// Each phase counts from 0 to its own total, and ends with a line that says so.
func TestProgressHasPhases(t *testing.T) {
	var out bytes.Buffer
	p := NewCopy(Output{W: &out, Kind: "json"}, "align", true)
	p.Begin("copy", 300)
	p.Add(100)
	p.Add(200)
	p.Begin("prove", 700)
	p.Add(700)
	p.Stop()
	ends := map[string]int64{}
	for _, c := range printed[copyCounts](t, out.String()) {
		ends[c.Phase] = c.Done
	}
	require.Equal(t, map[string]int64{"copy": 300, "prove": 700}, ends)
}

func TestTimeLeft(t *testing.T) {
	c := copyCounts{Done: 100, Total: 400}.after(9*time.Second+260*time.Millisecond, 2*time.Second)
	require.Equal(t, int64(50), c.Rate)
	require.InDelta(t, 9.3, c.Elapsed, 1e-9)
	require.InDelta(t, 6.0, *c.Left, 1e-9)
	require.InDelta(t, 6, *c.named("copy").Left, 1e-9, "without a proof")
	c.proves = true
	for phase, want := range map[string]float64{"copy": 14, "prove": 6, "digest": 6} {
		require.InDelta(t, want, *c.named(phase).Left, 1e-9, phase)
	}
	require.Nil(t, copyCounts{Total: 400}.after(time.Second, time.Second).Left, "not known before anything is done")
}

// named returns the counts in another phase.
func (c copyCounts) named(phase string) copyCounts {
	c.Phase = phase
	return c.after(9*time.Second, 2*time.Second)
}

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
	ends := map[string]int64{}
	for _, c := range printed[benchCounts](t, out.String()) {
		ends[c.Phase] = c.Percent
	}
	require.Equal(t, map[string]int64{"fill": 100, "measure": 50}, ends)
	NewBench(Output{W: &out, Kind: "none"}).Stop()
}

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
	for _, c := range printed[trialCounts](t, out.String()) {
		disks = append(disks, fmt.Sprint(c.Disk, c.Longest))
	}
	require.Equal(t, []string{"source60", "aligned90"}, disks)
	none := NewTrial(Output{W: &out, Kind: "none"}, "boot")
	none.Begin("source", time.Minute)
	none.Stop()
}
