package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/units"
)

func differNumber(t *testing.T, name string, usual uint64) uint64 {
	t.Helper()
	text := os.Getenv("TRUEUP_DIFFER" + name)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 63)
	require.NoError(t, err, name)
	return n
}

var differTargets = []string{
	"raw", "vmdk:monolithicSparse", "vmdk:streamOptimized", "vhd:dynamic", "vhd:fixed", "vhdx:dynamic", "vhdx:fixed",
	"qcow2:v2", "qcow2:v3", "qcow2:compressed",
}

// inspect is what inspect says, and its exit code.
func inspectJSON(t *testing.T, path string) (ended, *jsonAnswer) {
	t.Helper()
	end := trueup(t, "inspect", "--json", path)
	a := &jsonAnswer{}
	require.NoError(t, json.Unmarshal([]byte(end.stdout), a), end.stdout)
	return end, a
}

// requireRead requires that a sound disk is read as the tools read it.
func requireRead(t *testing.T, d *differDisk, raw, path string) {
	t.Helper()
	end, a := inspectJSON(t, path)
	if d.label != "" { // what mkfs makes of a whole disk may be small enough to be unknown
		want := readSfdisk(t, raw)
		require.Equal(t, want.Label, d.label)
		require.Len(t, want.Partitions, len(d.parts))
		require.Equal(t, want, tableOf(a, raw))
		code := 0
		for _, p := range d.parts {
			code = max(code, p.verdict())
		}
		require.Equal(t, code, end.code, end.stderr)
	}
	var info struct {
		Size int64 `json:"virtual-size"`
	}
	out := disktest.Output(t, "qemu-img", "info", "--output=json", "-f", qemuName(d.format.name), path)
	require.NoError(t, json.Unmarshal([]byte(out), &info))
	require.Equal(t, info.Size, a.Image.Size)
	require.Equal(t, d.format.name, a.Image.Format)
	s, err := OpenSource(path, realign.Reading{})
	require.NoError(t, err)
	defer s.Close()
	require.Empty(t, differentBytes(t, s.Image.Disk, raw, info.Size))
}

// differentBytes compares the first n bytes of a disk with those of a file, which is zero behind its end, and returns
// where they differ.
func differentBytes(t *testing.T, got io.ReaderAt, raw string, n int64) string {
	t.Helper()
	f, err := os.Open(raw)
	require.NoError(t, err)
	defer f.Close()
	a, b := make([]byte, units.MiB), make([]byte, units.MiB)
	for off := int64(0); off < n; off += units.MiB {
		k := min(units.MiB, n-off)
		if _, err := got.ReadAt(a[:k], off); err != nil && err != io.EOF {
			return "error: " + err.Error()
		}
		m, err := f.ReadAt(b[:k], off)
		if err != io.EOF {
			require.NoError(t, err)
		}
		clear(b[m:k])
		if !bytes.Equal(a[:k], b[:k]) {
			for i := range k {
				if a[i] != b[i] {
					return fmt.Sprintf("byte %#x is %#x, not %#x", off+i, a[i], b[i])
				}
			}
		}
	}
	return ""
}
