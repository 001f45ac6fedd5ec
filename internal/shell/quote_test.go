package shell_test

import (
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/shell"
)

// names are those of files as they should not be chosen.
var names = []string{
	"plain.vmdk", "", "with blank", "it's", "-f", "--force", "-", "=ls", "~root", "a\nb", "a\rb", "tab\t", "\x1b]0;x\a",
	"\xff\xfe", "\x1b5", "é\xc3", "\u202eevil", "\u2028", "\ufeff", "\uffff", "$(reboot)", "`reboot`", "${HOME}",
	"a;reboot", "a&b|c>d<e", "*?[a]{b,c}", "!!", "a\n!!", "a\n",
	`back\slash`, `\x41`, "\n\\x41'", `"`, "#", "\U0001f4be.vmdk",
	strings.Repeat("x", 4095), strings.Repeat("\x80", 4095),
}

// requireExact requires that a shell reads quoted words as the same bytes.
func requireExact(t *testing.T, r require.TestingT, sh string, words []string) {
	t.Helper()
	command, want := `printf '%s\0'`, ""
	for _, w := range words {
		command += " " + shell.Quote(w)
		want += asFile(w) + "\x00"
	}
	require.Equal(r, want, disktest.Output(t, sh, "-c", command), sh)
}

// endsInNewline reports whether only bash, ksh and zsh read the quoted name.
func endsInNewline(name string) bool { return strings.HasSuffix(name, "\n") }

// asFile returns what a command must get for a name: one with a dash in front would be read as a flag.
func asFile(name string) string {
	if strings.HasPrefix(name, "-") {
		return "./" + name
	}
	return name
}

func TestQuotedNamesAreExact(t *testing.T) {
	for _, locale := range []string{"C", "C.UTF-8"} {
		t.Setenv("LC_ALL", locale)
		requireExact(t, t, "bash", names)
		requireExact(t, t, "dash", slices.DeleteFunc(slices.Clone(names), endsInNewline))
	}
}

// What is quoted goes to a terminal, into a comment of a script, and into a cell of a table.
func harmless(t require.TestingT, name string) {
	q := shell.Quote(name)
	require.True(t, utf8.ValidString(q), "%q", name)
	require.NotContains(t, q, ";")
	require.False(t, strings.ContainsFunc(q, func(r rune) bool {
		return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
	}), "%q is written as %s", name, q)
}

func TestQuotedNamesAreHarmless(t *testing.T) {
	for _, name := range names {
		harmless(t, name)
	}
}

// Any bytes, and bytes that mean something to a shell more often than others.
func TestQuotedBytesAreExact(t *testing.T) {
	special := []byte(`'"\$!;&|<>(){}[]*?~#= -x01` + "\x60\x01\n\r\t\x1b\x7f\x80\xc3\xa9\xe2\x80\xae\xff")
	char := rapid.OneOf(rapid.SampledFrom(special), rapid.ByteRange(1, 255))
	rapid.Check(t, func(r *rapid.T) {
		var words []string
		for _, w := range rapid.SliceOfN(rapid.SliceOfN(char, 0, 40), 1, 40).Draw(r, "words") {
			words = append(words, string(w))
			harmless(r, string(w))
		}
		requireExact(t, r, "bash", words)
		if words = slices.DeleteFunc(words, endsInNewline); len(words) > 0 { // printf prints one word even without any
			requireExact(t, r, "dash", words)
		}
	})
}

// People read commands: the plainest form that is exact is taken.
func TestQuotesAreMinimal(t *testing.T) {
	disktest.OnUnix(t, "quotes")
	for name, want := range map[string]string{
		"/t/xp.vmdk": "/t/xp.vmdk", "my disk.vmdk": "'my disk.vmdk'", "it's": `'it'\''s'`, "-f": "./-f",
		"- f": "'./- f'", "é.vmdk": "'é.vmdk'", "": "''",
		"a\nb": `"$(printf 'a\012b')"`, "\xff!": `"$(printf '\377\041')"`,
		"a!b": "'a!b'", "=x": "'=x'", "\u202e": `"$(printf '\342\200\256')"`, "\\\x01'": `"$(printf '\134\001\047')"`,
		"100%;": `"$(printf '100%%\073')"`, "a\n": `$'a\012'`,
	} {
		require.Equal(t, want, shell.Quote(name))
	}
}
