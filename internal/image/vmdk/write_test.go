package vmdk

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/driver"
)

// memWriter is a file in memory that keeps the bytes that are not zero, by their offset.
type memWriter struct {
	size int64
	kept map[int64]byte
}

func (w *memWriter) WriteAt(p []byte, off int64) (int, error) {
	for i, b := range p {
		if at := off + int64(i); b != 0 {
			w.kept[at] = b
		}
	}
	return len(p), nil
}

func (w *memWriter) Truncate(size int64) error { w.size = size; return nil }
func (w *memWriter) Sync() error               { return nil }

// A target may be given a range that crosses from one extent into the next, although the copier's chunks never do.
func TestRangeAcrossExtents(t *testing.T) {
	var extents []*memWriter
	o := driver.Options{Name: "disk.vmdk", Beside: func(suffix string) (driver.WriteFile, string, error) {
		w := &memWriter{kept: map[int64]byte{}}
		extents = append(extents, w)
		return w, "disk" + suffix + ".vmdk", nil
	}}
	text := &memWriter{kept: map[int64]byte{}}
	x, err := newSplitTarget(text, splitFlat, 2*splitSize+512, defaultGrain, plainDescriptor(driver.Geometry{}), o)
	require.NoError(t, err)
	require.Len(t, extents, 3)
	require.Equal(t, []int64{splitSize, splitSize, 512}, []int64{extents[0].size, extents[1].size, extents[2].size})
	p := bytes.Repeat([]byte{1}, 8192)
	p[4095], p[4096] = 2, 3
	require.NoError(t, x.Reserve(splitSize-4096, 8192))
	n, err := x.WriteAt(p, splitSize-4096)
	require.NoError(t, err)
	require.Equal(t, 8192, n)
	require.Len(t, extents[0].kept, 4096)
	require.Len(t, extents[1].kept, 4096)
	require.Equal(t, byte(2), extents[0].kept[splitSize-1])
	require.Equal(t, byte(3), extents[1].kept[0])
	require.Empty(t, text.kept, "the descriptor comes last")
	require.NoError(t, x.Finish())
	require.NotEmpty(t, text.kept)
}

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
			require.Equal(t, tc.want, viewFiles(d.extents))
			require.Equal(t, tc.want, scanNames(tc.extents).Views)
			require.Len(t, d.viewIssue(), min(len(tc.want), 1))
		})
	}
	d, err := parseDescriptor([]byte("RW 8 FLAT \"h\" 0\nRW 100 FLAT \"a\" 63\nRW 8 FLAT \"b\" 7\n"))
	require.NoError(t, err)
	require.Contains(t, d.viewIssue()[0].Text, `55296 of its 59392 bytes are in "a" and 1 more of its files`)
	// A text that no reader takes for a disk is looked at all the same, in time.
	require.Len(t, scanNames(strings.Repeat("RW 1 FLAT \"a\" 1\nRW 1 FLAT \"b\" 1\nRW x FLAT \"c\" 1\n", 20_000)).Views,
		2)
}
