// Package nbd serves a disk, read-only, by the NBD protocol: fixed newstyle handshake, structured replies, holes, and
// block status of base:allocation. A session never keeps more than its buffer, whatever a client asks for, and a client
// that does not read its replies holds up its own session only.
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

// Export is what clients see. The name "" is that of the default export.
type Export struct {
	Name, Description string
	Disk              disk.Disk
}

// Server serves one export to many clients.
type Server struct {
	Export
	Once   bool         // end when the last client left, after the first
	Warn   func(error)  // told once, of the first read of the disk that fails; may be nil
	Parent int          // process; the server ends when it is no longer the parent of this one; 0: it is not looked at
	Fit    func() error // fails when the disk is not the one that was opened any more; ends the server; may be nil
}

const (
	// maxClients bounds the connections at one time. Another one takes the place of the oldest in its handshake.
	maxClients = 64
	// handshakeTime bounds the time from the connection to the transmission.
	handshakeTime = 30 * time.Second
	// endTime bounds the time that requests in work have when the server ends.
	endTime = 2 * time.Second
	// lookEvery is the interval of looks at Fit and at Parent.
	lookEvery = time.Second
	// bufferSize is the buffer of a client in bytes: what tools ask for at once.
	bufferSize = headRoom + 256<<10
)

// client is a connection.
type client struct {
	net.Conn
	since  time.Time
	enters bool // the handshake is over
}

// serving is a call of Serve.
type serving struct {
	*Server
	end    context.CancelCauseFunc
	warned sync.Once

	mu       sync.Mutex
	clients  map[*client]struct{}
	entered  int // clients in transmission
	shutdown bool

	failures int // of Accept, one behind the other
}

// errOnce ends a server that serves once, and errOrphan one that ends with its parent.
var (
	errOnce   = errors.New("the last client left")
	errOrphan = errors.New("the calling program has ended")
)

// Serve accepts clients until ctx ends, whose cause it returns, or nil after the last client of Once and the end of
// Parent. It closes l and all connections.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, end := context.WithCancelCause(ctx)
	v := &serving{Server: s, end: end, clients: map[*client]struct{}{}}
	var all sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { v.close(l) })
	defer stop()
	all.Go(func() { v.watch(ctx) })
	room := make(chan struct{}, 2*maxClients) // for those that are pushed out, until they are gone
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
	if s.Fit != nil {
		if changed := s.Fit(); changed != nil {
			return changed
		}
	}
	return err
}

// recovers reports whether another connection can be waited for after an error.
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

// watch ends the server when its parent has ended, and when the disk is no longer the one that was opened.
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
		} else if v.Fit != nil {
			if err := v.Fit(); err != nil {
				v.end(err)
			}
		}
	}
}

// close ends all sessions after the request in work.
func (v *serving) close(l net.Listener) {
	_ = l.Close() // nothing can be done about it
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shutdown = true
	for c := range v.clients {
		_ = c.SetReadDeadline(time.Now())
		_ = c.SetWriteDeadline(time.Now().Add(endTime))
	}
}

// add takes a client in. When all places are taken, the oldest in its handshake makes room.
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

// run holds the conversation with a client. What a client does wrong ends its own session, without a word.
func (v *serving) run(c *client) {
	s := newSession(v.Export, c, v.failed)
	if err := s.handshake(); err != nil {
		return
	}
	if v.enter(c) {
		s.buf = make([]byte, bufferSize)
		_ = s.transmit()
	}
}

// enter begins the transmission with a client. One that has lost its place does not get there.
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

// remove closes a connection, the last of which ends a server that serves once.
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

// failed tells of the first read that fails, and whether the disk has changed.
func (v *serving) failed(err error) {
	v.warned.Do(func() {
		if v.Warn != nil {
			v.Warn(err)
		}
	})
}
