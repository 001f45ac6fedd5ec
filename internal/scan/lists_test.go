package scan

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestListsOfPaths(t *testing.T) {
	for text, want := range map[string][]string{
		"":                    nil,
		"\n\n":                nil,
		"a":                   {"a"},
		"a\nb c\n":            {"a", "b c"},
		"a\nb\r\n":            {"a", "b\r"}, // a name may end in CR
		"a\r\nb\r\n":          {"a", "b"},   // a list of Windows
		"a\r\n\r\nb c":        {"a", "b c"},
		"a\x00b\nc\x00":       {"a", "b\nc"},
		"a\r\n\x00b\r\n\x00c": {"a\r\n", "b\r\n", "c"},
	} {
		require.Equal(t, want, splitList([]byte(text)), "%q", text)
	}
}
