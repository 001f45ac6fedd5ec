package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFold(t *testing.T) {
	for _, c := range []struct{ text, indent, want string }{
		{"short", "", "short"},
		{"one two three", "", "one two\nthree"},
		{"exactly 10", "", "exactly 10"},
		{"one two three four", "  ", "one two\n  three\n  four"},
		{"averyveryverylongword and more", "", "averyveryverylongword\nand more"},
		{"averyveryverylongword", "", "averyveryverylongword"},
	} {
		require.Equal(t, c.want, fold(c.text, 10, c.indent))
	}
}

// Every flag says what it is in words of its own, and completion shows no marks of the help text.
func TestHelpWithinItsWidth(t *testing.T) {
	for _, name := range []string{"inspect", "plan", "align", "convert", "verify", "scan", "version"} {
		text := command(t, name, "--help").stdout
		for line := range strings.Lines(text) {
			require.LessOrEqual(t, len(line), helpWidth+1, line)
		}
		require.Less(t, strings.Index(text, "\nUsage:"), strings.Index(text, "\nExit codes:"))
	}
}
