package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// server is a running trueup serve.
type server struct {
	cmd            *exec.Cmd
	stdout, stderr lockedBuffer
	done           chan struct{} // closed when it has ended
	URI            string
}

// startServe starts a server and waits for its address.
func startServe(t testing.TB, name string, args ...string) *server {
	t.Helper()
	s := &server{cmd: exec.Command(name, args...), done: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = &s.stdout, &s.stderr
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM) // it removes its socket
		<-s.done
	})
	go func() {
		_ = s.cmd.Wait()
		close(s.done)
	}()
	disktest.WaitFor(t, "the address of "+fmt.Sprint(args), func() bool {
		select {
		case <-s.done:
			t.Fatalf("%q ended: %s%s", args, s.stdout.String(), s.stderr.String())
		default:
		}
		return json.Unmarshal([]byte(s.stdout.String()), s) == nil
	})
	return s
}

func serving(t testing.TB, args ...string) *server {
	t.Helper()
	return startServe(t, builtPath, append([]string{"serve", "--json"}, args...)...)
}

// socket returns the path of its socket.
func (s *server) socket() string { return strings.TrimPrefix(s.URI, "nbd+unix:///?socket=") }

// ended waits for the end and returns the exit code. The socket is removed then, and so is its own folder.
func (s *server) ended(t testing.TB) int {
	t.Helper()
	disktest.WaitClosed(t, "the end of the server", s.done)
	require.NoFileExists(t, s.socket())
	folders, err := filepath.Glob(filepath.Join(filepath.Dir(s.socket()), "trueup-nbd-*"))
	require.NoError(t, err)
	require.Empty(t, folders)
	if strings.Contains(s.socket(), "trueup-nbd-") {
		require.NoDirExists(t, filepath.Dir(s.socket()))
	}
	return s.cmd.ProcessState.ExitCode()
}

func (s *server) signal(t testing.TB, by syscall.Signal) int {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(by))
	return s.ended(t)
}

// Signals end a server, and its socket is removed.
func TestServeEndsBySignals(t *testing.T) {
	t.Parallel()
	unbootable := filepath.Join(t.TempDir(), "unbootable.raw")
	require.Equal(t, 0, trueup(t, "convert", "--to", "raw", sampleDisk(t), unbootable).code)
	disktest.WriteAt(t, unbootable, 0, noise("unknown code", 64))
	socket := filepath.Join(t.TempDir(), "socket")
	require.Equal(t, 0, serving(t, "--allow-unbootable", unbootable).signal(t, syscall.SIGINT))
	require.Equal(t, 0, serving(t, "--as-is", "--socket", socket, unbootable).signal(t, syscall.SIGHUP))
}

// The printed commands work. virt-v2v needs a system of its own kind, so only its input file is checked.
func TestServePrintsCommands(t *testing.T) {
	t.Parallel()
	source, dir := sampleDisk(t), t.TempDir()
	want := filepath.Join(dir, "want.img")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", source, want).code)
	cmd := exec.Command(builtPath, "serve", "--socket", filepath.Join(t.TempDir(), "a socket"), source)
	var out lockedBuffer
	cmd.Stdout = &out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait())
	})
	lines := regexp.MustCompile(`(?m)^  .*(qemu-img convert|nbdcopy|guestfish|virt-v2v) .*$`)
	commands := map[string]string{}
	disktest.WaitFor(t, "the commands", func() bool {
		for _, found := range lines.FindAllStringSubmatch(out.String(), -1) {
			commands[found[1]] = strings.TrimSpace(found[0])
		}
		return len(commands) == 4
	})
	fake := strings.Replace(commands["virt-v2v"], "&& virt-v2v -i disk v2v.qcow2 ", "&& echo looks at v2v.qcow2 ", 1)
	require.Contains(t, disktest.Run(t, "sh", "-c", "cd "+dir+" && "+fake), "looks at v2v.qcow2")
	for _, program := range []string{"qemu-img convert", "nbdcopy"} {
		disktest.Run(t, "sh", "-c", "cd "+dir+" && "+commands[program])
	}
	disktest.Run(t, "cmp", want, filepath.Join(dir, "copy.img"))
	for _, name := range []string{"copy.qcow2", "v2v.qcow2"} {
		disktest.Run(t, "qemu-img", "compare", "-f", "raw", "-F", "qcow2", want, filepath.Join(dir, name))
	}
	if !disktest.Exhaustive {
		return
	}
	t.Run("guestfish", func(t *testing.T) { // its appliance takes a quarter of a minute to start
		requireKernel(t)
		sum := startGuestfish(t, commands["guestfish"], "run\nchecksum-device sha256 /dev/sda\n")
		require.Equal(t, sha256Of(t, want)+"\n", sum)
	})
}

// A server ends after its clients, or with its caller. systemd passes its socket.
func TestServeEnds(t *testing.T) {
	t.Parallel()
	source := sampleDisk(t)
	s := serving(t, "--once", source)
	disktest.Run(t, "nbdinfo", s.URI)
	require.Equal(t, 0, s.ended(t))

	parent := startServe(t, "sh", "-c", builtPath+` serve --json --exit-with-parent "$0" & echo >&2 $!; wait`, source)
	pid, err := strconv.Atoi(strings.TrimSpace(parent.stderr.String()))
	require.NoError(t, err)
	disktest.Run(t, "nbdinfo", "--size", parent.URI)
	require.NoError(t, parent.cmd.Process.Kill())
	disktest.WaitFor(t, "the end of the orphan", func() bool { return syscall.Kill(pid, 0) != nil })
	require.NoDirExists(t, filepath.Dir(parent.socket()))

	socket := filepath.Join(t.TempDir(), "s") // it exists before the disk is planned
	out, err := exec.Command("sh", "-c",
		builtPath+` serve --exit-with-parent --socket "$1" "$0" >/dev/null 2>&1 & echo $!
		until [ -S "$1" ]; do :; done`, source, socket).Output()
	require.NoError(t, err)
	pid, err = strconv.Atoi(strings.TrimSpace(string(out)))
	require.NoError(t, err)
	disktest.WaitFor(t, "the end of a server whose parent was fast", func() bool { return syscall.Kill(pid, 0) != nil })

	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "systemd"))
	require.NoError(t, err)
	f, err := l.(*net.UnixListener).File()
	require.NoError(t, err)
	activated := &server{cmd: exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" serve --once --json "$1"`,
		builtPath, source)}
	activated.cmd.ExtraFiles = []*os.File{f}
	activated.cmd.Stdout = &activated.stdout
	require.NoError(t, activated.cmd.Start())
	disktest.Run(t, "nbdinfo", "nbd+unix:///?socket="+l.Addr().String()) // it waits for the server
	require.NoError(t, activated.cmd.Wait())
	validate(t, activated.stdout.String())
	require.FileExists(t, l.Addr().String(), "the socket is systemd's")
}

// A source that changes ends the server with an error, and its clients fail too.
func TestServeChangedSource(t *testing.T) {
	t.Parallel()
	source := pairDisk(t)
	s := serving(t, source)
	disktest.WriteAt(t, source, 5<<20, []byte("new"))
	require.Equal(t, 1, s.ended(t))
	require.Contains(t, s.stderr.String(), "changed while it was read")
	require.Contains(t, s.stderr.String(), "may be wrong")
	require.Error(t, exec.Command(disktest.Tool(t, "nbdinfo"), s.URI).Run())

	s = serving(t, "--as-is", source)
	require.NoError(t, os.Truncate(source, 0))
	_ = exec.Command(disktest.Tool(t, "nbdcopy"), s.URI, "null:").Run()
	require.Equal(t, 1, s.ended(t))
}

// A server is confined before it opens an image, and still accepts clients of both kinds.
func TestServeIsConfined(t *testing.T) {
	t.Parallel()
	needsLandlock(t)
	log := filepath.Join(t.TempDir(), "calls")
	s := startServe(t, disktest.Tool(t, "strace"), "-f", "-qq", "-s", "4096", "-o", log, "-e",
		"trace=/^(open.*|landlock_restrict_self|seccomp)$", builtPath, "serve", "--json", "--once", "--require-sandbox",
		sampleDisk(t))
	disktest.Run(t, "nbdinfo", s.URI)
	require.Equal(t, 0, s.ended(t), s.stderr.String())
	text := disktest.ReadFile(t, log)
	requireConfined(t, string(text))
}

// A server stays within its memory with ten thousand connections, and with clients that do not read.
func TestServeMemory(t *testing.T) {
	t.Parallel()
	s := serving(t, "--as-is", pairDisk(t))
	greeting := []byte("\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x00")
	request := []byte("\x25\x60\x95\x13\x00\x00\x00\x00cookie\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x40\x00\x00")
	var open []net.Conn
	for i := range 10_000 {
		var c net.Conn
		disktest.WaitFor(t, "room in the queue of the socket", func() bool {
			var err error
			c, err = net.Dial("unix", s.socket())
			return err == nil
		})
		if i < 300 { // replies of 4 MiB that are never read; some get no slot
			_, _ = c.Write(append(bytes.Clone(greeting), bytes.Repeat(request, 32)...))
		}
		if open = append(open, c); len(open) > 600 {
			open[300].Close()
			open = append(open[:300], open[301:]...)
		}
	}
	for _, c := range open {
		c.Close()
	}
	disktest.WaitFor(t, "a place", func() bool {
		return exec.Command(disktest.Tool(t, "nbdinfo"), "--size", s.URI).Run() == nil
	})
	status := disktest.ReadFile(t, fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	peak := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindStringSubmatch(string(status))
	require.NotNil(t, peak)
	kib, err := strconv.Atoi(peak[1])
	require.NoError(t, err)
	t.Logf("peak: %d KiB", kib)
	require.Less(t, kib, 64<<10)
	require.Equal(t, 0, s.signal(t, syscall.SIGTERM))
}

// viewName is the name of a test's view, in the folder of the disk.
const viewName = "the-view.vmdk"

// requireSameView makes a view of a disk, has QEMU compare it with the aligned copy, and removes it.
func requireSameView(t testing.TB, source, aligned string, flags ...string) {
	t.Helper()
	removeView(t, sameView(t, source, aligned, flags...))
}

// sameView is requireSameView, but keeps the view and returns its path.
func sameView(t testing.TB, source, aligned string, flags ...string) (view string) {
	t.Helper()
	view = filepath.Join(filepath.Dir(source), viewName)
	r := trueup(t, append([]string{"view", source, view}, flags...)...)
	require.Equal(t, 0, r.code, "%s%s", r.stdout, r.stderr)
	format := "raw"
	if filepath.Ext(aligned) == ".vmdk" {
		format = "vmdk"
	}
	require.Contains(t, disktest.Run(t, "qemu-img", "compare", "-f", "vmdk", "-F", format, view, aligned), "identical")
	return view
}

// removeView removes the two files of a view.
func removeView(t testing.TB, view string) {
	t.Helper()
	require.NoError(t, os.Remove(view))
	require.NoError(t, os.Remove(strings.TrimSuffix(view, ".vmdk")+"-head.vmdk"))
}

// flatCorpus lists raw disks and flat VMDKs of the corpus, with the flags that they need.
var flatCorpus = map[string][]string{
	"dfvfs/mbr.raw.gz": nil, "imagemounter/test.mbr.xz": nil, "mbrman/disk2.img": nil,
	"vmdk-rs/monolithicFlat.vmdk": {"--boundary", "1M"},
}

// TestViewIsTheCopy compares view and copy of disks made by others, and of disks that only a text can describe. A view
// is refused if a copy is.
func TestViewIsTheCopy(t *testing.T) {
	t.Parallel()
	same := func(t *testing.T, source string, flags ...string) {
		t.Helper()
		before := folderState(t, filepath.Dir(source))
		dest := filepath.Join(t.TempDir(), "copy.raw")
		r := trueup(t, append([]string{"align", "--to", "raw", source, dest}, flags...)...)
		name := filepath.Base(t.Name())
		// the last has a block for each partition
		if want, ok := map[string]int{"dynamic-disk": 4, "disk2.img": 0}[name]; ok {
			require.Equal(t, want, r.code)
			require.Equal(t, 4, trueup(t, "view", source, filepath.Join(filepath.Dir(source),
				viewName)).code)
		} else {
			require.Equal(t, 0, r.code, r.stderr)
			requireSameView(t, source, dest, flags...)
		}
		require.Equal(t, before, folderState(t, filepath.Dir(source)))
	}
	for name, path := range disktest.Fixtures(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			same(t, disktest.Materialize(t, disktest.Fixture(t, path)), "--allow-unbootable")
		})
	}
	for _, name := range slices.Sorted(maps.Keys(flatCorpus)) {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(disktest.CorpusSet(t, filepath.Dir(name)), filepath.Base(name))
			if strings.HasSuffix(name, "z") {
				path = disktest.Corpus(t, name)
			}
			same(t, path, flatCorpus[name]...)
		})
	}
}
