package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// TestServeFurtherFolders serves a parent and an extent in another folder, confined, as QEMU reads the disks.
func TestServeFurtherFolders(t *testing.T) {
	t.Parallel()
	needsLandlock(t)
	root, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	lib, raw := filepath.Join(root, "lib"), pairDisk(t)
	require.NoError(t, os.Mkdir(lib, 0o755))
	at := func(name string) string { return filepath.Join(root, name) }
	disktest.Run(t, "qemu-img", "convert", "-O", "qcow2", raw, at("lib/base.qcow2"))
	disktest.Run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", at("lib/base.qcow2"),
		at("top.qcow2"))
	disktest.Run(t, "qemu-img", "convert", "-O", "vmdk", "-o", "subformat=monolithicFlat", raw, at("disk.vmdk"))
	require.NoError(t, os.Rename(at("disk-flat.vmdk"), at("lib/disk-flat.vmdk")))
	text := string(disktest.ReadFile(t, at("disk.vmdk")))
	text = strings.Replace(text, `"disk-flat.vmdk"`, `"lib/disk-flat.vmdk"`, 1)
	require.NoError(t, os.WriteFile(at("disk.vmdk"), []byte(text), 0o644))
	for _, top := range []string{"top.qcow2", "disk.vmdk"} {
		serving(t, "--allow-folder", lib, "--require-sandbox", "--as-is", at(top)).requireServes(t, raw)
	}
}
