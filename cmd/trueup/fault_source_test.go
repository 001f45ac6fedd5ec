package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// The faults here are those of a source that others write, hold or need.

// sourceChanges are what others can do to a source.
var sourceChanges = map[string]func(path string) error{
	"a byte is written": func(path string) error { return overwrite(path, 50<<20) },
	"it is cut":         func(path string) error { return os.Truncate(path, 20<<20) },
	"it grows":          func(path string) error { return os.Truncate(path, 65<<20) },
	"it is removed":     os.Remove,
	"a hole is punched": func(path string) error {
		return exec.Command("fallocate", "--punch-hole", "--offset", "40M", "--length", "1M", path).Run()
	},
	"another file takes its name": func(path string) error {
		return errors.Join(os.Rename(path, path+".old"), exec.Command("cp", path+".old", path).Run(),
			os.Remove(path+".old"))
	},
	"its time is put back": func(path string) error {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		return errors.Join(overwrite(path, 50<<20), os.Chtimes(path, info.ModTime(), info.ModTime()))
	},
}

// overwrite changes some bytes of a file.
func overwrite(path string, off int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte("changed"), off)
	return errors.Join(err, f.Close())
}

// The source changes while it is copied.
func TestSourceChanges(t *testing.T) {
	t.Parallel()
	original := noisyDisk(t, 64)
	for name, change := range sourceChanges {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			f := fault{source: filepath.Join(dir, "source.raw"), dest: filepath.Join(t.TempDir(), "aligned.raw")}
			disktest.Run(t, "cp", original, f.source)
			r := f.pause(t)
			require.NoError(t, change(f.source))
			changed := hashFolder(t, dir)
			r.signal(t, syscall.SIGCONT)
			end := r.wait(t)
			require.Equal(t, 1, end.code, end.stderr)
			require.Equal(t, "changed", errorCode(t, end), end.stderr)
			requireOneLine(t, end.stderr)
			require.Empty(t, folderNames(t, filepath.Dir(f.dest)))
			require.Equal(t, changed, hashFolder(t, dir))
		})
	}
}

// holdOpen has QEMU keep an image open until the test ends.
func holdOpen(t *testing.T, format, path string, flags ...string) {
	t.Helper()
	cmd := exec.Command(disktest.Tool(t, "qemu-io"), append(flags, "-f", format, path)...)
	keys, err := cmd.StdinPipe()
	require.NoError(t, err)
	screen, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = keys.Close() // qemu-io ends with its input
		_, _ = io.Copy(io.Discard, screen)
		require.NoError(t, cmd.Wait())
	})
	_, err = io.ReadFull(screen, make([]byte, len("qemu-io>"))) // it shows its prompt when it has the locks
	require.NoError(t, err)
}

// A virtual machine runs on the source. What only reads it does no harm.
func TestSourceInQEMU(t *testing.T) {
	t.Parallel()
	raw := formatSparse.rawOf(t, sampleDisk(t))
	for _, format := range []diskFormat{formatRaw, formatSparse, formatFlat} {
		t.Run(format.name, func(t *testing.T) {
			f := newFault(t, format.convert(t, raw, t.TempDir(), "disk", "ide"))
			t.Run("reading", func(t *testing.T) {
				holdOpen(t, format.container, f.source, "-r")
				f.requireNext(t)
			})
			require.NoError(t, os.RemoveAll(filepath.Dir(f.dest)))
			require.NoError(t, os.Mkdir(filepath.Dir(f.dest), 0o755))
			t.Run("writing", func(t *testing.T) {
				holdOpen(t, format.container, f.source)
				f.before = hashFolder(t, filepath.Dir(f.source)) // QEMU may touch a VMDK when it opens it
				requireBusy(t, f, "QEMU")
				require.Contains(t, trueup(t, "align", f.source, f.dest).stderr, "byte 101")
			})
			f.before = hashFolder(t, filepath.Dir(f.source))
			f.requireNext(t)
		})
	}
}

// requireBusy requires that all commands that copy refuse, that plan says so beforehand and inspect warns, each with
// the reason and what to do.
func requireBusy(t *testing.T, f fault, reason string) {
	t.Helper()
	for _, args := range [][]string{
		{"align", f.source, f.dest},
		{"align", "--allow-unbootable", "--force", f.source, f.dest},
		{"convert", f.source, f.dest},
		{"plan", f.source},
	} {
		r := trueup(t, append(args, "--json")...)
		require.Equal(t, 4, r.code, "trueup %q\n%s", args, r.stderr)
		require.Equal(t, "busy", errorCode(t, r))
		requireOneLine(t, r.stderr)
		require.Contains(t, r.stderr, reason)
		require.Regexp(t, `; \w.* (down|remove|resume|lock)`, r.stderr, "the remedy")
		f.requireUndone(t)
	}
	require.Contains(t, trueup(t, "inspect", f.source).stdout, reason)
}

// QEMU is kept from writing to the source as long as the copy runs, and may read it.
func TestQEMUIsKeptOut(t *testing.T) {
	t.Parallel()
	f := newFault(t, noisyDisk(t, 64))
	qemu := disktest.Tool(t, "qemu-io")
	r := f.pause(t)
	writer := run(t, qemu, "-f", "raw", "-c", "write 0 512", f.source)
	require.NotEqual(t, 0, writer.code)
	require.Contains(t, writer.stderr, "lock")
	require.Equal(t, 0, run(t, qemu, "-r", "-f", "raw", "-c", "read 0 512", f.source).code)
	r.signal(t, syscall.SIGCONT)
	require.Equal(t, 0, r.wait(t).code)
	require.Equal(t, 0, run(t, qemu, "-f", "raw", "-c", "write 0 512", f.source).code, "the lock ends with the copy")
}

// VMware's locks and memory files.
func TestVMwareLocks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"disk.vmdk.lck", "disk-flat.vmdk.lck", "machine.vmx.lck", ".lck-3304000000000000", "disk.vmss", "disk.vmem",
		"disk-1a2b3c4d.vmem",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			source := formatFlat.convert(t, formatSparse.rawOf(t, sampleDisk(t)), dir, "disk", "ide")
			lock := filepath.Join(dir, name)
			require.NoError(t, os.WriteFile(lock, []byte("lock"), 0o644))
			requireBusy(t, newFault(t, source), name)
			require.NoError(t, os.Remove(lock))
			newFault(t, source).requireNext(t)
		})
	}
	// Workstation's locks are folders.
	source := sampleDisk(t)
	require.NoError(t, os.MkdirAll(source+".lck/M12345.lck", 0o755))
	r := trueup(t, "align", source, filepath.Join(t.TempDir(), "aligned.vmdk"), "--json")
	require.Equal(t, 4, r.code)
	require.Equal(t, "busy", errorCode(t, r))
}

// TestLocksOfOthers requires that a template in the folder of a running machine can be copied.
func TestLocksOfOthers(t *testing.T) {
	t.Parallel()
	f := newFault(t, sampleDisk(t))
	for _, name := range []string{
		"other.vmdk.lck", "other.vmem", "xp.vmdk.lck.old", "xp.nvram", "vmware.log",
		"xp.vmsd",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(f.source), name), nil, 0o644))
	}
	f.before = hashFolder(t, filepath.Dir(f.source))
	f.requireNext(t)
}

// A snapshot stands on the disk. The disk alone is not what the machine sees, and the snapshot alone is not complete.
func TestSnapshots(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	child := filepath.Join(filepath.Dir(source), "xp-000001.vmdk")
	create := exec.Command(disktest.Tool(t, "qemu-img"), "create", "-q", "-f", "vmdk", "-F", "vmdk",
		"-b", filepath.Base(source), filepath.Base(child))
	create.Dir = filepath.Dir(source)
	out, err := create.CombinedOutput()
	require.NoError(t, err, "%s", out)
	f := newFault(t, source)
	for name, path := range map[string]string{"xp-000001.vmdk": source, "xp.vmdk": child} {
		for _, args := range [][]string{{"align", path, f.dest}, {"convert", path, f.dest}, {"plan", path}} {
			r := trueup(t, append(args, "--json")...)
			require.Equal(t, 4, r.code, "trueup %q\n%s", args, r.stderr)
			requireOneLine(t, r.stderr)
			require.Contains(t, r.stderr, name)
			require.Contains(t, strings.ToLower(r.stderr), "consolidate")
			f.requireUndone(t)
		}
	}
	require.NoError(t, os.Remove(child))
	f.before = hashFolder(t, filepath.Dir(source))
	f.requireNext(t)
}
