package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// sampleDisk copies the small disk of testdata, which starts at LBA 63, into a folder of its own and returns its path.
func sampleDisk(t testing.TB) string {
	t.Helper()
	data := disktest.ReadFile(t, "../../testdata/xp-lba63.vmdk")
	path := filepath.Join(t.TempDir(), "xp.vmdk")
	require.NoError(t, os.WriteFile(path, data, 0o644))
	return path
}
