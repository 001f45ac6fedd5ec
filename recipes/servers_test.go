package recipes

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmware/govmomi/simulator"
)

// vCenter starts the simulator of a vCenter, whose datastores are folders. Its browser of datastores asks for no
// password, so that a server before it does.
func vCenter(k *kitchen) {
	k.Helper()
	model := simulator.VPX()
	k.Cleanup(model.Remove)
	require.NoError(k, model.Create())
	model.Service.TLS = new(tls.Config)
	center := model.Service.NewServer()
	k.Cleanup(center.Close)

	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: center.URL.Scheme, Host: center.URL.Host})
	trusting := &tls.Config{InsecureSkipVerify: true}
	proxy.Transport = &http.Transport{TLSClientConfig: trusting}
	name, password := center.URL.User.Username(), "user's $ecret"
	front := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, p, _ := r.BasicAuth(); n != name || p != password {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	k.Cleanup(front.Close)
	k.write("certificate", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})))
	k.env = append(k.env, "GOVC_URL="+center.URL.String(), "GOVC_INSECURE=1", "GOVC_DATASTORE=LocalDS_0",
		"GOVC_PERSIST_SESSION=false", "VCENTER="+front.Listener.Addr().String(), "GOVC_USERNAME="+name,
		"GOVC_PASSWORD="+password)
}

func TestGovc(t *testing.T) {
	k := newKitchen(t)
	vCenter(k)
	k.env = append(k.env, "GOVC_USERNAME=", "GOVC_PASSWORD=") // those in the URL
	k.shell("trueup convert --to vmdk:vmfs xp.img xp.vmdk")
	k.shell("for f in xp.vmdk xp-flat.vmdk; do govc datastore.upload $f vm/$f; done; rm xp.vmdk xp-flat.vmdk")
	k.shell(strings.Join(k.follow("govc"), ""))
	require.Contains(k, k.shell("govc datastore.ls vm"), "xp-aligned-flat.vmdk")
	k.shell("mkdir down\n" +
		"for f in xp-aligned.vmdk xp-aligned-flat.vmdk; do govc datastore.download vm/$f down/$f; done")
	k.aligned("down/xp-aligned.vmdk")
}

func TestWebServers(t *testing.T) {
	k := newKitchen(t, "nbdkit")
	web := httptest.NewServer(http.FileServer(http.Dir(k.dir)))
	k.Cleanup(web.Close)
	k.env = append(k.env, "URL="+web.URL)
	k.shell("cp xp.img disk.img && gzip -k disk.img")
	k.shell(strings.Join(k.follow("Web servers"), ""))
	k.aligned("from-web.img")
	k.aligned("from-web-gz.img")
}

func TestDatastoreBrowser(t *testing.T) {
	k := newKitchen(t, "nbdkit")
	vCenter(k)
	k.shell("GOVC_USERNAME= GOVC_PASSWORD= govc datastore.upload xp.img vm/xp-flat.vmdk")
	k.shell(`printf %s "$GOVC_PASSWORD" > password`)
	commands := strings.Join(k.follow("Datastore browser"), "")
	commands = strings.ReplaceAll(commands, "nbdkit -U - curl", "nbdkit -U - curl cainfo="+k.path("certificate"))
	commands = strings.Replace(commands, "trueup inspect \"$uri\"'", "trueup inspect \"$uri\"' || [ $? = 3 ]", 1)
	commands = strings.Replace(commands, " xp.img", " from-browser.img", 1)
	require.Contains(k, k.shell(commands), "Misaligned: partition 1")
	k.aligned("from-browser.img")
}

// sshServer starts a server of SSH for the user of the test, with a key, and a configuration for clients. A process of
// sshd serves one connection.
func sshServer(k *kitchen) (port int) {
	k.Helper()
	k.shell("ssh-keygen -q -t ed25519 -N '' -f id && ssh-keygen -q -t ed25519 -N '' -f host && cp id.pub authorized")
	k.write("sshd_config", fmt.Sprintf("HostKey %s\nAuthorizedKeysFile %s\nStrictModes no\nPermitRootLogin yes\n"+
		"UsePAM no\nPidFile none\nSubsystem sftp internal-sftp\n", k.path("host"), k.path("authorized")))
	k.shell("[ $(id -u) != 0 ] || mkdir -p /run/sshd") // for what gives up its rights
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(k, err)
	k.Cleanup(func() { require.NoError(k, listener.Close()) })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			socket, err := conn.(*net.TCPConn).File()
			if err == nil {
				server := exec.Command("/usr/sbin/sshd", "-i", "-f", k.path("sshd_config"))
				server.Stdin, server.Stdout = socket, socket
				_ = server.Start()
				_ = socket.Close()
				go func() { _ = server.Wait() }()
			}
			_ = conn.Close()
		}
	}()
	port = listener.Addr().(*net.TCPAddr).Port
	k.shell(fmt.Sprintf("echo \"[127.0.0.1]:%d $(cat host.pub)\" > known", port))
	k.write("config", fmt.Sprintf("Host store\n  HostName 127.0.0.1\n  Port %d\n  IdentityFile %s\n"+
		"  UserKnownHostsFile %s\n", port, k.path("id"), k.path("known")))
	return port
}

// The clients get the port and the keys by options, as the files of the user are not those of the test.
func TestSSH(t *testing.T) {
	k := newKitchen(t, "sshd", "sshfs", "nbdkit")
	port := sshServer(k)
	k.shell("mkdir images && cp xp.img images/disk.img")
	commands := strings.Join(k.follow("SSH"), "")
	commands = strings.Replace(commands, "sshfs -o", "sshfs -F "+k.path("config")+" -o", 1)
	commands = strings.Replace(commands, `ssh host="$HOST"`, fmt.Sprintf(
		"ssh host=127.0.0.1 port=%d identity=%s known-hosts=%s", port, k.path("id"), k.path("known")), 1)
	k.env = append(k.env, "HOST=store", "IMAGES="+k.path("images"))
	k.Cleanup(func() { _ = exec.Command("fusermount3", "-qu", k.path("mnt")).Run() })
	k.shell(commands)
	require.Contains(k, k.shell("cat rows.ndjson"), `"start_lba":63`)
	k.aligned("from-ssh.img")
}
