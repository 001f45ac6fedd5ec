package report

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/layout"
)

// Each line fits, no character is lost, and a word is divided only if it is wider than a line.
func TestFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(rapid.StringMatching(`[a-zé:.]{1,12}`), rapid.StringMatching(`[a-zデー]{1,90}`))
		words := rapid.SliceOfN(word, 1, 20).Draw(t, "words")
		n := rapid.IntRange(2, 100).Draw(t, "columns")
		lines := Fold(strings.Join(words, " "), n)
		for _, l := range lines {
			require.LessOrEqual(t, Cells(l), n)
		}
		require.Equal(t, strings.Join(words, ""), strings.ReplaceAll(strings.Join(lines, ""), " ", ""))
	})
	require.Equal(t, []string{"a longer", "line"}, Fold("a longer line", 8))
	require.Equal(t, []string{"a longer line "[:13]}, Fold("a longer line ", 0))
}

// Paint neither counts nor goes on in the next line.
func TestFoldOfPaintedWords(t *testing.T) {
	painted := (&Text{Color: true}).Paint(Yellow, "Below boundary:")
	require.Equal(t, []string{painted + " the first", "partition"}, Fold(painted+" the first partition", 25))
	require.Equal(t, []string{painted[:10], painted[11:]}, Fold(painted, 4))
}

// The headline names the data where the start of a partition is worse than the verdict.
func TestVerdictOfData(t *testing.T) {
	for start, want := range map[int64]string{
		63 * 512: "Below boundary: the data of partition 1 lie on a multiple of 4 KiB, but not on one of 64 KiB.\n",
		64 * 512: "Below boundary: partition 1 starts on a multiple of 4 KiB, but not on one of 64 KiB.\n",
	} {
		var b strings.Builder
		(&Text{W: &b}).verdict(Disk{
			Verdict: align.BelowBoundary, Boundary: align.DefaultBoundary,
			Partitions: []Partition{{Number: 1, Start: start, Verdict: align.BelowBoundary}},
		})
		require.Equal(t, want, b.String())
	}
}

// A disk of unknown content is never called aligned.
func TestNothingWritten(t *testing.T) {
	for code, want := range map[string]string{
		"":                        "a.raw is aligned already; nothing was written.\n",
		layout.CodeUnknownContent: "a.raw has no known content; nothing was written.\n",
		layout.CodeBlank:          "a.raw has no known content; nothing was written.\n",
	} {
		var b strings.Builder
		d := &AlignedDisk{Findings: []align.Finding{{Code: code, Severity: align.Info}}}
		r := &Align{Source: "a.raw", Disks: []*AlignedDisk{d}}
		(&Text{W: &b}).Align(r)
		require.Contains(t, b.String(), want)
	}
}
