package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// destDevice returns a loop device over a sparse file of this size, and the file.
func destDevice(t testing.TB, size int64) (device, file string) {
	t.Helper()
	file = disktest.Blank(t, "device", size)
	return disktest.LoopDevice(t, file), file
}

// deviceSize is larger than the disk of testdata, and not a round number.
const deviceSize = 12<<20 + 512*7

// overwriteFlag extracts the flag from a refusal, like a user.
var overwriteFlag = regexp.MustCompile(`--overwrite-content '([^']*)'`)

// onDevice aligns onto a device.
func onDevice(t testing.TB, source, device string, more ...string) result {
	t.Helper()
	return trueup(t, append([]string{"align", source, device}, more...)...)
}

// TestAlignOntoDevice writes onto a blank device, and onto one whose content the user confirms. The result equals a
// file, with zeros up to the end of the device.
func TestAlignOntoDevice(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	want := filepath.Join(t.TempDir(), "want.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", source, want).code)
	require.NoError(t, os.Truncate(want, deviceSize))
	device, file := destDevice(t, deviceSize)

	link := filepath.Join(t.TempDir(), "lv")
	require.NoError(t, os.Symlink(device, link))
	answer := trueupJSON[jsonAlign](t, 0, "align", source, link) // a link to the node, like in LVM
	require.Equal(t, []any{link, "raw", true, []string{device}},
		[]any{answer.Dest, answer.Disks[0].Format, answer.Written, answer.Files})
	require.Equal(t, sha256Of(t, want), sha256Of(t, file))
	require.Equal(t, 0, trueup(t, "verify", source, device).code)
	require.Contains(t, disktest.Run(t, "sfdisk", "-d", device), "start=        2048,")

	r := onDevice(t, source, device)
	require.Equal(t, 4, r.code)
	requireOneLine(t, r.stderr)
	found := overwriteFlag.FindStringSubmatch(r.stderr)
	require.Equal(t, fmt.Sprintf(`%d bytes: MBR, ntfs "XPDISK"`, deviceSize), found[1])
	require.Equal(t, 4, onDevice(t, source, device, "--overwrite-content", found[1]+" ").code)
	require.Equal(t, sha256Of(t, want), sha256Of(t, file), "a refusal writes nothing")

	// Old bytes everywhere, with superblocks at both ends.
	require.NoError(t, os.WriteFile(file, noise("old", deviceSize), 0o600))
	disktest.Run(t, "mke2fs", "-q", "-F", "-L", "it's", device)
	r = onDevice(t, source, device)
	require.Equal(t, 4, r.code)
	found = overwriteFlag.FindStringSubmatch(r.stderr)
	require.Equal(t, fmt.Sprintf(`%d bytes: ext2 "it?s"`, deviceSize), found[1])
	for _, how := range [][]string{{}, {"--discard"}} {
		require.NoError(t, os.WriteFile(file, noise("old", deviceSize), 0o600))
		r = onDevice(t, source, device)
		require.Contains(t, r.stderr, "bytes: unknown content'")
		r = onDevice(t, source, device, append(how, "--overwrite-content",
			overwriteFlag.FindStringSubmatch(r.stderr)[1])...)
		require.Equal(t, 0, r.code, r.stderr)
		require.Equal(t, sha256Of(t, want), sha256Of(t, file), "%q", how)
	}
	st := disktest.Stat(t, file)
	require.Less(t, st.Sys().(*syscall.Stat_t).Blocks*512, int64(8<<20), "--discard gives back what is zero")
}

// TestGPTOntoDevice requires the backup GPT at the end of a device that is larger than the disk.
func TestGPTOntoDevice(t *testing.T) {
	t.Parallel()
	raw := disktest.Blank(t, "gpt.raw", 8<<20)
	cmd := exec.Command(disktest.Tool(t, "sfdisk"), "-q", raw)
	cmd.Stdin = strings.NewReader("label: gpt\nfirst-lba: 34\n" +
		"start=35, size=4000, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4\n")
	require.NoError(t, cmd.Run())
	device, _ := destDevice(t, deviceSize)
	for _, command := range []string{"align", "convert"} {
		r := trueup(t, command, raw, device)
		require.Equal(t, 0, r.code, r.stderr)
		require.Equal(t, 0, trueup(t, "verify", raw, device).code)
		require.Contains(t, disktest.Run(t, "sgdisk", "-v", device), "No problems found")
		require.Contains(t, disktest.Run(t, "sfdisk", "-d", device), fmt.Sprintf("last-lba: %d", deviceSize/512-34))
		disktest.Run(t, "wipefs", "-q", "-a", device)
		disktest.Run(t, "blkdiscard", "-f", device)
	}
}

// TestDevicesRefused requires that each device that is in use or does not fit is refused, and that its bytes stay
// unchanged.
func TestDevicesRefused(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	refuse := func(t *testing.T, code int, source, device, file, want string) {
		t.Helper()
		before := sha256Of(t, file)
		r := onDevice(t, source, device)
		require.Equal(t, code, r.code, r.stderr)
		require.Contains(t, r.stderr, want)
		requireOneLine(t, r.stderr)
		require.Equal(t, before, sha256Of(t, file))
	}
	const kept = "is in use: it, or a partition of it, is mounted"
	device, file := destDevice(t, deviceSize)
	alone := filepath.Join(t.TempDir(), "alone")
	disktest.Run(t, "cp", "--sparse=always", file, alone)
	t.Run("mounted", func(t *testing.T) {
		disktest.Run(t, "mke2fs", "-q", "-F", device)
		folder := t.TempDir()
		if out, err := exec.Command("mount", "-o", "ro", device, folder).CombinedOutput(); err != nil {
			t.Skipf("no right to mount on this machine: %s", out)
		}
		t.Cleanup(func() { disktest.Run(t, "umount", folder) })
		refuse(t, 4, source, device, file, kept)
	})
	t.Run("mounted elsewhere", func(t *testing.T) {
		// A mount in another namespace, which /proc does not show here.
		cmd := exec.Command(disktest.Tool(t, "unshare"), "--mount", "--propagation", "private", "sh", "-c",
			`mount -o ro "$0" "$1" && echo up && read x`, device, t.TempDir())
		end, err := cmd.StdinPipe()
		require.NoError(t, err)
		up, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = end.Close(); _ = cmd.Wait() })
		if _, err := up.Read(make([]byte, 3)); err != nil {
			t.Skip("no right to mount on this machine")
		}
		refuse(t, 4, source, device, file, kept)
	})
	t.Run("swap", func(t *testing.T) {
		disktest.Run(t, "mkswap", "-q", device)
		if out, err := exec.Command("swapon", device).CombinedOutput(); err != nil {
			t.Skipf("no right to swap on this machine: %s", out)
		}
		t.Cleanup(func() { disktest.Run(t, "swapoff", device) })
		refuse(t, 4, source, device, file, kept)
	})
	t.Run("loop device over it", func(t *testing.T) {
		over := disktest.LoopDevice(t, device)
		refuse(t, 4, source, device, file, "is in use: it is shown by the loop device "+filepath.Base(over))
	})
	t.Run("open for writing", func(t *testing.T) {
		f, err := os.OpenFile(device, os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		refuse(t, 4, source, device, file, fmt.Sprintf("is in use: it is open for writing in process %d", os.Getpid()))
	})
	t.Run("shows the source", func(t *testing.T) {
		raw := pairDisk(t)
		refuse(t, 64, raw, disktest.LoopDevice(t, raw), raw, "of SOURCE, and SOURCE is never written")
	})
	t.Run("shows what the source shows", func(t *testing.T) {
		refuse(t, 64, disktest.LoopDevice(t, file), device, file, "shows the same bytes as ")
		refuse(t, 64, disktest.LoopDevice(t, device), disktest.LoopDevice(t, device), file, "shows the same bytes as ")
		front := disktest.LoopDevice(t, alone, "--sizelimit", "8M")
		back := disktest.LoopDevice(t, alone, "--offset", "8M")
		refuse(t, 4, front, back, alone, "is too small") // two stretches of a file
		over := disktest.LoopDevice(t, alone)
		refuse(t, 4, source, back, alone, "the loop device "+filepath.Base(over)+" shows bytes of it, too")
	})
	t.Run("shows a name of the source that is gone", func(t *testing.T) {
		raw := pairDisk(t)
		shown := disktest.LoopDevice(t, raw)
		require.NoError(t, os.Link(raw, raw+".link"))
		require.NoError(t, os.Remove(raw))
		refuse(t, 64, raw+".link", shown, raw+".link", "of SOURCE, and SOURCE is never written")
	})
	t.Run("shows a disk of --with", func(t *testing.T) {
		folder := t.TempDir()
		other := filepath.Join(folder, "other.vmdk")
		require.Equal(t, 0, trueup(t, "convert", "--to", "vmdk:monolithicFlat", pairDisk(t), other).code)
		extent := filepath.Join(folder, "other-flat.vmdk")
		r := onDevice(t, source, disktest.LoopDevice(t, extent), "--with", other)
		require.Equal(t, 64, r.code, r.stderr)
		require.Contains(t, r.stderr, `lies on "other-flat.vmdk"`)
	})
	t.Run("partition open for writing", func(t *testing.T) {
		disktest.Run(t, "sh", "-c", `echo 2048,8192 | sfdisk -q "$0"`, file)
		if out, err := exec.Command("partx", "-a", device).CombinedOutput(); err != nil {
			t.Skipf("no partitions of loop devices on this machine: %s", out)
		}
		t.Cleanup(func() { disktest.Run(t, "partx", "-d", device) })
		partition := device + "p1"
		for _, c := range [][2]string{{device, partition}, {partition, device}} {
			f, err := os.OpenFile(c[1], os.O_RDWR, 0)
			require.NoError(t, err)
			refuse(t, 4, source, c[0], file, filepath.Base(c[1])+" is open for writing in process")
			require.NoError(t, f.Close())
		}
		over := disktest.LoopDevice(t, device)
		refuse(t, 4, source, partition, file, "its disk "+filepath.Base(
			device)+" is shown by the loop device "+filepath.Base(over))
	})
}

// unfinishedDevice requires that no program finds a disk on a device with an unfinished copy, and that the next run can
// write it.
func unfinishedDevice(t testing.TB, device string) {
	t.Helper()
	r := run(t, "blkid", "-p", device)
	require.Equal(t, 2, r.code, "blkid finds something: %s", r.stdout)
	require.NotContains(t, run(t, "sfdisk", "-d", device).stdout, "start=")
	parts, err := filepath.Glob("/sys/class/block/" + filepath.Base(device) + "/*/partition")
	require.NoError(t, err)
	require.Empty(t, parts)
	r = trueup(t, "inspect", device)
	require.Equal(t, 1, r.code, r.stdout)
	require.Contains(t, r.stdout, "unfinished copy")
	r = trueup(t, "convert", device, filepath.Join(t.TempDir(), "copy.raw"), "--json")
	require.Equal(t, 4, r.code, r.stderr)
	require.Contains(t, r.stdout, `"code": "unfinished"`)
}

// TestDeviceWriteErrors writes onto a device whose storage is full, like a full thin pool.
func TestDeviceWriteErrors(t *testing.T) {
	t.Parallel()
	for name, on := range smallStorages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source, folder, left := noisyDisk(t, 8), t.TempDir(), filepath.Join(t.TempDir(), "left")
			disktest.Tool(t, "losetup")
			script := `truncate -s 12M "$0/thin" && d=$(flock "$2" sh -c "$3" sh "$0/thin") || exit 99; left=$1; shift 3
				"$@" "$d"; code=$?; cp --sparse=always "$0/thin" "$left"; losetup -d "$d"; exit $code`
			r := on(t, 6, folder, "sh", "-c", script, folder, left, disktest.LoopLock(), disktest.LoopAttach, builtPath,
				"align", source)
			if r.code == 99 {
				t.Skipf("no loop device on this machine: %s", r.stderr)
			}
			require.Equal(t, 1, r.code, r.stderr)
			requireOneLine(t, r.stderr)
			require.Contains(t, r.stderr, "holds an unfinished copy")
			require.Regexp(t, `write /dev/loop\d+ at byte \d+:`, r.stderr)
			device := disktest.LoopDevice(t, left)
			unfinishedDevice(t, device)
			require.Equal(t, 0, onDevice(t, source, device).code, "the next run needs no flag")
			require.Equal(t, 0, trueup(t, "verify", source, device).code)
		})
	}
}

// slowWrites delays each write of a program with strace. The program is the child of the caller, and gets its signals.
var slowWrites = []string{"-D", "-f", "-qq", "-e", "trace=pwrite64", "-e", "inject=pwrite64:delay_enter=1s"}

// An interrupted run reports once what it leaves: nothing was written, or a marked device.
func TestInterruptedDevice(t *testing.T) {
	t.Parallel()
	source := noisyDisk(t, 8)
	device, file := destDevice(t, 12<<20)
	cmd := exec.Command(disktest.Tool(t, "strace"), append(slowWrites, "-o", os.DevNull, builtPath, "align", "--json",
		source, device)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	disktest.WaitFor(t, "the mark", func() bool {
		head := make([]byte, 23)
		f, err := os.Open(file)
		require.NoError(t, err)
		_, err = f.ReadAt(head, 0)
		require.NoError(t, errors.Join(err, f.Close()))
		return string(head) == "trueup: unfinished copy"
	})
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	require.Equal(t, 143, cmd.ProcessState.ExitCode(), stderr.String())
	last := fmt.Sprintf("interrupted; DEST %s holds an unfinished copy, marked in its first sector; "+
		"run the command again", device)
	require.Equal(t,
		"trueup: interrupted: leaving the device unchanged; interrupt again to end at once\ntrueup: "+last+"\n",
		stderr.String())
	require.Contains(t, stdout.String(), last)
	unfinishedDevice(t, device)
}
