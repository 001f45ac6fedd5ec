package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/hostile"
)

// allHostile are the hostile images that need no flags. Names of files are left out: a scan looks in its folders, too.
func allHostile() []hostile.Row {
	return slices.DeleteFunc(hostile.All(), func(r hostile.Row) bool { return r.Format != "" || r.Name < "T08" })
}

// TestScanOfHostileImages has every hostile image in one library: each costs its own row, with what inspect says about
// it.
func TestScanOfHostileImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := &shelf{t, dir}
	for i, h := range allHostile() {
		at := filepath.Join(dir, fmt.Sprintf("%03d", i))
		require.NoError(t, os.Mkdir(at, 0o755))
		h.Write(t, at)
		if i%10 == 0 {
			s.put(fmt.Sprintf("%03d-good/good.img", i), offDisk())
		}
	}
	rows, _ := scanJSON(t, dir, ".")
	for _, r := range rows {
		if filepath.Base(r.Path) == "good.img" {
			require.Equal(t, isOff, r.String())
		}
		require.NotEqual(t, "internal", r.code(), "%s: %v", r.Path, r.Error)
	}
	require.Greater(t, len(rows), 500)
	sameAsInspect(t, dir, "--check", ".")
}
