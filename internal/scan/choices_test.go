package scan

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/ondisk"
)

// A script is for bash, and names are quoted for other shells on Windows.
func TestNoScriptOnWindows(t *testing.T) {
	c := Choices{Script: "fix.sh"}
	for system, refused := range map[string]bool{"linux": false, "darwin": false, "freebsd": false, "windows": true} {
		require.NoError(t, (&Choices{}).scriptOn(system))
		err := c.scriptOn(system)
		require.Equal(t, refused, err != nil, system)
		if refused {
			require.ErrorIs(t, err, ondisk.ErrUsage)
			require.ErrorContains(t, err, "--script writes a script for bash")
		}
	}
}

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

// The byte order mark of Windows belongs to no address. Addresses are refused, unless a file has that name, and nothing
// that may be secret in them is shown.
func TestListsOfAddresses(t *testing.T) {
	paths, err := ReadList("-", strings.NewReader("\ufeffhttps://h/a?secret\nnbd://h/\n"))
	require.NoError(t, err)
	require.Equal(t, []string{"https://h/a?secret", "nbd://h/"}, paths)
	t.Chdir(t.TempDir())
	require.NoError(t, checkPaths([]string{"a b", ""}))
	require.ErrorContains(t, checkPaths(paths[:1]), `https://h/a?...: refused`)
	require.ErrorContains(t, checkPaths(paths[1:]), "run trueup inspect on it")
	for _, word := range []string{
		" https://h/a?secret", "http:/h/a?secret", "s3://h/a?secret", `"https://h/a?secret"`,
	} {
		err := checkPaths([]string{"a", word})
		require.ErrorContains(t, err, "PATH 2, of arguments and list, is an address", word)
		require.NotContains(t, err.Error(), "secret")
	}
	require.NoError(t, os.MkdirAll("s3:/h", 0o755))
	require.NoError(t, checkPaths([]string{"s3://h"}))
}
