package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	command string // of the shell, which starts guestfish
	drives  string
	script  string // what is done before volumes are read; it prints blocks from "begin" to "end NAME KIND"
	disks   int
	reads   []volumeToRead
}

// volumeToRead is a device of the appliance and the kind that it is mounted as. An empty one lets mount find it.
type volumeToRead struct{ device, kind string }

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

// read has all files of a volume read.
func (r *reading) read(device, kind string) { r.reads = append(r.reads, volumeToRead{device, kind}) }

// What is printed before the volumes and before their sums, and at the end if every file could be read.
const (
	volumesBegin = "the volumes"
	sumsBegin    = "the sums"
	sumsEnd      = "all were read"
)

// readAll returns a command that mounts all volumes beside each other, and has one program read them all. To start
// programs takes most of the time in emulation. A volume that cannot be mounted does not end the run. The script is a
// file, since guestfish bounds the length of a line.
func (r *reading) readAll(t *testing.T) string {
	t.Helper()
	script := "echo " + volumesBegin + "\nmkdir /tmp/v; cd /tmp/v\n" +
		`m() { mkdir $1 && mount -r $3 $2 $1 2>&1 && mounted="$mounted $2"; }` + "\n"
	for i, v := range r.reads {
		script += fmt.Sprintf("m %d %s", i, v.device)
		if v.kind != "" {
			script += " -t" + v.kind
		}
		script += "\n"
	}
	script += "blkid -c /dev/null -s TYPE $mounted\necho " + sumsBegin + "\n" +
		"find . -type f -exec sha256sum {} + && echo " + sumsEnd + "\ncd / && umount /tmp/v/*\nexit 0\n"
	path := filepath.Join(t.TempDir(), "read-all")
	require.NoError(t, os.WriteFile(path, []byte(script), 0o600))
	return fmt.Sprintf("debug-upload %q /tmp/read-all 0755\ndebug sh \"sh /tmp/read-all\"\n", path)
}

// run starts the appliance and returns what it found, by device. A volume that was not mounted is missing.
func (r *reading) run(t *testing.T) map[string]volumeRead {
	t.Helper()
	out := startGuestfish(t, r.command, r.drives+"run\n"+r.script+r.readAll(t))
	blocks, rest, found := strings.Cut(out, volumesBegin+"\n")
	require.True(t, found, out)
	kinds, sums, found := strings.Cut(rest, sumsBegin+"\n")
	require.True(t, found, out)
	sums, found = strings.CutSuffix(strings.TrimRight(sums, "\n"), "\n"+sumsEnd)
	require.True(t, found, out)
	t.Log(kinds) // and why others were not mounted
	volumes := readBlocks(blocks)
	for _, m := range regexp.MustCompile(`(?m)^(.+): TYPE="(.+)"`).FindAllStringSubmatch(kinds, -1) {
		volumes[m[1]] = volumeRead{kind: m[2]}
	}
	for line := range strings.SplitSeq(sums, "\n") {
		sum, path, _ := strings.Cut(line, "  ./")
		number, name, _ := strings.Cut(path, "/")
		n, err := strconv.Atoi(number)
		require.NoError(t, err, line)
		device := r.reads[n].device
		v := volumes[device]
		v.sums = append(v.sums, sum+"  ./"+name)
		volumes[device] = v
	}
	for _, v := range volumes {
		slices.Sort(v.sums)
	}
	return volumes
}

// readBlocks returns the lines of each block of the script.
func readBlocks(text string) map[string]volumeRead {
	blocks := map[string]volumeRead{}
	var lines []string
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		end, found := strings.CutPrefix(line, "end ")
		switch {
		case line == "begin":
			lines = nil
		case found:
			name, kind, _ := strings.Cut(end, " ")
			blocks[name] = volumeRead{kind, lines}
		case line != "":
			lines = append(lines, line)
		}
	}
	return blocks
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
