package fleetcmd_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/fleet/queue"
	"github.com/trueup/trueup/internal/disktest"
)

// cluster is three servers with three replicas of all jobs.
type cluster struct {
	program string
	configs map[string]string // by the names of servers
	servers map[string]*exec.Cmd
}

// newCluster starts the servers, and returns their URLs.
func newCluster(t *testing.T, program string) (c *cluster, urls string) {
	t.Helper()
	c = &cluster{program: program, configs: map[string]string{}, servers: map[string]*exec.Cmd{}}
	var clients, routes []string
	for range 3 {
		clients, routes = append(clients, freePort(t)), append(routes, freePort(t))
	}
	for n := range clients {
		name := fmt.Sprintf("s%d", n)
		c.configs[name] = filepath.Join(t.TempDir(), "nats.conf")
		text := fmt.Sprintf(`server_name: %s, listen: "%s"
jetstream { store_dir: "%s" }
cluster { name: chaos, listen: "%s", routes: ["nats://%s"] }
`, name, clients[n], t.TempDir(), routes[n], strings.Join(routes, `", "nats://`))
		require.NoError(t, os.WriteFile(c.configs[name], []byte(text), 0o600))
		c.start(t, name)
	}
	return c, "nats://" + strings.Join(clients, ",nats://")
}

// freePort returns an address that nothing listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func (c *cluster) start(t *testing.T, name string) {
	t.Helper()
	cmd := exec.Command(c.program, "-c", c.configs[name])
	require.NoError(t, cmd.Start())
	c.servers[name] = cmd
	t.Cleanup(func() { stopServer(cmd) })
}

func stopServer(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// leader returns the server that leads the stream of jobs, or an empty string.
func (c *cluster) leader(t *testing.T, urls string) string {
	t.Helper()
	conn, err := nats.Connect(urls)
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	s, err := js.Stream(t.Context(), "TRUEUP_JOBS")
	if err != nil || s.CachedInfo().Cluster == nil {
		return ""
	}
	return s.CachedInfo().Cluster.Leader
}

// lead waits for a leader, and returns its name.
func (c *cluster) lead(t *testing.T, urls string) (name string) {
	t.Helper()
	disktest.WaitFor(t, "a leader", func() bool {
		name = c.leader(t, urls)
		return c.servers[name] != nil
	})
	return name
}

// TestChaosCluster is TestChaos with three servers, whose leader is killed and frozen. It needs the nats-server in
// TRUEUP_NATS.
func TestChaosCluster(t *testing.T) {
	t.Parallel()
	program := os.Getenv("TRUEUP_NATS")
	if program == "" {
		t.Skip("TRUEUP_NATS names no nats-server; make chaos has one")
	}
	images, seed := chaosImages(t)
	c := newChaos(t, seed)
	servers, urls := newCluster(t, program)
	c.url, c.calm = urls, 10*chaosWait // servers need some seconds to elect a leader
	c.fill(t, images)
	disktest.WaitFor(t, "the cluster", func() bool {
		q, err := queue.Open(t.Context(), queue.Options{URL: urls, Replicas: 3})
		c.q = q
		return err == nil
	})
	t.Cleanup(c.q.Close)
	c.watch(t)
	c.submit(t)
	for range 3 {
		m := &member{url: urls, folder: t.TempDir()}
		c.members = append(c.members, m)
		c.enlist(t, m)
	}
	c.reign(t, []fault{
		faults[0],
		{"the leader is killed", chaosWait, func(t *testing.T, _ *chaos, _ *member) func() {
			t.Helper()
			name := servers.lead(t, urls)
			stopServer(servers.servers[name])
			return func() { servers.start(t, name) }
		}},
		{"the leader is frozen", 2 * chaosWait, func(t *testing.T, _ *chaos, _ *member) func() {
			t.Helper()
			leader := servers.servers[servers.lead(t, urls)].Process
			require.NoError(t, leader.Signal(syscall.SIGSTOP))
			return func() { require.NoError(t, leader.Signal(syscall.SIGCONT)) }
		}},
		{"two servers are killed", chaosWait, func(t *testing.T, _ *chaos, _ *member) func() {
			t.Helper()
			for _, name := range []string{"s0", "s1"} {
				stopServer(servers.servers[name])
			}
			return func() {
				servers.start(t, "s0")
				servers.start(t, "s1")
			}
		}},
	})
	c.requireSound(t)
	servers.lead(t, urls)
	c.requireOneReport(t)
}
