package cli

import (
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/qcow2forge"
	"github.com/trueup/trueup/internal/disktest/forge/vmdkforge"
)

// file makes a file with a text.
func file(name, text string) func(*testing.T) {
	return func(t *testing.T) { t.Helper(); put(t, name, []byte(text)) }
}

// qcow2 makes a file with the signature of a qcow2.
func qcow2(name string) func(*testing.T) {
	return func(t *testing.T) { t.Helper(); put(t, name, qcow2forge.New(tiny(), 16).Bytes) }
}

func folder(t *testing.T) { t.Helper(); require.NoError(t, os.Mkdir("folder", 0o700)) }

func special(name string, kind uint32) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		if err := unix.Mknod(name, kind|0o600, int(unix.Mkdev(1, 3))); err != nil {
			t.Skipf("no right to make such a node: %v", err)
		}
	}
}

func symlink(to, name string) func(*testing.T) {
	return func(t *testing.T) { t.Helper(); require.NoError(t, os.Symlink(to, name)) }
}

func noFile(*testing.T) {}

// both makes one after the other.
func both(one, other func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) { t.Helper(); one(t); other(t) }
}

// ovfOf returns the envelope of a machine whose disk has this file name.
func ovfOf(disk string) string { return strings.Replace(envelope, "d.vmdk", disk, 1) }

// neededBy returns expectations for a file of an image: as a report, and as a copy with and without --force.
func neededBy(image string) map[string]string {
	return every("64 would overwrite a file that "+image+" needs",
		"copy", "64 belongs to "+image, "force", "64 belongs to "+image)
}

var (
	flatDescriptor = vmdkforge.Descriptor("monolithicFlat", `RW 2 FLAT "extent of any name" 0`)
	overlay        = vmdkforge.Descriptor("monolithicFlat", `RW 2 FLAT "x-flat.vmdk" 0`) +
		"parentFileNameHint=\"base\"\n"
	descriptor = every("64 is an open descriptor", "report", "stdout")
)

var standings = []standing{
	{name: "absent.txt", make: noFile, want: every("0")},
	{name: "web01", make: qcow2("web01"), want: every(overImage, "copy", exists, "force", "0")},
	{name: "disk.vmdk", make: qcow2("disk.vmdk"), want: every(imageName, "copy", exists, "force", "0")},
	{
		name: "bare", make: func(t *testing.T) { t.Helper(); put(t, "bare", append(tiny(), make([]byte, 512)...)) },
		want: every("64 would overwrite a file that is not text", "copy", exists, "force", "0"),
	},
	{name: "extent", make: func(t *testing.T) { t.Helper(); putFlat(t, "extent") }, want: neededBy("flat.vmdk")},
	{
		name: "extent of any name",
		make: both(file("descriptor", flatDescriptor), file("extent of any name", strings.Repeat("text", 256))),
		want: neededBy("descriptor"),
	},
	{
		name: "disk of a package",
		make: both(file("vm.ovf", ovfOf("disk%20of%20a%20package")), qcow2("disk of a package")),
		want: every(overImage, "copy", "64 belongs to vm.ovf", "force", "64 belongs to vm.ovf"),
	},
	{
		name: "listed", make: both(file("machine", ovfOf("./listed")), file("listed", "text\n")),
		want: neededBy("machine"),
	},
	{
		name: "cut-short", make: both(file("vm.ovf", ovfOf("Cut-Short")[:200]), file("cut-short", "text\n")),
		want: neededBy("vm.ovf"),
	},
	{
		name: "elsewhere.vmdk", make: both(file("vm.ovf", ovfOf("disks/elsewhere.vmdk")), qcow2("elsewhere.vmdk")),
		want: every(imageName, "copy", exists, "force", "0"),
	},
	{
		name: "base", make: both(file("base", "text\n"), file("snap.vmdk", overlay)),
		want: every("64 would overwrite a file that snap.vmdk needs",
			"copy", "4 cannot be replaced", "force", "4 cannot be replaced"),
	},
	{name: "vm.ova", make: forgedPackageAt("vm.ova"), want: every(imageName, "copy", "", "force", "")},
	{name: "package", make: forgedPackageAt("package"), want: every(overImage, "copy", exists, "force", "0")},
	{name: "vm.vmx", make: file("vm.vmx", "memsize = 1\n"), want: every(machine)},
	{name: "notes", make: file("notes", "mine\n"), want: every("0", "script", notOurs, "copy", exists)},
	{
		name: "run.sh", make: file("run.sh", "#!/bin/sh\n"),
		want: every("64 would overwrite a program", "script", notOurs, "copy", exists, "force", "0"),
	},
	{name: "folder", make: folder, want: every(aFolder)},
	{name: "folder/", make: folder, want: every(aFolder)},
	{
		name: "to-image", make: both(qcow2("web01"), symlink("web01", "to-image")),
		want: every(overImage, "copy", aLink, "force", aLink),
	},
	{
		name: "to-text", through: "notes", make: both(file("notes", "mine\n"), symlink("notes", "to-text")),
		want: every("0", "script", notOurs, "copy", aLink, "force", aLink),
	},
	{
		name: "to-machine", make: both(file("vm.vmx", "memsize = 1\n"), symlink("vm.vmx", "to-machine")),
		want: every(machine, "copy", aLink, "force", aLink),
	},
	{name: "to-folder", make: both(folder, symlink("folder", "to-folder")), want: every(aLink)},
	{
		name: "dangling", make: symlink("nowhere", "dangling"),
		want: every("64 is a link to nowhere ("),
	},
	{name: "to-itself", make: symlink("to-itself", "to-itself"), want: every("64 is a link to to-itself (")},
	{
		name: "to-block", make: both(special("dm-3", unix.S_IFBLK), symlink("dm-3", "to-block")),
		want: every(aLink, "copy", unlisted, "force", forced),
	},
	{
		name: "block", make: special("block", unix.S_IFBLK),
		want: every(aSpecial, "copy", unlisted, "force", forced),
	},
	{name: "character", make: special("character", unix.S_IFCHR), want: every(aSpecial)},
	{name: "fifo", make: special("fifo", unix.S_IFIFO), want: every(aSpecial)},
	{name: "socket", make: special("socket", unix.S_IFSOCK), want: every(aSpecial)},
	{
		name: "to-fifo", make: both(special("fifo", unix.S_IFIFO), symlink("fifo", "to-fifo")),
		want: every(aLink),
	},
	{name: "missing/file", make: noFile, want: every("1 folder of ")},
	{name: "-", make: noFile, want: every("64 cannot be standard output", "report", "stdout")},
	{name: "/dev/stdout", make: noFile, want: descriptor},
	{name: "/dev/fd/1", make: noFile, want: descriptor},
	{name: "/proc/self/fd/1", make: noFile, want: descriptor},
	{name: "to-stdout", make: symlink("/dev/stdout", "to-stdout"), want: descriptor},
	{name: "/dev/stderr", make: noFile, want: every("64 is an open descriptor")},
	{name: "/proc/self/fd/0", make: noFile, want: every("64 is an open descriptor")},
}

// forgedPackageAt makes a package under a name.
func forgedPackageAt(name string) func(*testing.T) {
	return func(t *testing.T) { t.Helper(); put(t, name, forgedPackage()) }
}

// TestPlaces runs every command with a file at the path of each output. No existing file is damaged, and a report never
// replaces an image, a file that an image needs, or a special file.
func TestPlaces(t *testing.T) {
	for _, s := range standings {
		for _, w := range writings {
			title := s.name + ", " + w.name
			if s.want[w.role] == "" || !disktest.Share(title) {
				continue // a disk cannot be written there at all, or it is not in the share of make test
			}
			t.Run(title, func(t *testing.T) {
				t.Chdir(t.TempDir())
				tiny().Write(t, "src.img")
				put(t, "copy.img", tiny())
				put(t, "src.ova", forgedPackage())
				s.make(t)
				requirePlace(t, s, w)
			})
		}
	}
}

// crashEnv makes the test binary crash in the given way.
const crashEnv = "TRUEUP_TEST_CRASH"

// crashes lists crashes for which Go's runtime sets the exit status 2.
var crashes = map[string]func(){
	"memory": func() {
		limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
		if err := unix.Setrlimit(unix.RLIMIT_DATA, &limit); err != nil {
			panic(err)
		}
		if len(make([]byte, 1<<30)) == 0 {
			return
		}
	},
	"stack": func() {
		debug.SetMaxStack(1 << 20)
		var down func(n int) int
		down = func(n int) int { return down(n+1) + n }
		down(0)
	},
	"panic": func() {
		go func() { panic("of a goroutine") }()
		select {}
	},
	"quit": func() {
		_ = unix.Kill(os.Getpid(), unix.SIGQUIT)
		select {}
	},
}

// A crash never ends with 2 or another exit code of a verdict, and leaves no core file.
func TestCrashIsNoVerdict(t *testing.T) {
	if crash, ok := crashes[os.Getenv(crashEnv)]; ok {
		AbortOnCrash()
		crash()
		t.Fatal("is still alive")
	}
	for name := range crashes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("/proc/self/exe", "-test.run=^TestCrashIsNoVerdict$")
			cmd.Env = append(os.Environ(), crashEnv+"="+name)
			cmd.Dir = t.TempDir()
			out, err := cmd.CombinedOutput()
			require.Error(t, err)
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			require.True(t, status.Signaled(), "%v\n%s", err, out)
			require.Equal(t, syscall.SIGABRT, status.Signal(), "%s", out)
			require.False(t, status.CoreDump())
		})
	}
}
