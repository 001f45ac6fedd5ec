package report_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/report"
)

// hostile are texts that a terminal would obey.
var hostile = []string{
	"\x1b]0;title\a", "\x1b[2J", "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "\x1b]52;c;Y2F0\a", "a\rb", "a\nb",
	"\x9b31m",
	"\u009b31m",
	"\u202eevil", "\xff\xfe", "\x00", "\x7f", "\u2028\u2029", "\u200b", strings.Repeat("x", 1<<16), "é" +
		strings.Repeat("\u202e", 5000), "\ufffe\uffff", "\U0001fffe",
}

func TestSafeTexts(t *testing.T) {
	for _, s := range hostile {
		for name, got := range map[string]string{"Safe": report.Safe(s), "SafeMessage": report.SafeMessage(s)} {
			require.True(t, utf8.ValidString(got), "%s of %.40q", name, s)
			for _, r := range got {
				require.False(t, unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' ||
					r&0xfffe == 0xfffe, "%s of %.40q has %#x", name, s, r)
			}
		}
		require.LessOrEqual(t, utf8.RuneCountInString(report.Safe(s)), 256*6+1)
		require.Less(t, len(report.SafeMessage(s)), 32<<10)
	}
}

// What people write stays readable.
func TestSafeKeepsText(t *testing.T) {
	for _, s := range []string{"", "XP System", "Grüße", "日本語", "it's 100 % <b>", `C:\path`, "\ufffd"} {
		require.Equal(t, s, report.Safe(s))
		require.Equal(t, s, report.SafeMessage(s))
	}
	require.Equal(t, strings.Repeat("x", 256)+"…", report.Safe(strings.Repeat("x", 300)))
	require.Equal(t, strings.Repeat("x", 300), report.SafeMessage(strings.Repeat("x", 300)),
		"a message is longer than a name")
	require.Equal(t, strings.Repeat("日", 500), report.SafeMessage(strings.Repeat("日", 500)),
		"a character is not cut in two")
}

// JSON is exact, and still shows a terminal nothing to obey.
func TestJSONIsExact(t *testing.T) {
	for _, s := range append(hostile, "Grüße", "<script>", "&") {
		var out bytes.Buffer
		require.NoError(t, report.JSON(&out, map[string]string{"label": s}))
		for _, r := range out.String() {
			require.False(t, r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)),
				"%#x in the output for %.40q", r, s)
		}
		var back map[string]string
		require.NoError(t, json.Unmarshal(out.Bytes(), &back))
		require.Equal(t, string([]rune(s)), back["label"], "each byte that is no UTF-8 becomes U+FFFD")
		require.Equal(t, byte('\n'), out.Bytes()[out.Len()-1])
	}
}
