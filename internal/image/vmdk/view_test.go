package vmdk

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Extents that follow each other in their files from the start on are those of a disk of its own.
func TestViewed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		extents string
		want    []string
	}{
		{"one file", `RW 100 FLAT "a" 0`, nil},
		{"one file of ESXi", `RW 100 VMFS "a"`, nil},
		{"a file for each extent", "RW 100 FLAT \"a\" 0\nRW 100 FLAT \"b\" 0", nil},
		{"one file in pieces", "RW 100 FLAT \"a\" 0\nRW 50 FLAT \"a\" 100\nRW 7 ZERO\nRW 8 FLAT \"a\" 150", nil},
		{"from the inside", `RW 100 FLAT "a" 63`, []string{"a"}},
		{
			"over a head", "RW 8 FLAT \"h\" 0\nRW 100 FLAT \"a\" 63\nRW 8 FLAT \"h\" 8\nRW 100 FLAT \"a\" 163",
			[]string{"a"},
		},
		{"a patched sector", "RW 100 FLAT \"a\" 0\nRW 1 FLAT \"h\" 0\nRW 100 FLAT \"a\" 101", []string{"a"}},
		{"pieces in another order", "RW 8 FLAT \"a\" 8\nRW 8 FLAT \"a\" 0\nRW 8 FLAT \"b\" 1", []string{"a", "b"}},
		{"sparse extents have no offset", `RW 100 SPARSE "a" 63`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			d, err := parseDescriptor([]byte("# Disk DescriptorFile\ncreateType=\"twoGbMaxExtentFlat\"\n" + tc.extents +
				"\n"))
			require.NoError(t, err)
			require.Equal(t, tc.want, viewed(d.extents))
			require.Equal(t, tc.want, scanNames(tc.extents).Views)
			require.Len(t, d.viewIssue(), min(len(tc.want), 1))
		})
	}
	d, err := parseDescriptor([]byte("RW 8 FLAT \"h\" 0\nRW 100 FLAT \"a\" 63\nRW 8 FLAT \"b\" 7\n"))
	require.NoError(t, err)
	require.Contains(t, d.viewIssue()[0].Text, `55296 of its 59392 bytes lie in "a" and 1 more of its files`)
	// A text that no reader takes for a disk is looked at all the same, in time.
	require.Len(t, scanNames(strings.Repeat("RW 1 FLAT \"a\" 1\nRW 1 FLAT \"b\" 1\nRW x FLAT \"c\" 1\n", 20_000)).Views,
		2)
}
