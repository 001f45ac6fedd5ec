package image_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// qemuOptions are what qemu-img creates in different ways.
var qemuOptions = []string{
	"cluster_size=512", "cluster_size=4k", "cluster_size=64k", "cluster_size=2M", "compat=0.10", "compat=0.10,cluster_size=1k", "compat=1.1",
	"extended_l2=on", "extended_l2=on,cluster_size=16k", "extended_l2=on,cluster_size=2M", "preallocation=metadata", "preallocation=falloc",
	"preallocation=full", "preallocation=metadata,extended_l2=on", "lazy_refcounts=on", "refcount_bits=1", "refcount_bits=4",
	"refcount_bits=8", "refcount_bits=32", "refcount_bits=64", "compression_type=zstd",
}

func TestQcow2ByQemuImg(t *testing.T) {
	data := noise(1, 5*mib+3*sector)
	clear(data[2*mib : 4*mib+100])
	raw := write(t, t.TempDir(), "disk.img", data)
	for _, o := range qemuOptions {
		t.Run(o, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk.qcow2")
			disktest.Run(t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-o", o, raw, path)
			img := opened(t, path)
			require.Equal(t, "qcow2", img.Format)
			disktest.CheckBytes(t, img.Disk, data)
			issues, err := img.Check()
			require.NoError(t, err)
			require.Empty(t, issues)
		})
	}
}

func TestCompressedQcow2ByQemuImg(t *testing.T) {
	data := noise(1, 5*mib+3*sector)
	copy(data[3*mib:], bytes.Repeat([]byte("packs well "), 100000))
	raw := write(t, t.TempDir(), "disk.img", data)
	for _, o := range []string{
		"cluster_size=512", "cluster_size=4k", "cluster_size=64k", "cluster_size=2M", "compat=0.10", "extended_l2=on",
		"compression_type=zstd,cluster_size=512", "compression_type=zstd", "compression_type=zstd,cluster_size=2M",
		"compression_type=zstd,extended_l2=on", "refcount_bits=16",
	} {
		t.Run(o, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "disk.qcow2")
			disktest.Run(t, "qemu-img", "convert", "-c", "-f", "raw", "-O", "qcow2", "-o", o, raw, path)
			img := opened(t, path)
			disktest.CheckBytes(t, img.Disk, data)
			issues, err := img.Check()
			require.NoError(t, err)
			require.Empty(t, issues)
		})
	}
}
