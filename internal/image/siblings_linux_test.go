package image_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest/imagetest"
)

// QEMU locks byte 101 of a file that it has open for writing.
func TestQemuHasItOpen(t *testing.T) {
	dir, img := flatDisk(t)
	f, err := os.OpenFile(filepath.Join(dir, "disk-flat.vmdk"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	lock := func(kind int16, at int64) {
		l := unix.Flock_t{Type: kind, Start: at, Len: 1}
		require.NoError(t, unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l))
	}
	lock(unix.F_RDLCK, 100) // "consistent read": what a reader holds
	issues, err := img.Busy()
	require.NoError(t, err)
	require.Empty(t, issues)
	lock(unix.F_RDLCK, 101) // "write"
	issues, err = img.Busy()
	require.NoError(t, err)
	require.Len(t, issues, 1)
	require.Contains(t, issues[0].Text, "disk-flat.vmdk")
	require.Contains(t, issues[0].Text, "QEMU")
}

// A link to a child in the folder is not followed, and a FIFO does not hang.
func TestNeighboursThatAreNoFiles(t *testing.T) {
	dir, img := flatDisk(t)
	elsewhere := imagetest.Write(t, t.TempDir(), "child.vmdk", []byte(strings.Replace(child, "PARENT", "disk.vmdk", 1)))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(dir, "link.vmdk")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo.vmdk"), 0o644))
	issues, err := img.Children()
	require.NoError(t, err)
	require.Empty(t, issues)
}
