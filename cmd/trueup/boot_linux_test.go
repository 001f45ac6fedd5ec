package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// A Linux guest is Debian's kernel, and an initrd with one program (disktest/testdata/linux-init). It mounts the ext
// file system of the root= UUID, and prints the checksum of its files on the serial port. Timers are not checked: the
// emulation of a busy machine would fail.
const (
	linuxRootUUID = "7b1e6f0a-52c4-4d0b-9a3e-c0ffee5eed01"
	linuxCommand  = "root=UUID=" + linuxRootUUID + " console=ttyS0 quiet panic=-1 no_timer_check"
	linuxSays     = "trueup-root: " // in front of the checksum
	linuxFails    = "trueup-init: " // in front of what the program could not do
)

// linuxModules are the drivers of the disk and of the file system; what these need is loaded before them.
var linuxModules = []string{"ahci", "sd_mod", "crc32c_generic", "ext4"}

// linuxRoot is a folder that a file system is to be filled from: /boot/vmlinuz, /boot/initrd.img, and files to compare.
// A test may add more, and then calls treeSum.
func linuxRoot(t testing.TB) string {
	t.Helper()
	kernel, release := linuxKernel(t)
	dir := t.TempDir()
	for _, sub := range []string{"boot/grub", "srv/data"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, sub), 0o755))
	}
	data := disktest.ReadFile(t, kernel)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "boot/vmlinuz"), data, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "boot/initrd.img"), linuxInitrd(t, release, "linux-init",
		linuxModules, nil), 0o644))
	for i, size := range []int{0, 1, 511, 4096, 70_001, 1 << 20} {
		name := filepath.Join(dir, "srv/data", fmt.Sprintf("file %d", i))
		require.NoError(t, os.WriteFile(name, noise(name[len(dir):], size), 0o644))
	}
	return dir
}

// linuxKernel finds a kernel whose modules are there too.
func linuxKernel(t testing.TB) (path, release string) {
	t.Helper()
	kernels, err := filepath.Glob("/boot/vmlinuz-*")
	require.NoError(t, err)
	for _, path := range slices.Backward(kernels) {
		release := strings.TrimPrefix(path, "/boot/vmlinuz-")
		if _, err := os.Stat(filepath.Join("/lib/modules", release, "modules.dep")); err == nil {
			return path, release
		}
	}
	return disktest.DataFile(t, "/boot/vmlinuz-*"), ""
}

// unpackedKernel returns the kernel within a bzImage, for QEMU to start as it is: a guest needs seconds to unpack one.
// Spec: Linux, Documentation/x86/boot.rst. Where xz has not packed it the image is returned.
func unpackedKernel(t testing.TB, image string) string {
	t.Helper()
	b, err := os.ReadFile(image)
	require.NoError(t, err)
	head := binary.LittleEndian
	setup := int(cmp.Or(b[0x1F1], 4)) + 1 // sectors
	packed := b[setup*sectorSize+int(head.Uint32(b[0x248:])):][:head.Uint32(b[0x24C:])]
	if !bytes.HasPrefix(packed, []byte("\xfd7zXZ\x00")) {
		return image
	}
	path := filepath.Join(filepath.Dir(builtPath), "kernel")
	require.NoError(t, buildOnce(path, func() error {
		cmd := exec.Command(disktest.Tool(t, "xz"), "-dc", "--single-stream") // the length of what is packed follows
		cmd.Stdin = bytes.NewReader(packed)
		kernel, err := cmd.Output()
		if err != nil {
			return err
		}
		return os.WriteFile(path, kernel, 0o600)
	}))
	return path
}

// linuxInitrd packs a program of testdata, its modules, and further files by their names.
func linuxInitrd(t testing.TB, release, program string, modules []string, files map[string]string) []byte {
	t.Helper()
	init := buildStatic(t, "../../internal/disktest/testdata/"+program)

	var archive bytes.Buffer
	for _, dir := range []string{"dev", "proc", "sys", "root", "modules", "tmp"} {
		disktest.CPIO(&archive, dir, 0o40755, nil)
	}
	dirs := map[string]bool{".": true}
	var parents func(name string)
	parents = func(name string) {
		if dir := filepath.Dir(name); !dirs[dir] {
			parents(dir)
			disktest.CPIO(&archive, dir, 0o40755, nil)
			dirs[dir] = true
		}
	}
	add := func(name, path string, mode int) {
		parents(name)
		data := disktest.ReadFile(t, path)
		disktest.CPIO(&archive, name, mode, data)
	}
	add("init", init, 0o100755)
	for i, path := range modulePaths(t, release, modules) {
		add(fmt.Sprintf("modules/%02d.ko", i), path, 0o100644)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		add(name, files[name], 0o100755)
	}
	disktest.CPIO(&archive, "TRAILER!!!", 0, nil)
	return archive.Bytes()
}

// builds holds what makes a file that many tests share, by its path.
var builds sync.Map

func buildOnce(path string, build func() error) error {
	once, _ := builds.LoadOrStore(path, sync.OnceValue(build))
	return once.(func() error)()
}

// buildStatic returns the path of a program that needs nothing but a kernel.
func buildStatic(t testing.TB, folder string) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(builtPath), "static-"+filepath.Base(folder))
	require.NoError(t, buildOnce(path, func() error {
		cmd := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags=-s -w", "-o", path, folder)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}))
	return path
}

// modulePaths are the files of the modules in an order in which they can be loaded: modules.dep names what each one
// needs.
func modulePaths(t testing.TB, release string, modules []string) []string {
	t.Helper()
	dir := filepath.Join("/lib/modules", release)
	text := disktest.ReadFile(t, filepath.Join(dir, "modules.dep"))
	needs := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		path, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		needs[path] = strings.Fields(rest)
	}
	var order []string
	var add func(path string)
	add = func(path string) {
		for _, need := range needs[path] {
			add(need)
		}
		if full := filepath.Join(dir, path); !slices.Contains(order, full) {
			order = append(order, full)
		}
	}
	builtIn := disktest.ReadFile(t, filepath.Join(dir, "modules.builtin"))
	for _, name := range modules {
		found := strings.Contains(string(builtIn), "/"+name+".ko\n") // it has no file
		for _, path := range slices.Sorted(maps.Keys(needs)) {
			if filepath.Base(path) == name+".ko" {
				add(path)
				found = true
			}
		}
		require.True(t, found, "the kernel has no module %s", name)
	}
	return order
}

// treeSum is what the guest computes too: names, lengths and contents of all files, in the order of their names.
func treeSum(t testing.TB, dir string) string {
	t.Helper()
	sum := sha256.New()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(sum, "%s %d\n%s", strings.TrimPrefix(path, dir), len(data), data)
		return err
	}))
	return hex.EncodeToString(sum.Sum(nil))
}

// makeLinuxRoot makes an ext file system of the folder's files in a window of a raw disk. Flags are mke2fs's, such as
// "-t", "ext4".
func makeLinuxRoot(t testing.TB, raw string, w window, dir string, flags ...string) {
	t.Helper()
	args := slices.Concat(flags, []string{
		"-q", "-F", "-U", linuxRootUUID, "-E", fmt.Sprintf("offset=%d", w.start*sectorSize), "-d", dir,
		raw, fmt.Sprintf("%dk", w.size*sectorSize/1024),
	})
	disktest.Run(t, "mke2fs", args...)
}

// bootLinux starts a PC from the image and returns the checksum of the files in the guest's root. Any of the others
// ends the boot, too, and is returned.
func bootLinux(t testing.TB, p pc, others ...string) string {
	t.Helper()
	p.memory, p.ahci = 256, true
	return p.watch(t, func(console string) string {
		if text := anyOf(others...)(console); text != "" {
			return text
		}
		if _, rest, found := strings.Cut(console, linuxFails); found && strings.Contains(rest, "\n") {
			return linuxFails + rest
		}
		if _, rest, found := strings.Cut(console, linuxSays); found && strings.Contains(rest, " end") {
			sum, _, _ := strings.Cut(rest, " ")
			return sum
		}
		return ""
	})
}
