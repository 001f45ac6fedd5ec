package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// ownFiles are what the program opens beside images: the first three at the start of the runtimes of Go and C, the
// others when workers are restricted and that is proved from outside.
var ownFiles = regexp.MustCompile(
	`^(/sys/kernel/mm/transparent_hugepage/hpage_pmd_size|/sys/fs/cgroup/.*|/sys/devices/system/cpu/online|` +
		`/proc/(self|\d+)/(status|cgroup|mountinfo|maps|fd|task(/\d+(/status)?)?)|/dev/null)$`)

var (
	openCall = regexp.MustCompile(`^\d+ +(?:openat2?|open|creat)\((?:(?:AT_FDCWD|\d+)<([^>]*)>, )?"((?:[^"\\]|\\.)*)"`)
	execCall = regexp.MustCompile(`^\d+ +execve(?:at)?\("([^"]*)"`)
	netCall  = regexp.MustCompile(`^\d+ +(socket|connect|bind|sendto|socketpair)\(`)
)

// opened runs a scan under strace and gives the paths that any of its processes opened. That it starts no program but
// itself, and makes no socket, is required.
func opened(t *testing.T, args ...string) (paths []string, r result) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "calls")
	r = run(t, disktest.Tool(t, "strace"), append([]string{
		"-f", "-y", "-qq", "-s", "4096", "-o", log, "-e", "signal=none", "-e",
		"trace=/^(open|openat|openat2|creat|execve|execveat|socket|connect|bind|sendto|socketpair)$", builtPath, "scan",
		"-o", "json",
	}, args...)...)
	text := disktest.ReadFile(t, log)
	starts := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		require.NotRegexp(t, netCall, line)
		if m := execCall.FindStringSubmatch(line); m != nil {
			require.Contains(t, []string{builtPath, "/proc/self/exe"}, m[1], line)
			starts++
		}
		if m := openCall.FindStringSubmatch(line); m != nil {
			if path := m[2]; filepath.IsAbs(path) || m[1] == "" {
				paths = append(paths, path)
			} else {
				paths = append(paths, filepath.Join(m[1], path))
			}
		}
	}
	require.NotEmpty(t, paths)
	require.Positive(t, starts)
	return paths, r
}

// Nothing but the library is opened, whatever its images name, and no process but the program itself is started.
func TestScanOpensNothingElse(t *testing.T) {
	t.Parallel()
	k := newEveryKind(t)
	usual := startup(t)
	var seen []string
	paths, r := opened(t, k.dir)
	for _, path := range paths {
		if below, ok := strings.CutPrefix(path, k.dir+"/"); ok {
			seen = append(seen, below)
			continue
		}
		own := path == k.dir || path == builtPath || usual[path] || ownFiles.MatchString(path)
		require.True(t, own, "opened %q", path) // the program itself is hashed where it has no version
	}
	require.Subset(t, seen, []string{"shadow.vmdk", "backed.qcow2", "deep/two.ova"}, "the trace has no images")
	require.NotContains(t, seen, "folder", "links are not followed")
	require.NotContains(t, seen, "deep/round")
	s := readScan(t, r)
	require.Equal(t, k.want, s.words(k.dir))
}

// What is found does not depend on how it is found.
func TestScanRowsAreTheSame(t *testing.T) {
	t.Parallel()
	needsLandlock(t)
	k := newEveryKind(t)
	usual := scan(t, k.dir)
	require.Equal(t, 1, usual.code)
	require.Equal(t, k.want, usual.words(k.dir))
	require.True(t, usual.sum.Complete)
	require.Equal(t, len(k.want), usual.sum.Images)
	require.Equal(t, "sandbox", usual.sum.Isolation.Achieved, "%+v", usual.sum.Isolation)
	require.Contains(t, usual.sum.Isolation.Layers, "seccomp")
	want := usual.same(t)
	for _, flags := range [][]string{
		{"--isolation", "process"},
		{"--isolation", "none"},
		{"--isolation", "sandbox"},
		{"--jobs", "1"},
		{"--jobs", "2"},
		{"--jobs", "8"},
	} {
		s := scan(t, append(flags, k.dir)...)
		require.Equal(t, want, s.same(t), "%q", flags)
		if flags[0] == "--isolation" {
			require.Equal(t, flags[1], s.sum.Isolation.Achieved)
			require.Equal(t, flags[1], s.sum.Isolation.Wanted) //nolint:testifylint // as it was asked
		}
		require.Equal(t, usual.sum.Read, s.sum.Read, "%q", flags)
	}
}

// Where no process can be started the scan goes on without, and says so.
func TestScanWithoutWorkers(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(sampleDisk(t))
	// The program may not start another one: /proc is not there.
	sh := `mount -t tmpfs none /proc && exec "$@"`
	if out, err := exec.Command(disktest.Tool(t, "unshare"), "--mount", "sh", "-c", sh, "sh",
		"true").CombinedOutput(); err != nil {
		t.Skipf("mount namespaces need root: %s", out)
	}
	r := run(t, disktest.Tool(t, "unshare"), "--mount", "sh", "-c", sh, "sh", builtPath, "scan", "-o", "json", dir)
	s := readScan(t, r)
	require.Equal(t, 3, s.code)
	require.Equal(t, "sandbox", s.sum.Isolation.Wanted)
	require.Equal(t, "none", s.sum.Isolation.Achieved)
	require.NotEmpty(t, s.sum.Isolation.Note)
	require.Contains(t, r.stderr, "trueup: warning: isolation is \"none\", not \"sandbox\"")

	inspect := []string{"--mount", "sh", "-c", sh, "sh", builtPath, "inspect", sampleDisk(t)}
	r = run(t, disktest.Tool(t, "unshare"), inspect...)
	require.Equal(t, 3, r.code, r.stderr)
	require.Contains(t, r.stderr, "trueup: warning: isolation is \"none\", not \"sandbox\" (threads: open "+
		"/proc/self/task")
	r = run(t, disktest.Tool(t, "unshare"), append(inspect, "--require-sandbox")...)
	require.Equal(t, 1, r.code, r.stderr)
}
