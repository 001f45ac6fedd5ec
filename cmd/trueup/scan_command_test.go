package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// The command of a row does what it says, as it stands there: beside the original, also where that is a package of
// several files.
func TestScanCommandsOfPackages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	disktest.Run(t, "cp", twoDisks(t).ova(t), filepath.Join(dir, "two.ova"))
	unpacked := t.TempDir()
	disktest.Run(t, "tar", "-xf", filepath.Join(dir, "two.ova"), "-C", unpacked)
	for _, folder := range []string{dir, unpacked} {
		s := scan(t, folder)
		require.Equal(t, 1, s.sum.Fix.Images)
		var size int64
		for path, i := range s.rows {
			require.Len(t, i.Disks, 2)
			disktest.Run(t, "bash", "-c", strings.Replace(i.Priority.Command, "trueup", builtPath, 1))
			size = i.Size + i.Grows()
			require.Contains(t, i.Priority.Command, strings.TrimSuffix(path, filepath.Ext(path))+"-aligned.ova")
		}
		after := scan(t, folder)
		require.Len(t, after.rows, 2)
		aligned := 0
		for path, i := range after.rows {
			if !strings.HasSuffix(path, "-aligned.ova") {
				continue
			}
			aligned++
			require.Equal(t, "aligned", string(i.Verdict))
			require.Equal(t, size, i.Size, "it grows as was said")
		}
		require.Equal(t, 1, aligned)
	}
}
