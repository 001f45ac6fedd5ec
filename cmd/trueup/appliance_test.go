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

// The appliance of libguestfs is a Linux in a virtual machine. To start it takes 18 s of a processor, so that tests share
// one where they can.

// TestDisksThatLinuxMakes has one appliance make what only a Linux can make: volume groups, arrays, and disks that
// extlinux boots from.
func TestDisksThatLinuxMakes(t *testing.T) {
	t.Parallel()
	requireKernel(t)
	dir := t.TempDir()
	pool := func(letter string) string { return filepath.Join(dir, letter+".raw") }
	boots, drives, install := extlinuxDrives(t)
	lvs := poolLines(startGuestfish(t, nil, drives+poolDrives(t, pool)+"run\n"+install+poolCommands()))
	t.Run("pools", func(t *testing.T) { testPools(t, pool, lvs) })
	t.Run("extlinux boots", func(t *testing.T) { testExtlinuxBoots(t, boots) })
}

// guestfsLimit is for a launch in pure emulation on a busy machine; 30 s are usual.
const guestfsLimit = 10 * time.Minute

// deviceName is what the appliance calls a partition of the disk that was added as number i.
func deviceName(i, partition int) string { return fmt.Sprintf("sd%c%d", 'a'+i, partition) }

func readSums(t *testing.T, path string) []string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	slices.Sort(lines)
	return lines
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
