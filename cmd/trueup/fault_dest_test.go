package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// The faults here are those of a DEST that is taken, is the source itself, or cannot be.

// What is there stays, until --force replaces it.
func TestDestExists(t *testing.T) {
	t.Parallel()
	for name, source := range faultSources(t) {
		t.Run(name, func(t *testing.T) {
			f := newFault(t, source)
			require.NoError(t, os.WriteFile(f.dest, []byte("precious"), 0o644))
			r := trueup(t, f.args()...)
			require.Equal(t, 1, r.code)
			require.Equal(t, "output", errorCode(t, r))
			require.Contains(t, r.stderr, "--force")
			requirePrecious(t, f)
			f.requireNext(t, "--force")
			once := sumsOf(t, filepath.Dir(f.dest))
			f.requireNext(t, "--force") // over an image now, which for a flat VMDK has two files
			require.Len(t, folderNames(t, filepath.Dir(f.dest)), len(once), "the files of the old image go")
		})
	}
}

// requirePrecious requires that the old DEST is alone and as it was.
func requirePrecious(t *testing.T, f fault) {
	t.Helper()
	require.Equal(t, []string{filepath.Base(f.dest)}, folderNames(t, filepath.Dir(f.dest)))
	old := disktest.ReadFile(t, f.dest)
	require.Equal(t, "precious", string(old))
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)))
}

// TestForceThatFails requires that the old DEST survives a run that would have replaced it.
func TestForceThatFails(t *testing.T) {
	t.Parallel()
	for name, source := range faultSources(t) {
		t.Run(name, func(t *testing.T) {
			f := newFault(t, source)
			require.NoError(t, os.WriteFile(f.dest, []byte("precious"), 0o644))
			for _, i := range []injection{
				{call: "pwrite64", spec: "error=ENOSPC:when=1+"}, // strace counts for each thread
				{call: "fsync", spec: "error=EIO:when=1"},
				{call: "/^rename", spec: "error=EIO"}, // on trial
				{call: "/^rename", spec: "error=EIO", path: filepath.Base(f.partial())},
			} {
				r, hits := f.inject(t, i, "--force")
				require.Positive(t, hits, i.call)
				require.Equal(t, 1, r.code, r.stderr)
				requirePrecious(t, f)
			}
		})
	}
	f := newFault(t, noisyDisk(t, 64))
	require.NoError(t, os.WriteFile(f.dest, []byte("precious"), 0o644))
	r := f.pause(t, "--force")
	old := disktest.ReadFile(t, f.dest)
	require.Equal(t, "precious", string(old), "the old one stands while the new one is written")
	r.signal(t, syscall.SIGINT)
	r.signal(t, syscall.SIGCONT)
	require.Equal(t, 128+int(syscall.SIGINT), r.wait(t).code)
	requirePrecious(t, f)
}

// TestRenameFails is about the last step of all, and a folder that cannot replace.
func TestRenameFails(t *testing.T) {
	t.Parallel()
	for name, source := range faultSources(t) {
		for _, spec := range []string{"error=EIO", "error=EXDEV", "error=EEXIST"} {
			t.Run(name+", "+spec, func(t *testing.T) {
				f := newFault(t, source)
				for _, path := range []string{"", filepath.Base(f.partial())} { // on trial, and at the end
					r, hits := f.inject(t, injection{call: "renameat2", spec: spec, path: path})
					require.Positive(t, hits)
					f.requireError(t, r, "output")
				}
			})
		}
		t.Run(name+", a file system that knows no flags", func(t *testing.T) {
			f := newFault(t, source)
			r, hits := f.inject(t, injection{call: "renameat2", spec: "error=EINVAL"})
			require.Positive(t, hits)
			require.Equal(t, 0, r.code, r.stderr)
			require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
			for _, name := range folderNames(t, filepath.Dir(f.dest)) {
				require.False(t, strings.HasSuffix(name, ".partial"), name)
			}
		})
	}
}

// TestCloseFails requires that DEST, which is complete and named then, is a success: exit 1 says that nothing has the
// name.
func TestCloseFails(t *testing.T) {
	t.Parallel()
	for name, source := range faultSources(t) {
		f := newFault(t, source)
		// descriptors follow the rename
		r, hits := f.inject(t, injection{call: "close", spec: "error=EIO", path: f.dest})
		require.Positive(t, hits)
		require.Equal(t, 0, r.code, "%s: %s", name, r.stderr)
		require.Contains(t, r.stdout, `"dest-close"`)
		require.Contains(t, r.stdout, "close "+f.dest+": input/output error")
		require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
	}
}

// TestLockFails requires that only a lock that is held is taken for another run.
func TestLockFails(t *testing.T) {
	t.Parallel()
	for spec, code := range map[string]string{"error=EIO": "output", "error=EACCES": "busy", "error=EAGAIN": "busy"} {
		f := newFault(t, sampleDisk(t))
		r, hits := f.inject(t, injection{call: "fcntl", spec: spec, path: f.partial()})
		require.Positive(t, hits)
		require.Equal(t, map[string]int{"output": 1, "busy": 4}[code], r.code, r.stderr)
		require.Equal(t, code, errorCode(t, r))
		require.Contains(t, r.stderr, ".aligned.vmdk.partial")
		require.NoFileExists(t, f.dest)
	}
	for _, spec := range []string{"error=ENOLCK", "error=ENOSYS", "error=EOPNOTSUPP", "error=EINVAL"} {
		f := newFault(t, sampleDisk(t))
		r, hits := f.inject(t, injection{call: "fcntl", spec: spec, path: f.partial()})
		require.Positive(t, hits)
		require.Equal(t, 0, r.code, r.stderr)
		require.Contains(t, r.stdout, `"dest-no-locks"`)
		require.Equal(t, 0, trueup(t, "verify", f.source, f.dest).code)
	}
}

// DEST is the source, whatever it is called.
func TestDestIsTheSource(t *testing.T) {
	t.Parallel()
	for _, format := range []diskFormat{formatSparse, formatFlat} {
		t.Run(format.name, func(t *testing.T) {
			dir := t.TempDir()
			source := format.convert(t, formatSparse.rawOf(t, sampleDisk(t)), dir, "disk", "ide")
			files := format.files(source)
			last := files[len(files)-1] // the extent, which holds the data
			require.NoError(t, os.Link(last, filepath.Join(dir, "hard.vmdk")))
			require.NoError(t, os.Symlink(filepath.Base(last), filepath.Join(dir, "symbolic.vmdk")))
			require.NoError(t, os.Symlink(".", filepath.Join(dir, "folder")))
			before := linkedFolder(t, dir)
			for _, dest := range []string{
				source, last, "hard.vmdk", "symbolic.vmdk", "folder/disk.vmdk",
				"./folder/../disk.vmdk",
			} {
				if !filepath.IsAbs(dest) {
					dest = dir + "/" + dest
				}
				for _, args := range [][]string{
					{"align"},
					{"align", "--force"},
					{"convert", "--force"},
					{"align", "--force", "--to", "raw"},
				} {
					r := trueup(t, append(args, source, dest, "--json")...)
					require.Equal(t, 64, r.code, "%q to %s", args, dest)
					require.Equal(t, "usage", errorCode(t, r))
					require.Equal(t, before, linkedFolder(t, dir))
				}
			}
		})
	}
}

// linkedFolder is hashFolder for a folder that has links to folders in it.
func linkedFolder(t *testing.T, dir string) map[string]string {
	t.Helper()
	state := map[string]string{}
	for _, name := range folderNames(t, dir) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil && info.IsDir() {
			state[name] = "folder"
			continue
		}
		state[name] = sha256Of(t, filepath.Join(dir, name))
	}
	return state
}

// TestReportOverImage requires that the report of --out never lands on an image of the same command.
func TestReportOverImage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source := formatFlat.convert(t, formatSparse.rawOf(t, sampleDisk(t)), dir, "disk", "ide")
	other := sampleDisk(t)
	require.NoError(t, os.Link(source, filepath.Join(dir, "hard.vmdk")))
	require.NoError(t, os.Symlink("disk-flat.vmdk", filepath.Join(dir, "symbolic.vmdk")))
	before, beforeOther := hashFolder(t, dir), hashFolder(t, filepath.Dir(other))
	for _, out := range []string{"disk.vmdk", "disk-flat.vmdk", "hard.vmdk", "symbolic.vmdk"} {
		f := fault{source: source, dest: filepath.Join(t.TempDir(), "aligned.vmdk")}
		for _, args := range [][]string{
			{"inspect", source},
			{"plan", source},
			{"align", source, f.dest},
			{"convert", source, f.dest},
			{"verify", other, source},
		} {
			r := trueup(t, append(args, "--out", dir+"/"+out)...)
			require.Equal(t, 64, r.code, "trueup %q --out %s", args, out)
			requireOneLine(t, r.stderr)
			require.Equal(t, before, hashFolder(t, dir))
			require.Empty(t, folderNames(t, filepath.Dir(f.dest)))
		}
	}
	for _, out := range []string{"aligned.vmdk", "aligned-flat.vmdk"} {
		dest := filepath.Join(t.TempDir(), "aligned.vmdk")
		r := trueup(t, "align", source, dest, "--out", filepath.Dir(dest)+"/./"+out)
		require.Equal(t, 64, r.code, out)
		require.Empty(t, folderNames(t, filepath.Dir(dest)))
	}
	require.Equal(t, beforeOther, hashFolder(t, filepath.Dir(other)))
}

// A folder that is missing, is not one, or cannot be written.
func TestDestFolder(t *testing.T) {
	t.Parallel()
	f := newFault(t, sampleDisk(t))
	folder := filepath.Dir(f.dest)
	f.dest = filepath.Join(folder, "missing", "aligned.vmdk")
	r := trueup(t, f.args()...)
	require.Equal(t, 1, r.code)
	require.Equal(t, "output", errorCode(t, r))
	require.Empty(t, folderNames(t, folder))

	f.dest = filepath.Join(f.source, "aligned.vmdk")
	r = trueup(t, f.args()...)
	require.Equal(t, "output", errorCode(t, r))
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)))

	f.dest = filepath.Join(folder, "aligned.vmdk")
	r = privateMount(t, "ro", folder, append([]string{builtPath}, f.args()...)...)
	require.Equal(t, 1, r.code)
	require.Equal(t, "output", errorCode(t, r))
	require.Contains(t, r.stderr, "read-only file system")
	f.requireUndone(t)

	r = privateMount(t, "nr_inodes=1", folder, append([]string{builtPath}, f.args()...)...)
	require.Equal(t, "output", errorCode(t, r))
	f.requireUndone(t)

	if os.Geteuid() == 0 {
		return // root may write into any folder
	}
	require.NoError(t, os.Chmod(folder, 0o555))
	r = trueup(t, f.args()...)
	require.Equal(t, "output", errorCode(t, r))
	require.Contains(t, r.stderr, "permission denied")
	f.requireUndone(t)
}

// Nothing around the program changes what it writes.
func TestSurroundings(t *testing.T) {
	t.Parallel()
	for name, source := range faultSources(t) {
		t.Run(name, func(t *testing.T) {
			intact := newFault(t, source)
			intact.requireNext(t)
			want := sumsOf(t, filepath.Dir(intact.dest))
			env := disktest.Tool(t, "env")
			for _, around := range [][]string{
				{"TZ=Pacific/Kiritimati"},
				{"TZ=America/New_York", "LC_ALL=tr_TR.UTF-8", "LANG=de_DE"},
				{"-i"},
				{"GOMAXPROCS=1"},
				{"GOMAXPROCS=8"},
				{"GOGC=1"},
				{"TMPDIR=/nonexistent", "HOME=/nonexistent"},
				{"TERM=xterm", "COLUMNS=40"},
				{"sh", "-c", `umask 077; exec "$@"`, "sh"},
				{"sh", "-c", `umask 0; exec "$@"`, "sh"},
				{"sh", "-c", `cd /; exec "$@"`, "sh"},
			} {
				f := newFault(t, source)
				r := run(t, env, append(append(around, builtPath), f.args()...)...)
				require.Equal(t, 0, r.code, r.stderr)
				require.Equal(t, want, sumsOf(t, filepath.Dir(f.dest)), "%q", around)
			}
			now := time.Now().Unix()
			disktest.WaitFor(t, "another second of the clock", func() bool { return time.Now().Unix() > now })
			for _, jobs := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
				f := newFault(t, source)
				f.requireNext(t, "--jobs", jobs)
				require.Equal(t, want, sumsOf(t, filepath.Dir(f.dest)), "%s jobs", jobs)
			}
		})
	}
}

// sumsOf returns the digests of all files of a folder.
func sumsOf(t testing.TB, folder string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, name := range folderNames(t, folder) {
		sums[name] = sha256Of(t, filepath.Join(folder, name))
	}
	return sums
}
