// Package disktest holds what the tests of several packages share: outside tools and images made elsewhere.
package disktest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// systemDirs hold tools such as sfdisk that Debian keeps off the PATH of an ordinary user.
var systemDirs = []string{"/sbin", "/usr/sbin", "/usr/local/sbin"}

// machines are the programs that start a virtual machine or a browser, each of which takes seconds to minutes of
// processor time.
var machines = []string{"qemu-system-x86_64", "guestfish", "chromium"}

// AllTests reports whether tests that start a machine run, as in make test-further.
func AllTests() bool { return Exhaustive || os.Getenv("TRUEUP_TESTS") == "all" }

// ofThisMachine keeps Go's test cache from taking a result of another machine, of other tools, or of a share of the
// cases, for that of a test.
func ofThisMachine() {
	os.Getenv("TRUEUP_MACHINE")
	os.Getenv("TRUEUP_EXHAUSTIVE") // a package variable reads it before the cache does
}

// The ends of the reasons for which tests are skipped.
const (
	Missing = " is missing"
	Later   = " runs in make test-all"
)

// Tool returns the path of an outside program. A test that lacks one is skipped on a developer's machine and fails
// where REQUIRE_TOOLS=1 says that everything is installed, so that CI cannot lose a proof in silence; one that starts a
// machine is skipped unless AllTests. Windows has none: programs that Wine finds there are for Linux, and do not know
// paths of Windows.
func Tool(t testing.TB, name string) string {
	t.Helper()
	ofThisMachine()
	if slices.Contains(machines, name) && !AllTests() {
		t.Skip(name + Later)
	}
	if runtime.GOOS == "windows" {
		t.Skipf("the program %s is not run on Windows", name)
	}
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, dir := range systemDirs {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	missing(t, "the program "+name)
	return ""
}

// DataFile returns path if the file exists: one installed by a tool's package, such as syslinux's boot code, or a
// script of the module, which Go's test cache then watches. If it is missing, the test skips or fails as in Tool.
func DataFile(t testing.TB, path string) string {
	t.Helper()
	ofThisMachine()
	if _, err := os.Stat(path); err != nil {
		missing(t, path)
	}
	return path
}

func missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("REQUIRE_TOOLS") == "1" {
		t.Fatal(what + Missing + ", and REQUIRE_TOOLS=1 forbids a skip")
	}
	t.Skip(what + Missing)
}

// Run runs an outside program to its end and returns what it printed, standard output before standard error. Any other
// end than success fails the test.
func Run(t testing.TB, name string, args ...string) string {
	t.Helper()
	return RunInput(t, "", name, args...)
}

// RunInput is Run with a text on the program's standard input, as sfdisk wants it.
func RunInput(t testing.TB, input, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(Tool(t, name), args...)
	cmd.Stdin = strings.NewReader(input)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String() + errs.String()
}

// Output is Run for answers that a test parses: standard output alone.
func Output(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(Tool(t, name), args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, errs.String())
	}
	return string(out)
}

// RunLUKS is Run for qemu-img making an encrypted image. It measures the speed of the processor for the key, which a
// busy machine can make fail; then it is run again.
func RunLUKS(t testing.TB, args ...string) {
	t.Helper()
	WaitFor(t, "qemu-img to derive a key", func() bool {
		out, err := exec.Command(Tool(t, "qemu-img"), args...).CombinedOutput()
		if err != nil && !strings.Contains(string(out), "CPU usage") {
			t.Fatalf("qemu-img %q: %v\n%s", args, err, out)
		}
		return err == nil
	})
}

// Number parses a decimal number in the output of a tool.
func Number(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return n
}

// ios is how many I/Os each job of Fio does. They take some milliseconds, the unit of the time of a rate.
const ios = 300

// Fio makes a program of fio whose jobs end by a number of I/Os instead of a time, since a busy machine has time for
// none. It says that they took the time they were given.
func Fio(t testing.TB) (path string) {
	t.Helper()
	script := fmt.Sprintf(`#!/bin/sh
for arg; do
	shift
	case $arg in
	--time_based=1) continue;;
	--runtime=*ms) given=${arg#--runtime=}; arg=--number_ios=%d;;
	esac
	set -- "$@" "$arg"
done
out=$(%s "$@") || exit
printf '%%s\n' "$out" | sed "s/\"runtime\" : [0-9]*/\"runtime\" : ${given%%ms}/"
`, ios, Tool(t, "fio"))
	path = filepath.Join(t.TempDir(), "fio")
	// A file that this process wrote could be busy.
	RunInput(t, script, "sh", "-c", `cat > "$0" && chmod 755 "$0"`, path)
	return path
}

// LoopLock is a file that is locked while a loop device is attached: losetup opens the free device that it was given
// also where another program was faster, and that device is in use then.
func LoopLock() string { return filepath.Join(os.TempDir(), "trueup-tests-losetup.lock") }

// LoopAttach is a script for sh under LoopLock that shows a file as a block device, whose path it prints. A free device
// can still have partitions that another program left there, perhaps mounted: the script takes one without.
const LoopAttach = `
	parts() { ls -d "/sys/block/${device##*/}/${device##*/}"p* >/dev/null 2>&1; }
	empty=$(mktemp) && truncate -s 1M "$empty"
	for try in $(seq 100); do
		device=$(losetup -f --show "$@"); code=$?
		case "$code $*" in 0*--partscan*) break;; 0*) parts || break;; *) break;; esac
		losetup -d "$device"; code=1
		losetup "$device" "$empty" 2>/dev/null && held="$held $device"
	done
	for other in $held; do losetup -d "$other"; done
	rm -f "$empty"
	[ $code = 0 ] && echo "$device"`

// LoopDevice shows a file as a block device until the test ends. Where the machine gives no right to that, the test is
// skipped, whatever tools it has.
func LoopDevice(t testing.TB, file string, options ...string) (path string) {
	t.Helper()
	Tool(t, "losetup")
	args := append([]string{LoopLock(), "sh", "-c", LoopAttach, "sh", file}, options...)
	cmd := exec.Command(Tool(t, "flock"), args...)
	// What it writes there is an error, or a warning of a file that is smaller than a sector, and no part of the path.
	var messages strings.Builder
	cmd.Stderr = &messages
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("no loop device on this machine: %s", &messages)
	}
	path = strings.TrimSpace(string(out))
	t.Cleanup(func() {
		left, err := filepath.Glob("/sys/block/" + filepath.Base(path) + "/*/partition")
		if err == nil && len(left) > 0 {
			Run(t, "partx", "-d", path) // they would stay with the device
		}
		Run(t, "losetup", "-d", path)
	})
	return path
}

// OnUnix skips a test, or the rest of it, on Windows, which does what is named in another way, or as Wine does it.
func OnUnix(t testing.TB, what string) {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skipf("%s of Windows or Wine are others", what)
	}
}
