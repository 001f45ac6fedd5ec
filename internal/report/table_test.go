package report

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// tableOf returns what a table looks like.
func tableOf(t Text, rows [][]string, names ...string) string {
	var out bytes.Buffer
	t.W = &out
	t.Table(slices.Values(rows), names...)
	return out.String()
}

func TestTables(t *testing.T) {
	x := Text{Color: true}
	require.Equal(t, strings.Join([]string{
		"  #  name     size  on",
		"  1  データ    1 B  \x1b[32myes\x1b[0m",
		" 10          10 KB  \x1b[31mno\x1b[0m",
		"",
	}, "\n"), tableOf(x, [][]string{
		{"1", "データ", "1 B", x.Paint(Green, "yes")}, {"10", "", "10 KB", x.Paint(Red, "no")},
	}, ">#", "name", ">size", "on"))
	require.Equal(t, " old  why\n 12   first\n 34\n 5    second\n",
		tableOf(Text{}, [][]string{{"12\n34", "first"}, {"5", "second"}}, "old", "<why"))
	require.Equal(t, " a\n", tableOf(Text{}, nil, "a"))
}

// A folded column stays within the width, as far as that leaves room for one, and loses no word.
func TestTablesFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SampledFrom([]string{"ntfs", "hidden", "of 1:", "->", "Grün", "データ", strings.Repeat("long", 30)})
		cell := rapid.StringMatching(`[0-9a-f]{0,16}`)
		var rows [][]string
		var words []string
		for range rapid.IntRange(1, 8).Draw(t, "rows") {
			text := strings.Join(rapid.SliceOfN(word, 1, 12).Draw(t, "words"), " ")
			rows = append(rows, []string{cell.Draw(t, "cell"), cell.Draw(t, "cell"), text})
			words = append(words, rows[len(rows)-1]...)
		}
		width := rapid.SampledFrom([]int{0, 40, 80, 100}).Draw(t, "width")
		got := tableOf(Text{Width: width}, rows, ">offset", "new", "<reason")
		blank := func(s string) string { return strings.Join(strings.Fields(s), "") }
		require.Equal(t, len(blank(strings.Join(words, ""))), len(blank(got))-len("offsetnewreason"))
		for line := range strings.Lines(got) {
			cells := Cells(strings.TrimRight(line, "\n"))
			require.True(t, width == 0 || cells <= max(width, 1+16+2+16+2+leastFolded), line)
		}
	})
}

func TestCells(t *testing.T) {
	for s, n := range map[string]int{
		"": 0, "abc": 3, "データ": 6, "e\u0301": 1, "\x1b[31mred\x1b[0m": 3, "█▒·": 3, "😀": 2, "ＡＢ": 4, "\u200b": 0,
	} {
		require.Equal(t, n, Cells(s), "%q", s)
	}
	require.Equal(t, "デ", Trim("データ", 3))
	require.Equal(t, "ータ", TrimLeft("データ", 5))
	require.Equal(t, "ab", Trim("ab", 2))
	require.Equal(t, "ab", TrimLeft("ab", 2))
	require.Empty(t, TrimLeft("ab", 0))
	require.Equal(t, " データ", Pad("データ", 7, true))
}
