package image_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/disktest/imagetest"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ondisk"
)

// Headers of files that are no images. Sources: libvmdk, "VMware Virtual Disk (VMDK) format specification", "Change
// tracking file"; RFC 1740, appendix A.
const (
	trackingHead    = "\xa2\x72\x19\xf6\x01\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00"
	appleDoubleHead = "\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        "
)

// Files with the suffix of an image that belong to one are named so, whatever their size.
func TestCompanions(t *testing.T) {
	noise := string(imagetest.Noise(21, 3000))
	for _, tc := range []struct{ name, content, kind, says string }{
		{
			"vm-ctk.vmdk", trackingHead + noise, "VMware changed block tracking",
			`it belongs to "vm.vmdk" and holds a list of changed blocks, not the data of a disk; ` +
				`name "vm.vmdk" instead`,
		},
		{
			"VM-000001-CTK.VMDK", noise[:1024], "VMware changed block tracking",
			`it belongs to "VM-000001.VMDK" and holds`,
		},
		{"other.vmdk", trackingHead + noise, "VMware changed block tracking", "it belongs to a disk and holds a list"},
		{"vm-digest.vmdk", noise, "VMware CBRC digest", `it belongs to "vm.vmdk" and holds hashes`},
		{"._vm.vhdx", appleDoubleHead + noise, "AppleDouble", `it belongs to "vm.vhdx" and holds macOS attributes`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := imagetest.Write(t, t.TempDir(), tc.name, []byte(tc.content))
			id, err := image.Identify(path, nil)
			require.NoError(t, err)
			require.Equal(t, image.Identity{Kind: image.Companion, Format: tc.kind}, id)
			_, err = image.Open(path, image.Options{})
			require.ErrorIs(t, err, ondisk.ErrUnsupported)
			require.ErrorContains(t, err, tc.kind+": recognised, not supported; "+tc.says)
		})
	}
}

// The content decides: a disk is not hidden by the name of a companion.
func TestDisksNamedLikeCompanions(t *testing.T) {
	dir := t.TempDir()
	vmdk := filepath.Join(dir, "vm-ctk.vmdk")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", vmdk, "8M")
	table := tableforge.NewMBR(4096, tableforge.Slot{Type: 7, Start: 63, Sectors: 1000})
	copy(table, trackingHead)
	for name, want := range map[string]string{
		"vm-ctk.vmdk": "vmdk", "x-ctk.vmdk": "raw", "-ctk.vmdk": "raw", "._x.img": "raw",
	} {
		path := filepath.Join(dir, name)
		switch name {
		case "vm-ctk.vmdk":
		case "x-ctk.vmdk":
			imagetest.Write(t, dir, name, table)
		default:
			imagetest.Write(t, dir, name, imagetest.Noise(22, 4096))
		}
		img := imagetest.Open(t, path)
		require.Equal(t, want, img.Format, name)
		require.NotContains(t, imagetest.Codes(img.Issues, ondisk.Note), image.CodeCompanion, name)
	}
}

// A digest of CBRC is a VMDK like any other, and noted as one of a disk that stands beside it.
func TestDigestsBesideTheirDisk(t *testing.T) {
	dir := t.TempDir()
	digest := filepath.Join(dir, "vm-digest.vmdk")
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "vmdk", "-o", "subformat=monolithicFlat", digest, "1M")
	require.NotContains(t, imagetest.Codes(imagetest.Open(t, digest).Issues, ondisk.Note), image.CodeCompanion)
	imagetest.Write(t, dir, "vm.vmdk", nil)
	require.Contains(t, imagetest.Codes(imagetest.Open(t, digest).Issues, ondisk.Note), image.CodeCompanion)
}
