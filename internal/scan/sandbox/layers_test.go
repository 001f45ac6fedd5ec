package sandbox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/scan/sandbox"
)

// full starts a worker in the whole sandbox. Without Landlock or seccomp in the kernel there is nothing to test.
func full(t *testing.T, roots ...string) *sandbox.Worker {
	t.Helper()
	w := start(t, sandbox.Options{Roots: roots})
	iso := w.Isolation()
	if iso.Achieved != sandbox.Sandbox {
		t.Skipf("this kernel has not all layers: %s", iso.Note)
	}
	return w
}

func write(t *testing.T, elements ...string) string {
	t.Helper()
	path := filepath.Join(elements...)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte("content"), 0o644))
	return path
}

const (
	permission = "permission denied"       // Landlock's EACCES
	operation  = "operation not permitted" // EPERM of the filter
)

func TestIsolation(t *testing.T) {
	w := full(t)
	iso := w.Isolation()
	require.Equal(t, sandbox.Sandbox, iso.Wanted)
	require.Equal(t, "no-new-privs", iso.Layers[0])
	require.Regexp(t, `^landlock-\d+$`, iso.Layers[1])
	require.Equal(t, []string{"seccomp", "rlimits"}, iso.Layers[2:])
	if !disktest.Raced {
		require.Empty(t, iso.Note)
	}

	w = start(t, sandbox.Options{Level: sandbox.Process})
	iso = w.Isolation()
	require.Equal(t, sandbox.Process, iso.Wanted)
	require.Equal(t, sandbox.Process, iso.Achieved)
	require.Equal(t, []string{"rlimits"}, iso.Layers)
}

// A worker without a limit of its memory is not in the whole sandbox.
func TestIsolationNeedsItsLimits(t *testing.T) {
	for missing, want := range map[string]sandbox.Level{
		"": sandbox.Sandbox, "rlimits": sandbox.Process,
		"landlock-7": sandbox.Process, "seccomp": sandbox.Process,
	} {
		iso := sandbox.Isolation{
			Wanted: sandbox.Sandbox,
			Layers: []string{"no-new-privs", "landlock-7", "seccomp", "rlimits"},
		}
		iso.Layers = slices.DeleteFunc(iso.Layers, func(l string) bool { return l == missing })
		require.Equal(t, want, sandbox.Settled(iso).Achieved, "without %q", missing)
	}
}

// Every thread is restricted, by what the kernel says about it, while it works and thread by thread.
func TestAllThreadsAreRestricted(t *testing.T) {
	w := full(t)
	pid := ask(t, w, "pid")
	ask(t, w, "burn")
	threads, err := filepath.Glob("/proc/" + pid + "/task/*/status")
	require.NoError(t, err)
	require.Greater(t, len(threads), 2)
	for _, name := range threads {
		status := disktest.ReadFile(t, name)
		require.Regexp(t, `(?m)^NoNewPrivs:\t1$`, string(status), name)
		require.Regexp(t, `(?m)^Seccomp:\t2$`, string(status), name)
	}
	limits := disktest.ReadFile(t, "/proc/"+pid+"/limits")
	require.Regexp(t, `(?m)^Max open files +64 +64 `, string(limits))
	require.Regexp(t, `(?m)^Max file size +0 +0 `, string(limits))
	require.Regexp(t, `(?m)^Max core file size +0 +0 `, string(limits))
	require.Regexp(t, `(?m)^Max cpu time +1[1-4] +unlimited `, string(limits))
	if !disktest.Raced {
		require.Regexp(t, `(?m)^Max data size +268435456 +268435456 `, string(limits))
	}
}

func TestReadsItsRootsAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	within := write(t, dir, "library", "deep", "er", "a.vmdk")
	single := write(t, dir, "other", "b.vmdk")
	beside := write(t, dir, "other", "c.vmdk")
	require.NoError(t, os.Symlink(beside, filepath.Join(dir, "library", "link")))
	w := full(t, filepath.Join(dir, "library"), single, filepath.Join(dir, "gone"), filepath.Join(single, "no-folder"))
	for request, want := range map[string]string{
		"read " + within:                             "done",
		"list " + filepath.Dir(within):               "done",
		"list " + filepath.Join(dir, "library"):      "done",
		"read " + single:                             "done",
		"read " + beside:                             permission,
		"read " + filepath.Join(dir, "library/link"): permission,
		"list " + filepath.Join(dir, "other"):        "done",
		"list " + dir:                                permission,
		"list /":                                     permission,
		"read /etc/passwd":                           permission,
		"read /proc/self/status":                     permission,
		"read /proc/self/environ":                    permission,
	} {
		answer := ask(t, w, request)
		require.True(t, strings.HasSuffix(answer, want), "%s: %s, want %s", request, answer, want)
	}
}

// A disk of this machine may be a root.
func TestBlockDevice(t *testing.T) {
	outside := start(t, sandbox.Options{Level: sandbox.Process})
	for _, pattern := range []string{"/dev/loop[0-9]*", "/dev/[svx]d?", "/dev/vd[a-z]", "/dev/nvme?n?"} {
		names, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, name := range names {
			if ask(t, outside, "sectors "+name) == "done" {
				require.Equal(t, "done", ask(t, full(t, name), "sectors "+name))
				require.Equal(t, permission, ask(t, full(t), "sectors "+name))
				return
			}
		}
	}
	t.Skip("no block device that this user may read")
}

func TestChangesNothing(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "a.vmdk")
	w := full(t, dir)
	for _, request := range []string{
		"create " + file, "create " + filepath.Join(dir, "new"), "append " + file, "cut " + file, "truncate " + file,
		"mkdir " + dir, "remove " + file,
		"chmod " + file, "touch " + file, "tmpfile " + dir,
	} {
		answer := ask(t, w, request)
		require.True(t, strings.HasSuffix(answer, operation) || strings.HasSuffix(answer, permission), "%s: %s",
			request,
			answer)
	}
	content := disktest.ReadFile(t, file)
	require.Equal(t, "content", string(content))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

func TestReachesNobody(t *testing.T) {
	w := full(t, "/bin", "/usr")
	for request, want := range map[string]string{
		"exec /bin/true":                 operation,
		"execself /bin/true":             operation,
		"fork":                           operation,
		"clone3":                         "function not implemented",
		"socket":                         operation,
		"unixsocket":                     operation,
		fmt.Sprint("kill ", os.Getpid()): operation,
		"kill " + ask(t, w, "pid"):       "done",
		"ptrace":                         operation,
		"unshare":                        operation,
		"uring":                          "function not implemented",
		"mount":                          operation,
		"code":                           operation,
		"ioctl":                          operation,
		"limits":                         operation,
	} {
		answer := ask(t, w, request)
		require.True(t, strings.HasSuffix(answer, want), "%s: %s, want %s", request, answer, want)
	}
}

// The deeds that are refused can be done where nothing restricts them; else the refusals would prove nothing.
func TestDeedsCanBeDoneOutside(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "a.vmdk")
	w := start(t, sandbox.Options{Level: sandbox.Process})
	for _, request := range []string{
		"read " + file, "list " + dir, "read /proc/self/status", "append " + file, "chmod " + file, "touch " + file,
		"cut " +
			file, "truncate " + file,
		"mkdir " + dir, "create " + filepath.Join(dir, "made"), "tmpfile " + dir, "remove " + file, "exec /bin/true",
		"socket", "unixsocket",
		fmt.Sprint("kill ", os.Getpid()), "code", "ioctl",
	} {
		require.Equal(t, "done", ask(t, w, request), request)
	}
}

// A worker gets nothing that its parent was started with, whatever the level: not a file to read, a pipe to write to,
// or a file that a shared mapping would change.
func TestInheritsNothing(t *testing.T) {
	file := write(t, t.TempDir(), "outside")
	readable, err := unix.Open(file, unix.O_RDONLY, 0) // without O_CLOEXEC, as shells and make hand them down
	require.NoError(t, err)
	defer unix.Close(readable)
	writable, err := unix.Open(file, unix.O_RDWR, 0)
	require.NoError(t, err)
	defer unix.Close(writable)
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_NONBLOCK))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		w := start(t, sandbox.Options{Level: level})
		require.NotContains(t, w.Isolation().Note, "descriptor")
		for _, request := range []string{
			fmt.Sprint("pread ", readable), fmt.Sprint("send ", pipe[1]), fmt.Sprint("overwrite ", writable),
		} {
			require.NotEqual(t, "done", ask(t, w, request), "%s: %s", level, request)
		}
	}
	content := disktest.ReadFile(t, file)
	require.Equal(t, "content", string(content))
	_, err = unix.Read(pipe[0], make([]byte, 1))
	require.ErrorIs(t, err, unix.EAGAIN)
}

func TestNoSharedMapping(t *testing.T) {
	file := write(t, t.TempDir(), "a")
	require.Equal(t, "done", ask(t, start(t, sandbox.Options{Level: sandbox.Process}), "share "+file))
	require.Equal(t, operation, ask(t, full(t, file), "share "+file))
}

func TestFewDescriptors(t *testing.T) {
	file := write(t, t.TempDir(), "a")
	for level := range map[sandbox.Level]bool{sandbox.Process: true, sandbox.Sandbox: true} {
		w := start(t, sandbox.Options{Level: level, Roots: []string{file}, Limits: sandbox.Limits{Files: 20}})
		require.Equal(t, "too many open files", ask(t, w, "files "+file))
	}
}

// A library may be a list of thousands of files.
func TestThousandsOfRoots(t *testing.T) {
	dir := t.TempDir()
	roots := make([]string, 0, 2000)
	for i := range 2000 {
		roots = append(roots, write(t, dir, strconv.Itoa(i)))
	}
	last := write(t, dir, "last")
	w := full(t, roots...)
	require.Equal(t, "done", ask(t, w, "read "+roots[0]))
	require.Equal(t, "done", ask(t, w, "read "+roots[1999]))
	require.Contains(t, ask(t, w, "read "+last), permission)
}

// Names are bytes.
func TestRootsOfAnyBytes(t *testing.T) {
	file := write(t, t.TempDir(), "a\xff\n b")
	require.Equal(t, "done", ask(t, full(t, file), "read "+file))
}

// What a worker of the lower level has started ends with it.
func TestChildrenEndWithTheirWorker(t *testing.T) {
	w := start(t, sandbox.Options{Level: sandbox.Process})
	child, err := strconv.Atoi(ask(t, w, "child"))
	require.NoError(t, err)
	require.NoError(t, unix.Kill(child, 0))
	require.NoError(t, w.Close())
	gone(t, child)
}

// BenchmarkCall measures an empty request.
func BenchmarkCall(b *testing.B) {
	for _, level := range []sandbox.Level{sandbox.Process, sandbox.Sandbox} {
		b.Run(string(level), func(b *testing.B) {
			w, err := sandbox.Start(b.Context(), sandbox.Options{Args: []string{asWorker}, Level: level})
			require.NoError(b, err)
			request := []byte("echo x")
			for b.Loop() {
				if _, err := w.Call(b.Context(), request); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, w.Close())
		})
	}
}

// BenchmarkStart measures the start of a worker, with few roots and with many.
func BenchmarkStart(b *testing.B) {
	dir := b.TempDir()
	var roots []string
	for i := range 10_000 {
		roots = append(roots, filepath.Join(dir, strconv.Itoa(i)))
	}
	fill(b, roots)
	for name, o := range map[string]sandbox.Options{
		"process":               {Level: sandbox.Process},
		"sandbox, one root":     {Level: sandbox.Sandbox, Roots: []string{dir}},
		"sandbox, 1000 roots":   {Level: sandbox.Sandbox, Roots: roots[:1000]},
		"sandbox, 10,000 roots": {Level: sandbox.Sandbox, Roots: roots},
	} {
		b.Run(name, func(b *testing.B) {
			o.Args = []string{asWorker}
			for b.Loop() {
				w, err := sandbox.Start(b.Context(), o)
				require.NoError(b, err)
				require.NoError(b, w.Close())
			}
		})
	}
}

// BenchmarkConfine measures a command that confines itself, in a new process each time, as a median.
func BenchmarkConfine(b *testing.B) {
	dir := b.TempDir()
	var took []time.Duration
	for b.Loop() {
		took = append(took, inConfinement(b, "", sandbox.Access{Read: []string{dir}, Write: []string{dir}}).Took)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs/median")
	b.ReportMetric(float64(took[0].Microseconds()), "µs/least")
}

// fill makes files of one byte.
func fill(b *testing.B, paths []string) {
	b.Helper()
	for _, path := range paths {
		require.NoError(b, os.WriteFile(path, []byte("x"), 0o600))
	}
}
