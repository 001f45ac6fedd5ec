package report

import (
	"bytes"
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The list of changed fields is printed without a table in memory, and looks as if it had been one.
func TestPatchesLookLikeATable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var ps []Patch
		hex := rapid.StringOfN(rapid.RuneFrom([]rune("0123456789abcdef")), 0, 80, -1)
		word := rapid.SampledFrom([]string{
			"ntfs", "hidden sectors", "of partition 1:", "32256", "->", "Grün", "データ",
			strings.Repeat("long", 30), "x",
		})
		for range rapid.IntRange(1, 8).Draw(t, "patches") {
			reason := strings.Join(rapid.SliceOfN(word, 1, 12).Draw(t, "words"), " ")
			ps = append(ps, Patch{
				Off: rapid.Int64Min(0).Draw(t, "off"), Old: hex.Draw(t, "old"), New: hex.Draw(t, "new"), Reason: reason,
			})
		}
		var got, want bytes.Buffer
		x := Text{W: &got, Width: rapid.SampledFrom([]int{0, 40, 80, 100}).Draw(t, "width")}
		x.patches(ps)
		digits, left, _ := x.patchWidths(ps)
		w := newTable(table.ColumnConfig{Name: "reason", WidthMax: left, WidthMaxEnforcer: text.WrapSoft})
		w.AppendHeader(table.Row{"offset", "old", "new", "reason"})
		for _, p := range ps {
			c := patchCells(p, digits)
			w.AppendRow(table.Row{c[0], c[1], c[2], SafeMessage(p.Reason)})
		}
		y := Text{W: &want}
		y.printf("\nFields that change, at their place in the result:\n\n")
		y.table(w)
		require.Equal(t, want.String(), got.String())
	})
}
