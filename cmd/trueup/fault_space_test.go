package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// The faults here are those of a place that is too small or fails, and of a disk that does not give what it should.

// faultSources are the small disk of testdata in each format, and one without zeros.
func faultSources(t *testing.T) map[string]string {
	t.Helper()
	sparse := sampleDisk(t)
	raw := formatSparse.rawOf(t, sparse)
	return map[string]string{
		"sparse vmdk": sparse,
		"flat vmdk":   formatFlat.convert(t, raw, t.TempDir(), "disk", "ide"),
		"raw":         noisyDisk(t, 3),
	}
}

// privateMount runs a command where it alone sees a file system in memory. No right is needed for that where the kernel
// lets users have their own namespaces.
func privateMount(t *testing.T, options, folder string, command ...string) result {
	t.Helper()
	unshare := []string{"--mount"}
	if os.Geteuid() != 0 {
		unshare = []string{"--user", "--map-root-user", "--mount"}
	}
	tool := disktest.Tool(t, "unshare")
	if r := run(t, tool, append(unshare, "mount", "-t", "tmpfs", "none", folder)...); r.code != 0 {
		t.Skipf("no file system can be mounted here: %s", r.stderr)
	}
	script := `mount -t tmpfs -o "$1" none "$2" && shift 2 && "$@"; code=$?; ls -A "$0"; exit $code`
	return run(t, tool, append(append(unshare, "sh", "-c", script, folder, options, folder), command...)...)
}

// smallStorages run a command where it alone sees a file system of some MiB: in memory, or ext4 on a loop device.
var smallStorages = map[string]func(t *testing.T, mib int, folder string, command ...string) result{
	"tmpfs": func(t *testing.T, mib int, folder string, command ...string) result {
		t.Helper()
		return privateMount(t, fmt.Sprintf("size=%dm", mib), folder, command...)
	},
	"ext4": func(t *testing.T, mib int, folder string, command ...string) result {
		t.Helper()
		file := filepath.Join(t.TempDir(), "ext4")
		disktest.Run(t, "mke2fs", "-q", "-t", "ext4", "-b", "4096", "-O", "^has_journal", "-m", "0", file,
			fmt.Sprintf("%dm", mib))
		script := `mount -o loop "$1" "$2" || exit 96; shift 2; "$@"`
		r := run(t, disktest.Tool(t, "unshare"), append([]string{"--mount", "sh", "-c", script, "sh", file, folder},
			command...)...)
		if r.code == 96 {
			t.Skipf("no loop device can be mounted here: %s", r.stderr)
		}
		return r
	},
}

// fullFileSystem takes all space away while the copy of an exchange is written, and in the middle of an exchange. Its
// arguments are the folder of x.vmdk, one of its own, strace and the program.
const fullFileSystem = `cp "$1"/x*.vmdk "$2"; cd "$2"; a=$(cat x*.vmdk | sha256sum)
	fill() { dd if=/dev/zero of=fill bs=4k 2>/dev/null; true; }; old() { test "$a" = "$(cat x*.vmdk | sha256sum)"; }
	strace=$3 program=$4
	slowly() { "$strace" -qq -o /dev/null -f -e trace=pwrite64 -e inject=pwrite64:delay_enter=5s "$program" "$@"; }
	filled() { "$@" & until [ -s "$partial" ]; do :; done; fill; wait $!; echo "copy: $?"; rm fill; }
	"$3" -qq -o /dev/null -f -e trace=renameat -e inject=renameat:signal=KILL:when=1 "$4" replace -q x.vmdk
	test -e x.vmdk.trueup && fill || exit 91
	"$4" resume x.vmdk 2>&1; echo "resume: $?"; "$4" undo x.vmdk 2>&1; rm fill
	if [ -e x.vmdk.trueup ]; then "$4" undo x.vmdk || exit 92; fi; old || exit 93
	partial=.x-flat.vmdk.partial; filled slowly replace -q x.vmdk 2>&1; old || exit 94
	test "$(echo .x*)" = '.x*' || exit 95
	"$4" replace -q x.vmdk && "$4" verify x.orig.vmdk x.vmdk`

// TestReplaceOnAFullFileSystem requires that errors name the cause, that the disk stays, and that the next run goes on
// when there is room.
func TestReplaceOnAFullFileSystem(t *testing.T) {
	t.Parallel()
	source := formatFlat.convert(t, noisyDisk(t, 8), t.TempDir(), "x", "ide")
	for name, on := range smallStorages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			r := on(t, 40, folder, "bash", "-c", fullFileSystem, "bash", filepath.Dir(source), folder,
				disktest.Tool(t, "strace"), builtPath)
			require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
			for _, says := range []string{
				"no space left on device; the exchange is not complete: trueup resume x.vmdk goes on, " +
					"trueup undo x.vmdk takes it back\nresume: 1\n",
				"write x-flat.vmdk: no space left on device; the copy needs ",
			} {
				require.Contains(t, r.stdout, says)
			}
			require.Equal(t, 1, strings.Count(r.stdout, "copy: 1\n"), r.stdout)
		})
	}
}

// The space is too small and that can be known before the first byte.
func TestTooLittleSpace(t *testing.T) {
	t.Parallel()
	f := newFault(t, sampleDisk(t))
	r := privateMount(t, "size=512k", filepath.Dir(f.dest), builtPath, "align", f.source, f.dest)
	require.Equal(t, 1, r.code, r.stderr)
	require.Empty(t, r.stdout, "ls must find nothing, and no success may be printed")
	requireOneLine(t, r.stderr)
	require.Contains(t, r.stderr, "524288 bytes", "what is free")
	require.Regexp(t, `needs .*\(\d+ bytes\)`, r.stderr)

	r = privateMount(t, "size=512k", filepath.Dir(f.dest),
		disktest.Tool(t, "strace"), "-f", "-qq", "-o", "/dev/stdout", "-e", "trace=pwrite64", builtPath, "align", "-q",
		f.source, f.dest)
	require.Equal(t, 1, r.code)
	require.NotContains(t, r.stdout, "pwrite64(", "not a byte may be written before the refusal")

	r = privateMount(t, "size=2M", filepath.Dir(f.dest), builtPath, "align", "-q", f.source, f.dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, "aligned.vmdk\n", r.stdout)
}

// A compressed copy can take far less than its data. What is estimated refuses nothing: the file system decides.
func TestTooLittleSpaceForACompressedCopy(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text.raw")
	disk := tableforge.NewMBR(trackSectors+20000, slot(0x83, trackSectors, 20000))
	disk.Put(trackSectors*sectorSize, []byte(strings.Repeat("well packed ", 20000*sectorSize/12)))
	disk.Write(t, text)
	packed := filepath.Join(t.TempDir(), "packed.vmdk")
	require.Equal(t, 0, trueup(t, "align", "--to", "vmdk:streamOptimized", text, packed).code)
	noise := noisyDisk(t, 8)
	for _, c := range []struct {
		name, source, to, says string
		code                   int
	}{
		{"to a stream", text, "vmdk:streamOptimized", "", 0},
		{"to qcow2", text, "qcow2:compressed", "", 0},
		{"of a stream, which is known to fit", packed, "vmdk:streamOptimized", "", 0},
		{"of noise", noise, "vmdk:streamOptimized", "no space left on device", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFault(t, c.source)
			r := privateMount(t, "size=4M", filepath.Dir(f.dest), builtPath, "align", "--to", c.to, "--no-progress",
				c.source, f.dest)
			require.Equal(t, c.code, r.code, r.stderr)
			require.Contains(t, r.stderr, c.says)
			if c.says == "" {
				require.Empty(t, r.stderr)
			}
			if c.code != 0 {
				require.Empty(t, r.stdout, "ls finds nothing, and no success is printed")
			}
		})
	}
}

// The space ends in the middle.
func TestSpaceEndsInTheMiddle(t *testing.T) {
	t.Parallel()
	struck := 0
	for name, source := range faultSources(t) {
		for _, n := range []int{1, 2, 3, 5, 8} {
			t.Run(fmt.Sprintf("%s, write %d", name, n), func(t *testing.T) {
				f := newFault(t, source)
				r, hits := f.inject(t, injection{call: "pwrite64", spec: fmt.Sprintf("error=ENOSPC:when=%d+", n)})
				if hits == 0 {
					require.Equal(t, 0, r.code, r.stderr) // no thread writes so often
					return
				}
				struck++
				f.requireError(t, r, "output")
				require.Contains(t, r.stderr, "no space left on device")
				require.Regexp(t, `needs .*\(\d+ bytes\).*\(\d+ bytes\) are free`, r.stderr)
			})
		}
	}
	require.GreaterOrEqual(t, struck, 6)
}

// Writes succeed and the sync does not, as on thin storage that is full.
func TestSyncFails(t *testing.T) {
	t.Parallel()
	for name, source := range faultSources(t) {
		for _, errno := range []string{"EIO", "ENOSPC"} {
			f := newFault(t, source)
			for place, i := range map[string]injection{
				"file":   {call: "fsync", spec: "error=" + errno, path: f.partial()},
				"folder": {call: "fsync", spec: "error=" + errno, path: filepath.Dir(f.dest)},
			} {
				t.Run(fmt.Sprintf("%s, %s of the %s", name, errno, place), func(t *testing.T) {
					r, hits := f.inject(t, i)
					require.Positive(t, hits)
					f.requireError(t, r, "output")
				})
			}
		}
	}
}

// A limit on the size of files, whose signal ends programs that do not expect it.
func TestFileSizeLimit(t *testing.T) {
	t.Parallel()
	for name, source := range faultSources(t) {
		for _, limit := range []int{0, 1 << 16, 1 << 19} {
			t.Run(fmt.Sprintf("%s, %d bytes", name, limit), func(t *testing.T) {
				f := newFault(t, source)
				r := run(t, disktest.Tool(t, "prlimit"), append([]string{"--fsize=" + strconv.Itoa(limit), builtPath},
					f.args()...)...)
				f.requireUndone(t)
				require.Equal(t, 1, r.code, r.stderr)
				requireOneLine(t, r.stderr)
				require.Contains(t, r.stderr, "file too large")
			})
		}
	}
}

// The source cannot be read, or ends early.
func TestSourceCannotBeRead(t *testing.T) {
	t.Parallel()
	for name, source := range faultSources(t) {
		for n := 1; n <= 24; n++ {
			for kind, spec := range map[string]string{
				"an error": "error=EIO:when=%d+", "the end": "retval=0:when=%d+", "the end once": "retval=0:when=%d",
			} {
				if kind != "the end once" && n > 3 && n != 11 && n != 20 {
					continue // what fails from then on is noticed by any read; once, by that one only
				}
				title := fmt.Sprintf("%s, %s at read %d", name, kind, n)
				if !disktest.Share(title) {
					continue
				}
				t.Run(title, func(t *testing.T) {
					f := newFault(t, source)
					r, hits := f.inject(t, injection{call: "pread64", spec: fmt.Sprintf(spec, n), path: source})
					if hits == 0 {
						require.Equal(t, 0, r.code, r.stderr)
						return
					}
					want := map[bool]string{true: "io", false: "changed"}[kind == "an error"]
					f.requireError(t, r, want)
					require.Regexp(t, `at byte \d+`, r.stderr)
				})
			}
		}
	}
}

// A write that says it is done and is not. Only reading the result shows that.
func TestLostWrites(t *testing.T) {
	t.Parallel()
	caught := 0
	for name, source := range faultSources(t) {
		intact := newFault(t, source)
		intact.requireNext(t)
		want := sumsOf(t, filepath.Dir(intact.dest))
		for _, n := range []int{1, 2, 3, 4, 5, 6} {
			t.Run(fmt.Sprintf("%s, write %d", name, n), func(t *testing.T) {
				f := newFault(t, source)
				// The first bytes of a write are lost: as many as the smallest write of all has, so that the kernel
				// could
				// have said that.
				r, hits := f.inject(t, injection{call: "pwrite64", spec: fmt.Sprintf("retval=4:when=%d", n)})
				if hits == 0 || r.code == 0 {
					require.Equal(t, 0, r.code, r.stderr)
					require.Equal(t, want, sumsOf(t, filepath.Dir(f.dest)),
						"what was lost were zeros, or else it must be noticed")
					return
				}
				caught++
				f.requireError(t, r, "verify")
			})
		}
	}
	require.GreaterOrEqual(t, caught, 4)
}

// Interrupted calls and few descriptors have no effect.
func TestHarmlessFaults(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	intact := newFault(t, source)
	intact.requireNext(t)
	want := sumsOf(t, filepath.Dir(intact.dest))
	// The loader of the program does not bear interruptions, and neither do calls of the runtime that concern no file
	// of ours.
	const inSource, inFolder = "source", "folder"
	for call, where := range map[string]string{
		"pread64": inSource, "pwrite64": "", "fsync": "", "ftruncate": "", "/^(openat|newfstatat)$": inFolder,
		"fcntl": inFolder, "/^rename": "",
		"fstatfs": "", "lseek": inSource, "getdents64": inFolder, "/^(link|unlink)at$": inFolder,
	} {
		t.Run("interrupted "+call, func(t *testing.T) {
			f := newFault(t, source)
			path := map[string]string{inSource: source, inFolder: filepath.Dir(f.dest)}[where]
			r, hits := f.inject(t, injection{call: call, spec: "error=EINTR:when=1+2", path: path})
			require.Positive(t, hits)
			require.Equal(t, 0, r.code, r.stderr)
			require.Equal(t, want, sumsOf(t, filepath.Dir(f.dest)))
		})
	}
	t.Run("24 descriptors", func(t *testing.T) {
		f := newFault(t, source)
		r := run(t, disktest.Tool(t, "prlimit"), append([]string{"--nofile=24", builtPath}, f.args()...)...)
		require.Equal(t, 0, r.code, r.stderr)
		require.Equal(t, want, sumsOf(t, filepath.Dir(f.dest)))
	})
}

// TestBelowNamesOtherFileSystems requires that finish --below names a folder that it does not enter.
func TestBelowNamesOtherFileSystems(t *testing.T) {
	t.Parallel()
	lib := t.TempDir()
	other := filepath.Join(lib, "other")
	require.NoError(t, os.Mkdir(other, 0o755))
	r := privateMount(t, "size=1m", other, builtPath, "finish", "--below", lib)
	require.Equal(t, 4, r.code, r.stderr)
	require.Contains(t, r.stderr, "other: refused: the folder lies on another file system; name it with --below")
}
