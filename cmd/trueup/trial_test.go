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
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/sys"
)

// trialFlags make a trial short: guests of these tests need some seconds of a processor.
var trialFlags = []string{"--accel", "tcg", "--memory", "64", "--settle", "1", "--seconds", "300"}

// jsonTrial is what boot prints.
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

// fixedLBA is code of a boot sector that reads the sector 63 of the disk, wherever it lies itself, and prints the name
// of a system there.
//
//	xor ax,ax; mov ds,ax; mov si,dap; mov ah,42h; int 13h; mov si,8003h; mov cx,8
//	next: lodsb; mov ah,0eh; int 10h; loop next; halt: hlt; jmp halt; dap: ...
func fixedLBA(at int) []byte {
	code, err := hex.DecodeString("31c08ed8be0000b442cd13be0380b90800acb40ecd10e2f9f4ebfd10000100008000003f00000000000000")
	if err != nil {
		panic(err)
	}
	dap := 0x7C00 + at + bytes.Index(code, []byte{0x10, 0, 1, 0})
	code[5], code[6] = byte(dap), byte(dap>>8)
	return code
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

func TestTrialBoot(t *testing.T) {
	t.Parallel()
	disk := bootDisk{code: lbaBootCode, fat: 16, heads: 16}
	t.Run("same", func(t *testing.T) {
		t.Parallel()
		raw := disk.build(t, t.TempDir())
		was := hashFolder(t, filepath.Dir(raw))
		r := tryBoot(t, 0, raw)
		require.Equal(t, "same", r.Verdict, r.Reason)
		before, after := lastScreen(t, r)
		require.Contains(t, before, booted)
		require.Equal(t, before, after)
		require.Equal(t, was, hashFolder(t, filepath.Dir(raw)))
	})
	t.Run("differs", func(t *testing.T) {
		t.Parallel()
		d := disk
		d.code = func(testing.TB) []byte { return fixedLBA(0) }
		raw := d.build(t, t.TempDir())
		writeAt(t, raw, trackSectors*sectorSize+3, []byte("SYSTEM 1"))
		require.Equal(t, 4, trueup(t, append([]string{"boot"}, raw)...).code, "the plan is refused")
		r := tryBoot(t, 5, raw, "--allow-unbootable")
		require.Equal(t, "differs", r.Verdict, r.Reason)
		before, after := lastScreen(t, r)
		require.Contains(t, before, "SYSTEM 1")
		require.NotContains(t, after, "SYSTEM 1")
	})
	t.Run("neither", func(t *testing.T) {
		t.Parallel()
		raw := disk.build(t, t.TempDir())
		writeAt(t, raw, 0, make([]byte, codeSize))
		r := tryBoot(t, 1, raw)
		require.Equal(t, "neither", r.Verdict, r.Reason)
	})
}

// TestAlignAfterATrial has a boot sector with an absolute address that no plan can know.
func TestAlignAfterATrial(t *testing.T) {
	t.Parallel()
	raw := bootDisk{code: lbaBootCode, fat: 16, heads: 16}.build(t, t.TempDir())
	writeAt(t, raw, trackSectors*sectorSize+0x5A, fixedLBA(0x5A)) // behind the fields
	writeAt(t, raw, trackSectors*sectorSize+3, []byte("SYSTEM 1"))
	dest := filepath.Join(t.TempDir(), "aligned.raw")
	lone := trueup(t, "align", "--boot-seconds", "5", "absent.img", "copy.img")
	require.Equal(t, 64, lone.code)
	require.Contains(t, lone.stderr, "--boot-seconds is for a trial boot; add --boot-trial")
	args := []string{"align", "--boot-trial"}
	for _, flag := range trialFlags {
		args = append(args, strings.Replace(flag, "--", "--boot-", 1))
	}
	r := trueup(t, slices.Concat(args, []string{raw, dest})...)
	require.Equal(t, 4, r.code, "%s%s", r.stdout, r.stderr)
	require.Contains(t, r.stderr, "trial boot")
	require.NoFileExists(t, dest)
	r = trueup(t, slices.Concat(args, []string{"--boot-seconds", "1", "--boot-settle", "100", raw, dest})...)
	require.Equal(t, 4, r.code, "not judged in time: %s%s", r.stdout, r.stderr)
	require.Contains(t, r.stderr, "--boot-seconds N; --allow-unbootable")
	require.NoFileExists(t, dest)
	r = trueup(t, slices.Concat(args, []string{"--allow-unbootable", raw, dest})...)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	require.FileExists(t, dest)
}

// A trial that ends early leaves no process and no file, whatever ends it.
func TestEndedTrialLeavesNothing(t *testing.T) {
	t.Parallel()
	raw := bootDisk{code: lbaBootCode, fat: 16, heads: 16}.build(t, t.TempDir())
	for name, end := range map[string]os.Signal{"interrupted": sys.Interrupt, "killed": os.Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			temporary, err := os.MkdirTemp("", "trueup-trial-") //nolint:usetesting // QEMU runs as another user
			require.NoError(t, err)
			require.NoError(t, os.Chmod(temporary, 0o755))
			t.Cleanup(func() { require.NoError(t, os.RemoveAll(temporary)) })
			cmd := exec.Command(builtPath, "boot", "--accel", "tcg", "--memory", "64", "--settle", "1000", "--seconds", "1000", raw)
			cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
			var said lockedBuffer
			cmd.Stdout, cmd.Stderr = &said, &said
			require.NoError(t, cmd.Start())
			var children map[string]string
			disktest.WaitFor(t, "QEMU to run: "+said.String(), func() bool {
				children = childrenOf(cmd.Process.Pid)
				starting, err := filepath.Glob(filepath.Join(temporary, "trueup-boot-*"))
				return err == nil && len(starting) == 0 && slices.Contains(slices.Collect(maps.Values(children)), "qemu-system-x86")
			})
			require.Len(t, children, 2, "QEMU and the server")
			require.NoError(t, cmd.Process.Signal(end))
			_ = cmd.Wait()
			if end == sys.Interrupt {
				require.Equal(t, 130, cmd.ProcessState.ExitCode(), said.String())
			}
			disktest.WaitFor(t, "all processes to end", func() bool {
				for pid := range children {
					if _, _, alive := statOf(pid); alive {
						return false
					}
				}
				return true
			})
			disktest.WaitFor(t, "all files to go", func() bool {
				left, err := os.ReadDir(temporary)
				return err == nil && len(left) == 0
			})
		})
	}
}

// childrenOf returns the names of the children of a process, by their numbers.
func childrenOf(parent int) map[string]string {
	all, _ := filepath.Glob("/proc/[0-9]*")
	children := map[string]string{}
	for _, path := range all {
		if name, of, alive := statOf(filepath.Base(path)); alive && of == parent {
			children[filepath.Base(path)] = name
		}
	}
	return children
}

// statOf returns name and parent of a process that runs. Spec: proc(5), /proc/pid/stat.
func statOf(pid string) (name string, parent int, alive bool) {
	b, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return "", 0, false
	}
	_, rest, _ := strings.Cut(string(b), "(")
	name, rest, _ = strings.Cut(rest, ") ")
	var state string
	_, err = fmt.Sscan(rest, &state, &parent)
	return name, parent, err == nil && state != "Z"
}
