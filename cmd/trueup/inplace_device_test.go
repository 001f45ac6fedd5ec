package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// roomyNTFS is the disk of a Windows with free space after the last partition.
func roomyNTFS(t testing.TB) string {
	t.Helper()
	raw := twoNTFS(t)
	require.NoError(t, os.Truncate(raw, 24<<20))
	return raw
}

// TestInPlaceOnDevice moves disks on devices, one of them a GPT with sectors of 4 KiB whose partition is off 64 KiB.
// The result equals the copy.
func TestInPlaceOnDevice(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		build   func(t testing.TB) string
		options []string
	}{
		"two ntfs and a hive": {build: roomyNTFS},
		"gpt":                 {build: moveDisks["gpt"]},
		"4kn": {options: []string{"--sector-size", "4096"}, build: func(t testing.TB) string {
			t.Helper()
			raw := disktest.Blank(t, "4kn.raw", 24<<20)
			device := disktest.LoopDevice(t, raw, "--sector-size", "4096")
			disktest.RunInput(t, "label: gpt\nfirst-lba: 6\n"+
				"start=7, size=5000, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4\n", "sfdisk", "-q", device)
			disktest.WriteAt(t, device, 7*4096, noise("4kn", 9<<20))
			disktest.Run(t, "sync", device)
			return raw
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newDeviceMove(t, x.build(t), x.options...)
			c.requireAfter(t, "move", trueup(t, c.args("move", "-q", "--json")...))
			require.Equal(t, 0, trueup(t, "inspect", c.path).code)
		})
	}
}

// TestInPlaceOnDeviceIsRefused requires refusals of devices that are in use, too small or not named as such, and of
// journals that would not survive a power cut. Nothing is written.
func TestInPlaceOnDeviceIsRefused(t *testing.T) {
	t.Parallel()
	c := newDeviceMove(t, roomyNTFS(t))
	for _, x := range []struct {
		code int
		says string
		args []string
	}{
		{64, "needs --journal FILE, on another storage", []string{"move", c.path}},
		{64, "unknown flag: --discard", c.args("move", "--discard")},
		{64, "unknown flag: --with", append(c.args("move"), "--with", c.made)},
		{64, "nothing to undo, resume or finish", []string{"resume", c.path}},
		{64, "no journal " + c.journal, c.args("undo")},
		{4, "would be in memory", []string{"move", c.path, "--journal", "/dev/trueup-test.journal"}},
	} {
		c.refused(t, x.code, x.says, x.args...)
		c.requireOld(t)
	}
	f, err := os.OpenFile(c.path, os.O_RDWR, 0)
	require.NoError(t, err)
	c.refused(t, 4, fmt.Sprintf("DISK %s is in use: it is open for writing in process %d", c.path, os.Getpid()),
		c.args("move")...)
	require.NoError(t, f.Close())
	t.Run("loop device over it", func(t *testing.T) {
		c.refused(t, 4, "is shown by the loop device "+filepath.Base(disktest.LoopDevice(t, c.path)), c.args("move")...)
	})
	t.Run("loop device beside it", func(t *testing.T) {
		beside := disktest.LoopDevice(t, filepath.Join(c.folder, "device"), "--offset", "1048576")
		c.refused(t, 4, "the loop device "+filepath.Base(beside)+" shows bytes of it, too", c.args("move")...)
	})
	c.requireOld(t)
	require.NoError(t, os.WriteFile(c.journal, noise("x", 4096), 0o600))
	c.refused(t, 4, "should be a journal of trueup", c.args("move")...)

	grows := newDeviceMove(t, moveDisks["grows"](t))
	r := trueup(t, grows.args("move")...)
	require.Equal(t, 4, r.code, r.stderr)
	size := disktest.Stat(t, filepath.Join(grows.folder, "device")).Size()
	require.Regexp(t, fmt.Sprintf(`the moved disk needs \d+ bytes, and it has %d`, size), r.stderr)
	grows.requireOld(t)
}

// TestKilledMovesOnDevice kills a move on a device at system calls that change something: the command that inspect
// prints completes it, or reverses it.
func TestKilledMovesOnDevice(t *testing.T) {
	t.Parallel()
	newDeviceMove(t, roomyNTFS(t)).killed(t, "pwrite64,fsync,ioctl,unlinkat",
		func(p callPoint) bool { return p.number%16 == 3 })
}

// TestFilesOnLoopDevices requires that commands refuse to move or exchange a file with a loop device, and to resume or
// undo such work, by any name and for any file of the disk. After detaching, they succeed.
func TestFilesOnLoopDevices(t *testing.T) {
	t.Parallel()
	for _, f := range []diskFormat{formatRaw, formatFlat} {
		c, link := newMove(t, f, noisyDisk(t, 5)), filepath.Join(t.TempDir(), "link")
		data := c.path
		if f == formatFlat {
			data = flatName(c.path)
		}
		require.NoError(t, os.Symlink(data, link))
		refused := func(commands ...string) {
			before := sumsOf(t, c.folder)
			for _, command := range commands {
				t.Run(f.name+", "+command, func(t *testing.T) {
					c.refused(t, 4, "the loop device "+disktest.LoopDevice(t, link), command, c.path)
				})
				require.Equal(t, before, sumsOf(t, c.folder))
			}
		}
		refused("move", "replace")
		c.kill(t, callPoint{call: "fsync", number: 6})
		require.FileExists(t, c.journal)
		refused("resume", "undo")
		c.requireAfter(t, "resume", trueup(t, "resume", c.path))
		c.reset(t)
		require.Zero(t, trueup(t, "replace", c.path).code)
		refused("undo", "finish")
		c.requireAfter(t, "undo", trueup(t, "undo", c.path))
	}
}

// TestBlockDevice reads a disk from a device, as in P2V.
func TestBlockDevice(t *testing.T) {
	t.Parallel()
	raw := pairDisk(t)
	device := disktest.LoopDevice(t, raw)
	fromFile := trueupJSON[jsonInspect](t, 3, "inspect", raw)
	fromDevice := trueupJSON[jsonInspect](t, 3, "inspect", device)
	require.Equal(t, fromFile.Partitions, fromDevice.Partitions)

	dest := filepath.Join(t.TempDir(), "copy.vmdk")
	require.Equal(t, 0, trueup(t, "convert", "--to", "vmdk", device, dest).code)
	disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "vmdk", raw, dest)
	require.Equal(t, 0, trueup(t, "verify", device, dest).code)
	require.Equal(t, 0, trueup(t, "align", "--to", "vmdk", "--force", device, dest).code)

	before := sha256Of(t, raw)
	for _, args := range [][]string{
		{"convert", "--to", "raw", "--force", device, raw},
		{"inspect", device, "--out", raw},
	} {
		r := trueup(t, args...)
		require.Equal(t, 64, r.code, "%q would write to the file behind the device: %s", args, r.stderr)
	}
	require.Equal(t, before, sha256Of(t, raw))
}

// TestDeviceInUse requires that a device with a mounted file system is refused, because it changes while it is read.
func TestDeviceInUse(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "volume")
	disktest.Run(t, "truncate", "-s", "4M", file)
	disktest.Run(t, "mke2fs", "-q", "-F", file)
	device, folder := disktest.LoopDevice(t, file), t.TempDir()
	if out, err := exec.Command("mount", device, folder).CombinedOutput(); err != nil {
		t.Skipf("no right to mount on this machine: %s", out)
	}
	t.Cleanup(func() { disktest.Run(t, "umount", folder) })
	r := trueup(t, "convert", device, filepath.Join(t.TempDir(), "copy.raw"), "--json")
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stdout, `"code": "busy"`)
	require.Contains(t, r.stderr, "mounted")
}
