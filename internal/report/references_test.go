package report_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/report"
)

// longPlan returns one with positions in files of long names, and with a reason that some share.
func longPlan() *report.Plan {
	const system = "Windows.old/Windows/System32/config/RegBack/of/an/earlier/Windows/SYSTEM"
	const dirty = "sequence numbers 99 and 206 differ: Windows was not shut down cleanly"
	r := &report.Plan{References: []report.Reference{
		{
			Kind: "drive letter C:", Partition: 2, File: system, Off: 7635760, Points: 51232256, Target: 2,
			To: 51232256, Stays: dirty,
		},
		{
			Kind: "drive letter D:", Partition: 2, File: system, Off: 7635860, Points: 51232256, Target: 2,
			To: 51232256, Stays: dirty,
		},
		{
			Kind: "winre \x1b[31mLocation", Partition: 2, File: "a\x1b]0;b", Off: 3, Points: 1, To: 1,
			Stays: "no partition starts at byte 1",
		},
		{
			Kind: "fat32 hidden sectors, backup boot sector", Partition: 1, Off: 102399516, Points: 149812510720,
			Target: 1, To: 149813198848,
		},
		{Kind: "fat32 hidden sectors", Partition: 3, Off: 28, Points: 5 << 20, Target: 3, To: 5 << 20},
		{Kind: "grub2 core image", Off: 92, Points: 17408, Target: 1, To: 1048576},
	}}
	r.Moved = 1
	r.Patches = []report.Patch{
		{
			Off: 0x22e3169e1c, Len: 4, Old: "c0c27011", New: "00c87011",
			Reason: fmt.Sprintf("drive letter C: in %q of partition 2: 1 -> 2", system),
		},
		{
			Off: 0x5ffbe20, Len: 24, Old: strings.Repeat("22", 24), New: strings.Repeat("23", 24),
			Reason: "backup GPT: first and last LBA of partition 1",
		},
	}
	return r
}

// TestReferencesFitTheTerminal prints a plan on terminals of usual widths.
func TestReferencesFitTheTerminal(t *testing.T) {
	for _, width := range []int{80, 100} {
		var out bytes.Buffer
		(&report.Text{W: &out, Width: width}).Plan(longPlan())
		_, shown, _ := strings.Cut(out.String(), "Changed fields")
		shown, _, _ = strings.Cut(shown, "\nThe result")
		for line := range strings.Lines(shown) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width, line)
		}
		require.NotContains(t, shown, "\x1b")
		require.Equal(t, 1, strings.Count(strings.Join(strings.Fields(shown), " "),
			"stays: sequence numbers 99 and 206 differ"), "one reason for both letters")
		require.Regexp(t, `2{16}   (23){8}   backup GPT.*\n +2{16}…  (23){8}…`, shown, "all of 16 bytes")
		require.Contains(t, shown, "\n partition 3:\n   fat32 hidden sectors")
		require.Contains(t, shown, "the same\n the disk:\n   grub2 core image")
		require.Contains(t, shown, "149812510720 (partition 1)  149813198848\n")
	}
}
