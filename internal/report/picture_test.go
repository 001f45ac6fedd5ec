package report_test

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/report"
)

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

// drawn returns the picture and its explanation, as inspect prints them.
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
			"on a terminal with block characters",
			report.Text{Columns: 44, Unicode: true},
			diskOf(100, part(1, 10, 30, align.Misaligned), part(2, 30, 60, align.BelowBoundary),
				part(3, 60, 100, align.Aligned)),
			[]string{"  ▕····1▚▚▚▚▚▚▚2▒▒▒▒▒▒▒▒▒▒▒3███████████████▏", "  ▚ off 4K   ▒ off 64K   █ aligned   · free"},
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

// Whatever a table says, a picture has the width of the terminal, shows every partition if there is room, and does not
// panic.
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
		lines := drawn(report.Text{Columns: columns, Unicode: rapid.Bool().Draw(t, "unicode")}, d)
		require.NotEmpty(t, lines)
		require.Equal(t, max(columns, 20), utf8.RuneCountInString(lines[0]))
		if solid <= max(columns-4, 16) {
			n := strings.Count(lines[0], "X") + strings.Count(lines[0], "#") + strings.Count(lines[0], "+") +
				strings.Count(lines[0], "▚") + strings.Count(lines[0], "█") + strings.Count(lines[0], "▒")
			require.GreaterOrEqual(t, n, solid, lines[0])
		}
	})
}
