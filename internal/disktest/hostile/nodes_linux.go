package hostile

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Nodes returns descriptors whose extent is a link, or not a regular file.
func Nodes() []Row { return slices.Concat(linkedExtents(), oddExtents()) }

// linkedExtents are links: a link is refused regardless of its target.
func linkedExtents() []Row {
	link := func(to string) Writer {
		return func(t testing.TB, dir string) string {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "inside"), make([]byte, 2048*512), 0o644))
			require.NoError(t, os.Symlink(to, filepath.Join(dir, "x-flat.vmdk")))
			return writeText("disk.vmdk", flatOf("x-flat.vmdk"))(t, dir)
		}
	}
	says := []string{"line 9", `"x-flat.vmdk" is a symbolic link`, "not a regular file"}
	return []Row{
		unread("T03 link to a file of the host", "reference", link("/etc/passwd"), says...),
		unread("T03 link within the folder", "reference", link("inside"), says...),
	}
}

// oddExtents are extents that are not regular files.
func oddExtents() []Row {
	node := func(make func(path string) error) Writer {
		return func(t testing.TB, dir string) string {
			t.Helper()
			if err := make(filepath.Join(dir, "x-flat.vmdk")); err != nil {
				t.Skip(err) // device nodes are for root
			}
			return writeText("disk.vmdk", flatOf("x-flat.vmdk"))(t, dir)
		}
	}
	device := func(kind uint32, major, minor uint32) func(string) error {
		return func(path string) error { return unix.Mknod(path, kind|0o644, int(unix.Mkdev(major, minor))) }
	}
	var out []Row
	for what, make := range map[string]func(string) error{
		"a FIFO":             func(path string) error { return unix.Mkfifo(path, 0o644) },
		"a socket":           listenAt,
		"a folder":           func(path string) error { return os.Mkdir(path, 0o755) },
		"a character device": device(unix.S_IFCHR, 1, 5), // the numbers of /dev/zero
		"a block device":     device(unix.S_IFBLK, 7, 0), // and of /dev/loop0
	} {
		out = append(out, unread("T04 extent is "+what, "reference", node(make), "line 9",
			`"x-flat.vmdk" is `+what, "not a regular file"))
	}
	return out
}

// listenAt leaves a socket file.
func listenAt(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}
