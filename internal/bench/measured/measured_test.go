package measured

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Python has its own median.
func TestSpread(t *testing.T) {
	t.Parallel()
	python := disktest.Tool(t, "python3")
	var lists [][]float64
	rapid.Check(t, func(t *rapid.T) {
		lists = append(lists, rapid.SliceOfN(rapid.Float64Range(0, 1e9), 1, 9).Draw(t, "rounds"))
	})
	input, err := json.Marshal(lists)
	require.NoError(t, err)
	out := disktest.RunInput(t, string(input), python, "-c",
		"import json, statistics, sys\nprint(json.dumps([[statistics.median(x), min(x), max(x)] for x in "+
			"json.load(sys.stdin)]))")
	var want [][3]float64
	require.NoError(t, json.Unmarshal([]byte(out), &want))
	for n, list := range lists {
		var rounds []Round
		for _, x := range list {
			rounds = append(rounds, Round{IOPS: x})
		}
		got := spreadOf(rounds, func(r Round) float64 { return r.IOPS })
		require.InEpsilon(t, 1+want[n][0], 1+got.Median, 1e-12)
		require.InDelta(t, want[n][1], got.Min, 0)
		require.InDelta(t, want[n][2], got.Max, 0)
	}
}

// load has I/O rates for starts of 64, 63.5 and 64.5 KiB.
func load(access, op string, size int64, jobs int, aligned, before, behind []float64) Load {
	l := Load{Access: access, Op: op, Size: size, Jobs: jobs}
	for _, known := range Loads() {
		if known.same(l) {
			l = known
		}
	}
	for n, start := range []int64{128, 127, 129} {
		p := Point{Start: start * units.SectorSize}
		for _, x := range [][]float64{aligned, before, behind}[n] {
			p.Rounds = append(p.Rounds, Round{
				IOPS: x, Bytes: x * float64(size), Mean: 1000, P50: 900, P95: 2000,
				P99: 3000, P999: 4000,
			})
		}
		l.Points = append(l.Points, p)
	}
	return l
}

func result(loads ...Load) *Result {
	r := &Result{
		Date: time.Date(2026, 11, 23, 4, 5, 6, 0, time.UTC), Kernel: "Linux 6", Tool: "fio-3.33", Direct: true,
		Loads: loads,
	}
	r.Summarize()
	return r
}

func TestRatio(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name           string
		aligned, other []float64
		want           Ratio
		text           string
	}{
		{
			"clear",
			[]float64{200, 210, 220},
			[]float64{100, 105, 110},
			Ratio{2, 1.8182, 2.2, true},
			"2.00 (1.82 to 2.20)",
		},
		{
			"slower",
			[]float64{100, 105, 110},
			[]float64{200, 210, 220},
			Ratio{.5, .4545, .55, true},
			"0.50 (0.45 to 0.55)",
		},
		{
			"overlap",
			[]float64{100, 200, 300},
			[]float64{90, 95, 101},
			Ratio{2.1053, .9901, 3.3333, false},
			"no difference",
		},
		{"touching", []float64{100, 100, 100}, []float64{50, 50, 100}, Ratio{2, 1, 2, false}, "no difference"},
		{
			"too little",
			[]float64{104, 104, 104},
			[]float64{100, 100, 100},
			Ratio{1.04, 1.04, 1.04, false},
			"no difference",
		},
		{"two rounds", []float64{200, 200}, []float64{100, 100}, Ratio{2, 2, 2, false}, "no difference"},
	} {
		r := result(load(Random, Write, 8192, 1, tc.aligned, tc.other, tc.other))
		p := r.Loads[0].Points
		require.Nil(t, p[0].Against)
		require.Equal(t, &tc.want, p[1].Against, tc.name)
		require.Equal(t, tc.text, p[1].Against.Text(), tc.name)
	}
}

var (
	twice = []float64{200, 205, 210}
	once  = []float64{100, 102, 104}
	wild  = []float64{50, 150, 250}
)

func TestGains(t *testing.T) {
	t.Parallel()
	r := result(load(Random, Read, 8192, 1, twice, wild, wild), load(Random, Read, 8192, 8, twice, wild, once),
		load(Random, Write, 8192, 8, twice, once, wild), load(Random, Write, 8192, 1, twice, once, wild),
		load(Random, Write, 65536, 1, twice, once, wild), load(Sequential, Write, 65536, 1, twice, once, once))
	said := func(lba int64) string { return r.Say(r.Gains(lba * units.SectorSize)) }
	const before = "on this storage, aligned: random writes of 8 KiB 2.0 times as many; random reads of 8 KiB: no " +
		"difference " +
		"that can be told apart from noise (measured 2026-11-23, start 63.5 KiB)"
	require.Equal(t, before, said(63), "63 and 127 are equal modulo 16")
	require.Contains(t, said(65), "random reads of 8 KiB 2.0 times as many (measured 2026-11-23, start 64.5 KiB)",
		"65 is 129 modulo 16")
	require.Equal(t, before, said(67), "an odd sector, of which no other was measured")
	for _, lba := range []int64{0, 64, 128, 2048, 66, 2} {
		require.Empty(t, said(lba), "%d", lba)
	}
	sizes := map[string]bool{}
	for _, g := range r.Gains(63 * 512) {
		sizes[g.Access+" "+units.Format(g.Size)] = true
	}
	require.Equal(t, map[string]bool{"random 8 KiB": true, "random 64 KiB": true}, sizes, "63 is not 127 modulo 128")
	require.Len(t, r.Gains(127*512), 6)

	r.Direct = false
	require.Contains(t, said(63), ", through the page cache)")
	slower := result(load(Random, Write, 8192, 8, once, twice, twice))
	require.Contains(t, slower.Say(slower.Gains(63*512)), "random writes of 8 KiB 0.50 times as many, which is fewer")
}

// stored is a result as the command writes it.
func stored(t testing.TB, change func(r *Result)) []byte {
	t.Helper()
	r := result(load(Random, Write, 8192, 1, twice, once, wild))
	change(r)
	b, err := json.Marshal(struct {
		Schema  string `json:"schema"`
		Command string `json:"command"`
		*Result
	}{"trueup/1", "bench", r})
	require.NoError(t, err)
	return b
}

func TestDecode(t *testing.T) {
	t.Parallel()
	text := stored(t, func(r *Result) { r.Loads[0].Points[1].Against.Median = 1000 })
	r, err := Decode(text)
	require.NoError(t, err)
	require.Equal(t, result(load(Random, Write, 8192, 1, twice, once, wild)), r,
		"what the file concludes does not count")
	for want, change := range map[string]func(r *Result){
		"loads: 0":                 func(r *Result) { r.Loads = nil },
		"loads: 501":               func(r *Result) { r.Loads = make([]Load, 501) },
		"no points":                func(r *Result) { r.Loads[0].Points = nil },
		"first start is not":       func(r *Result) { r.Loads[0].Points = r.Loads[0].Points[1:] },
		"start 65025":              func(r *Result) { r.Loads[0].Points[1].Start++ },
		"start -512":               func(r *Result) { r.Loads[0].Points[1].Start = -512 },
		"no rounds":                func(r *Result) { r.Loads[0].Points[1].Rounds = nil },
		"1e-310 I/Os":              func(r *Result) { r.Loads[0].Points[1].Rounds[0].IOPS = 1e-310 },
		"-1 I/Os":                  func(r *Result) { r.Loads[0].Points[1].Rounds[0].IOPS = -1 },
		"1e+13 bytes a second":     func(r *Result) { r.Loads[0].Points[1].Rounds[0].Bytes = 1e13 },
		"latency -1 ns":            func(r *Result) { r.Loads[0].Points[1].Rounds[0].P99 = -1 },
		"latency 3600000000001 ns": func(r *Result) { r.Loads[0].Points[1].Rounds[0].P50 = 3600000000001 },
	} {
		_, err := Decode(stored(t, change))
		require.ErrorIs(t, err, ondisk.ErrFormat)
		require.ErrorContains(t, err, want)
	}
	for _, change := range []func(l *Load){
		func(l *Load) { l.Access = "x" }, func(l *Load) { l.Op = "trim" },
		func(l *Load) { l.Size = 8193 }, func(l *Load) { l.Jobs = 0 },
	} {
		_, err := Decode(stored(t, func(r *Result) { change(&r.Loads[0]) }))
		require.ErrorIs(t, err, ondisk.ErrFormat)
		require.ErrorContains(t, err, "trueup bench measures no such I/O; measure again")
	}
	_, err = Decode([]byte(`{"schema": "trueup/1", "command": "scan"}`))
	require.ErrorContains(t, err, "trueup bench --json writes it")
	_, err = Decode(append(text, text...))
	require.ErrorIs(t, err, ondisk.ErrFormat)
	_, err = Decode([]byte("x"))
	require.ErrorIs(t, err, ondisk.ErrFormat)
	_, err = Decode(make([]byte, MaxFile+1))
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

func FuzzDecode(f *testing.F) {
	f.Add(stored(f, func(*Result) {}))
	f.Add([]byte(`{"schema": "trueup/1", "command": "bench", "date": "2026-11-23T00:00:00Z", "loads": [{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Decode(text)
		if err != nil {
			return
		}
		for lba := range int64(300) {
			gains := r.Gains(lba * units.SectorSize)
			for _, g := range gains {
				m := g.Measured
				require.False(t, math.IsNaN(m.Median) || math.IsInf(m.Median, 0) || m.Low > m.High, fmt.Sprint(m))
			}
			require.Equal(t, len(Typical(gains)) > 0, r.Say(gains) != "")
		}
	})
}
