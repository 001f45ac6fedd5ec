package trial

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What FreeDOS 1.3 shows of its drives: the kernel 2043 prints the place of each partition, which a move changes, and
// its size, which it does not.
const freeDOS = bios + "FreeDOS kernel 2043 (build 2043 OEM:0xfd)\n" +
	"C: HD1, Pri[ 1], CHS=    0-1-1, start=     0 MB, size=    33 MB\n" +
	"D: HD1, Pri[ 2], CHS=   68-0-1, start=    33 MB, size=    33 MB\n" +
	"C:\\>"

// Places of partitions that the plan moves are not difference, in every form that guests print; another place is.
func TestPlacesOfPartitions(t *testing.T) {
	t.Parallel()
	moves := []Move{
		{Start{63, 16, 63}, Start{128, 16, 63}},        // C/H/S 0-1-1 and 0-2-3
		{Start{68544, 16, 63}, Start{69632, 16, 63}},   // 68-0-1 and 69-1-18; 33 and 34 MiB
		{Start{137088, 16, 63}, Start{139264, 0, 0}},   // no geometry
		{Start{2097152, 16, 63}, Start{2099200, 0, 0}}, // 200000h and 200800h, 1 GiB and 1 MiB
	}
	aligned := strings.NewReplacer(
		"0-1-1", "0-2-3", "68-0-1", "69-1-18", "start=    33", "start=    34").Replace(freeDOS)
	for _, c := range []struct {
		name          string
		before, after string
		want          Verdict
	}{
		{"FreeDOS", freeDOS, aligned, Same},
		{"another cylinder", freeDOS, strings.Replace(aligned, "69-1-18", "70-1-18", 1), Differs},
		{"a size", freeDOS, strings.Replace(aligned, "size=    33 MB\nC:", "size=    35 MB\nC:", 1), Differs},
		{"back", aligned, freeDOS, Differs},
		{"sectors", "root at 68544\nlogin:", "root at 69632\nlogin:", Same},
		{"hexadecimal", "root at 0x200000\nlogin:", "root at 0x200800\nlogin:", Same},
		{"bytes", "offset 32256\nlogin:", "offset 65536\nlogin:", Same},
		{"slashes", "boot 0/1/1\nlogin:", "boot 0/2/3\nlogin:", Same},
		{"two forms", "root at 68544\nlogin:", "root at 34\nlogin:", Differs},
		{"two partitions", "root at 68544\nlogin:", "root at 128\nlogin:", Differs},
		{"other words", "root at 68544\nlogin:", "home at 69632\nlogin:", Differs},
		{"the last line", "start= 63", "start= 128", Same},
	} {
		got := Compare(shown(c.before), shown(c.after), moves...)
		require.Equal(t, c.want, got.Verdict, "%s: %s", c.name, got.Reason)
		if c.before != c.after {
			require.NotEqual(t, Same, Compare(shown(c.before), shown(c.after)).Verdict, "%s, without a plan", c.name)
		}
	}
}
