package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/sys"
)

// trialFlags make a trial short: guests of these tests need some seconds of processor time.
var trialFlags = []string{"--accel", "tcg", "--memory", "64", "--settle", "3", "--seconds", "300"}

// jsonTrial is the output of boot.
type jsonTrial struct {
	Verdict, Reason string
	Differences     []struct{}
	Before, After   *jsonRun
}

type jsonRun struct {
	Ended   string
	Screens []struct{ Lines []string }
	Serial  string
}

// tryBoot runs boot on a raw disk with a FAT16 at LBA 63.
func tryBoot(t *testing.T, code int, raw string, flags ...string) jsonTrial {
	t.Helper()
	return trueupJSON[jsonTrial](t, code, slices.Concat([]string{"boot"}, trialFlags, flags, []string{raw})...)
}

func lastScreen(t *testing.T, r jsonTrial) (before, after string) {
	t.Helper()
	require.NotNil(t, r.After)
	require.NotEmpty(t, r.Before.Screens)
	require.NotEmpty(t, r.After.Screens)
	return strings.Join(r.Before.Screens[len(r.Before.Screens)-1].Lines, "\n"),
		strings.Join(r.After.Screens[len(r.After.Screens)-1].Lines, "\n")
}

// TestTrialBoot has the verdicts that TestVerdictOnBoots does not have.
func TestTrialBoot(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	disk := bootDisk{code: lbaBootCode, fat: 16, heads: 16}
	t.Run("differs", func(t *testing.T) {
		t.Parallel()
		// A boot sector that reads sector 63 of the disk, wherever it is itself, and prints the name of a system there.
		//
		//	xor ax,ax; mov ds,ax; mov si,dap; mov ah,42h; int 13h; mov si,8003h; mov cx,8
		//	next: lodsb; mov ah,0eh; int 10h; loop next; halt: hlt; jmp halt; dap: ...
		code, err := hex.DecodeString(
			"31c08ed8be0000b442cd13be0380b90800acb40ecd10e2f9f4ebfd10000100008000003f00000000000000")
		require.NoError(t, err)
		dap := 0x7C00 + bytes.Index(code, []byte{0x10, 0, 1, 0})
		code[5], code[6] = byte(dap), byte(dap>>8)
		d := disk
		d.code = func(testing.TB) []byte { return code }
		raw := d.build(t, t.TempDir())
		disktest.WriteAt(t, raw, trackSectors*sectorSize+3, []byte("SYSTEM 1"))
		require.Equal(t, 4, trueup(t, append([]string{"boot"}, raw)...).code, "the plan is refused")
		was := hashFolder(t, filepath.Dir(raw))
		r := tryBoot(t, 5, raw, "--allow-unbootable")
		require.Equal(t, "differs", r.Verdict, r.Reason)
		require.Equal(t, was, hashFolder(t, filepath.Dir(raw)))
		before, after := lastScreen(t, r)
		require.Contains(t, before, "SYSTEM 1")
		require.NotContains(t, after, "SYSTEM 1")
	})
	t.Run("neither", func(t *testing.T) {
		t.Parallel()
		raw := disk.build(t, t.TempDir())
		code := make([]byte, codeSize)
		copy(code, "\xeb\xfe") // jmp $: it loops, and settles after three times as much processor time
		disktest.WriteAt(t, raw, 0, code)
		r := tryBoot(t, 1, raw, "--allow-unbootable", "--settle", "1")
		require.Equal(t, "neither", r.Verdict, r.Reason)
	})
}

// A source that changes during a trial makes both runs worthless.
func TestSourceChangesDuringATrial(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	raw := bootDisk{code: lbaBootCode, fat: 16, heads: 16}.build(t, t.TempDir())
	cmd := exec.Command(builtPath, append(append([]string{"boot"}, trialFlags...), raw)...)
	var said lockedBuffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	disktest.WaitFor(t, "the first run", func() bool { return strings.Contains(said.String(), "boots the disk") })
	disktest.WriteAt(t, raw, trackSectors*sectorSize+3, []byte("changed!"))
	_ = cmd.Wait()
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), said.String())
	require.Contains(t, said.String(), "changed")
}

// longTrial starts a trial of a disk that does not end by itself, and returns what it says and its temporary folder.
func longTrial(t *testing.T, settle, raw string) (cmd *exec.Cmd, said *lockedBuffer, temporary string) {
	t.Helper()
	temporary, err := os.MkdirTemp("", "trueup-trial-") //nolint:usetesting // QEMU runs as another user
	require.NoError(t, err)
	require.NoError(t, os.Chmod(temporary, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(temporary)) })
	cmd = exec.Command(builtPath, "boot", "--accel=tcg", "--memory=64", "--seconds=1000", settle, raw)
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
	said = &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = said, said
	require.NoError(t, cmd.Start())
	return cmd, said, temporary
}

// A trial that ends early leaves no process and no file, whatever ends it.
func TestEndedTrialLeavesNothing(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	raw := bootDisk{code: lbaBootCode, fat: 16, heads: 16}.build(t, t.TempDir())
	for name, by := range map[string]os.Signal{"interrupted": sys.Interrupt, "killed": os.Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, said, temporary := longTrial(t, "--settle=1000", raw)
			var children map[int]string
			disktest.WaitFor(t, "QEMU to run: "+said.String(), func() bool {
				children = descendants(cmd.Process.Pid)
				starting, err := filepath.Glob(filepath.Join(temporary, "trueup-boot-*"))
				return err == nil && len(starting) == 0 && slices.Contains(slices.Collect(maps.Values(children)),
					"qemu-system-x86")
			})
			require.Len(t, children, 2, "QEMU and the server")
			require.NoError(t, cmd.Process.Signal(by))
			_ = cmd.Wait()
			if by == sys.Interrupt {
				require.Equal(t, 130, cmd.ProcessState.ExitCode(), said.String())
				require.Equal(t, 1, strings.Count(said.String(), "interrupted: "), said.String())
			}
			requireGone(t, slices.Collect(maps.Keys(children)))
			disktest.WaitFor(t, "all files to go", func() bool {
				left, err := os.ReadDir(temporary)
				return err == nil && len(left) == 0
			})
		})
	}
}

// A trial whose QEMU or server is killed reports it, and leaves no file.
func TestTrialLosesAChild(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	raw := bootDisk{code: lbaBootCode, fat: 16, heads: 16}.build(t, t.TempDir())
	for _, child := range []string{"qemu-system-x86", "exe"} {
		t.Run(child, func(t *testing.T) {
			t.Parallel()
			cmd, said, temporary := longTrial(t, "--settle=3", raw)
			var children map[int]string
			disktest.WaitFor(t, "QEMU to run: "+said.String(), func() bool {
				children = descendants(cmd.Process.Pid)
				return slices.Contains(slices.Collect(maps.Values(children)), "qemu-system-x86")
			})
			for pid, name := range children {
				if name == child {
					require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				}
			}
			_ = cmd.Wait()
			require.Equal(t, 1, cmd.ProcessState.ExitCode(), said.String())
			require.Contains(t, said.String(), "signal: killed")
			require.Empty(t, folderNames(t, temporary))
		})
	}
}

// descendants returns the names of the children of a process, and of theirs.
func descendants(parent int) map[int]string {
	all := childrenOf(parent)
	for pid := range maps.Clone(all) {
		maps.Copy(all, descendants(pid))
	}
	return all
}

// childrenOf returns the names of the running children of a process, by their numbers.
func childrenOf(parent int) map[int]string {
	all, _ := filepath.Glob("/proc/[0-9]*")
	children := map[int]string{}
	for _, path := range all {
		pid, err := strconv.Atoi(filepath.Base(path))
		if name, of, alive := statOf(pid); err == nil && alive && of == parent {
			children[pid] = name
		}
	}
	return children
}

// statOf returns name and parent of a process that runs. Spec: proc(5), /proc/pid/stat; the name can contain anything.
func statOf(pid int) (name string, parent int, alive bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, false
	}
	text, end := string(b), bytes.LastIndexByte(b, ')')
	var state string
	_, err = fmt.Sscan(text[end+1:], &state, &parent)
	return text[strings.Index(text, "(")+1 : end], parent, err == nil && state != "Z"
}
