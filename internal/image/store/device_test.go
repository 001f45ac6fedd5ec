//go:build !windows

package store

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// someDevice returns a loop device of 64 KiB, and its file.
func someDevice(t *testing.T) (path, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "device")
	require.NoError(t, os.WriteFile(file, make([]byte, 64<<10), 0o600))
	return disktest.LoopDevice(t, file), file
}

// about makes a kernel that lists a device, with more files about it.
func about(t *testing.T, path string, more map[string]string) kernel {
	t.Helper()
	all := map[string]string{block(nodeOf(t, path)) + "/ro": "0"}
	maps.Copy(all, more)
	return fake(t, all)
}

// requireRefused requires that a device is refused with a code.
func requireRefused(t *testing.T, code, text string, err error) {
	t.Helper()
	r, ok := errors.AsType[*ondisk.Refusal](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, r.Code)
	require.Contains(t, r.Reason, text)
}

// What leads to no device is an error before anything is opened.
func TestOpenNoDevice(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]error{
		file: ondisk.ErrUsage, file + ".absent": fs.ErrNotExist, nullNode: ondisk.ErrUsage,
	} {
		_, err := Open(path)
		require.ErrorIs(t, err, want, path)
	}
	_, err := (&Device{Path: "device", Node: file + ".absent"}).Create(Options{})
	require.ErrorContains(t, err, "folder of DEST device")
	_, _, _, closed := stand(t, nil)
	_, err = (&Device{Path: "device", Node: file, file: closed}).Create(Options{})
	require.ErrorContains(t, err, "read back device")
}

// A device that is in use, read-only, a source, or unknown to the kernel is refused.
func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	path, file := someDevice(t)
	number := nodeOf(t, path)
	try := func(k kernel, sources ...string) error {
		d, err := open(&Device{Path: path, role: "DEST"}, sources, k)
		require.NoError(t, d.Close())
		return err
	}
	require.NoError(t, try(about(t, path, nil), file+".absent"))
	require.ErrorIs(t, try(fake(t, nil)), ondisk.ErrUnsupported)
	require.ErrorContains(t, try(about(t, path, nil), path), "is SOURCE")
	requireRefused(t, "output", "read-only", try(about(t, path, map[string]string{block(number) + "/ro": "1"})))
	requireRefused(t, "busy", "open for writing in process 1 ", try(about(t, path, map[string]string{
		"proc/1/fd/4": "->" + path, "proc/1/fdinfo/4": "flags:\t0100002",
	})))

	claimed, err := sys.OpenDevice(path)
	require.NoError(t, err)
	requireRefused(t, "busy", "the kernel keeps it", try(about(t, path, nil)))
	require.NoError(t, claimed.Close())
	path = disktest.LoopDevice(t, file, "--read-only")
	requireRefused(t, "output", "read-only", try(about(t, path, nil)))
}

// What was opened is looked at once more: it has to be the same device, with a medium, and no guest may use it.
func TestMeasure(t *testing.T) {
	t.Parallel()
	path, file := someDevice(t)
	k := about(t, path, nil)
	d, err := open(&Device{Path: path, role: "DEST"}, nil, k)
	require.NoError(t, err)
	shown, err := sys.Stat(file)
	require.NoError(t, err)
	require.Equal(t, []sys.ID{shown.ID}, d.files, "only the loop device itself says what it shows")
	require.ErrorIs(t, d.measure(sys.Info{}), ondisk.ErrChanged)

	other, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer other.Close()
	for _, b := range gate.QEMUBytes {
		locked, err := sys.Of(other).LockedByte(b)
		require.NoError(t, err)
		require.True(t, locked, "%d", b)
	}
	require.NoError(t, d.Close())
	require.NoError(t, sys.Of(other).LockByte(sys.Shared, gate.QEMURead))
	_, err = open(&Device{Path: path, role: "DEST"}, nil, k)
	requireRefused(t, "busy", "open in QEMU", err)

	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	path = disktest.LoopDevice(t, empty)
	_, err = open(&Device{Path: path, role: "DEST"}, nil, about(t, path, nil))
	require.ErrorContains(t, err, "no medium")
}

// No file of a source may be what the device shows, nor a loop device that shows the same bytes.
func TestApart(t *testing.T) {
	t.Parallel()
	k := fake(t, map[string]string{"sys/dev/block/7:1/loop/backing_file": "/file", "file": "x"})
	shown, err := sys.Stat(k.path("file"))
	require.NoError(t, err)
	d := &Device{Path: "device", number: "7:0"}
	src := &gate.Opened{Handles: []*gate.File{{Info: shown}}}
	loop := sys.Info{Mode: fs.ModeDevice, Node: unix.Mkdev(7, 1)}
	require.NoError(t, d.Apart(src))
	require.NoError(t, d.aside("source", loop, k))
	d.files, d.windows = []sys.ID{shown.ID}, []window{{loop: "7:0", file: shown.ID, end: 512}}
	require.ErrorContains(t, d.Apart(src), "lies on")
	require.ErrorContains(t, d.Apart(&gate.Opened{Packed: src.Handles[0]}), "lies on")
	require.ErrorContains(t, d.aside("source", loop, k), "shows the same bytes")
	require.NoError(t, d.aside("source", sys.Info{}, k), "a file")
}

// The kernel forgets the partitions of a table that is gone.
func TestTableIsReadAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "device")
	require.NoError(t, os.WriteFile(file, make([]byte, 64<<10), 0o600))
	path := disktest.LoopDevice(t, file, "--partscan")
	d, err := OpenDisk(path)
	require.NoError(t, err)
	defer d.Close()
	x, err := d.Disk()
	require.NoError(t, err)
	defer x.Close()
	o, err := d.Create(Options{})
	require.NoError(t, err)
	for name, reread := range map[string]func(){
		"in place": x.Reread,
		"a copy":   func() { require.NoError(t, o.reread()) },
	} {
		if out, err := exec.Command(disktest.Tool(t, "addpart"), path, "1", "8", "8").CombinedOutput(); err != nil {
			t.Skipf("no partitions of loop devices on this machine: %s", out)
		}
		require.Len(t, kernel{}.partitions(d.number), 1, name)
		reread()
		require.Empty(t, kernel{}.partitions(d.number), name)
	}
	require.NoError(t, o.Discard())
}
