package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// A Linux guest is Debian's kernel, and an initrd with one program (disktest/testdata/linux-init). It mounts the ext
// file system of the root= UUID, and prints the checksum of its files on the serial port. Timer checks are off, because
// they would fail in emulation on a busy machine.
const (
	linuxRootUUID = "7b1e6f0a-52c4-4d0b-9a3e-c0ffee5eed01"
	linuxCommand  = "root=UUID=" + linuxRootUUID + " console=ttyS0 quiet panic=-1 no_timer_check"
	linuxSays     = "trueup-root: " // before the checksum
	linuxFails    = "trueup-init: " // before an error of the program
)

// linuxModules lists the drivers of the disk and of the file system. Their dependencies are loaded first.
var linuxModules = []string{"ahci", "sd_mod", "crc32c_generic", "ext4"}

// linuxRoot returns a folder with the content of a file system: /boot/vmlinuz, /boot/initrd.img, and files to compare.
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

// linuxKernel finds a kernel with its modules.
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

// unpackedKernel returns the kernel inside a bzImage, which QEMU can start directly: a guest needs seconds to unpack
// one. If it is not compressed with xz, it returns the image. Spec: Linux, Documentation/x86/boot.rst.
func unpackedKernel(t testing.TB, image string) string {
	t.Helper()
	b := disktest.ReadFile(t, image)
	head := binary.LittleEndian
	setup := int(cmp.Or(b[0x1F1], 4)) + 1 // sectors
	packed := b[setup*sectorSize+int(head.Uint32(b[0x248:])):][:head.Uint32(b[0x24C:])]
	if !bytes.HasPrefix(packed, []byte("\xfd7zXZ\x00")) {
		return image
	}
	path := filepath.Join(filepath.Dir(builtPath), "kernel")
	require.NoError(t, buildOnce(path, func() error {
		cmd := exec.Command(disktest.Tool(t, "xz"), "-dc", "--single-stream") // the length follows the stream
		cmd.Stdin = bytes.NewReader(packed)
		kernel, err := cmd.Output()
		if err != nil {
			return err
		}
		return os.WriteFile(path, kernel, 0o600)
	}))
	return path
}

// linuxInitrd packs a program of testdata, its modules, and further files.
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

	// The modules are in an order in which they can be loaded.
	folder := filepath.Join("/lib/modules", release)
	needs := disktest.ReadFile(t, filepath.Join(folder, "modules.dep"))
	builtIn := string(disktest.ReadFile(t, filepath.Join(folder, "modules.builtin")))
	var wanted []string
	for _, module := range modules {
		file := regexp.MustCompile(`(?m)^(\S+/` + module + `\.ko):`).FindSubmatch(needs)
		if file == nil {
			require.Contains(t, builtIn, "/"+module+".ko\n", "the kernel has no such module")
		} else {
			wanted = append(wanted, string(file[1]))
		}
	}
	for i, name := range withNeeds(string(needs), wanted...) {
		add(fmt.Sprintf("modules/%02d.ko", i), filepath.Join(folder, name), 0o100644)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		add(name, files[name], 0o100755)
	}
	disktest.CPIO(&archive, "TRAILER!!!", 0, nil)
	return archive.Bytes()
}

// builds maps paths of files that many tests share to functions that make them once.
var builds sync.Map

func buildOnce(path string, build func() error) error {
	once, _ := builds.LoadOrStore(path, sync.OnceValue(build))
	return once.(func() error)()
}

// buildStatic builds the program in a folder as a static binary and returns its path.
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

// withNeeds returns modules with their dependencies, each after its dependencies. The lines of text list the
// dependencies.
func withNeeds(text string, names ...string) (order []string) {
	needs, seen := map[string][]string{}, map[string]bool{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		needs[name] = strings.Fields(rest)
	}
	var add func(names []string)
	add = func(names []string) {
		for _, name := range names {
			if !seen[name] {
				seen[name] = true
				add(needs[name])
				order = append(order, name)
			}
		}
	}
	add(names)
	return order
}

// treeSum returns the same digest as the guest: of names, lengths and contents of all files, in the order of their
// names.
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

// makeLinuxRoot makes an ext file system with the folder's files in a window of a raw disk. The flags are mke2fs's,
// such as "-t", "ext4".
func makeLinuxRoot(t testing.TB, raw string, w window, dir string, flags ...string) {
	t.Helper()
	args := slices.Concat(flags, []string{
		"-q", "-F", "-U", linuxRootUUID, "-E", fmt.Sprintf("offset=%d", w.start*sectorSize), "-d", dir,
		raw, fmt.Sprintf("%dk", w.size*sectorSize/1024),
	})
	disktest.Run(t, "mke2fs", args...)
}

// bootLinux starts a PC from the image and returns the checksum of the files in the guest's root. Any text of others
// also ends the boot, and is returned.
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

// linuxGuest is a virtual machine with Debian's kernel that runs the requests of a test in sequence.
type linuxGuest struct {
	t       testing.TB
	in      *json.Encoder
	out     *json.Decoder
	off     func() // kills the guest
	wait    func() // until it is off
	console string // file with the kernel's log
}

// guestRequest and guestAnswer are the protocol of disktest/testdata/linux-mounts.
type guestRequest struct {
	Op                         string
	Source, Target, Type, Data string
	Args                       []string
	Until                      string
	Beside                     []string
	Signal                     syscall.Signal
	Path                       string
}

type guestAnswer struct {
	Code           int
	Stdout, Stderr string
	Names          []string
	Beside         *guestAnswer
	Error          string
}

// linuxSetup is the setup of a guest: modules, files by name, and programs, which are in /bin.
type linuxSetup struct {
	modules  []string
	files    map[string]string
	programs []string
	drives   []guestDisk // from /dev/vda on
	readOnly string      // of all drives: "on", or ""
	cache    string      // options of all drives; by default QEMU flushes nothing
	more     []string    // arguments of QEMU
}

// guestDisk is a disk of a guest.
type guestDisk struct {
	path, format string // format, as named by QEMU
	sector       int64
}

// add adds a disk and returns its name in the guest, the prefix of the names of its partitions.
func (s *linuxSetup) add(d guestDisk) (device string) {
	s.drives = append(s.drives, d)
	const letters = 26
	name := "/dev/vd"
	if n := len(s.drives) - 1; n >= letters {
		name += string(rune('a' + n/letters - 1))
	}
	return name + string(rune('a'+(len(s.drives)-1)%letters))
}

// guestCommand is the command line of the kernel. Mitigations are against faults of processors.
const guestCommand = "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off"

// system returns the kernel and the initrd of the guest.
func (s *linuxSetup) system(t testing.TB) (kernel, initrd string) {
	t.Helper()
	packed, release := linuxKernel(t)
	files := maps.Clone(s.files)
	for _, program := range s.programs {
		withLibraries(t, program, files)
	}
	initrd = filepath.Join(t.TempDir(), "initrd")
	modules := slices.Concat([]string{"virtio_pci", "virtio_blk", "virtio_net", "virtio_console"}, s.modules)
	require.NoError(t, os.WriteFile(initrd, linuxInitrd(t, release, "linux-mounts", modules, files), 0o600))
	return unpackedKernel(t, packed), initrd
}

// boot starts the guest. The host is at 10.0.2.2.
func (s *linuxSetup) boot(t testing.TB) *linuxGuest {
	t.Helper()
	kernel, initrd := s.system(t)
	g := &linuxGuest{t: t, console: filepath.Join(filepath.Dir(initrd), "console")}
	args := []string{
		"-machine", "pc,accel=tcg", "-m", "512", "-nodefaults", "-no-user-config", "-no-reboot",
		"-display", "none", "-serial", "file:" + g.console,
		"-kernel", kernel, "-initrd", initrd, "-append", guestCommand,
		"-device", "virtio-serial-pci", "-chardev", "stdio,id=port,signal=off", "-device",
		"virtserialport,chardev=port",
		"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=",
	}
	const firstSlot, functions = 8, 8 // a PCI device has eight functions, and a bus 32 devices
	for i, d := range s.drives {
		args = append(args,
			"-drive", fmt.Sprintf("file=%s,if=none,id=d%d,format=%s,%s,readonly=%s",
				strings.ReplaceAll(d.path, ",", ",,"), i, d.format, cmp.Or(s.cache, "cache=unsafe"),
				cmp.Or(s.readOnly, "off")),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=d%d,multifunction=on,addr=%x.%x,"+
				"logical_block_size=%d,physical_block_size=%[4]d", i, firstSlot+i/functions, i%functions, d.sector))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, disktest.Tool(t, "qemu-system-x86_64"), append(args, s.more...)...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	g.wait = sync.OnceFunc(func() {
		_ = cmd.Wait() // killed, it ends with an error that says nothing new
		t.Log("CPU", cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	}) // after a kill, the error has no information
	g.off = func() { cancel(); g.wait() }
	t.Cleanup(g.off)
	g.in, g.out = json.NewEncoder(in), json.NewDecoder(out)
	return g
}

// withLibraries adds a program and its shared libraries to files, under their own paths.
func withLibraries(t testing.TB, program string, files map[string]string) {
	t.Helper()
	path := disktest.Tool(t, program)
	files["bin/"+program] = path
	for _, library := range regexp.MustCompile(`(?m)(/\S+) \(0x`).FindAllStringSubmatch(disktest.Run(t, "ldd", path),
		-1) {
		files[library[1][1:]] = library[1]
	}
}

// sh runs commands in a shell of the guest, and returns their output.
func (g *linuxGuest) sh(t testing.TB, script string) string {
	t.Helper()
	a := g.ask(t, guestRequest{Op: "run", Args: []string{"/bin/sh", "-c", script}})
	require.Zero(t, a.Code, "%s\n%s%s", script, a.Stdout, a.Stderr)
	if a.Stderr != "" {
		t.Log(a.Stderr)
	}
	return a.Stdout
}

// ask sends a request to the guest, and fails the test t on an error.
func (g *linuxGuest) ask(t testing.TB, r guestRequest) guestAnswer {
	t.Helper()
	var a guestAnswer
	err := g.in.Encode(r)
	if err == nil {
		err = g.out.Decode(&a)
	}
	if err != nil || a.Error != "" {
		console, _ := os.ReadFile(g.console)
		require.NoError(t, err, "%s", console)
		require.Empty(t, a.Error, "%+v\n%s", r, console)
	}
	return a
}

// end syncs the guest's file systems, then switches the guest off.
func (g *linuxGuest) end(t testing.TB) {
	t.Helper()
	g.ask(t, guestRequest{Op: "sync"})
	g.off()
}

// powerOff has the guest switch itself off.
func (g *linuxGuest) powerOff(t testing.TB) {
	t.Helper()
	require.NoError(t, g.in.Encode(guestRequest{Op: "off"}))
	g.wait()
}

// trueup runs the program in the guest.
func (g *linuxGuest) trueup(t testing.TB, args ...string) result {
	t.Helper()
	return g.stopped(t, 0, "", args...)
}

// stopped runs the program in the guest and sends it a signal as soon as a file is not empty.
func (g *linuxGuest) stopped(t testing.TB, s syscall.Signal, until string, args ...string) result {
	t.Helper()
	a := g.ask(t, guestRequest{Op: "run", Args: append([]string{"/trueup"}, args...), Until: until, Signal: s})
	return result{a.Stdout, a.Stderr, a.Code}
}
