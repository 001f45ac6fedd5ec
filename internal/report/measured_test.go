package report_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// benchmarkOf has three rounds of random I/O of a size at 64 KiB and at another start, with these I/Os a second.
func benchmarkOf(size, start int64, aligned, other float64) *measured.Result {
	rounds := func(iops float64) (out []measured.Round) {
		for n := range 3 {
			out = append(out, measured.Round{IOPS: iops + float64(n), Bytes: 1})
		}
		return out
	}
	r := &measured.Result{Date: time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC), Direct: true}
	for _, op := range []string{measured.Write, measured.Read} {
		r.Loads = append(r.Loads, measured.Load{
			Name: op, Access: measured.Random, Op: op, Size: size, Jobs: 8,
			Points: []measured.Point{{Start: 65536, Rounds: rounds(aligned)}, {Start: start, Rounds: rounds(other)}},
		})
	}
	r.Summarize()
	return r
}

// TestALossOutweighsAGain has reads that are twice as many when aligned, and writes that are half as many.
func TestALossOutweighsAGain(t *testing.T) {
	const start = 63 * 512
	gains, losses := benchmarkOf(8192, start, 2000, 1000), benchmarkOf(8192, start, 1000, 2000)
	for name, b := range map[string]*measured.Result{
		"writes": {Direct: true, Loads: []measured.Load{losses.Loads[0], gains.Loads[1]}},
		"reads":  {Direct: true, Loads: []measured.Load{gains.Loads[0], losses.Loads[1]}},
	} {
		r := report.Inspect{Advice: align.Advice{Action: align.Align, Gain: align.High}, Disk: report.Disk{
			Partitions: []report.Partition{{Number: 1, Start: start, Alignment: 512, Verdict: align.Misaligned}},
		}}
		r.Benchmark(b)
		a := r.Advice
		require.Equal(t, align.Loss, a.Gain, name)
		require.Equal(t, align.Optional, a.Action, name)
		require.Contains(t, a.Text, "Rather not: ", name)
	}
}

// TestNoStartStandsForThePartition has a FAT whose data are aligned otherwise than its start, beside a partition that
// the benchmark has measured. Inspect and plan say so alike.
func TestNoStartStandsForThePartition(t *testing.T) {
	const start, other = 63 * 512, 61503 * 512
	bench := benchmarkOf(8192, start, 2000, 1000)
	d := report.Disk{Partitions: []report.Partition{
		{Number: 1, Start: start, Alignment: 512, Verdict: align.Misaligned},
		{Number: 2, Start: other, Data: other + 85*512, Alignment: 512, Verdict: align.Misaligned},
	}}
	moves := []report.Move{{Partition: 1, From: start}, {Partition: 2, From: other}}
	inspect := &report.Inspect{Disk: d}
	plan := &report.Plan{Before: &d, Changes: report.Changes{Moves: moves}}
	for _, r := range []interface{ Benchmark(b *report.Benchmark) }{inspect, plan} {
		r.Benchmark(bench)
	}
	require.Len(t, inspect.Measured.Partitions, 1)
	require.Equal(t, inspect.Measured, plan.Measured)
	const says = "The benchmark does not apply to partition 2: "
	var a, b bytes.Buffer
	(&report.Text{W: &a, Width: 200}).Inspect(inspect)
	(&report.Text{W: &b, Width: 200}).Plan(plan)
	require.Contains(t, a.String(), says)
	require.Contains(t, b.String(), says)
}

// A benchmark of the storage is the advice where it has measured what would move; the model of blocks is only that.
func TestWhatWasMeasuredIsTheAdvice(t *testing.T) {
	part := func(number int, lba int64, v volume.Volume) boot.Partition {
		return boot.Partition{Volume: &v, Partition: table.Partition{
			Range: disk.Range{Off: lba * 512, Len: 1 << 20}, Number: number, Kind: table.Primary, Type: 7,
		}}
	}
	ntfs := volume.Volume{Kind: volume.NTFS, BlockSize: 4096}
	fat := volume.Volume{Kind: volume.FAT16, BlockSize: 4096, DataStart: 4096}
	const odd = 127 * 512
	for _, tc := range []struct {
		name   string
		parts  []boot.Partition
		bench  *measured.Result
		action align.Action
		gain   align.Gain
		says   string
	}{
		{"by the model", []boot.Partition{part(1, 63, ntfs)}, nil, align.Align, align.High, "Yes: random reads"},
		{
			"noise",
			[]boot.Partition{part(1, 63, ntfs)},
			benchmarkOf(8192, odd, 1000, 1000), align.Optional,
			align.NoGain, "No: on this storage, aligned: random writes of 8 KiB: no difference that can be told apart",
		},
		{
			"twice",
			[]boot.Partition{part(1, 63, ntfs)},
			benchmarkOf(8192, odd, 2000, 1000), align.Align, align.High,
			"Yes: on this storage, aligned: random writes of 8 KiB 2.0 times as many",
		},
		{
			"a tenth",
			[]boot.Partition{part(1, 63, ntfs)},
			benchmarkOf(8192, odd, 1100, 1000), align.Align, align.Some,
			"It helps a little: on this storage",
		},
		{
			"slower",
			[]boot.Partition{part(1, 63, ntfs)},
			benchmarkOf(8192, odd, 1000, 2000), align.Optional,
			align.Loss, "Rather not: on this storage, aligned: random writes of 8 KiB 0.50 times as many",
		},
		{
			"below the boundary, where the model has no gain",
			[]boot.Partition{part(1, 64, ntfs)},
			benchmarkOf(65536, 32768, 2000, 1000), align.Align, align.High, "Yes: on this storage",
		},
		{
			"one of two was measured",
			[]boot.Partition{part(1, 63, ntfs), part(2, 4100, ntfs)},
			benchmarkOf(8192, odd, 1000, 1000), align.Align, align.High, "Yes: random reads",
		},
		{
			"data that no start on the boundary aligns as measured",
			[]boot.Partition{part(1, 63, fat)},
			benchmarkOf(8192, odd, 1000, 1000), align.Align, align.High, "Yes: random reads",
		},
		{
			"nothing to move",
			[]boot.Partition{part(1, 2048, ntfs)},
			benchmarkOf(8192, odd, 2000, 1000), align.Nothing,
			align.NoGain, "No: every partition",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := &layout.Layout{
				Size: 1 << 30, Partitions: tc.parts, Table: &table.Table{Scheme: table.MBR, SectorSize: 512},
				Boot: &boot.Result{Code: boot.Empty},
			}
			goal := align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary}
			r := &report.Inspect{Disk: report.NewDisk(l, goal.Must, align.Check(l, goal))}
			r.Advice = align.For(l, align.Case{Boundary: goal.Must, Storage: align.Generic()})
			r.Benchmark(tc.bench)
			require.Equal(t, tc.action, r.Advice.Action)
			require.Equal(t, tc.gain, r.Advice.Gain)
			require.Contains(t, r.Advice.Text, tc.says)
			if tc.action != align.Nothing {
				require.Contains(t, r.Advice.Text, "This is a data disk.")
			}
		})
	}
}
