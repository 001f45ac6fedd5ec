package main

import (
	"bytes"
	"context"
	"crypto/sha256"
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

// guestfsLimit is for a launch in pure emulation on a busy machine; 30 s are usual.
const guestfsLimit = 10 * time.Minute

// guestDisk is a disk that the appliance gets to see.
type guestDisk struct {
	format diskFormat
	path   string
	made   madeDisk
}

// TestLibguestfsReadsTheResults has a real Linux kernel mount every volume of the sources and of the results.
// The appliance takes long to start, so that it is started once for all.
func TestLibguestfsReadsTheResults(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "guestfish")
	requireKernel(t)
	var disks []guestDisk
	for i, d := range madeDisks {
		raw := d.make(t, t.TempDir())
		// A mount takes seconds in emulation: every disk and every format comes up, not every pair of them.
		f := diskFormats[i%len(diskFormats)]
		source := f.convert(t, raw, t.TempDir(), "disk", d.adapter)
		dest := filepath.Join(t.TempDir(), "aligned"+f.ext)
		r := trueup(t, "align", source, dest)
		require.Equal(t, 0, r.code, r.stderr)
		disks = append(disks, guestDisk{formatRaw, raw, d}, guestDisk{f, dest, d})
	}
	sums := t.TempDir()
	fileSystems := guestfish(t, disks, sums)
	for i, d := range disks {
		for n, v := range d.made.volumes {
			name := deviceName(i, n+1)
			require.Contains(t, fileSystems, "/dev/"+name+": "+v.guestKind()+"\n", "%s", d.path)
			require.Subset(t, readSums(t, filepath.Join(sums, name)), v.wantSums(), "%s, %s", d.path, v.label)
		}
	}
	// All that the kernel finds is compared, not only what the test put in. Each result follows its source.
	for i := 0; i < len(disks); i += 2 {
		for n := range disks[i].made.volumes {
			source, result := deviceName(i, n+1), deviceName(i+1, n+1)
			require.Equal(t, readSums(t, filepath.Join(sums, source)), readSums(t, filepath.Join(sums, result)), disks[i+1].path)
		}
	}
}

// deviceName is what the appliance calls a partition of the disk that was added as number i.
func deviceName(i, partition int) string { return fmt.Sprintf("sd%c%d", 'a'+i, partition) }

// guestKind is the name that libguestfs has for the file system.
func (v madeVolume) guestKind() string {
	if strings.HasPrefix(v.kind, "fat") {
		return "vfat"
	}
	return v.kind
}

// wantSums are the lines that sha256sum prints for the volume's files.
func (v madeVolume) wantSums() []string {
	var lines []string
	for name, data := range v.files() {
		lines = append(lines, fmt.Sprintf("%x  ./%s", sha256.Sum256(data), name))
	}
	return lines
}

func readSums(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	slices.Sort(lines)
	return lines
}

// guestfish starts the appliance once, writes the checksums of each partition's files into a file of the folder sums,
// and returns what it says about the file systems.
func guestfish(t *testing.T, disks []guestDisk, sums string) string {
	t.Helper()
	require.LessOrEqual(t, len(disks), 26, "deviceName has one letter")
	var args []string
	script := "run\nlist-filesystems\n"
	for i, d := range disks {
		args = append(args, "--format="+d.format.container, "-a", d.path)
		for n := range d.made.volumes {
			name := deviceName(i, n+1)
			script += fmt.Sprintf("mount-ro /dev/%s /\nchecksums-out sha256 / %q\numount /\n", name, filepath.Join(sums, name))
		}
	}
	return runGuestfish(t, args, script)
}

// runGuestfish starts the appliance with the drives of args, read-only, and returns what the script printed.
func runGuestfish(t *testing.T, args []string, script string) string {
	t.Helper()
	return startGuestfish(t, append([]string{"--ro"}, args...), script)
}

// startGuestfish starts the appliance with the drives of args, and returns what the script printed.
func startGuestfish(t *testing.T, args []string, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), guestfsLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, disktest.Tool(t, "guestfish"), args...)
	cmd.Env = append(os.Environ(), "LIBGUESTFS_BACKEND=direct", "LIBGUESTFS_BACKEND_SETTINGS=force_tcg")
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

// requireKernel skips where libguestfs has no kernel to start, by the rule of disktest.DataFile.
func requireKernel(t *testing.T) {
	t.Helper()
	kernels, err := filepath.Glob("/boot/vmlinuz-*")
	require.NoError(t, err)
	if len(kernels) == 0 {
		disktest.DataFile(t, "/boot/vmlinuz-*")
	}
}
