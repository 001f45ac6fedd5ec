package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// nameCall is a system call that takes a file name or makes a connection, as strace prints it.
type nameCall struct {
	name  string
	paths []string // every quoted argument
	line  string
}

var (
	callLine   = regexp.MustCompile(`^(?:\[pid +\d+\] |\d+ +)?([a-z0-9_]+)\((.*)`)
	quotedText = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
)

// openFiles are where a program looks for others that have a file open for writing, before it confines itself: the
// folders of their descriptors, what the kernel says about each, and the list of block devices.
var openFiles = regexp.MustCompile(`^(/proc(/\d+/(fd|fdinfo/\d+|comm))?|/sys/class/block)$`)

// openFile is a descriptor of another program, which may be looked at and not opened.
var openFile = regexp.MustCompile(`^/proc/\d+/fd/\d+$`)

// traced runs trueup under strace and returns the calls that name files or reach for the network. The command sees no
// block devices: it would ask each loop device of the machine, also those of other tests, for its file.
func traced(t *testing.T, args ...string) []nameCall {
	t.Helper()
	log := filepath.Join(t.TempDir(), "calls")
	command := []string{
		disktest.Tool(t, "strace"), "-f", "-qq", "-s", "8192", "-o", log,
		"-e", "trace=%file,%network,execve", builtPath,
	}
	privateMount(t, "size=1m", "/sys/class/block", append(command, args...)...) // the exit code is judged elsewhere
	text := disktest.ReadFile(t, log)
	var calls []nameCall
	for line := range strings.Lines(string(text)) {
		m := callLine.FindStringSubmatch(line)
		if m == nil {
			continue // the end of a call that another thread interrupted, or a signal
		}
		c := nameCall{name: m[1], line: strings.TrimSpace(line)}
		for _, q := range quotedText.FindAllStringSubmatch(m[2], -1) {
			c.paths = append(c.paths, q[1])
		}
		calls = append(calls, c)
	}
	require.NotEmpty(t, calls, "strace cannot trace here")
	require.Equal(t, "execve", calls[0].name)
	return calls[1:]
}

// startup are the names that any Go program looks at before it does anything: those of `trueup version`.
func startup(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, c := range traced(t, "version") {
		for _, p := range c.paths {
			names[p] = true
		}
	}
	return names
}

// watch tells what a command may look at and open beside the image and its folder.
type watch struct {
	usual map[string]bool // names of startup
	seen  []string        // names in the folder that may be looked up
	open  []string        // and opened
}

// check runs inspect and align under strace and requires that they look up no other name, open no other file, start no
// program and make no socket.
func (w watch) check(t *testing.T, path string) {
	t.Helper()
	dest := filepath.Join(t.TempDir(), "dest.vmdk")
	for _, args := range [][]string{{"inspect", path}, {"align", path, dest}} {
		for _, c := range traced(t, args...) {
			w.checkCall(t, path, dest, c)
		}
	}
}

func (w watch) checkCall(t *testing.T, path, dest string, c nameCall) {
	t.Helper()
	for _, bad := range []string{"socket", "connect", "execve", "sendto", "bind"} {
		require.NotEqual(t, bad, c.name, c.line)
	}
	opens := strings.HasPrefix(c.name, "open")
	for _, p := range c.paths {
		folder := strings.HasPrefix(path, p+"/") || p == "."
		allowed := w.usual[p] || folder || p == path || p == filepath.Base(path)
		// the command confines itself to the folder of DEST
		allowed = allowed || ownFiles.MatchString(p) || strings.HasPrefix(dest, p)
		// of work that was left open
		for _, name := range []string{
			"%s.trueup", ".%s.partial", ".%s.replaced", ".%s.exchange", ".%s.trial", ".%s.moved",
		} {
			allowed = allowed || !opens && p == fmt.Sprintf(name, filepath.Base(path))
		}
		for _, name := range w.open {
			allowed = allowed || p == name
		}
		for _, name := range w.seen {
			allowed = allowed || (p == name && !opens)
		}
		allowed = allowed || openFiles.MatchString(p) || !opens && openFile.MatchString(p)
		require.True(t, allowed, "touches %q: %s", p, c.line)
	}
}
