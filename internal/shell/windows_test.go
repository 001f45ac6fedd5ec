package shell

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// Expected is what PowerShell's rules make of a name. In double quotes, $( ) is replaced by what it computes.
func TestQuotesOfWindows(t *testing.T) {
	for name, want := range map[string]string{
		`C:\t\xp.vmdk`: `C:\t\xp.vmdk`, `C:\my disks\xp.vmdk`: `"C:\my disks\xp.vmdk"`, "it's": `"it's"`, "": `""`,
		`-f`: `.\-f`, `C:\my disks\`: `"C:\my disks\\"`, `\\server\share$\x`: `"\\server\share$([char]0x24)\x"`,
		"100%.vmdk": `"100$([char]0x25).vmdk"`, "a;b": `"a$([char]0x3b)b"`, "a`b": `"a$([char]0x60)b"`, "é": `"é"`,
		"a&b": `"a&b"`, "a,b": `"a,b"`, "@x": `"@x"`, "\u202ex": `"$([char]0x202e)x"`, "\xff": `"$([char]0xfffd)"`,
		"\u201cx": `"$([char]0x201c)x"`, "\U000e0001": `"$([char]::ConvertFromUtf32(0xe0001))"`,
	} {
		got := QuoteWindows(name)
		require.Equal(t, want, got)
		require.NotContains(t, got, ";")
		require.False(t, strings.ContainsFunc(got, func(r rune) bool { return unicode.IsControl(r) || Dangerous(r) }))
	}
}
