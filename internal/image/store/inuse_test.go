//go:build !windows

package store

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/sys"
)

// fake makes a root of /sys and /proc from files by their names; a value that begins with -> is a link.
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

// A loop device over the device, a partition of it, or its disk is found; the kernel claims none of these for it.
func TestLooped(t *testing.T) {
	t.Parallel()
	null := nodeOf(t, nullNode)
	for want, c := range map[string]struct {
		number string
		files  map[string]string
	}{
		"it is shown by the loop device loop7": {null, nil},
		"its partition p1 is shown by the loop device loop7": {"8:0", map[string]string{
			"sys/dev/block/8:0/p1/partition": "1", "sys/dev/block/8:0/p1/dev": null, "sys/devices/p1/x": "",
			"sys/dev/block/" + null: "->../../devices/p1",
		}},
		"its disk sda is shown by the loop device loop7": {"8:1", map[string]string{
			"sys/dev/block/8:1": "->../../devices/sda/sda1", "sys/devices/sda/sda1/partition": "1",
			"sys/devices/sda/dev": null, "sys/dev/block/" + null: "->../../devices/sda",
		}},
	} {
		files := map[string]string{
			"sys/class/block/loop7/loop/backing_file": "/dev/n", "dev/n": "->" + nullNode,
			"sys/class/block/loop8/loop/x": "",
		}
		maps.Copy(files, c.files)
		u := fake(t, files).looped(c.number)
		require.NotNil(t, u, want)
		require.Equal(t, want, u.text)
		require.Nil(t, fake(t, files).looped("8:16"), "another device")
	}
	require.Error(t, fake(t, nil).known(&Device{number: "8:0"}), "a device of which the kernel says nothing")
}

// A program that has the device open to write it, its partition or its disk, is named, and one that reads is not.
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
	node := nodeOf(t, path)
	for want, c := range map[string]struct {
		number string
		files  map[string]string
	}{
		"it is open for writing in process 17 (\"qemu\")": {node, nil},
		"its partition p1 is open for writing in process 17 (\"qemu\")": {"8:0", map[string]string{
			"sys/dev/block/8:0/p1/partition": "1", "sys/dev/block/8:0/p1/dev": node, "sys/devices/p1/x": "",
			"sys/dev/block/" + node: "->../../devices/p1",
		}},
		"its disk sda is open for writing in process 17 (\"qemu\")": {"8:1", map[string]string{
			"sys/dev/block/8:1": "->../../devices/sda/sda1", "sys/devices/sda/sda1/partition": "1",
			"sys/devices/sda/dev": node, "sys/dev/block/" + node: "->../../devices/sda",
		}},
	} {
		files := map[string]string{
			"proc/17/fd/4": "->" + path, "proc/17/fdinfo/4": "pos:\t0\nflags:\t0100002", "proc/17/comm": "qemu",
			"proc/18/fd/4": "->" + path, "proc/18/fdinfo/4": "pos:\t0\nflags:\t0100000",
		}
		maps.Copy(files, c.files)
		u := fake(t, files).writer(c.number)
		require.NotNil(t, u, want)
		require.Equal(t, want, u.text)
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

// Two loop devices overlap where they show the same bytes of one file.
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

// A loop device over a file with open work, or one that such work needs, is not written.
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
