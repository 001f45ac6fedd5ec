package main

import (
	"path/filepath"
	"testing"

	"github.com/trueup/trueup/internal/disktest"
)

// snapshotChain is a disk of three links, base, middle and top, of which each changes what the one below holds. All lie
// in one folder. raw is what a guest sees through the top.
func snapshotChain(t testing.TB, format, options string) (dir, raw string) {
	t.Helper()
	dir = t.TempDir()
	base := filepath.Join(dir, "base."+format)
	args := []string{"convert", "-f", "raw", "-O", format}
	if options != "" {
		args = append(args, "-o", options)
	}
	disktest.Run(t, "qemu-img", append(args, pairDisk(t), base)...)
	for i, name := range []string{"middle", "top"} {
		below := []string{"base", "middle"}[i] + "." + format
		args := []string{"create", "-q", "-f", format, "-F", format, "-b", below}
		if options != "" {
			args = append(args, "-o", options)
		}
		path := filepath.Join(dir, name+"."+format)
		disktest.Run(t, "qemu-img", append(args, path)...)
		// One change inside the partition at LBA 63, one across what the link below has written.
		disktest.Run(t, "qemu-io", "-f", format, "-c", "write -P "+[]string{"0x71", "0x72"}[i]+" "+[]string{
			"3M 200k",
			"3100k 100k",
		}[i],
			"-c", "write -P 0x55 "+[]string{"5M", "6M"}[i]+" 64k", path)
	}
	raw = filepath.Join(t.TempDir(), "top.raw")
	disktest.Run(t, "qemu-img", "convert", "-f", format, "-O", "raw", filepath.Join(dir, "top."+format), raw)
	return dir, raw
}

func readAll(t testing.TB, path string) []byte {
	t.Helper()
	b := disktest.ReadFile(t, path)
	return b
}
