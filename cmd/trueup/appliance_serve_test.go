package main

import (
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// ofNetlink matches the libraries of nbd-client that the appliance lacks.
var ofNetlink = regexp.MustCompile(`=> (/\S*/libnl-\S+)`)

// readServed has the appliance read a disk that is served in two ways: by QEMU, as the command that serve prints has
// it, and by the NBD client of the kernel, over a network. It returns what checks the result.
func readServed(t *testing.T, r *reading) (check func(t *testing.T, found map[string]volumeRead)) {
	t.Helper()
	source, aligned := sampleDisk(t), filepath.Join(t.TempDir(), "aligned.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", source, aligned).code)
	r.command = printed(t, source)["guestfish"]
	client := disktest.Tool(t, "nbd-client")
	at, err := url.Parse(serving(t, "--listen", "127.0.0.1:0", source).URI)
	require.NoError(t, err)
	const here = "10.0.2.2" // by which QEMU's network leads to this machine
	r.drives += "config -netdev user,id=lan\nconfig -device virtio-net-pci,netdev=lan,romfile=\n"
	upload := func(path string) {
		r.script += fmt.Sprintf("debug-upload %q /tmp/%s 0755\n", path, filepath.Base(path))
	}
	upload(client)
	for _, library := range ofNetlink.FindAllStringSubmatch(disktest.Run(t, "ldd", client), -1) {
		upload(library[1])
	}
	const sectors = 8 << 20 / sectorSize
	r.script += fmt.Sprintf("-debug sh \"echo begin; for d in /sys/block/sd*; do "+
		"[ $(cat $d/size) = %d ] && sha256sum < /dev/${d##*/}; done; echo end drive\"\n", sectors)
	r.script += "-debug sh \"ip link set eth0 up && ip addr add 10.0.2.15/24 dev eth0 && modprobe nbd && " +
		"export LD_LIBRARY_PATH=/tmp && /tmp/nbd-client " + here + " " + at.Port() + " /dev/nbd0 >/dev/null && echo begin && " +
		"sha256sum < /dev/nbd0 && cd /sys/block/nbd0 && echo end kernel $(cat ro size nbd0p*/start)\"\n"
	r.read("/dev/nbd0p1", "")
	return func(t *testing.T, found map[string]volumeRead) {
		t.Helper()
		sum := sha256Of(t, aligned) + "  -"
		require.Contains(t, found["drive"].sums, sum)
		require.Equal(t, volumeRead{fmt.Sprintf("1 %d 2048", sectors), []string{sum}}, found["kernel"])
		require.Equal(t, "ntfs", found["/dev/nbd0p1"].kind)
		require.NotEmpty(t, found["/dev/nbd0p1"].sums)
	}
}
