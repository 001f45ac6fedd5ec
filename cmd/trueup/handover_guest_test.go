package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/trial"
)

// handedDisk is a disk of a Linux guest with an ext4 at LBA 63, which the guest writes to while it is copied.
type handedDisk struct {
	handover
	device, mount string            // in the guest
	sums          map[string]string // of files by their paths in the volume
}

// newHandedDisk makes a disk with files.
func newHandedDisk(t *testing.T, letter string) *handedDisk {
	t.Helper()
	d := &handedDisk{device: "/dev/vd" + letter + "1", mount: "/mnt-" + letter, sums: map[string]string{}}
	d.source = blankDisk(t, bootDiskSize, dosLabel+"start=63, size=112392, type=83\n")
	d.dest = filepath.Join(t.TempDir(), "new.qcow2")
	root := t.TempDir()
	for i, size := range []int{1, 70_001, 24 << 20} {
		name := fmt.Sprintf("old-%d", i)
		require.NoError(t, os.WriteFile(filepath.Join(root, name), noise(name+letter, size), 0o644))
		d.sums[name] = sha256Of(t, filepath.Join(root, name))
	}
	makeLinuxRoot(t, d.source, windowOf(t, d.source, 1), root, "-t", "ext4")
	return d
}

// write has the guest write and flush a file of a few names, and remembers its checksum.
func (d *handedDisk) write(t *testing.T, g *linuxGuest, n int) {
	t.Helper()
	name := fmt.Sprintf("new-%d", n%8)
	sum, _, _ := strings.Cut(g.sh(t, fmt.Sprintf("dd if=/dev/urandom of=%s/%s bs=4k count=%d conv=fsync 2>/dev/null\n"+
		"sha256sum %[1]s/%[2]s", d.mount, name, 1+n%64)), " ")
	d.sums[name] = sum
}

// streamed reports whether DEST has all bytes.
func (d *handedDisk) streamed() bool { return strings.Contains(d.stderr.String(), "has all bytes") }

// require requires that DEST is a disk of its own, aligned and whole, with every file as it was written last.
func (d *handedDisk) require(t *testing.T) {
	t.Helper()
	r := d.ends(t, 0)
	require.Equal(t, "full", r.Proof)
	require.True(t, r.Guest.Consistent)
	require.Positive(t, r.Guest.Differing)
	require.NotContains(t, disktest.Run(t, "qemu-img", "info", "--output=json", d.dest), "backing")
	raw := filepath.Join(t.TempDir(), "disk.raw")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", d.dest, raw)
	d.requireFiles(t, raw, 2048)
}

// requireFiles requires that the volume at an LBA is sound, and has every file as it was written last.
func (d *handedDisk) requireFiles(t *testing.T, raw string, lba int64) {
	t.Helper()
	w := windowOf(t, raw, 1)
	require.Equal(t, lba, w.start)
	part, files := extract(t, raw, w.start*sectorSize, w.size*sectorSize), t.TempDir()
	disktest.Run(t, "e2fsck", "-fn", part)
	for name, sum := range d.sums {
		path := filepath.Join(files, name)
		disktest.Run(t, "debugfs", "-R", "dump /"+name+" "+path, part)
		require.Equal(t, sum, sha256Of(t, path), name)
	}
}

// newHandedGuest returns a Linux guest that writes to ext4.
func newHandedGuest() *linuxSetup {
	return &linuxSetup{
		modules: []string{"crc32c_generic", "ext4"}, programs: []string{"sh", "dd", "sha256sum"},
		files: map[string]string{}, cache: "rerror=stop,werror=stop",
	}
}

// work has the guest write to its disks until DEST of each has all bytes, and switch itself off. begin has the rest
// copied; the guest writes before that, too.
func work(t *testing.T, g *linuxGuest, begin func(), disks ...*handedDisk) {
	t.Helper()
	for _, d := range disks {
		g.ask(t, guestRequest{Op: "mount", Source: d.device, Target: d.mount, Type: "ext4"})
		d.write(t, g, 0)
	}
	begin()
	for n, left := 1, 1; left > 0; n++ {
		left = len(disks)
		for _, d := range disks {
			d.write(t, g, n)
			if d.streamed() {
				left--
			}
		}
	}
	for _, d := range disks {
		g.ask(t, guestRequest{Op: "umount", Target: d.mount})
	}
	g.powerOff(t)
}

// A Linux with two disks writes to both while they are copied by one monitor.
func TestHandoverOfALinuxGuest(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	socket := filepath.Join(t.TempDir(), "qmp")
	setup := newHandedGuest()
	setup.more = []string{"-qmp", "unix:" + socket + ".later,server=on,wait=off"}
	disks := []*handedDisk{newHandedDisk(t, "a"), newHandedDisk(t, "b")}
	for _, d := range disks {
		d.start(t, "--qmp", socket, "--limit", "4M", d.source, d.dest)
		d.says(t, "is ready")
		setup.add(guestDisk{d.dest, "qcow2", sectorSize})
	}
	begin := func() { require.NoError(t, os.Rename(socket+".later", socket)) }
	work(t, setup.boot(t), begin, disks...)
	for _, d := range disks {
		d.require(t)
	}
}

// FreeDOS, started by trueup, writes before and after its disk is copied, and ends QEMU by a restart.
func TestHandoverOfFreeDOS(t *testing.T) {
	t.Parallel()
	qemu, dir := disktest.Tool(t, "qemu-system-x86_64"), t.TempDir()
	h := &handover{source: loaderDisks["FreeDOS behind lilo -M"].build(t), dest: filepath.Join(dir, "new.qcow2")}
	at := drive(h.source, windowOf(t, h.source, 1))
	disktest.Run(t, "mcopy", "-o", "-i", at, hostFile(t, "@ECHO one> C:\\ONE.TXT\r\n@ECHO "+booted+"\r\n@PAUSE\r\n"+
		"@ECHO two> C:\\TWO.TXT\r\n@C:\\RESTART.COM\r\n"), "::AUTOEXEC.BAT")
	const jumpToBIOS = "\xea\x00\x00\xff\xff" // jmp ffff:0000
	disktest.Run(t, "mcopy", "-i", at, hostFile(t, jumpToBIOS), "::RESTART.COM")

	socket, console := filepath.Join(dir, "monitor"), filepath.Join(dir, "console")
	h.start(t, h.source, h.dest, "--run", "--", qemu, "-machine", "pc,accel=tcg,graphics=off", "-m", "64",
		"-nodefaults", "-no-reboot", "-display", "none", "-vga", "none", "-serial", "file:"+console,
		"-drive", "file={},format=qcow2,rerror=stop,werror=stop,if=none,id=disk",
		"-device", "ide-hd,lcyls=1024,lheads=255,lsecs=63,drive=disk", "-qmp", "unix:"+socket+",server=on,wait=off")
	var c net.Conn
	disktest.WaitFor(t, "the monitor of QEMU", func() (there bool) {
		var err error
		c, err = net.Dial("unix", socket)
		return err == nil
	})
	defer c.Close()
	q := trial.NewQMP(t.Context(), c, c)
	q.Limit = disktest.Patience
	require.NoError(t, q.Greet(t.Context()))
	defer func() { _ = q.Call(t.Context(), "quit", nil, nil) }()
	h.says(t, "has all bytes")
	disktest.WaitFor(t, "FreeDOS", func() bool {
		shown, err := os.ReadFile(console)
		return err == nil && strings.Contains(escapes.ReplaceAllString(string(shown), ""), booted)
	})
	require.NoError(t, q.Call(t.Context(), "send-key",
		map[string]any{"keys": []map[string]string{{"type": "qcode", "data": "ret"}}}, nil))

	r := h.ends(t, 0)
	require.Equal(t, "full", r.Proof)
	raw := filepath.Join(dir, "disk.raw")
	disktest.Run(t, "qemu-img", "convert", "-O", "raw", h.dest, raw)
	w := windowOf(t, raw, 1)
	require.Equal(t, int64(2048), w.start)
	for name, text := range map[string]string{"ONE.TXT": "one\r\n", "TWO.TXT": "two\r\n"} {
		require.Equal(t, text, disktest.Output(t, "mtype", "-i", drive(raw, w), "::"+name))
	}
}

// A Linux that panics in the middle of the copy has all files that it flushed, when it is started again.
func TestHandoverOfAPanickingGuest(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	d, socket := newHandedDisk(t, "a"), filepath.Join(t.TempDir(), "qmp")
	d.start(t, "--qmp", socket, "--limit", "1M", "--progress", "json", d.source, d.dest)
	d.says(t, "is ready")
	setup := newHandedGuest()
	setup.more = []string{"-qmp", "unix:" + socket + ",server=on,wait=off"}
	setup.add(guestDisk{d.dest, "qcow2", sectorSize})
	g := setup.boot(t)
	g.ask(t, guestRequest{Op: "mount", Source: d.device, Target: d.mount, Type: "ext4"})
	d.says(t, `"phase":"stream"`)
	for n := range 3 {
		d.write(t, g, n)
	}
	require.NoError(t, g.in.Encode(guestRequest{
		Op: "run", Args: []string{"/bin/sh", "-c", "echo 1 >/proc/sys/kernel/sysrq; echo c >/proc/sysrq-trigger"},
	}))
	g.wait()
	require.Contains(t, string(disktest.ReadFile(t, g.console)), "Kernel panic")
	require.False(t, d.streamed())
	require.NoError(t, d.cmd.Process.Signal(syscall.SIGINT))
	require.Contains(t, d.ends(t, 130).Error.Message, "handover --resume")

	d.start(t, "--resume", d.dest)
	d.says(t, "is ready")
	work(t, setup.boot(t), func() {}, d)
	d.require(t)
}

// startLibvirt starts a libvirtd with folders of its own, and returns its address.
func startLibvirt(t *testing.T) (uri string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "libvirtd.conf")
	require.NoError(t, os.WriteFile(config, []byte("unix_sock_dir = \""+dir+"\"\nauth_unix_rw = \"none\"\n"), 0o600))
	cmd := exec.Command(disktest.Tool(t, "unshare"), "-m", "sh", "-ec", `
		for folder in /etc/libvirt /run/libvirt /var/cache/libvirt /var/lib/libvirt /var/log/libvirt; do
			mkdir -p $folder && mount -t tmpfs tmpfs $folder
		done
		printf '%s\n' 'stdio_handler = "file"' 'security_driver = "none"' 'namespaces = []' 'cgroup_controllers = []' \
			>/etc/libvirt/qemu.conf
		exec "$0" -p "$1.pid" -f "$1"`, disktest.Tool(t, "libvirtd"), config)
	var said lockedBuffer
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	uri = "qemu+unix:///system?socket=" + filepath.Join(dir, "libvirt-sock")
	disktest.WaitFor(t, "libvirtd", func() bool {
		select {
		case <-ended:
			t.Skip("libvirtd does not run here: " + said.String())
		default:
		}
		return exec.Command(disktest.Tool(t, "virsh"), "-c", uri, "list").Run() == nil
	})
	return uri
}

// domainXML is a domain with the folder DIR, the elements DISK of its disk, and the kernel of a test.
const domainXML = `<domain type='qemu'>
  <name>guest</name><memory unit='MiB'>512</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type>
    <kernel>DIR/kernel</kernel><initrd>DIR/initrd</initrd><cmdline>COMMAND</cmdline></os>
  <features><acpi/></features>
  <devices>
    <disk type='file' device='disk'>DISK<target dev='vda' bus='virtio'/></disk>
    <interface type='user'><model type='virtio'/></interface>
    <channel type='unix'><source mode='bind' path='DIR/port'/><target type='virtio' name='port'/></channel>
    <serial type='file'><source path='DIR/console'/></serial>
    <controller type='usb' model='none'/><memballoon model='none'/>
  </devices>
</domain>
`

// defineGuest defines a Linux guest of libvirt with the elements of a disk. QEMU runs as another user than trueup.
func defineGuest(t *testing.T, disk string) (uri string, start func() *linuxGuest) {
	t.Helper()
	disktest.Tool(t, "qemu-system-x86_64")
	uri = startLibvirt(t)
	dir := t.TempDir()
	for _, folder := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(folder, 0o777))
	}
	virsh := func(args ...string) {
		disktest.Run(t, "virsh", append([]string{"-q", "-c", uri}, args...)...)
	}
	kernel, initrd := newHandedGuest().system(t)
	disktest.Run(t, "cp", kernel, filepath.Join(dir, "kernel"))
	disktest.Run(t, "cp", initrd, filepath.Join(dir, "initrd"))
	text := strings.NewReplacer("DIR", dir, "DISK", disk, "COMMAND", guestCommand).Replace(domainXML)
	virsh("define", hostFile(t, text))
	return uri, func() *linuxGuest {
		virsh("start", "guest")
		t.Cleanup(func() { _ = exec.Command("virsh", "-c", uri, "destroy", "guest").Run() })
		c, err := net.Dial("unix", filepath.Join(dir, "port"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return &linuxGuest{
			t: t, in: json.NewEncoder(c), out: json.NewDecoder(c), console: filepath.Join(dir, "console"),
			wait: func() {},
		}
	}
}

// libvirt runs the guest, as another user than trueup, and copies the disk at the speed of --limit.
func TestHandoverOfALibvirtGuest(t *testing.T) {
	t.Parallel()
	d := newHandedDisk(t, "a")
	uri, start := defineGuest(t, "<driver name='qemu' type='qcow2' error_policy='stop' rerror_policy='stop'/>"+
		"<source file='"+d.dest+"'/>")
	d.env = []string{"LIBVIRT_DEFAULT_URI=" + uri}
	d.start(t, d.source, d.dest, "--domain", "guest", "--limit", "4M", "--progress", "json")
	d.says(t, "is ready")
	g := start()
	d.says(t, `"phase":"stream"`)
	require.Contains(t, disktest.Run(t, "virsh", "-c", uri, "blockjob", "guest", "vda", "--raw", "--bytes"),
		"bandwidth=4194304\n")
	work(t, g, func() {}, d)
	d.require(t)
}
