package forge

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

func TestWriteLeavesHoles(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		size  int
		bytes []int // that are not zero
	}{
		"nothing":             {},
		"less than a stretch": {7, []int{3}},
		"zeros":               {3*stretch + 7, nil},
		"an odd end":          {3*stretch + 7, []int{3*stretch + 6}},
		"borders":             {5 * stretch, []int{0, 2*stretch - 1, 2 * stretch}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := make(Bytes, tc.size)
			for _, at := range tc.bytes {
				data[at] = 1
			}
			path := filepath.Join(t.TempDir(), "disk")
			require.NoError(t, os.WriteFile(path, []byte("an older file"), 0o644))
			data.Write(t, path)
			got := disktest.ReadFile(t, path)
			require.Equal(t, []byte(data), got)
			info := disktest.Stat(t, path)
			if tc.size > stretch {
				require.Less(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(tc.size))
			}
		})
	}
}
