package disktest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// moduleOf makes a module in the working directory.
func moduleOf(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	files["go.mod"] = "module x\n"
	for name, text := range files {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
}

func TestMade(t *testing.T) {
	DataFile(t, "/var/lib/dpkg/status")
	moduleOf(t, map[string]string{"recipe": "one", "other": "x"})
	var fills atomic.Int32
	made := func(name string) string {
		return Made(t, name, []string{"recipe"}, func(dir string) {
			n := fills.Add(1)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "disk"), []byte(strconv.Itoa(int(n))), 0o600))
		})
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { made("disk") })
	}
	all.Wait()
	require.EqualValues(t, 1, fills.Load(), "it is made once")
	first := made("disk")
	require.Equal(t, "1", string(ReadFile(t, filepath.Join(first, "disk"))))
	require.Equal(t, ".cache", filepath.Base(filepath.Dir(filepath.Dir(first))))
	require.NoError(t, os.WriteFile("other", nil, 0o600))
	require.Equal(t, first, made("disk"), "no part of the recipe")
	require.NotEqual(t, first, made("disk2"))

	require.NoError(t, os.WriteFile("recipe", []byte("two"), 0o600))
	second := made("disk")
	require.NotEqual(t, first, second)
	require.Equal(t, "3", string(ReadFile(t, filepath.Join(second, "disk"))))
	require.DirExists(t, first, "another process may read it")
	old := time.Now().Add(-2 * obsolete)
	require.NoError(t, os.Chtimes(first, old, old))
	require.NoError(t, os.WriteFile("recipe", []byte("three"), 0o600))
	third := made("disk")
	require.NoDirExists(t, first)
	require.Len(t, Names(t, filepath.Dir(third)), 3, "nothing is left of the work")
}

// A recipe that fails leaves nothing, and is tried again.
func TestMadeFails(t *testing.T) {
	DataFile(t, "/var/lib/dpkg/status")
	moduleOf(t, map[string]string{"recipe": "one"})
	ended := make(chan struct{})
	go func() { // a skip ends its goroutine like a panic
		defer close(ended)
		defer func() { _ = recover() }()
		Made(t, "disk", []string{"recipe"}, func(string) { panic("no tool") })
	}()
	<-ended
	require.Empty(t, Names(t, ".cache/testdisks"))
	require.DirExists(t, Made(t, "disk", []string{"recipe"}, func(string) {}))
}

// ignoringEnv marks the process that TestDefaultSignals starts with signals ignored.
const ignoringEnv = "TRUEUP_TEST_IGNORING"

var ignoredMask = regexp.MustCompile(`(?m)^SigIgn:\s+([0-9a-f]{16})$`)

// ignored reports whether a program that is started now has a signal ignored.
func ignored(t *testing.T, s syscall.Signal) bool {
	t.Helper()
	m := ignoredMask.FindStringSubmatch(Output(t, "cat", "/proc/self/status"))
	require.NotNil(t, m)
	mask, err := strconv.ParseUint(m[1], 16, 64)
	require.NoError(t, err)
	return mask>>(s-1)&1 == 1
}

// Tests that send signals hold under nohup and in the background of a shell.
func TestDefaultSignals(t *testing.T) {
	signals := []syscall.Signal{syscall.SIGINT, syscall.SIGHUP}
	if os.Getenv(ignoringEnv) == "" {
		again := exec.Command(Tool(t, "sh"), "-c", `trap '' INT HUP; exec "$@"`, "sh", os.Args[0],
			"-test.run=^TestDefaultSignals$")
		again.Env = append(os.Environ(), ignoringEnv+"=1")
		out, err := again.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return
	}
	for _, s := range signals {
		require.True(t, ignored(t, s), "%v is not ignored here, which the test needs", s)
	}
	DefaultSignals()
	for _, s := range signals {
		require.False(t, ignored(t, s), "%v", s)
	}
}

func TestWaitSettled(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/before", nil, 0o644))
	WaitSettled(t, dir)
	require.NoError(t, os.WriteFile(dir+"/after", nil, 0o644))
	before, err := os.Stat(dir + "/before")
	require.NoError(t, err)
	after, err := os.Stat(dir + "/after")
	require.NoError(t, err)
	require.True(t, after.ModTime().After(before.ModTime()))
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 2, "nothing is left of the wait")
}

func TestGoroutinesFindsALeak(t *testing.T) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		<-end
	}()
	leaks := func() int {
		found := 0
		for _, stack := range goroutines() {
			if strings.Contains(stack, "TestGoroutinesFindsALeak.func1") {
				found++
			}
		}
		return found
	}
	require.Equal(t, 1, leaks())
	close(end)
	<-ended
	WaitFor(t, "the end of the goroutine", func() bool { return leaks() == 0 })
}
