package report_test

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// benchmarkOf has three rounds of random I/O of a size at 64 KiB and at another start, with these I/Os per second.
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

// TestNoStartStandsForThePartition has a FAT whose data have another alignment than its start, beside a partition that
// the benchmark has measured. inspect and plan report the same.
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
	for _, r := range []interface{ Benchmark(b *measured.Result) }{inspect, plan} {
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

// A benchmark of the storage determines the advice if it has measured the moving partitions; the block model is only an
// estimate.
func TestAdviceFollowsTheBenchmark(t *testing.T) {
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

// containerLines returns the lines of a report about parents and data.
func containerLines(t *testing.T, i report.Image) string {
	t.Helper()
	var out bytes.Buffer
	(&report.Text{W: &out}).Inspect(&report.Inspect{Image: i})
	var lines []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "  Parent") || strings.HasPrefix(line, "  Data") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return strings.Join(lines, "\n")
}

func TestDataInWords(t *testing.T) {
	const gib = 1 << 30
	n := int64(900 << 20)
	for want, u := range map[string]report.Usage{
		"nothing of 8 GiB stored in the container": {Complete: true},
		"8 GiB of 8 GiB stored in the container, in 1 " +
			"piece": {Stored: 8 * gib, Pieces: 1, Complete: true},
		"2 GiB of 8 GiB stored in the container, in 37 " +
			"pieces": {Stored: 2 * gib, Pieces: 37, Complete: true},
		"2 GiB of 8 GiB stored in the container, " +
			"compressed": {Compressed: 2 * gib, Complete: true},
		"nothing of 8 GiB stored in the container, 3 GiB in " +
			"parents": {Inherited: 3 * gib, Complete: true},
		"nothing of 8 GiB stored in the container: its map is too long to look at all of it": {},
		"at least 1 GiB of 8 GiB stored in the container, in 9 pieces: its map is too long to look at all of " +
			"it": {Stored: gib, Pieces: 9},
		"2 GiB of 8 GiB stored in the container, in 37 pieces (3 out of order), 900 MiB not " +
			"zero": {Stored: 2 * gib, Pieces: 37, Unordered: 3, NonZero: &n, Complete: true},
		"2 GiB of 8 GiB stored in the container, in 5 pieces, 1 GiB more compressed, 4 GiB in parents, 900 MiB not " +
			"zero": {Stored: 2 * gib, Pieces: 5, Compressed: gib, Inherited: 4 * gib, NonZero: &n, Complete: true},
	} {
		require.Equal(t, "  Data       "+want, containerLines(t, report.Image{Format: "raw", Size: 8 * gib, Usage: &u}))
	}
	n = 0
	require.Equal(t, "  Data       nothing of 8 GiB stored in the container",
		containerLines(t, report.Image{Size: 8 * gib, Usage: &report.Usage{NonZero: &n, Complete: true}}))
	sparse := report.Image{
		Size: 8 * gib, Usage: &report.Usage{Stored: gib, Pieces: 2, Complete: true},
		Files: []image.FileInfo{{Name: "a", Size: 8 * gib, Allocated: gib}},
	}
	require.Equal(t, "  Data       1 GiB of 8 GiB stored on this disk, in 2 pieces", containerLines(t, sparse),
		"holes of the file are not counted")
	require.Empty(t, containerLines(t, report.Image{Format: "raw"}), "nothing is said of what is not known")
}

// Names and IDs of parents come from an image.
func TestChains(t *testing.T) {
	img := &image.Image{
		Image: &driver.Image{Disk: disk.New(512, 512, func(int64) (disk.Run, error) {
			return disk.Run{Len: 512},
				nil
		})},
		Chain: []image.Link{
			{Name: "snap\x1b[2J.vmdk", Format: "vmdk", Subformat: "monolithicSparse", ContentID: "1234abcd"},
			{Name: "base.raw", Format: "raw", Subformat: "", ContentID: ""},
		},
	}
	i := report.NewImage(img)
	require.Equal(t, `  Parent     snap\u001b[2J.vmdk (VMDK monolithicSparse, content id 1234abcd)
  Parent     base.raw (raw)`, containerLines(t, i))
	b, err := json.Marshal(i.Chain)
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"name": "snap\u001b[2J.vmdk", "format": "vmdk", "subformat": "monolithicSparse", "content_id": "1234abcd"},
		{"name": "base.raw", "format": "raw"}
	]`, string(b))

	img.Chain = nil
	b, err = json.Marshal(report.NewImage(img).Chain)
	require.NoError(t, err)
	require.JSONEq(t, `[]`, string(b))
}

// both returns the reports of scan's survey and of inspect on a disk, without findings and boot chain: a survey has
// fewer findings, and no chain.
func both(t *testing.T, d disk.Disk) (survey, full report.Disk) {
	t.Helper()
	goal := align.Goal{Must: align.DefaultBoundary, Want: align.DefaultBoundary}
	out := make([]report.Disk, 0, 2)
	for _, read := range []func(disk.Disk, table.Geometry) (*layout.Layout, error){layout.Survey, layout.Read} {
		l, err := read(d, table.Geometry{})
		require.NoError(t, err)
		r := report.NewDisk(l, goal.Must, align.Check(l, goal))
		r.Findings, r.Chain, r.Unseen, r.Guest = nil, nil, nil, nil
		out = append(out, r)
	}
	return out[0], out[1]
}

func TestSurveyAgreesWithInspect(t *testing.T) {
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			survey, full := both(t, disktest.Fixture(t, path))
			require.Equal(t, full, survey)
		})
	}
}

func TestSurveyOfTheCorpus(t *testing.T) {
	for _, dir := range []string{
		"cdi", "dftt", "dfvfs", "discutils", "glance", "gptman", "imagemounter", "keramics",
		"libldm", "mbrman", "osv-scalibr", "qemu", "vmdk-rs",
	} {
		t.Run(dir, func(t *testing.T) {
			set := disktest.CorpusSet(t, dir)
			list, err := os.ReadDir(set)
			require.NoError(t, err)
			for _, e := range list {
				img, err := image.Open(filepath.Join(set, e.Name()), image.Options{})
				if err != nil {
					continue // an extent, or hostile: covered by tests of their own
				}
				survey, full := both(t, img.Disk)
				require.Equal(t, full, survey, e.Name())
				require.NoError(t, img.Close())
			}
		})
	}
}

const mib = int64(1) << 20

// part returns a partition from one MiB to another; its verdict is empty for an extended one.
func part(number int, from, to int64, v align.Verdict) report.Partition {
	kind := "primary"
	if v == "" {
		kind = "extended"
	}
	return report.Partition{
		Number: number, Kind: kind, Type: "0x83", Start: from * mib, Size: (to - from) * mib, Verdict: v,
	}
}

func diskOf(size int64, parts ...report.Partition) report.Disk {
	return report.Disk{
		Size: size * mib, Boundary: align.DefaultBoundary, Verdict: align.Misaligned,
		Table:      report.Table{Scheme: "mbr"},
		Partitions: parts,
	}
}

// drawn returns the picture and its legend, as inspect prints them.
func drawn(t report.Text, d report.Disk) []string {
	var out bytes.Buffer
	t.W = &out
	t.Inspect(&report.Inspect{Disk: d})
	var lines []string
	for line := range strings.Lines(out.String()) {
		if len(lines) > 0 && strings.TrimSpace(line) == "" {
			return lines
		}
		if strings.HasPrefix(line, "  [") || strings.HasPrefix(line, "  ▕") || len(lines) > 0 {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	return lines
}

func TestPictures(t *testing.T) {
	for _, tc := range []struct {
		name string
		text report.Text
		disk report.Disk
		want []string
	}{
		{
			"to scale, with gaps",
			report.Text{Columns: 24},
			diskOf(200, part(1, 0, 50, align.Misaligned), part(2, 100, 150, align.Aligned)),
			[]string{"  [1XXXX.....2####.....]", "  X off 4K   # aligned", "  . free"},
		},
		{
			"three partitions",
			report.Text{Columns: 44},
			diskOf(100, part(1, 10, 30, align.Misaligned), part(2, 30, 60, align.BelowBoundary),
				part(3, 60, 100, align.Aligned)),
			[]string{"  [....1XXXXXXX2+++++++++++3###############]", "  X off 4K   + off 64K   # aligned   . free"},
		},
		{
			"logical partitions in an extended one",
			report.Text{Columns: 34},
			diskOf(300, part(1, 0, 100, align.Aligned), part(2, 100, 300, ""), part(5, 110, 200, align.Misaligned),
				part(6, 210, 260, align.Aligned)),
			[]string{"  [1#########-5XXXXXXXX-6####----]", "  X off 4K   # aligned", "  - extended"},
		},
		{
			"what is small gets a column",
			report.Text{Columns: 24},
			diskOf(1<<20, part(1, 0, 1, align.Misaligned), part(2, 2, 3, align.Aligned),
				part(3, 3, 1<<20, align.BelowBoundary)),
			[]string{"  [X.#3++++++++++++++++]", "  X off 4K   + off 64K", "  # aligned   . free"},
		},
		{
			"more partitions than columns",
			report.Text{Columns: 4},
			diskOf(32, func() []report.Partition {
				var out []report.Partition
				for i := range 32 {
					v := align.Aligned
					if i == 20 {
						v = align.Misaligned
					}
					out = append(out, part(i+1, int64(i), int64(i+1), v))
				}
				return out
			}()...),
			[]string{
				"  [##########X#####]", "  X off 4K", "  # aligned",
				"  There are more partitions than columns: each column shows its worst partition.",
			},
		},
		{
			"overlaps, and an end beyond the disk",
			report.Text{Columns: 24},
			diskOf(20, part(1, 0, 10, align.Misaligned), part(2, 5, 8, align.Aligned), part(3, 15, 40, align.Aligned)),
			[]string{"  [1XXXXXXXX#.....3####]", "  X off 4K   # aligned", "  . free"},
		},
		{
			"a start beyond the disk",
			report.Text{Columns: 24},
			diskOf(20, part(1, 30, 40, align.Misaligned)),
			[]string{"  [...................X]", "  X off 4K   . free"},
		},
		{"no partition", report.Text{}, diskOf(20), nil},
		{"no disk", report.Text{}, diskOf(0, part(1, 30, 40, align.Misaligned)), nil},
	} {
		t.Run(tc.name, func(t *testing.T) { require.Equal(t, tc.want, drawn(tc.text, tc.disk)) })
	}
}

func TestPictureInColour(t *testing.T) {
	d := diskOf(100, part(1, 0, 50, align.Misaligned), part(2, 50, 100, align.Aligned))
	require.Equal(t, "  [\x1b[31m1XXXXXXX\x1b[0m\x1b[32m2#######\x1b[0m]",
		drawn(report.Text{Columns: 20, Color: true}, d)[0])
	require.Equal(t, 80, len(drawn(report.Text{}, d)[0])-len("[]")+2, "80 columns where there is no terminal")
}

// For any table, a picture has the width of the terminal, shows every partition if there is room, and does not panic.
func TestPicturesOfRandomDisks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(1, 200).Draw(t, "columns")
		size := rapid.SampledFrom([]int64{1, 512, mib, 1 << 41, math.MaxInt64}).Draw(t, "size")
		off := rapid.OneOf(rapid.Int64Range(0, max(size, 1)), rapid.Int64Range(0, math.MaxInt64))
		d := report.Disk{Size: size, Boundary: align.DefaultBoundary, Table: report.Table{Scheme: "mbr"}}
		solid := 0
		for i := range rapid.IntRange(1, 60).Draw(t, "partitions") {
			p := part(i+1, 0, 0, rapid.SampledFrom([]align.Verdict{
				"", align.Aligned, align.BelowBoundary,
				align.Misaligned,
			}).Draw(t, "verdict"))
			p.Start, p.Size = off.Draw(t, "start"), off.Draw(t, "length")
			d.Partitions = append(d.Partitions, p)
			if p.Verdict != "" {
				solid++
			}
		}
		lines := drawn(report.Text{Columns: columns}, d)
		require.NotEmpty(t, lines)
		require.Equal(t, max(columns, 20), utf8.RuneCountInString(lines[0]))
		if solid <= max(columns-4, 16) {
			n := strings.Count(lines[0], "X") + strings.Count(lines[0], "#") + strings.Count(lines[0], "+")
			require.GreaterOrEqual(t, n, solid, lines[0])
		}
	})
}
