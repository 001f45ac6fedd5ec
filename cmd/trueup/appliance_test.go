package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// The appliance of libguestfs is a Linux in a virtual machine. To start it takes 13 s of a processor, so that tests share
// one where they can: one makes disks, and another reads the results.

// TestDisksThatLinuxMakes has one appliance make what only a Linux can make: volume groups, arrays, and disks that
// extlinux boots from.
func TestDisksThatLinuxMakes(t *testing.T) {
	t.Parallel()
	requireKernel(t)
	dir := t.TempDir()
	pool := func(letter string) string { return filepath.Join(dir, letter+".raw") }
	boots, drives, install := extlinuxDrives(t, extlinuxVolumes...)
	lvs := poolLines(startGuestfish(t, "guestfish", drives+poolDrives(t, pool)+"run\n"+install+poolCommands()))
	t.Run("pools", func(t *testing.T) { testPools(t, pool, lvs) })
	t.Run("extlinux boots", func(t *testing.T) { testExtlinuxBoots(t, boots) })
}

// guestfsLimit is for a launch in pure emulation on a busy machine; 30 s are usual.
const guestfsLimit = 10 * time.Minute

// deviceName is what the appliance calls a partition of the disk that was added as number i.
func deviceName(i, partition int) string { return fmt.Sprintf("sd%c%d", 'a'+i, partition) }

// reading is what an appliance does with disks that it must not change.
type reading struct {
	command        string // of the shell, which starts guestfish
	drives, script string
	disks          int
}

// volumeRead is what the appliance found in a volume: the kind of its file system, and lines of sha256sum, sorted.
type volumeRead struct {
	kind string
	sums []string
}

// add adds a disk and returns what a shell of the appliance calls its partitions, but for their numbers. The kernel names
// many disks in any order.
func (r *reading) add(path, format string, sector int64) (device string) {
	const letters = 26
	label := string([]rune{'a' + rune(r.disks/letters), 'a' + rune(r.disks%letters)})
	r.disks++
	r.drives += fmt.Sprintf("add-drive %q readonly:true format:%s blocksize:%d label:%s\n", path, format, sector, label)
	return "/dev/disk/guestfs/" + label
}

// read has all files of a volume read. An empty kind lets mount find it. One shell does it, which takes a third of what
// commands of guestfish for each step take. A step that fails does not end the run: the volume is missing then.
func (r *reading) read(device, kind string) {
	options := "-r"
	if kind != "" {
		options += " -t " + kind
	}
	r.script += fmt.Sprintf("-debug sh \"mount %s %s /sysroot && cd /sysroot && echo begin && "+
		"find . -type f -exec sha256sum {} + && echo end %[2]s $(blkid -c /dev/null -o value -s TYPE %[2]s); "+
		"cd / && umount /sysroot\"\n", options, device)
}

// run starts the appliance and returns what it found, by device.
func (r *reading) run(t *testing.T) map[string]volumeRead {
	t.Helper()
	volumes := map[string]volumeRead{}
	var sums []string
	out := startGuestfish(t, r.command, r.drives+"run\n"+r.script)
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		end, found := strings.CutPrefix(line, "end ")
		switch {
		case line == "begin":
			sums = nil
		case found:
			device, kind, _ := strings.Cut(end, " ")
			slices.Sort(sums)
			volumes[device] = volumeRead{kind, sums}
		case line != "":
			sums = append(sums, line)
		}
	}
	return volumes
}

// startGuestfish starts the appliance by a command of the shell, and returns what the script printed.
func startGuestfish(t *testing.T, command, script string) string {
	t.Helper()
	disktest.Tool(t, "guestfish")
	ctx, cancel := context.WithTimeout(context.Background(), guestfsLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+command)
	cmd.Env = append(os.Environ(), "LIBGUESTFS_BACKEND=direct", "LIBGUESTFS_BACKEND_SETTINGS=force_tcg",
		"LIBGUESTFS_APPEND=mitigations=off") // against faults of processors; without them it starts in five sixths of the time
	cmd.Stdin = strings.NewReader(script)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// QEMU is a child of guestfish and has to go with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	require.NoError(t, cmd.Run(), "guestfish\n%s%s", stdout.String(), stderr.String())
	if stderr.Len() > 0 {
		t.Log(stderr.String())
	}
	return stdout.String()
}

// requireKernel skips where libguestfs is missing or has no kernel to start, by the rule of disktest.DataFile.
func requireKernel(t *testing.T) {
	t.Helper()
	disktest.Tool(t, "guestfish")
	kernels, err := filepath.Glob("/boot/vmlinuz-*")
	require.NoError(t, err)
	if len(kernels) == 0 {
		disktest.DataFile(t, "/boot/vmlinuz-*")
	}
}
