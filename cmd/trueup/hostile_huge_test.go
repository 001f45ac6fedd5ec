package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestHugeImages holds inspect to its budget on the largest images that qemu-img makes, with tables for all of the disk
// or clusters that make many. QEMU takes long where clusters have 512 bytes.
func TestHugeImages(t *testing.T) {
	t.Parallel()
	small := "16G"
	if disktest.Exhaustive {
		small = "128G"
	}
	for _, c := range []struct{ format, options, size string }{
		{"qcow2", "cluster_size=64k", "64T"},
		{"qcow2", "cluster_size=16k,extended_l2=on", "4T"},
		{"qcow2", "cluster_size=512", small},
		{"qcow2", "cluster_size=2M", "64T"},
		{"vmdk", "subformat=monolithicSparse", "63T"},
	} {
		path := filepath.Join(t.TempDir(), "disk."+c.format)
		disktest.Run(t, "qemu-img", "create", "-q", "-f", c.format, "-o", c.options, path, c.size)
		disktest.Run(t, "qemu-io", "-f", c.format, "-c", "write -P 7 1G 1M", path)
		r := measure(t, []string{"inspect", "--json", path})[0]
		require.Equal(t, 0, r.code, r.stderr)
	}
}
