package progress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/results"
)

func someCounts() scanCounts {
	return scanCounts{Done: 1234, Found: 4567, Walking: true, Aligned: 1100, Below: 30, Misaligned: 100, Failed: 4}
}

func TestScanLines(t *testing.T) {
	walking := someCounts().after(5 * time.Second)
	walked := someCounts()
	walked.Walking, walked.Orphans = false, 2
	walked = walked.after(5 * time.Second)
	slow := scanCounts{Done: 3, Found: 9000, Aligned: 3}.after(10 * time.Second)
	all := scanCounts{Done: 7, Found: 7, Aligned: 7}.after(time.Second)
	for _, tc := range []struct {
		counts scanCounts
		width  int
		want   string
	}{
		{walking, 117, "scan 1234/4567+ [=======>----------------------] 246.8/s: 1100 aligned, 30 below, 100 off, 4 " +
			"failed"},
		{walked, 117, "scan 1234/4567 [=======>----------------------] 246.8/s 00:14: 1100 aligned, 30 below, 100 " +
			"off, 4 failed"},
		{walked, 77, "scan 1234/4567 [======>-------------------] 00:14 30 below, 100 off, 4 failed"},
		{walked, 57, "scan 1234/4567 [>-----] 00:14 30 below, 100 off, 4 failed"},
		{walking, 50, "scan 1234/4567+ [=======>----------------------]"},
		{walked, 40, "scan 1234/4567 [=====>-----------------]"},
		{walked, 20, "scan 1234/4567 "},
		{walked, -3, ""},
		{slow, 117, "scan 3/9000 [------------------------------] 0.3/s 8:19:50: 3 aligned, 0 below, 0 off, 0 failed"},
		{all, 117, "scan 7/7 [==============================] 7.0/s 00:00: 7 aligned, 0 below, 0 off, 0 failed"},
		{scanCounts{Walking: true}, 97, "scan 0/0+ [------------------------------] 0.0/s: 0 aligned, 0 below, 0 " +
			"off, 0 failed"},
	} {
		require.Equal(t, tc.want, tc.counts.line(tc.width), "%d", tc.width)
	}
}

// The line never runs over, whatever there is to count: a terminal would begin a new one each time.
func TestScanLinesFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, math.MaxInt32)
		c := scanCounts{
			Done: n.Draw(t, "done"), Walking: rapid.Bool().Draw(t, "walking"), Aligned: n.Draw(t, "aligned"),
			Below:      n.Draw(t, "below"),
			Misaligned: n.Draw(t, "off"), Failed: n.Draw(t, "failed"), Orphans: n.Draw(t, "orphans"),
		}
		c.Found = c.Done + n.Draw(t, "more")
		width := rapid.IntRange(-3, 250).Draw(t, "width")
		line := c.after(time.Duration(n.Draw(t, "time"))).line(width)
		require.LessOrEqual(t, len(line), max(width, 0))
		if width >= 120 {
			require.Contains(t, line, fmt.Sprintf("%d failed", c.Failed))
		}
	})
}

func imageOf(s results.State, v align.Verdict) *results.Image {
	i := results.NewImage("x")
	i.State, i.Verdict = s, v
	return i
}

// told reports five images and one that is missing, from many goroutines.
func told(p *Scan) {
	var g sync.WaitGroup
	for range 4 {
		g.Go(func() { p.Found(2) })
	}
	g.Wait()
	p.Walked()
	for _, i := range []*results.Image{
		imageOf(results.Judged, align.Aligned), imageOf(results.Judged, align.BelowBoundary),
		imageOf(results.Judged, align.Misaligned),
		imageOf(results.Failed, ""), imageOf(results.Orphan, ""), imageOf(results.Gone, ""),
	} {
		g.Go(func() { p.Done(i) })
	}
	g.Wait()
}

func progressSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	for _, name := range []string{"common.json", "progress.json"} {
		b := disktest.ReadFile(t, filepath.Join("../../docs/schema", name))
		object, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
		require.NoError(t, err)
		require.NoError(t, c.AddResource("https://example.org/"+name, object))
	}
	s, err := c.Compile("https://example.org/progress.json")
	require.NoError(t, err)
	return s
}

// printed returns the counts that were printed, a line each, which the schema must allow.
func printed[T any](t *testing.T, lines string) (all []T) {
	t.Helper()
	schema := progressSchema(t)
	for line := range strings.Lines(lines) {
		object, err := jsonschema.UnmarshalJSON(strings.NewReader(line))
		require.NoError(t, err)
		require.NoError(t, schema.Validate(object), line)
		var counts T
		require.NoError(t, json.Unmarshal([]byte(line), &counts))
		all = append(all, counts)
	}
	return all
}

func TestScanProgressAsJSON(t *testing.T) {
	var out bytes.Buffer
	p := NewScan(Output{W: &out, Kind: "json", Quiet: true})
	told(p)
	p.Stop()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	last := lines[len(lines)-1]
	object, err := jsonschema.UnmarshalJSON(strings.NewReader(last))
	require.NoError(t, err, last)
	s := progressSchema(t)
	require.NoError(t, s.Validate(object))
	var c scanCounts
	require.NoError(t, json.Unmarshal([]byte(last), &c))
	require.NotNil(t, c.Left)
	c.Rate, c.Elapsed, c.Left = 0, 0, nil
	require.Equal(t, scanCounts{
		head: head{"trueup/1", "progress", "scan"}, Done: 5, Found: 8, Aligned: 1, Below: 1, Misaligned: 1, Failed: 1,
		Orphans: 1,
	}, c)
	for name := range object.(map[string]any) { // each field has its line in the schema, and all but one must be there
		part := map[string]any{"new_field": true}
		maps.Copy(part, object.(map[string]any))
		require.Error(t, s.Validate(part))
		delete(part, "new_field")
		delete(part, name)
		require.Equal(t, name == "seconds_left", s.Validate(part) == nil, name)
	}
	require.Len(t, object, reflect.TypeFor[head]().NumField()+reflect.TypeFor[scanCounts]().NumField()-1)
}

func TestScanProgressComesOnceASecond(t *testing.T) {
	r, w := io.Pipe()
	p := NewScan(Output{W: w, Kind: "json"})
	first := make([]byte, 4096)
	n, err := r.Read(first) // nothing has ended
	require.NoError(t, err)
	require.Contains(t, string(first[:n]), `"done_images":0,"found_images":0,"walking":true,"images_per_second":0,`)
	go p.Stop()
	_, err = r.Read(first)
	require.NoError(t, err)
}

// A file, and a user that asked for none, get nothing.
func TestScanProgressIsSilent(t *testing.T) {
	for _, kind := range []string{"auto", "none"} {
		for _, quiet := range []bool{false, true} {
			f, err := os.Create(filepath.Join(t.TempDir(), "x"))
			require.NoError(t, err)
			p := NewScan(Output{W: f, Kind: kind, Quiet: quiet})
			told(p)
			p.Stop()
			b := disktest.ReadFile(t, f.Name())
			require.Empty(t, b)
			require.NoError(t, f.Close())
		}
	}
}

// screen is a terminal.
type screen struct {
	mu      sync.Mutex
	text    strings.Builder
	program *os.File // what the program writes to
	ended   chan struct{}
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")

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
			Phase: rapid.SampledFrom([]string{"copy", "flush", "prove", "digest", "stream"}).Draw(t, "phase"),
			Done:  n.Draw(t, "done"),
		}
		c.Total = c.Done + n.Draw(t, "more")
		width := rapid.IntRange(-3, 250).Draw(t, "width")
		took := time.Duration(n.Draw(t, "time"))
		require.LessOrEqual(t, len(c.after(took, took).line(width)), max(width, 0))
	})
}

// Each phase counts from 0 to its own total, and ends with a line that reports it.
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
