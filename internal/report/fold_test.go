package report

import (
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Each line fits, no character is lost, and a word is divided only if it is wider than a line.
func TestFold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(rapid.StringMatching(`[a-zé:.]{1,12}`), rapid.StringMatching(`[a-zデー]{1,90}`))
		words := rapid.SliceOfN(word, 1, 20).Draw(t, "words")
		n := rapid.IntRange(2, 100).Draw(t, "columns")
		lines := Fold(strings.Join(words, " "), n)
		for _, l := range lines {
			require.LessOrEqual(t, text.StringWidthWithoutEscSequences(l), n)
		}
		require.Equal(t, strings.Join(words, ""), strings.ReplaceAll(strings.Join(lines, ""), " ", ""))
	})
	require.Equal(t, []string{"a longer", "line"}, Fold("a longer line", 8))
	require.Equal(t, []string{"a longer line "[:13]}, Fold("a longer line ", 0))
}

// Paint neither counts nor goes on in the next line.
func TestFoldOfPaintedWords(t *testing.T) {
	painted := (&Text{Color: true}).Paint(text.FgYellow, "Partly aligned:")
	require.Equal(t, []string{painted + " the first", "partition"}, Fold(painted+" the first partition", 25))
	require.Equal(t, []string{painted[:11], painted[12:]}, Fold(painted, 4))
}
