package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestBlockDevice reads a disk where P2V finds it: on a device.
func TestBlockDevice(t *testing.T) {
	t.Parallel()
	raw := pairDisk(t)
	device := disktest.LoopDevice(t, raw)
	fromFile := trueupJSON[jsonInspect](t, 3, "inspect", raw)
	fromDevice := trueupJSON[jsonInspect](t, 3, "inspect", device)
	require.Equal(t, fromFile.Partitions, fromDevice.Partitions)

	dest := filepath.Join(t.TempDir(), "copy.vmdk")
	require.Equal(t, 0, trueup(t, "convert", "--to", "vmdk", device, dest).code)
	disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vmdk", raw, dest)
	require.Equal(t, 0, trueup(t, "verify", device, dest).code)
	require.Equal(t, 0, trueup(t, "align", "--to", "vmdk", "--force", device, dest).code)

	before := sha256Of(t, raw)
	for _, args := range [][]string{
		{"convert", "--to", "raw", "--force", device, raw},
		{"inspect", device, "--out", raw},
	} {
		r := trueup(t, args...)
		require.Equal(t, 64, r.code, "%q would write to the file behind the device: %s", args, r.stderr)
	}
	require.Equal(t, before, sha256Of(t, raw))
}

// TestDeviceInUse refuses a device whose file system is mounted: it changes while it is read.
func TestDeviceInUse(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "volume")
	disktest.Run(t, "truncate", "-s", "4M", file)
	disktest.Run(t, "mke2fs", "-q", "-F", file)
	device, folder := disktest.LoopDevice(t, file), t.TempDir()
	if out, err := exec.Command("mount", device, folder).CombinedOutput(); err != nil {
		t.Skipf("no right to mount on this machine: %s", out)
	}
	t.Cleanup(func() { disktest.Run(t, "umount", folder) })
	r := trueup(t, "convert", device, filepath.Join(t.TempDir(), "copy.raw"), "--json")
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stdout, `"code": "busy"`)
	require.Contains(t, r.stderr, "mounted")
}
