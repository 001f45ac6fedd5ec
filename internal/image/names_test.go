package image_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// A container whose header or footer is lost is raw by content. Copied without a word, a disk would be lost.
func TestContainersWithoutTheirHeaderAreNotTakenForRaw(t *testing.T) {
	qcow2 := qcow2forge.New(imagetest.Noise(71, mib), 16).Bytes
	clear(qcow2[:4])
	for _, tc := range []struct {
		name, format string
		issues       []string
	}{
		{"disk.qcow2", "", []string{image.CodeMisnamed}},
		{"DISK.VHD", "", []string{image.CodeMisnamed}},
		{"disk.vhdx", "", []string{image.CodeMisnamed}},
		{"disk-1-s001.vmdk", "", []string{image.CodeMisnamed}},
		{"disk.vmdk", "raw", []string{}},
		{"disk.img", "", []string{}},
		{"disk", "", []string{}},
		{"disk-flat.vmdk", "", []string{}},
		{"disk-1-f012.vmdk", "", []string{}},
	} {
		t.Run(tc.name+tc.format, func(t *testing.T) {
			path := imagetest.Write(t, t.TempDir(), tc.name, qcow2)
			img, err := image.Open(path, image.Options{Format: tc.format})
			require.NoError(t, err)
			defer img.Close()
			require.Equal(t, "raw", img.Format)
			require.Equal(t, tc.issues, imagetest.Codes(img.Issues, ondisk.Refuse))
		})
	}
}

// A fixed VHD that lost its last sector is the only format whose guest bytes stay where they were.
func TestFixedVHDWithoutItsFooter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.vhd")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vpc", "-o", "subformat=fixed,force_size=on", path, "1M")
	disktest.Run(t, "truncate", "-s", "1M", path)
	img := imagetest.Open(t, path)
	require.Equal(t, []string{image.CodeMisnamed}, imagetest.Codes(img.Issues, ondisk.Refuse))
}
