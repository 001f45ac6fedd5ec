package fleetcmd_test

import (
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy is the network between a worker and a server.
type proxy struct {
	net.Listener
	to string

	mu    sync.Mutex
	on    *sync.Cond
	stuck bool // nothing passes, and connections stay open
	down  bool // there are no connections
	conns map[net.Conn]bool
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{Listener: l, to: to, conns: map[net.Conn]bool{}}
	p.on = sync.NewCond(&p.mu)
	go p.accept()
	t.Cleanup(func() {
		_ = l.Close()
		p.set(false, true)
	})
	return p
}

// set changes the state of the connection.
func (p *proxy) set(stuck, down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stuck, p.down = stuck, down
	if down {
		for c := range p.conns {
			_ = c.Close()
		}
		clear(p.conns)
	}
	p.on.Broadcast()
}

func (p *proxy) accept() {
	for {
		in, err := p.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		if p.down {
			_, _ = in.Close(), out.Close()
		} else {
			p.conns[in], p.conns[out] = true, true
		}
		p.mu.Unlock()
		go p.pass(in, out)
		go p.pass(out, in)
	}
}

// pass forwards data, unless the connection is stalled.
func (p *proxy) pass(from, to net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		for p.stuck {
			p.on.Wait()
		}
		p.mu.Unlock()
		if _, failed := to.Write(b[:n]); err != nil || failed != nil {
			return
		}
	}
}
