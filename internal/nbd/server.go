// Package nbd serves a disk, read-only, by the NBD protocol: fixed newstyle handshake, structured replies, holes, and
// block status of base:allocation. A session never uses more memory than its buffer, for any request. A client that
// does not read its replies blocks only its own session.
package nbd

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/disk"
)

// Server serves a disk to many clients, as the default export.
type Server struct {
	Disk      disk.Disk
	Once      bool         // end after the last client has left
	Warn      func(error)  // called once, for the first failed read of the disk; may be nil
	Parent    int          // process ID of the parent; the server ends when its parent changes; 0 disables the check
	Unchanged func() error // returns an error if the opened disk was replaced or changed; ends the server; may be nil
}

const (
	// maxClients limits the simultaneous connections. Another client replaces the oldest one in its handshake.
	maxClients = 64
	// handshakeTime limits the time from the connection to the transmission phase.
	handshakeTime = 30 * time.Second
	// endTime limits the time for pending requests when the server ends.
	endTime = 2 * time.Second
	// lookEvery is the interval of the checks of Unchanged and Parent.
	lookEvery = time.Second
	// bufferSize is the buffer of a client in bytes, for the usual request size of tools.
	bufferSize = headRoom + 256<<10
)

// client is a connection.
type client struct {
	net.Conn
	since  time.Time
	enters bool // the handshake is over
}

// serving is the state of one call of Serve.
type serving struct {
	*Server
	end    context.CancelCauseFunc
	warned sync.Once

	mu       sync.Mutex
	clients  map[*client]struct{}
	entered  int // clients in the transmission phase
	shutdown bool

	failures int // consecutive failures of Accept
}

// errOnce ends a server with Once, and errOrphan a server without its parent.
var (
	errOnce   = errors.New("the last client left")
	errOrphan = errors.New("the calling program has ended")
)

// Serve accepts clients until ctx ends, and returns its cause. It returns nil after the last client of Once, and after
// the end of Parent. An error of Unchanged takes precedence. It closes l and all connections.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, end := context.WithCancelCause(ctx)
	v := &serving{Server: s, end: end, clients: map[*client]struct{}{}}
	var all sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { v.close(l) })
	defer stop()
	all.Go(func() { v.watch(ctx) })
	room := make(chan struct{}, 2*maxClients) // including dropped clients, until they are gone
	for ctx.Err() == nil {
		conn, err := l.Accept()
		if err != nil {
			if !v.recovers(ctx, err) {
				end(err)
			}
			continue
		}
		v.failures = 0
		room <- struct{}{}
		c := &client{Conn: conn, since: time.Now()}
		all.Go(func() {
			defer func() { <-room }()
			if v.add(c) {
				v.run(c)
			}
			v.remove(c)
		})
	}
	all.Wait()
	_ = l.Close() // again, if it was never closed
	err := context.Cause(ctx)
	if errors.Is(err, errOnce) || errors.Is(err, errOrphan) {
		err = nil
	}
	if s.Unchanged != nil {
		if changed := s.Unchanged(); changed != nil {
			return changed
		}
	}
	return err
}

// recovers reports whether Accept can continue after an error.
func (v *serving) recovers(ctx context.Context, err error) bool {
	const most, pause = 100, 100 * time.Millisecond
	if v.failures++; errors.Is(err, net.ErrClosed) || v.failures > most {
		return false
	}
	select { // too many open files, or a client that is gone
	case <-time.After(pause):
	case <-ctx.Done():
	}
	return true
}

// watch ends the server when its parent ends, or when Unchanged returns an error.
func (v *serving) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if v.Parent != 0 && os.Getppid() != v.Parent {
			v.end(errOrphan)
		} else if v.Unchanged != nil {
			if err := v.Unchanged(); err != nil {
				v.end(err)
			}
		}
	}
}

// close ends all sessions after their pending requests.
func (v *serving) close(l net.Listener) {
	_ = l.Close() // the error has no remedy
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shutdown = true
	for c := range v.clients {
		_ = c.SetReadDeadline(time.Now())
		_ = c.SetWriteDeadline(time.Now().Add(endTime))
	}
}

// add admits a client, and reports whether it could. If the limit is reached, it drops the oldest client still in its
// handshake.
func (v *serving) add(c *client) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shutdown {
		return false
	}
	if len(v.clients) >= maxClients {
		var oldest *client
		for x := range v.clients {
			if !x.enters && (oldest == nil || x.since.Before(oldest.since)) {
				oldest = x
			}
		}
		if oldest == nil {
			return false
		}
		delete(v.clients, oldest)
		_ = oldest.Close() // its session ends
	}
	v.clients[c] = struct{}{}
	return c.SetDeadline(time.Now().Add(handshakeTime)) == nil
}

// run runs the session of a client. An error of the client silently ends its own session.
func (v *serving) run(c *client) {
	s := newSession(v.Disk, c, v.failed)
	if err := s.handshake(); err != nil {
		return
	}
	if v.enter(c) {
		s.buf = make([]byte, bufferSize)
		_ = s.transmit()
	}
}

// enter starts the transmission phase with a client, unless the client was dropped.
func (v *serving) enter(c *client) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shutdown || c.SetDeadline(time.Time{}) != nil {
		return false
	}
	c.enters = true
	v.entered++
	return true
}

// remove closes a connection. The last one ends a server with Once.
func (v *serving) remove(c *client) {
	_ = c.Close() // read-only: nothing is lost
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.clients, c)
	if !c.enters {
		return
	}
	if v.entered--; v.entered == 0 && v.Once {
		v.end(errOnce)
	}
}

// failed reports the first failed read.
func (v *serving) failed(err error) {
	v.warned.Do(func() {
		if v.Warn != nil {
			v.Warn(err)
		}
	})
}
