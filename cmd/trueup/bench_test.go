package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/sys"
)

// briefly holds flags for a benchmark of a few seconds.
var briefly = []string{
	"--size", "16M", "--rounds", "1", "--runtime", "100ms",
}

// benched runs a benchmark whose fio ends after a number of I/Os.
func benched(t *testing.T, args ...string) result {
	t.Helper()
	cmd := exec.Command(builtPath, append([]string{"bench"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(disktest.Fio(t))+":"+os.Getenv("PATH"))
	r, _ := end(t, cmd)
	if wantsJSON(args) {
		validateOutput(t, cmd.Args[1:], r.stdout)
	}
	return r
}

func TestBench(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	r := benched(t, slices.Concat(briefly, []string{"--json", folder})...)
	if strings.Contains(r.stderr, "is memory") {
		t.Skip(r.stderr)
	}
	require.Equal(t, 0, r.code, r.stderr)
	validate(t, r.stdout)
	require.Equal(t, fmt.Sprintf("trueup: bench writes a scratch file of 17 MiB without a name in %s, then runs 18 "+
		"measurements of 100ms: about 14s and the time to write the file\n"+
		"trueup: bench measures, round 1 of 1\n", folder), r.stderr)
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, left)
}

// A benchmark that ends early leaves no process and no file, whatever ends it.
func TestEndedBenchLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]os.Signal{
		"interrupted": sys.Interrupt, "terminated": sys.Terminate,
		"killed": os.Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder, tools := t.TempDir(), t.TempDir()
			fake := "#!/bin/sh\n[ \"$1\" = --version ] && { echo fio-3.33; exit; }\nexec sleep 1000\n"
			disktest.RunInput(t, fake, "sh", "-c", `cat > "$0" && chmod 755 "$0"`, filepath.Join(tools, "fio"))
			cmd := exec.Command(builtPath, slices.Concat([]string{"bench"}, briefly, []string{folder})...)
			cmd.Env = append(os.Environ(), "PATH="+tools+":"+os.Getenv("PATH"))
			var said lockedBuffer
			cmd.Stdout, cmd.Stderr = &said, &said
			require.NoError(t, cmd.Start())
			var children map[int]string
			ended := make(chan struct{})
			go func() {
				_ = cmd.Wait()
				close(ended)
			}()
			disktest.WaitFor(t, "fio to run", func() bool {
				select {
				case <-ended:
					return true
				default:
				}
				children = childrenOf(cmd.Process.Pid)
				for pid, name := range children {
					held, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", pid))
					return name == "sleep" && strings.HasPrefix(held, folder+"/") &&
						strings.HasSuffix(held, " (deleted)")
				}
				return false
			})
			if strings.Contains(said.String(), "is memory") {
				t.Skip(said.String())
			}
			require.Len(t, children, 1, said.String())
			require.NoError(t, cmd.Process.Signal(end))
			<-ended
			code := map[os.Signal]int{sys.Interrupt: 130, sys.Terminate: 143, os.Kill: -1}[end]
			require.Equal(t, code, cmd.ProcessState.ExitCode(), said.String())
			if code > 0 {
				require.True(t, strings.HasSuffix(said.String(),
					"trueup: interrupted: ending fio; the scratch file goes with it; interrupt again "+
						"to end at once\ntrueup: interrupted; no result, and the scratch file is removed\n"),
					said.String())
			}
			requireGone(t, slices.Collect(maps.Keys(children)))
			left, err := os.ReadDir(folder)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// mountedExt4 mounts a new file system of 32 MiB on a disk with sectors of so many bytes.
func mountedExt4(t *testing.T, sector, options string) string {
	t.Helper()
	file, folder := filepath.Join(t.TempDir(), "volume"), t.TempDir()
	disktest.Run(t, "truncate", "-s", "32M", file)
	disktest.Run(t, "mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", file)
	device := disktest.LoopDevice(t, file, "-b", sector)
	if out, err := exec.Command("mount", "-o", options, device, folder).CombinedOutput(); err != nil {
		t.Skipf("no right to mount on this machine: %s", out)
	}
	t.Cleanup(func() { disktest.Run(t, "umount", folder) })
	return folder
}

// Unsupported storages are refused before fio runs.
func TestBenchOnOddStorages(t *testing.T) {
	t.Parallel()
	bench := func(folder string, more ...string) result {
		return benched(t, slices.Concat(briefly, more, []string{folder})...)
	}
	large := mountedExt4(t, "4096", "rw")
	r := bench(large)
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, "it has sectors larger than 512 bytes, and takes no I/O that starts off them; "+
		"a guest cannot start there")
	r = bench(large, "--buffered", "-o", "json")
	require.Equal(t, 0, r.code, r.stderr)
	require.Contains(t, r.stdout, `"file_system": "ext4"`)

	r = bench(large, "--size", "64M")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "the scratch file takes 65 MiB, and ")
	r = bench(mountedExt4(t, "512", "ro"))
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, syscall.EROFS.Error())
}

// A disk or quota that becomes full while the scratch file is written is reported with a remedy, and no file is left.
func TestBenchOnFullStorages(t *testing.T) {
	t.Parallel()
	for op, errno := range map[string]syscall.Errno{"write": syscall.ENOSPC, "fsync": syscall.EDQUOT} {
		folder := oddfs.Mount(t, t.TempDir(), oddfs.Manners{Fail: map[string]syscall.Errno{op: errno}})
		r := benched(t, slices.Concat(briefly, []string{folder})...)
		require.Equal(t, 1, r.code, r.stderr)
		require.Contains(t, r.stderr, "the scratch file of 17 MiB does not fit")
		require.Contains(t, r.stderr, errno.Error())
		require.Contains(t, r.stderr, "give a smaller --size")
		left, err := os.ReadDir(folder)
		require.NoError(t, err)
		require.Empty(t, left)
	}
}
