//go:build !windows

package store

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
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

// about makes a fake kernel that lists a device, with more files about it.
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

// Paths that lead to no device are an error before anything is opened.
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
	requireRefused(t, "busy", "it, or a partition of it, is mounted", try(about(t, path, nil)))
	require.NoError(t, claimed.Close())
	path = disktest.LoopDevice(t, file, "--read-only")
	requireRefused(t, "output", "read-only", try(about(t, path, nil)))
}

// The opened device is checked again: it has to be the same device, with a medium, and no guest may use it.
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
		locked, err := sys.FromOS(other).LockedByte(b)
		require.NoError(t, err)
		require.True(t, locked, "%d", b)
	}
	require.NoError(t, d.Close())
	require.NoError(t, sys.FromOS(other).LockByte(sys.Shared, gate.QEMURead))
	_, err = open(&Device{Path: path, role: "DEST"}, nil, k)
	requireRefused(t, "busy", "open in QEMU", err)

	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	path = disktest.LoopDevice(t, empty)
	_, err = open(&Device{Path: path, role: "DEST"}, nil, about(t, path, nil))
	require.ErrorContains(t, err, "no medium")
}

// No file of a source may be the file of the device, nor a loop device with the same bytes.
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

// The kernel drops the partitions of a removed table.
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
	o, err := d.Create(Options{Disk: disk.Range{Len: d.Size}})
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

// fake makes a root of /sys and /proc from files by name; a value that begins with -> is a link.
func fake(t *testing.T, files map[string]string) kernel {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		if to, ok := strings.CutPrefix(text, "->"); ok {
			require.NoError(t, os.Symlink(to, path))
			continue
		}
		require.NoError(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	}
	return kernel{root}
}

// nullNode is a device node that every machine has; the fake kernel calls it a disk.
const nullNode = "/dev/null"

func nodeOf(t *testing.T, path string) string {
	t.Helper()
	st, err := sys.Stat(path)
	require.NoError(t, err)
	return sys.NodeName(st.Node)
}

// related returns files of a kernel in which a number is that of a node, of the disk of a partition, or of a partition
// of the disk, depending on words.
func related(node string) map[string]struct {
	number string
	files  map[string]string
} {
	return map[string]struct {
		number string
		files  map[string]string
	}{
		"it": {node, nil},
		"its partition p1": {"8:0", map[string]string{
			"sys/dev/block/8:0/p1/partition": "1", "sys/dev/block/8:0/p1/dev": node, "sys/devices/p1/x": "",
			"sys/dev/block/" + node: "->../../devices/p1",
		}},
		"its disk sda": {"8:1", map[string]string{
			"sys/dev/block/8:1": "->../../devices/sda/sda1", "sys/devices/sda/sda1/partition": "1",
			"sys/devices/sda/dev": node, "sys/dev/block/" + node: "->../../devices/sda",
		}},
	}
}

// A loop device on the device, on a partition of it, or on its disk is found; the kernel claims none of these for it.
func TestLooped(t *testing.T) {
	t.Parallel()
	for what, c := range related(nodeOf(t, nullNode)) {
		files := map[string]string{
			"sys/class/block/loop7/loop/backing_file": "/dev/n", "dev/n": "->" + nullNode,
			"sys/class/block/loop8/loop/x": "",
		}
		maps.Copy(files, c.files)
		u := fake(t, files).looped(c.number)
		require.NotNil(t, u, what)
		require.Equal(t, what+" is shown by the loop device loop7", u.text)
		require.Nil(t, fake(t, files).looped("8:16"), "another device")
	}
	require.Error(t, fake(t, nil).known(&Device{number: "8:0"}), "a device of which the kernel says nothing")
}

// A program that has the device, its partition or its disk open for writing is named, and a reader is not.
func TestWriter(t *testing.T) {
	t.Parallel()
	// The kernel shows a character device here, which no program could claim: only a block device counts.
	k := fake(t, map[string]string{
		"proc/17/fd/4": "->" + nullNode, "proc/17/fdinfo/4": "pos:\t0\nflags:\t0100002\nmnt_id:\t13",
		"proc/17/comm": "qemu",
		"proc/x/fd/4":  "->" + nullNode,
	})
	require.Nil(t, k.writer(nodeOf(t, nullNode)))
	require.Nil(t, k.writer("8:0"))

	path, _ := someDevice(t)
	for what, c := range related(nodeOf(t, path)) {
		files := map[string]string{
			"proc/17/fd/4": "->" + path, "proc/17/fdinfo/4": "pos:\t0\nflags:\t0100002", "proc/17/comm": "qemu",
			"proc/18/fd/4": "->" + path, "proc/18/fdinfo/4": "pos:\t0\nflags:\t0100000",
		}
		maps.Copy(files, c.files)
		u := fake(t, files).writer(c.number)
		require.NotNil(t, u, what)
		require.Equal(t, what+` is open for writing in process 17 ("qemu")`, u.text)
	}
}

// The devices below a device are found through partitions, mapped devices and loops.
func TestBelow(t *testing.T) {
	t.Parallel()
	k := fake(t, map[string]string{
		"sys/dev/block/253:0": "->../../devices/dm-0", "sys/devices/dm-0/dev": "253:0",
		"sys/devices/dm-0/slaves/sda1/dev": "8:1",
		"sys/dev/block/8:1":                "->../../devices/sda/sda1",
		"sys/devices/sda/sda1/partition":   "1", "sys/devices/sda/dev": "8:0",
		"sys/dev/block/8:0": "->../../devices/sda",
		"sys/dev/block/7:1": "->../../devices/loop1", "sys/devices/loop1/loop/backing_file": "/disk.img",
		"disk.img": "x",
	})
	numbers, files := k.below("253:0")
	require.Equal(t, []string{"253:0", "8:1", "8:0"}, numbers)
	require.Empty(t, files)
	numbers, files = k.below("7:1")
	require.Equal(t, []string{"7:1"}, numbers)
	st, err := sys.Stat(k.path("disk.img"))
	require.NoError(t, err)
	require.Equal(t, []sys.ID{st.ID}, files)
}

// Two loop devices overlap if they show the same bytes of a file.
func TestWindows(t *testing.T) {
	t.Parallel()
	files := map[string]string{"a": "x", "b": "x"}
	for n, w := range map[string][3]string{
		"7:0": {"a", "0", "0"}, "7:1": {"a", "4096", "0"}, "7:2": {"a", "0", "4096"}, "7:3": {"b", "0", "0"},
	} {
		for i, of := range []string{"backing_file", "offset", "sizelimit"} {
			files["sys/dev/block/"+n+"/loop/"+of] = w[i]
		}
	}
	k := fake(t, files)
	w := k.windows([]string{"7:0", "7:1", "7:2", "7:3", "8:0"})
	require.Len(t, w, 4)
	for pair, want := range map[[2]int]bool{
		{0, 0}: false, {0, 1}: true, {0, 2}: true, {0, 3}: false, {1, 2}: false, {2, 1}: false,
	} {
		require.Equal(t, want, w[pair[0]].overlaps(w[pair[1]]), "%v", pair)
	}
}

// A loop device on a file with unfinished work, or needed by it, is not written.
func TestLoopOverAKeptOriginal(t *testing.T) {
	t.Parallel()
	path, file := someDevice(t)
	dir, err := gate.OpenFolder(filepath.Dir(file))
	require.NoError(t, err)
	defer dir.Close()
	// The names are "vm" and "device", and "vm" and "t".
	const plan = `{"Old":[{"Name":"dm0=","Other":"ZGV2aWNl"}],"New":[{"Name":"dm0=","Other":"dA=="}]}`
	for _, disk := range []string{"vm", "device"} {
		h, err := journal.Begin(dir, disk, filepath.Join(filepath.Dir(file), disk), journal.Exchange,
			[]byte(plan), 0)
		require.NoError(t, err)
		require.NoError(t, errors.Join(h.Enter(journal.Kept), h.Close()))
		d, err := Open(path)
		require.NoError(t, d.Close())
		requireRefused(t, "unfinished", "cannot be written", err)
		require.NoError(t, os.Remove(filepath.Join(filepath.Dir(file), journal.PathOf(disk))))
	}
	d, err := Open(path)
	require.NoError(t, err)
	require.NoError(t, d.Close())
}
