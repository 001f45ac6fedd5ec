package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// bitlk is one volume of the archive of cryptsetup: real ones of Windows 7 to 11.
type bitlk struct {
	path string
	conf map[string]string // of images.conf: how it opens, and the sum of what it holds
}

// bitlkVolumes unpacks the archive. The volumes are sparse.
func bitlkVolumes(t testing.TB) map[string]bitlk {
	t.Helper()
	dir := t.TempDir()
	disktest.Run(t, "tar", "-xSJf", filepath.Join(disktest.CorpusDir(t), "cryptsetup", "bitlk-images.tar.xz"), "-C",
		dir, "--strip-components=1")
	file, err := os.Open(filepath.Join(dir, "images.conf"))
	require.NoError(t, err)
	defer file.Close()
	out := map[string]bitlk{}
	for name, lines := "", bufio.NewScanner(file); lines.Scan(); {
		key, value, pair := strings.Cut(lines.Text(), "=")
		switch {
		case strings.HasPrefix(key, "["):
			name = strings.Trim(key, "[]")
			out[name] = bitlk{filepath.Join(dir, name+".img"), map[string]string{}}
		case pair:
			out[name].conf[key] = value
		}
	}
	require.Len(t, out, 21)
	return out
}

// bitlkDisk puts a volume into a partition at LBA 63 of a disk that nothing boots.
func bitlkDisk(t testing.TB, v bitlk) (raw string, size int64) {
	t.Helper()
	file := disktest.Stat(t, v.path)
	raw = filepath.Join(t.TempDir(), "disk.raw")
	disktest.Run(t, "truncate", "-s", decimal(file.Size()+4<<20), raw)
	disktest.RunInput(t, fmt.Sprintf("label: dos\nlabel-id: 0x12345678\nstart=63, size=%d, type=7\n",
		file.Size()/sectorSize), "sfdisk", "-q", raw)
	disktest.Run(t, "dd", "if="+v.path, "of="+raw, "bs=512", "seek=63", "conv=notrunc,sparse", "status=none")
	return raw, file.Size()
}

// TestBitLockerVolumesOfData moves real volumes, and has dislocker decrypt the result: the sums are those of the
// archive. Only those that encrypt as they are written to could be those of a system.
func TestBitLockerVolumesOfData(t *testing.T) {
	t.Parallel()
	sample := []string{"bitlk-aes-cbc-elephant-256", "bitlk-aes-xts-128-eow", "bitlk-togo-aes-xts-128"}
	for name, v := range bitlkVolumes(t) {
		if !disktest.Exhaustive && !slices.Contains(sample, name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, size := bitlkDisk(t, v)
			dump := disktest.Run(t, "cryptsetup", "bitlkDump", v.path)
			dest := filepath.Join(t.TempDir(), "dest.raw")
			args := []string{"align", raw, dest}
			// while it is written to, not as a whole
			written := v.conf["UUID"] == "" || strings.Contains(name, "partially")
			if written {
				end := trueup(t, args...)
				require.Equal(t, 4, end.code, end.stderr)
				require.Contains(t, end.stderr, "recovery key")
				require.NoFileExists(t, dest)
				args = append(args, "--allow-unbootable")
			}
			end := trueup(t, args...)
			require.Equal(t, 0, end.code, end.stderr)
			moved, out := filepath.Join(t.TempDir(), "moved"), filepath.Join(t.TempDir(), "out")
			disktest.Run(t, "dd", "if="+dest, "of="+moved, "bs=1M", "skip=1", "conv=sparse", "status=none")
			if want := v.conf["SHA256SUM"]; want != "" {
				key := "-u" + v.conf["PW"]
				switch {
				case v.conf["CLEARKEY_VMK_GUID"] != "":
					key = "-c"
				case v.conf["PW"] == "" || strings.Contains(v.path, "unicode"): // dislocker needs ASCII passwords
					key = "-p" + v.conf["RP"]
				}
				part := extract(t, dest, 2048*sectorSize, size)
				disktest.Run(t, "dislocker-file", "-V", part, key, "--", out)
				require.Equal(t, want, sha256Of(t, out))
			}
			_, was, _ := strings.Cut(dump, "\n")
			_, is, _ := strings.Cut(disktest.Run(t, "cryptsetup", "bitlkDump", moved), "\n")
			require.Equal(t, was, is)
		})
	}
}
