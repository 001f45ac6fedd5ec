package main

import (
	"fmt"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// readServed has the NBD client of a kernel read a disk that is served over a network. It returns what checks the
// result.
func readServed(t *testing.T, r *reading) (check func(t *testing.T, found map[string]volumeRead)) {
	t.Helper()
	source, aligned := sampleDisk(t), filepath.Join(t.TempDir(), "aligned.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", source, aligned).code)
	at, err := url.Parse(serving(t, "--listen", "127.0.0.1:0", source).URI)
	require.NoError(t, err)
	const here = "10.0.2.2" // by which QEMU's network leads to this machine
	r.programs = append(r.programs, "nbd-client")
	r.script += "nbd-client " + here + " " + at.Port() + " /dev/nbd0 >&2 && echo begin && " +
		"sha256sum < /dev/nbd0 && cd /sys/block/nbd0 && echo end kernel $(cat ro size nbd0p*/start)\n"
	r.read("/dev/nbd0p1", "")
	return func(t *testing.T, found map[string]volumeRead) {
		t.Helper()
		const sectors = 8 << 20 / sectorSize
		want := volumeRead{fmt.Sprintf("1 %d 2048", sectors), []string{sha256Of(t, aligned) + "  -"}}
		require.Equal(t, want, found["kernel"])
		require.Equal(t, "ntfs", found["/dev/nbd0p1"].kind)
		require.NotEmpty(t, found["/dev/nbd0p1"].sums)
	}
}
