package main

import (
	"cmp"
	"context"
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
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// mountModules are the file systems of the guest, and what they load by name: character sets, and the sums and ciphers
// of SMB.
var mountModules = []string{
	"crc32c_generic", "ext4", "nls_cp437", "nls_ascii", "nls_iso8859-1", "nls_utf8", "vfat", "exfat", "nfs", "nfsv4",
	"md5", "hmac", "cmac", "sha256_generic", "sha512_generic", "aes_generic", "ecb", "ctr", "ghash-generic", "seqiv",
	"ccm", "gcm", "cifs",
}

// linuxGuest is a virtual machine with Debian's kernel that does what a test asks of it, one thing after the other.
type linuxGuest struct {
	t       testing.TB
	in      *json.Encoder
	out     *json.Decoder
	off     func()
	console string // the file with what the kernel said
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

// linuxSetup is what a guest starts with: modules, files by their names, and programs, which are in /bin.
type linuxSetup struct {
	modules  []string
	files    map[string]string
	programs []string
	drives   []guestDisk // /dev/vda and on
	readOnly string      // of all drives: "on", or ""
}

// guestDisk is a disk that a guest gets to see.
type guestDisk struct {
	path, format string // the latter as QEMU calls it
	sector       int64
}

// add adds a disk and returns what the guest calls it, which is the begin of the names of its partitions.
func (s *linuxSetup) add(d guestDisk) (device string) {
	s.drives = append(s.drives, d)
	const letters = 26
	name := "/dev/vd"
	if n := len(s.drives) - 1; n >= letters {
		name += string(rune('a' + n/letters - 1))
	}
	return name + string(rune('a'+(len(s.drives)-1)%letters))
}

// boot starts the guest. The host is at 10.0.2.2.
func (s *linuxSetup) boot(t testing.TB) *linuxGuest {
	t.Helper()
	kernel, release := linuxKernel(t)
	dir := t.TempDir()
	files := maps.Clone(s.files)
	for _, program := range s.programs {
		withLibraries(t, program, files)
	}
	initrd := filepath.Join(dir, "initrd")
	modules := slices.Concat([]string{"virtio_pci", "virtio_blk", "virtio_net", "virtio_console"}, s.modules)
	require.NoError(t, os.WriteFile(initrd, linuxInitrd(t, release, "linux-mounts", modules, files), 0o600))

	g := &linuxGuest{t: t, console: filepath.Join(dir, "console")}
	args := []string{
		"-machine", "pc,accel=tcg", "-m", "512", "-nodefaults", "-no-user-config", "-no-reboot",
		"-display", "none", "-serial", "file:" + g.console,
		"-kernel", unpackedKernel(t, kernel), "-initrd", initrd,
		// these are against faults of processors
		"-append", "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off",
		"-device", "virtio-serial-pci", "-chardev", "stdio,id=port,signal=off", "-device",
		"virtserialport,chardev=port",
		"-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=",
	}
	const firstSlot, functions = 8, 8 // a device of PCI has eight functions, and a bus 32 devices
	for i, d := range s.drives {
		args = append(args,
			"-drive", fmt.Sprintf("file=%s,if=none,id=d%d,format=%s,cache=unsafe,readonly=%s",
				strings.ReplaceAll(d.path, ",", ",,"), i, d.format, cmp.Or(s.readOnly, "off")),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=d%d,multifunction=on,addr=%x.%x,"+
				"logical_block_size=%d,physical_block_size=%[4]d", i, firstSlot+i/functions, i%functions, d.sector))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, disktest.Tool(t, "qemu-system-x86_64"), args...)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	g.off = sync.OnceFunc(func() {
		cancel()
		_ = cmd.Wait()
		t.Log("CPU", cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	}) // killed, it ends with an error that says nothing new
	t.Cleanup(g.off)
	g.in, g.out = json.NewEncoder(in), json.NewDecoder(out)
	return g
}

// withLibraries adds a program to files, and the libraries that it is linked with, which keep their paths.
func withLibraries(t testing.TB, program string, files map[string]string) {
	t.Helper()
	path := disktest.Tool(t, program)
	files["bin/"+program] = path
	for _, library := range regexp.MustCompile(`(?m)(/\S+) \(0x`).FindAllStringSubmatch(disktest.Run(t, "ldd", path),
		-1) {
		files[library[1][1:]] = library[1]
	}
}

// sh has a shell of the guest do something, and returns what that prints.
func (g *linuxGuest) sh(t testing.TB, script string) string {
	t.Helper()
	a := g.ask(t, guestRequest{Op: "run", Args: []string{"/bin/sh", "-c", script}})
	require.Zero(t, a.Code, "%s\n%s%s", script, a.Stdout, a.Stderr)
	if a.Stderr != "" {
		t.Log(a.Stderr)
	}
	return a.Stdout
}

// ask has the guest do something, and fails the test t when it cannot.
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

// end switches the guest off, after it has written what it holds.
func (g *linuxGuest) end(t testing.TB) {
	t.Helper()
	g.ask(t, guestRequest{Op: "sync"})
	g.off()
}

// trueup runs the program in the guest.
func (g *linuxGuest) trueup(t testing.TB, args ...string) result {
	t.Helper()
	return g.stopped(t, 0, "", args...)
}

// stopped runs the program in the guest and sends it a signal as soon as a file has bytes in it.
func (g *linuxGuest) stopped(t testing.TB, s syscall.Signal, until string, args ...string) result {
	t.Helper()
	a := g.ask(t, guestRequest{Op: "run", Args: append([]string{"/trueup"}, args...), Until: until, Signal: s})
	return result{a.Stdout, a.Stderr, a.Code}
}

// serveFolder starts a server of files for a small file system in memory that nothing else sees, ends it with the test,
// and returns its port. $DIR, $SHARE and $PORT stand for them in its configuration and arguments.
func serveFolder(t testing.TB, server, conf string, args ...string) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port on which nothing listens then
	require.NoError(t, err)
	port = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
	require.NoError(t, l.Close())
	dir := t.TempDir()
	share, log := filepath.Join(dir, "share"), filepath.Join(dir, "out")
	require.NoError(t, os.Mkdir(share, 0o777))
	places := strings.NewReplacer("$DIR", dir, "$SHARE", share, "$PORT", port)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "conf"), []byte(places.Replace(conf)), 0o600))
	script := `mount -t tmpfs -o size=28m,mode=0777 none "$0" && exec "$@"`
	command := []string{"--mount", "sh", "-c", script, share, disktest.Tool(t, server)}
	for _, arg := range args {
		command = append(command, places.Replace(arg))
	}
	cmd := exec.Command(disktest.Tool(t, "unshare"), command...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := os.Create(log)
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		out.Close()
		if text, err := os.ReadFile(log); t.Failed() {
			t.Logf("%s: %s%v", server, text, err)
		}
	})
	disktest.WaitFor(t, "a server on port "+port, func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		return err == nil && c.Close() == nil
	})
	return port
}

// serveSMB starts Samba and returns its port.
func serveSMB(t testing.TB) string {
	t.Helper()
	return serveFolder(t, "smbd", `[global]
interfaces = 127.0.0.1
bind interfaces only = yes
smb ports = $PORT
map to guest = Bad User
guest account = root
server role = standalone
disable spoolss = yes
load printers = no
ncalrpc dir = $DIR/ncalrpc
log file = $DIR/log
private dir = $DIR
lock directory = $DIR
state directory = $DIR
cache directory = $DIR
pid directory = $DIR
[share]
path = $SHARE
read only = no
guest ok = yes
`, "-F", "--no-process-group", "-s", "$DIR/conf")
}

// serveNFS starts Ganesha, an NFS server without a part in the kernel, and returns its port.
func serveNFS(t testing.TB) string {
	t.Helper()
	return serveFolder(t, "ganesha.nfsd", `NFS_CORE_PARAM { Protocols = 4; NFS_Port = $PORT;
 Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }
NFSv4 { RecoveryBackend = fs; RecoveryRoot = $DIR; Graceless = true; Only_Numeric_Owners = true; }
EXPORT { Export_Id = 1; Path = $SHARE; Pseudo = /share; Access_Type = RW;
 Squash = No_Root_Squash; Protocols = 4; FSAL { Name = VFS; } }
`, "-F", "-f", "$DIR/conf", "-L", "STDOUT", "-p", "$DIR/pid")
}
