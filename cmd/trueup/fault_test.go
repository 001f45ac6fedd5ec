package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// fault is an align with a fault, and its environment.
type fault struct {
	source, dest string
	before       map[string]string // the source's folder
}

// newFault returns a fault with a source in its own folder; DEST goes to another folder.
func newFault(t testing.TB, source string) fault {
	t.Helper()
	return fault{
		source, filepath.Join(t.TempDir(), "aligned"+filepath.Ext(source)),
		hashFolder(t, filepath.Dir(source)),
	}
}

// partial is the name of the incomplete DEST.
func (f fault) partial() string {
	return filepath.Join(filepath.Dir(f.dest), "."+filepath.Base(f.dest)+".partial")
}

// args returns the command line of the align.
func (f fault) args(flags ...string) []string {
	return append([]string{"align", f.source, f.dest, "--json"}, flags...)
}

// requireUndone requires that the align left nothing behind and changed nothing.
func (f fault) requireUndone(t testing.TB) {
	t.Helper()
	require.Empty(t, folderNames(t, filepath.Dir(f.dest)), "DEST and partial files must be absent")
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)), "SOURCE changed")
}

// requireError requires an exit with 1 that reports the reason, in JSON and on standard error, and no success.
func (f fault) requireError(t testing.TB, r result, code string) {
	t.Helper()
	require.Equal(t, 1, r.code, "%s%s", r.stdout, r.stderr)
	require.Equal(t, code, errorCode(t, r), r.stderr)
	requireOneLine(t, r.stderr)
	f.requireUndone(t)
}

// errorCode returns the code of an error in JSON that fits its schema.
func errorCode(t testing.TB, r result) string {
	t.Helper()
	validate(t, r.stdout)
	answer := parseFailure(t, r)
	require.NotNil(t, answer.Error, r.stdout)
	return answer.Error.Code
}

func requireOneLine(t testing.TB, stderr string) {
	t.Helper()
	require.Regexp(t, `^trueup: [^\n]+\n$`, stderr)
}

// requireNext requires that the next align succeeds and that its result is right.
func (f fault) requireNext(t testing.TB, flags ...string) {
	t.Helper()
	r := trueup(t, f.args(flags...)...)
	require.Equal(t, 0, r.code, r.stderr)
	r = trueup(t, "verify", f.source, f.dest)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)), "SOURCE changed")
}

// run runs any program until it ends. For a program ended by a signal it returns code 128 and the signal, like a shell.
func run(t testing.TB, name string, args ...string) result {
	t.Helper()
	r, state := end(t, exec.Command(name, args...))
	if status := state.Sys().(syscall.WaitStatus); status.Signaled() {
		r.code = 128 + int(status.Signal())
	}
	return r
}

// noisyDisk is a raw disk with a partition at LBA 63 and no zeros, so that a lost byte is noticed. If it is large, an
// align takes a while.
func noisyDisk(t testing.TB, mebibytes int) string {
	t.Helper()
	sectors := mebibytes << 11
	disk := tableforge.NewMBR(sectors, tableforge.Slot{
		Type: 0x83, Start: trackSectors,
		Sectors: uint32(sectors - 2*trackSectors),
	})
	disk.Put(trackSectors*sectorSize, noise("noisy disk", (sectors-2*trackSectors)*sectorSize))
	path := filepath.Join(t.TempDir(), "noisy.raw")
	disk.Write(t, path)
	return path
}

// running is an align that runs concurrently with the test.
type running struct {
	fault
	cmd            *exec.Cmd
	stdout, stderr lockedBuffer
	ended          chan struct{}
}

// start starts an align.
func (f fault) start(t testing.TB, flags ...string) *running {
	t.Helper()
	return f.startAs(t, append([]string{builtPath}, f.args(flags...)...))
}

// startAs starts a command that runs the align.
func (f fault) startAs(t testing.TB, command []string) *running {
	t.Helper()
	r := &running{fault: f, cmd: exec.Command(command[0], command[1:]...), ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	require.NoError(t, r.cmd.Start())
	go func() {
		_ = r.cmd.Wait() // wait reads the state
		close(r.ended)
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill() // it has ended, unless the test failed
		<-r.ended
	})
	return r
}

// pause starts an align and stops it halfway.
func (f fault) pause(t testing.TB, flags ...string) *running {
	t.Helper()
	before, absent := os.ReadFile(f.dest)
	for {
		r := f.start(t, flags...)
		if r.stop(t) {
			return r
		}
		require.NoError(t, os.Remove(f.dest)) // the align was faster than the test
		if absent == nil {
			require.NoError(t, os.WriteFile(f.dest, before, 0o644))
		}
	}
}

// stop stops an align halfway: its partial file exists and has data, and DEST is missing. It returns false if the align
// ended before.
func (r *running) stop(t testing.TB) bool {
	t.Helper()
	disktest.WaitFor(t, "a partial file", func() bool {
		info, err := os.Stat(r.partial())
		return err == nil && info.Size() > 0 || isClosed(r.ended)
	})
	_ = r.cmd.Process.Signal(syscall.SIGSTOP) // it may have ended
	if _, err := os.Stat(r.partial()); err == nil {
		return true
	}
	_ = r.cmd.Process.Signal(syscall.SIGCONT)
	require.Zero(t, r.wait(t).code)
	return false
}

// ioCount returns a counter of the kernel for a process. Spec: proc(5), /proc/PID/io.
func ioCount(t testing.TB, text []byte, name string) (n int64) {
	t.Helper()
	_, rest, ok := strings.Cut(string(text), name+": ")
	require.True(t, ok, "%s", text)
	_, err := fmt.Sscan(rest, &n)
	require.NoError(t, err)
	return n
}

func (r *running) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, r.cmd.Process.Signal(s))
}

// wait waits for the align to end and returns its result. The code of a signal is 128 plus its number.
func (r *running) wait(t testing.TB) result {
	t.Helper()
	disktest.WaitClosed(t, "the end of the align", r.ended)
	status := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return result{r.stdout.String(), r.stderr.String(), code}
}

// injection is a fault that strace injects into system calls of one name.
type injection struct {
	call, spec string // "fsync", "error=EIO:when=2+"; calls are counted for each thread
	path       string // only calls on this file
}

// inject runs an align with a fault, and returns the number of times it struck.
func (f fault) inject(t testing.TB, i injection, flags ...string) (r result, struck int) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	args := []string{"-e", "trace=" + i.call, "-e", fmt.Sprintf("inject=%s:%s", i.call, i.spec)}
	if i.path != "" {
		args = append(args, "-P", i.path)
	}
	r = run(t, disktest.Tool(t, "strace"), underStrace(t, log, args, f.args(flags...)).Args[1:]...)
	return r, strings.Count(string(disktest.ReadFile(t, log)), "(INJECTED)")
}

// underStrace returns a run of trueup under strace, which writes to log.
func underStrace(t testing.TB, log string, args, command []string) *exec.Cmd {
	t.Helper()
	args = append([]string{"-f", "-qq", "-o", log}, args...)
	return exec.Command(disktest.Tool(t, "strace"), append(append(args, builtPath), command...)...)
}

// privateMount runs a command with a private file system in memory. This needs no privileges if users may create
// namespaces.
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

// smallStorages runs a command with a private file system of some MiB: in memory, or ext4 on a loop device.
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

// fullFileSystem fills the file system during the copy of an exchange, and during the exchange. Its arguments are the
// folder of x.vmdk, a folder for itself, strace and the program.
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

// TestReplaceOnAFullFileSystem requires that errors name the cause, that the disk stays, and that the next run
// continues when there is room.
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
				"no space left on device; the exchange is not complete: trueup resume x.vmdk completes it, " +
					"trueup undo x.vmdk reverses it\nresume: 1\n",
				"write x-flat.vmdk: no space left on device; the copy needs ",
			} {
				require.Contains(t, r.stdout, says)
			}
			require.Equal(t, 1, strings.Count(r.stdout, "copy: 1\n"), r.stdout)
		})
	}
}

// failingCall is a system call of an align that fails.
type failingCall struct {
	injection
	force bool   // over an existing DEST
	code  string // of the JSON error; empty: the copy is made anyway
	says  string // on standard error, or in the report of a copy
}

// Places in the paths of failing calls.
const inSource, inDest, ofPartial, ofDest = "SOURCE", "FOLDER", "PARTIAL", "DEST"

// failingCalls has an example of each result. Tests of internal/image/store and internal/realign fail each call.
var failingCalls = map[string]failingCall{
	"the sync":          {injection{"fsync", "error=EIO", ofPartial}, false, "output", ""},
	"the name":          {injection{"renameat2", "error=EXDEV", "." + ofDest + ".partial"}, false, "output", ""},
	"the name on trial": {injection{"/^rename", "error=EIO", ""}, true, "output", ""},
	"a write": {
		injection{"pwrite64", "error=ENOSPC:when=1+", ""},
		true, "output",
		`no space left on device.* needs .*\(\d+ bytes\).*\(\d+ bytes\) are free`,
	},
	"the close of a complete copy": {
		injection{"close", "error=EIO", inDest + "/" + ofDest},
		false, "",
		`(?s)"dest-close".*close \S+: input/output error`,
	},
	"the lock of another run":   {injection{"fcntl", "error=EACCES", ofPartial}, false, "busy", ofDest + ".partial"},
	"a lock without a daemon":   {injection{"fcntl", "error=ENOLCK", ofPartial}, false, "", `"dest-no-locks"`},
	"interrupted writes":        {injection{"pwrite64", "error=EINTR:when=1+2", ""}, false, "", ""},
	"a read":                    {injection{"pread64", "error=EIO:when=3+", inSource}, false, "io", `at byte \d+`},
	"a read, which SOURCE ends": {injection{"pread64", "retval=0:when=3+", inSource}, false, "changed", `at byte \d+`},
	// Only rereading the result shows that the kernel lost the first bytes of a write.
	"a write that is lost": {injection{"pwrite64", "retval=4:when=1", ""}, false, "verify", ""},
}

// TestCallsOfAnAlignFail requires that a copy that fails leaves nothing, that the old DEST of --force stays, and that a
// copy that succeeds has the right bytes.
func TestCallsOfAnAlignFail(t *testing.T) {
	t.Parallel()
	source := noisyDisk(t, 3)
	disktest.WriteAt(t, source, 0, []byte("code")) // the first bytes of no write are zeros
	made := newFault(t, source)
	made.requireNext(t, "--allow-unbootable")
	for name, c := range failingCalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.run(t, newFault(t, source), sumsOf(t, filepath.Dir(made.dest)))
		})
	}
}

// run runs the align with the fault.
func (c failingCall) run(t *testing.T, f fault, intact map[string]string) {
	t.Helper()
	flags := []string{"--allow-unbootable"}
	if c.force {
		require.NoError(t, os.WriteFile(f.dest, []byte("precious"), 0o644))
		flags = append(flags, "--force")
	}
	places := strings.NewReplacer(inSource, f.source, inDest, filepath.Dir(f.dest), ofPartial, f.partial(), ofDest,
		filepath.Base(f.dest))
	c.path = places.Replace(c.path)
	r, hits := f.inject(t, c.injection, flags...)
	require.Positive(t, hits)
	if c.code == "" {
		require.Equal(t, 0, r.code, r.stderr)
		require.Equal(t, intact, sumsOf(t, filepath.Dir(f.dest)))
		require.Regexp(t, c.says, r.stdout)
		return
	}
	exit := 1
	if c.code == "busy" {
		exit = 4
	}
	require.Equal(t, exit, r.code, "%s%s", r.stdout, r.stderr)
	require.Equal(t, c.code, errorCode(t, r), r.stderr)
	requireOneLine(t, r.stderr)
	require.Regexp(t, places.Replace(c.says), r.stderr)
	switch {
	case c.force:
		f.requirePrecious(t)
	case c.code == "busy": // the file belongs to another run
		require.NoFileExists(t, f.dest)
	default:
		f.requireUndone(t)
	}
}

// requirePrecious requires that the old DEST is the only file, and unchanged.
func (f fault) requirePrecious(t testing.TB) {
	t.Helper()
	require.Equal(t, []string{filepath.Base(f.dest)}, folderNames(t, filepath.Dir(f.dest)))
	require.Equal(t, "precious", string(disktest.ReadFile(t, f.dest)))
	require.Equal(t, f.before, hashFolder(t, filepath.Dir(f.source)))
}

// TestPlacesWithoutRoom writes to places with too little space, or that cannot be written. The size of a compressed
// copy is only an estimate and refuses nothing: the file system decides.
func TestPlacesWithoutRoom(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text.raw")
	disk := tableforge.NewMBR(trackSectors+20000, slot(0x83, trackSectors, 20000))
	disk.Put(trackSectors*sectorSize, []byte(strings.Repeat("well packed ", 20000*sectorSize/12)))
	disk.Write(t, text)
	packed := filepath.Join(t.TempDir(), "packed.vmdk")
	require.Equal(t, 0, trueup(t, "align", "--to", "vmdk:streamOptimized", text, packed).code)
	const stream, full = "vmdk:streamOptimized", "no space left on device"
	for name, c := range map[string]struct{ options, source, to, says string }{ // empty: the copy fits
		"known before the first byte":          {"size=512k", sampleDisk(t), "vmdk", `needs .*\(\d+ bytes\).*524288`},
		"enough":                               {"size=2M", sampleDisk(t), "vmdk", ""},
		"read-only":                            {"ro", sampleDisk(t), "vmdk", "read-only file system"},
		"no inodes":                            {"nr_inodes=1", sampleDisk(t), "vmdk", full},
		"to a stream":                          {"size=4M", text, stream, ""},
		"to qcow2":                             {"size=4M", text, "qcow2:compressed", ""},
		"of a stream, which is known to fit":   {"size=4M", packed, stream, ""},
		"of noise, which shows under way only": {"size=4M", noisyDisk(t, 8), stream, full},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFault(t, c.source)
			command := []string{builtPath, "align", "--to", c.to, c.source, f.dest}
			if c.says == "" {
				command = append(command, "-q")
			}
			r := privateMount(t, c.options, filepath.Dir(f.dest), command...)
			if c.says == "" {
				require.Equal(t, 0, r.code, r.stderr)
				require.Empty(t, r.stderr)
				require.Equal(t, filepath.Base(f.dest)+"\n", r.stdout)
				return
			}
			require.Equal(t, 1, r.code, r.stderr)
			requireOneLine(t, r.stderr)
			require.Regexp(t, c.says, r.stderr)
			require.Empty(t, r.stdout, "ls finds nothing, and no success is printed")
			f.requireUndone(t)
		})
	}
	t.Run("a folder that may not be written", func(t *testing.T) {
		t.Parallel()
		f := newFault(t, sampleDisk(t))
		require.NoError(t, os.Chmod(filepath.Dir(f.dest), 0o555))
		command := append([]string{builtPath}, f.args()...)
		if os.Geteuid() == 0 {
			command = append([]string{disktest.Tool(t, "setpriv"), "--bounding-set", "-dac_override"}, command...)
		}
		r := run(t, command[0], command[1:]...)
		f.requireError(t, r, "output")
		require.Contains(t, r.stderr, "permission denied")
	})
	f := newFault(t, sampleDisk(t))
	r := privateMount(t, "size=512k", filepath.Dir(f.dest), disktest.Tool(t, "strace"), "-f", "-qq", "-o",
		"/dev/stdout", "-e", "trace=pwrite64", builtPath, "align", "-q", f.source, f.dest)
	require.Equal(t, 1, r.code)
	require.NotContains(t, r.stdout, "pwrite64(", "not a byte may be written before the refusal")
}

// TestBelowNamesOtherFileSystems requires that finish --below reports a folder that it does not enter.
func TestBelowNamesOtherFileSystems(t *testing.T) {
	t.Parallel()
	lib := t.TempDir()
	other := filepath.Join(lib, "other")
	require.NoError(t, os.Mkdir(other, 0o755))
	r := privateMount(t, "size=1m", other, builtPath, "finish", "--below", lib, "--json")
	require.Equal(t, 4, r.code, r.stderr)
	require.Equal(t, "unsupported", errorCode(t, r))
	require.Contains(t, r.stderr, "other: refused: the folder is on another file system; name it with --below")
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
