package shell

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// quoteWindows quotes a path for cmd and PowerShell: in double quotes, which both read, or with escapes of PowerShell
// where cmd has none. A backslash in front of the closing quote is doubled, since programs take it for an escape. Names
// of Windows have no double quote.
// Spec: about_Quoting_Rules and about_Parsing (PowerShell), Parsing C command-line arguments (Microsoft).
func quoteWindows(s string) string {
	if strings.HasPrefix(s, "-") {
		s = `.\` + s
	}
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune(`-_.\/:+`, r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		_, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1: // the name has no text
			b.WriteString("$([char]0xfffd)")
		case r > 0xffff && Dangerous(r):
			fmt.Fprintf(&b, "$([char]::ConvertFromUtf32(%#x))", r)
		case escaped(r) || strings.ContainsRune("\"$`%!\u201c\u201d\u201e", r):
			fmt.Fprintf(&b, "$([char]%#x)", r)
		default:
			b.WriteRune(r)
		}
	}
	tail := s[len(strings.TrimRight(s, `\`)):]
	return `"` + b.String() + tail + `"`
}
