package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// diskFormat is one of the formats that align reads and writes.
type diskFormat struct {
	name      string // as test cases are called
	container string // as trueup and qemu-img call it
	subformat string
	ext       string
}

var (
	formatRaw    = diskFormat{name: "raw", container: "raw", ext: ".raw"}
	formatSparse = diskFormat{name: "sparse vmdk", container: "vmdk", subformat: "monolithicSparse", ext: ".vmdk"}
	formatFlat   = diskFormat{name: "flat vmdk", container: "vmdk", subformat: "monolithicFlat", ext: ".vmdk"}
	formatVMFS   = diskFormat{name: "vmfs vmdk", container: "vmdk", subformat: "vmfs", ext: ".vmdk"}
)

var diskFormats = []diskFormat{formatRaw, formatSparse, formatFlat, formatVMFS}

// convert writes the raw disk as name in dir, in format f, and returns its path.
func (f diskFormat) convert(t testing.TB, raw, dir, name, adapter string) string {
	t.Helper()
	path := filepath.Join(dir, name+f.ext)
	if f.container == "raw" {
		disktest.Run(t, "cp", "--sparse=always", raw, path)
		return path
	}
	subformat := f.subformat
	if f.subformat == "vmfs" {
		subformat = "monolithicFlat" // the same files but for two words of the descriptor
	}
	disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "vmdk",
		"-o", "subformat="+subformat+",adapter_type="+adapter, raw, path)
	if f.subformat == "vmfs" { // another createType, and an extent line without the offset column, as ESXi writes them
		flat := name + "-flat.vmdk"
		replaceInFile(t, path, `createType="monolithicFlat"`, `createType="vmfs"`)
		replaceInFile(t, path, fmt.Sprintf("FLAT %q 0\n", flat), fmt.Sprintf("VMFS %q\n", flat))
	}
	return path
}

// files are the files that the image at path consists of.
func (f diskFormat) files(path string) []string {
	if f == formatFlat || f == formatVMFS {
		return []string{path, strings.TrimSuffix(path, ".vmdk") + "-flat.vmdk"}
	}
	return []string{path}
}

// rawOf reads the image with qemu-img and returns a sparse raw file of what a guest sees.
func (f diskFormat) rawOf(t testing.TB, path string) string {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "disk.raw")
	disktest.Run(t, "qemu-img", "convert", "-f", f.container, "-O", "raw", path, raw)
	return raw
}

// hashFiles is the SHA-256 of each file of the image.
func (f diskFormat) hashFiles(t testing.TB, path string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, file := range f.files(path) {
		sums[filepath.Base(file)] = sha256Of(t, file)
	}
	return sums
}

// storedBytes is what the files of the image take up on the machine's own disk.
func (f diskFormat) storedBytes(t testing.TB, path string) int64 {
	t.Helper()
	var total int64
	for _, file := range f.files(path) {
		info := disktest.Stat(t, file)
		total += info.Sys().(*syscall.Stat_t).Blocks * 512 // st_blocks counts 512 bytes on every file system
	}
	return total
}

// extract copies bytes [off, off+size) of a raw disk into a file of its own, for tools that want a bare volume.
func extract(t testing.TB, raw string, off, size int64) string {
	t.Helper()
	part := filepath.Join(t.TempDir(), "volume")
	disktest.Run(t, "dd", "if="+raw, "of="+part, "bs=1M", "iflag=skip_bytes,count_bytes", "conv=sparse",
		fmt.Sprintf("skip=%d", off), fmt.Sprintf("count=%d", size), "status=none")
	require.NoError(t, os.Truncate(part, size)) // dd leaves a hole at the end off
	return part
}
