package main

import (
	"encoding/json"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// mountModules are the file systems of the guest and their dependencies: character sets, and the checksums and ciphers
// of SMB.
var mountModules = []string{
	"crc32c_generic", "ext4", "nls_cp437", "nls_ascii", "nls_iso8859-1", "nls_utf8", "vfat", "exfat", "nfs", "nfsv4",
	"md5", "hmac", "cmac", "sha256_generic", "sha512_generic", "aes_generic", "ecb", "ctr", "ghash-generic", "seqiv",
	"ccm", "gcm", "cifs",
}

// mounted is a file system of the guest and its properties: the codes of notes on a DEST of several files, and the size
// of a copy for which it has no room.
type mounted struct {
	name    string
	request guestRequest
	several []string
	full    string
}

// TestMountedFileSystems runs trueup on file systems that a Linux kernel mounts in a virtual machine: the usual ones of
// sticks and cards, and two from servers on this machine. `make filesystems` runs it.
func TestMountedFileSystems(t *testing.T) {
	if os.Getenv("TRUEUP_FILESYSTEMS") != "1" {
		t.Skip("make filesystems runs it: a virtual machine, a server for SMB and one for NFS")
	}
	if os.Geteuid() != 0 {
		t.Skip("the servers need root")
	}
	dir := t.TempDir()
	source, large := sampleDisk(t), noisyDisk(t, 16)
	made := copiesHere(t, source)
	setup := linuxSetup{modules: mountModules, files: map[string]string{
		"source.vmdk": source, "large.raw": large, "trueup": buildStatic(t, "."),
	}}
	for _, kind := range []string{"ext4", "vfat", "exfat"} {
		disk := filepath.Join(dir, kind)
		disktest.MakeBlank(t, disk, 32<<20)
		disktest.Run(t, "mkfs."+kind, disk)
		setup.add(guestDisk{disk, "raw", sectorSize})
	}
	smbData := "username=guest,password=none,ip=10.0.2.2,vers=3.1.1,port=" +
		serveFolder(t, "smbd", smbConf, "-F", "--no-process-group", "-s", "$DIR/conf")
	nfsData := "addr=10.0.2.2,clientaddr=10.0.2.15,vers=4.2,proto=tcp,port=" +
		serveFolder(t, "ganesha.nfsd", nfsConf, "-F", "-f", "$DIR/conf", "-L", "STDOUT", "-p", "$DIR/pid")
	const free, set = "are free in the folder of DEST", "set size of second: no space left on device"
	guest := setup.boot(t)
	for _, m := range []mounted{
		{name: "ext4", request: guestRequest{Type: "ext4", Source: "/dev/vda"}, full: free},
		{name: "vfat", request: guestRequest{Type: "vfat", Source: "/dev/vdb"}, several: noLinks, full: set},
		{name: "exfat", request: guestRequest{Type: "exfat", Source: "/dev/vdc"}, several: noLinks, full: set},
		{name: "smb", request: guestRequest{Type: "cifs", Source: "//10.0.2.2/share", Data: smbData}, full: free},
		{name: "smb without locks", request: guestRequest{
			Type: "cifs", Source: "//10.0.2.2/share",
			Data: smbData + ",nobrl",
		}, full: free},
		{name: "nfs", request: guestRequest{Type: "nfs4", Source: "10.0.2.2:/share", Data: nfsData}, full: free},
	} {
		t.Run(m.name, func(t *testing.T) {
			m.request.Op, m.request.Target = "mount", "/mnt"
			guest.ask(t, m.request)
			guest.ask(t, guestRequest{Op: "empty", Path: "/mnt"})
			m.copies(t, guest, made)

			// Each kind of report is written beside the images and over itself.
			at := func(name string) string { return filepath.Join("/mnt", name) }
			want := append(m.names(t, guest), "report.txt", "scan.json")
			scan := append([]string{"scan", "--json", "/mnt"}, since(at("scan.json"))...)
			for range 2 {
				r := guest.trueup(t, "inspect", at("out.vmdk"), "--out", at("report.txt"))
				require.Equal(t, 0, r.code, r.stderr)
				r = guest.trueup(t, scan...)
				require.Equal(t, 0, r.code, r.stderr)
				m.requireNames(t, guest, want...)
			}
			guest.ask(t, guestRequest{Op: "empty", Path: "/mnt"})

			m.interrupted(t, guest)
			m.fill(t, guest)
		})
	}
}

// mountCopy is a copy of the sample in a format, and the digests of its files as written on this machine.
type mountCopy struct {
	to, name string
	first    map[string]string // by name
	second   map[string]string // over itself
}

// copiesHere makes the copies on this machine, and compares them with qemu-img.
func copiesHere(t *testing.T, source string) []mountCopy {
	t.Helper()
	made := []mountCopy{
		{to: "raw", name: "out.raw"},
		{to: "qcow2", name: "out.qcow2"},
		{to: "vmdk:twoGbMaxExtentSparse", name: "out.vmdk"},
	}
	plain := filepath.Join(t.TempDir(), "plain.raw")
	require.Equal(t, 0, trueup(t, "align", "--to", "raw", source, plain).code)
	for i, c := range made {
		dir := t.TempDir()
		dest := filepath.Join(dir, c.name)
		copied := func(flags ...string) map[string]string {
			require.Equal(t, 0, trueup(t, append([]string{"align", "--to", c.to, source, dest}, flags...)...).code)
			disktest.Run(t, "qemu-img", "compare", plain, dest)
			return sumsOf(t, dir)
		}
		made[i].first, made[i].second = copied(), copied("--force")
	}
	return made
}

// copies requires that a copy in each format has the expected bytes, with and without --force, when read after a
// remount.
func (m mounted) copies(t *testing.T, g *linuxGuest, made []mountCopy) {
	t.Helper()
	dir := m.request.Target
	for _, flags := range [][]string{nil, {"--force"}} {
		want := map[string]string{}
		for _, c := range made {
			sums, notes := c.first, []string(nil)
			if len(flags) > 0 {
				sums = c.second
			}
			if len(sums) > 1 {
				notes = m.several
			}
			maps.Copy(want, sums)
			m.requireNotes(t, g, notes, append([]string{"--to", c.to, "/source.vmdk", filepath.Join(dir, c.name)},
				flags...)...)
		}
		g.ask(t, guestRequest{Op: "umount", Target: dir})
		g.ask(t, m.request)
		got := map[string]string{}
		for _, name := range m.names(t, g) {
			got[name] = g.ask(t, guestRequest{Op: "sum", Path: filepath.Join(dir, name)}).Stdout
		}
		require.Equal(t, want, got)
		for _, c := range made {
			r := g.trueup(t, "verify", "/source.vmdk", filepath.Join(dir, c.name))
			require.Equal(t, 0, r.code, r.stderr)
		}
	}
}

func (m mounted) requireNotes(t *testing.T, g *linuxGuest, want []string, args ...string) {
	t.Helper()
	r := g.trueup(t, append([]string{"align", "--json"}, args...)...)
	require.Equal(t, 0, r.code, "%q\n%s", args, r.stdout)
	var answer destAnswer
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &answer))
	require.ElementsMatch(t, want, answer.ofDest(), "%q", args)
}

// names lists the files of the mounted folder, except those of the file system itself.
func (m mounted) names(t *testing.T, g *linuxGuest) []string {
	t.Helper()
	names := g.ask(t, guestRequest{Op: "list", Path: m.request.Target}).Names
	return slices.DeleteFunc(names, func(n string) bool { return n == "lost+found" })
}

func (m mounted) requireNames(t *testing.T, g *linuxGuest, want ...string) {
	t.Helper()
	require.ElementsMatch(t, want, m.names(t, g))
}

// interrupted requires that a copy ended by Ctrl-C leaves nothing, that two runs with one DEST exclude each other, and
// that the run after a killed one removes its remains.
func (m mounted) interrupted(t *testing.T, g *linuxGuest) {
	t.Helper()
	dest, partial := filepath.Join(m.request.Target, "large.raw"), filepath.Join(m.request.Target, ".large.raw.partial")
	r := g.stopped(t, syscall.SIGINT, partial, "align", "/large.raw", dest)
	require.Equal(t, 130, r.code, r.stderr)
	m.requireNames(t, g)

	args := []string{"/trueup", "align", "/large.raw", dest}
	a := g.ask(t, guestRequest{Op: "run", Args: args, Until: partial, Beside: args})
	require.Equal(t, 0, a.Code, a.Stderr)
	require.Equal(t, 4, a.Beside.Code, a.Beside.Stderr)
	require.Contains(t, a.Beside.Stderr, "in use by another run of trueup that writes the same DEST")
	m.requireNames(t, g, "large.raw")
	g.ask(t, guestRequest{Op: "empty", Path: m.request.Target})

	r = g.stopped(t, syscall.SIGKILL, partial, "align", "/large.raw", dest)
	require.Equal(t, 137, r.code, r.stderr)
	m.requireNames(t, g, ".large.raw.partial")
	r = g.trueup(t, "align", "/large.raw", dest)
	require.Equal(t, 0, r.code, r.stderr)
	m.requireNames(t, g, "large.raw")
}

// fill requires that a copy without room leaves nothing, whether it fails before or during the copy.
func (m mounted) fill(t *testing.T, g *linuxGuest) {
	t.Helper()
	for to, says := range map[string]string{"raw": m.full, "vmdk:streamOptimized": "no space left on device"} {
		r := g.trueup(t, "align", "--to", to, "/large.raw", filepath.Join(m.request.Target, "second"))
		require.Equal(t, 1, r.code, r.stderr)
		require.Contains(t, r.stderr, says)
		m.requireNames(t, g, "large.raw")
	}
	g.ask(t, guestRequest{Op: "umount", Target: m.request.Target})
}

// serveFolder starts a file server on a small private file system in memory, ends it with the test, and returns its
// port. $DIR, $SHARE and $PORT in its configuration and arguments are replaced.
func serveFolder(t testing.TB, server, conf string, args ...string) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port on which nothing listens
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

// Configurations of Samba and of Ganesha, an NFS server in user space.
const (
	smbConf = `[global]
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
`
	nfsConf = `NFS_CORE_PARAM { Protocols = 4; NFS_Port = $PORT;
 Bind_addr = 127.0.0.1; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }
NFSv4 { RecoveryBackend = fs; RecoveryRoot = $DIR; Graceless = true; Only_Numeric_Owners = true; }
EXPORT { Export_Id = 1; Path = $SHARE; Pseudo = /share; Access_Type = RW;
 Squash = No_Root_Squash; Protocols = 4; FSAL { Name = VFS; } }
`
)
