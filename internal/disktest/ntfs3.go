package disktest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// ntfs3Kernel is a Linux with ntfs3, which scripts/ntfs3-kernel.sh builds.
const ntfs3Kernel = "/usr/local/lib/trueup-tests/ntfs3/bzImage"

var ntfs3Said = regexp.MustCompile(`ntfs3 ([a-z]): (.*) end`)

// MountNTFS3 mounts raw NTFS volumes in a virtual machine with Linux, which replays their logs, and unmounts them. It
// returns a line for each: its content, or the reason why it was not mounted. The test is skipped if the kernel was not
// built, unless TRUEUP_NTFS3 is set.
func MountNTFS3(t testing.TB, volumes ...string) []string {
	t.Helper()
	if _, err := os.Stat(ntfs3Kernel); err != nil && os.Getenv("TRUEUP_NTFS3") == "" {
		t.Skipf("%s was not built (scripts/ntfs3-kernel.sh)", ntfs3Kernel)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "init")
	build := exec.Command(Tool(t, "go"), "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", program,
		filepath.Join(moduleRoot(t), "internal/disktest/testdata/ntfs3-init/main.go"))
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	init, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	const folder, executable = 0o40755, 0o100755
	CPIO(&archive, "dev", folder, nil)
	CPIO(&archive, "root", folder, nil)
	CPIO(&archive, "init", executable, init)
	CPIO(&archive, "TRAILER!!!", 0, nil)
	if err := os.WriteFile(filepath.Join(dir, "initrd"), archive.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-machine", "pc,accel=tcg", "-m", "256", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-serial", "stdio", "-kernel", DataFile(t, ntfs3Kernel), "-initrd", filepath.Join(dir, "initrd"),
		"-append", "console=ttyS0 quiet panic=-1",
	}
	for i, path := range volumes {
		args = append(args, "-drive", fmt.Sprintf("file=%s,if=none,id=d%d,format=raw,cache=unsafe", path, i),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=d%d", i))
	}
	console := Run(t, "qemu-system-x86_64", args...)
	var said []string
	for _, m := range ntfs3Said.FindAllStringSubmatch(console, -1) {
		said = append(said, m[2])
	}
	if len(said) != len(volumes) {
		t.Fatalf("%d of %d volumes\n%s", len(said), len(volumes), console)
	}
	return said
}

// CPIO appends a file in the format "newc". Spec: Linux, Documentation/driver-api/early-userspace/buffer-format.rst.
func CPIO(w *bytes.Buffer, name string, mode int, data []byte) {
	const alignment = 4
	pad := func() { w.Write(make([]byte, -w.Len()&(alignment-1))) }
	fmt.Fprintf(w, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	pad()
	w.Write(data)
	pad()
}
