package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
)

// throughPipe runs trueup with a file on its standard input that it cannot seek in.
func throughPipe(t testing.TB, file string, args ...string) result {
	t.Helper()
	in, err := os.Open(file)
	require.NoError(t, err)
	defer in.Close()
	cat := exec.Command("cat")
	cat.Stdin = in
	pipe, err := cat.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cat.Start())
	cmd := exec.Command(builtPath, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pipe, &stdout, &stderr
	_ = cmd.Run()                    // its end is looked at below
	require.NoError(t, pipe.Close()) // or cat would wait for a reader when trueup has left
	_ = cat.Wait()
	if wantsJSON(args) {
		validate(t, stdout.String())
	}
	return result{stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
}

// TestConvertFromAPipe takes a streamOptimized VMDK front to back, as it comes out of an OVA or from another machine.
func TestConvertFromAPipe(t *testing.T) {
	t.Parallel()
	raw := pairDisk(t)
	source := qemuMade{"vmdk", "vmdk", "subformat=streamOptimized", nil}.make(t, raw)
	for _, to := range writtenFormats() {
		dest := filepath.Join(t.TempDir(), "copy")
		r := throughPipe(t, source, "convert", "--to", to, "-", dest, "--json")
		require.Equal(t, 0, r.code, "%s: %s", to, r.stderr)
		checkWritten(t, raw, dest, to)
	}
	vmware := disktest.Corpus(t, "vmdk-rs/streamOptimized.vmdk.xz")
	dest := filepath.Join(t.TempDir(), "copy.raw")
	r := throughPipe(t, vmware, "convert", "--to", "raw", "-", dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.NotContains(t, r.stdout, "trueup verify", "there is nothing left to compare with")
	require.Equal(t, "a3bcf05f07a1c06a3380eeca8571f0efb2b85afafa1e21662b8cad436d1f7727", sha256Of(t, dest))
}

// TestPipesThatEndEarly leave nothing behind: a copy of half a disk looks like a disk.
func TestPipesThatEndEarly(t *testing.T) {
	t.Parallel()
	source := filepath.Join(t.TempDir(), "whole.vmdk")
	require.Equal(t, 0, trueup(t, "convert", "--to", "vmdk:streamOptimized", pairDisk(t), source).code)
	whole := readAll(t, source)
	for _, n := range []int{0, 100, 512, 70000, len(whole) / 2, len(whole) - 512, len(whole) - 1} {
		cut := filepath.Join(t.TempDir(), "cut.vmdk")
		require.NoError(t, os.WriteFile(cut, whole[:n], 0o644))
		dir := t.TempDir()
		r := throughPipe(t, cut, "convert", "--to", "raw", "-", filepath.Join(dir, "copy.raw"))
		require.Equal(t, 1, r.code, "%d bytes: %s", n, r.stderr)
		requireOneLine(t, r.stderr)
		require.Contains(t, r.stderr, "standard input")
		require.Empty(t, folderNames(t, dir))
	}
}

// TestInterruptedPipes stops while the other program says nothing, before the first byte of the image and in the middle
// of it.
func TestInterruptedPipes(t *testing.T) {
	t.Parallel()
	whole := readAll(t, qemuMade{"vmdk", "vmdk", "subformat=streamOptimized", nil}.make(t, pairDisk(t)))
	const end = "trueup: interrupted; no copy was made, and the source is unchanged\n"
	for n, says := range map[int]string{
		0:              end,
		len(whole) / 2: "trueup: interrupted: removing the unfinished copy; once more to end at once\n" + end,
	} {
		dir := t.TempDir()
		cmd := exec.Command(builtPath, "convert", "--to", "raw", "-", filepath.Join(dir, "copy.raw"))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		pipe := int(in.(interface{ Fd() uintptr }).Fd())
		require.NoError(t, cmd.Start())
		_, err = in.Write(whole[:n])
		require.NoError(t, err)
		disktest.WaitFor(t, "a program that has read all", func() bool {
			left, err := unix.IoctlGetInt(pipe, unix.TIOCINQ)
			require.NoError(t, err)
			return left == 0
		})
		waitIdle(t, cmd.Process.Pid)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.Error(t, cmd.Wait())
		require.Equal(t, 128+int(syscall.SIGTERM), cmd.ProcessState.ExitCode())
		require.Equal(t, says, stderr.String())
		require.Empty(t, folderNames(t, dir))
	}
}

// TestPipesOfOtherFormats says what can be read from a pipe, and that only convert does it.
func TestPipesOfOtherFormats(t *testing.T) {
	t.Parallel()
	raw := pairDisk(t)
	r := throughPipe(t, raw, "convert", "--to", "vmdk", "-", filepath.Join(t.TempDir(), "copy.vmdk"), "--json")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, `"code": "unsupported"`)
	require.Contains(t, r.stderr, "streamOptimized")
	for _, args := range [][]string{{"inspect", "-"}, {"align", "-", filepath.Join(t.TempDir(), "copy.vmdk")}} {
		r := throughPipe(t, raw, args...)
		require.NotEqual(t, 0, r.code)
		require.Contains(t, r.stderr, "convert")
	}
}

// TestWholeMebibytes is the form that a cloud takes: a fixed VHD whose size is a whole number of MiB.
func TestWholeMebibytes(t *testing.T) {
	t.Parallel()
	raw := pairDisk(t)
	for _, command := range []string{"convert", "align"} {
		dest := filepath.Join(t.TempDir(), "azure.vhd")
		answer := trueupJSON[jsonAlign](t, 0, command, "--to", "vhd:fixed,align=1M", raw, dest)
		require.Zero(t, answer.NewSizeBytes%(1<<20))
		info := disktest.Run(t, "qemu-img", "info", "--output=json", "-f", "vpc", dest)
		require.Contains(t, info, fmt.Sprintf(`"virtual-size": %d,`, answer.NewSizeBytes))
		st := disktest.Stat(t, dest)
		require.Equal(t, answer.NewSizeBytes+512, st.Size())
		require.Equal(t, 0, trueup(t, "verify", raw, dest).code)
	}
	gpt := filepath.Join(t.TempDir(), "gpt.raw")
	disktest.Run(t, "truncate", "-s", "10486272", gpt)
	disktest.RunInput(t, "label: gpt\nstart=2048, size=4096\n", "sfdisk", "-q", gpt)
	for _, command := range []string{"convert", "align"} {
		dest := filepath.Join(t.TempDir(), "azure.vhd")
		answer := trueupJSON[jsonAlign](t, 0, command, "--to", "vhd:fixed,align=1M", gpt, dest)
		require.Equal(t, int64(11<<20), answer.NewSizeBytes)
		require.Equal(t, 0, trueup(t, "verify", gpt, dest).code)
		back := filepath.Join(t.TempDir(), "back.raw")
		disktest.Run(t, "qemu-img", "convert", "-f", "vpc", "-O", "raw", dest, back)
		require.Contains(t, disktest.Run(t, "sgdisk", "-v", back), "No problems found",
			"the backup of the table stands at the end")
	}
}
