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
	"sync/atomic"
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
	// maxClients bounds the connections at one time. Another one takes the place of the one that is idle longest, as
	// long as that one is in its handshake or was idle for idleEnough.
	maxClients = 128
	idleEnough = time.Minute
	// handshakeTime bounds the time from the connection to the transmission.
	handshakeTime = 30 * time.Second
	// endTime bounds the time that requests in work have when the server ends.
	endTime = 2 * time.Second
	// fitEvery is the interval of calls to Fit.
	fitEvery = time.Second
	// The first clients in transmission have a buffer for what tools ask for at once, later ones one that takes what a
	// chunk must be able to have.
	manyBuffer, fewBuffer = headRoom + 64<<10, headRoom + 256<<10
	fewClients            = 24
)

// client is a connection.
type client struct {
	net.Conn
	used   atomic.Int64 // nanoseconds of the last use by the client, from the start of the server
	enters atomic.Bool  // the handshake is over
	start  time.Time    // of the server
}

func (c *client) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.used.Store(int64(time.Since(c.start)))
	}
	return n, err
}

// Write counts as a use in transmission. The greeting does not: a silent client gets it too, perhaps later than one
// that is about to speak.
func (c *client) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if c.enters.Load() {
		c.used.Store(int64(time.Since(c.start)))
	}
	return n, err
}

// serving is a call of Serve.
type serving struct {
	*Server
	start  time.Time
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
	v := &serving{Server: s, start: time.Now(), end: end, clients: map[*client]struct{}{}}
	var all sync.WaitGroup
	stop := context.AfterFunc(ctx, func() { v.close(l) })
	defer stop()
	if s.Fit != nil {
		all.Go(func() { v.watch(ctx) })
	}
	if s.Parent != 0 {
		all.Go(func() { v.follow(ctx) })
	}
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
		c := &client{Conn: conn, start: v.start}
		c.used.Store(int64(time.Since(v.start)))
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

// follow ends the server when its parent has ended.
func (v *serving) follow(ctx context.Context) {
	const interval = 200 * time.Millisecond
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for os.Getppid() == v.Parent {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	v.end(errOrphan)
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

// watch ends the server when the disk is no longer the one that was opened.
func (v *serving) watch(ctx context.Context) {
	tick := time.NewTicker(fitEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
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

// add takes a client in. When all places are taken, the one that is idle longest makes room.
func (v *serving) add(c *client) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shutdown {
		return false
	}
	if len(v.clients) >= maxClients {
		idlest := v.idlest()
		if idlest == nil {
			return false
		}
		delete(v.clients, idlest)
		_ = idlest.Close() // its session ends
	}
	v.clients[c] = struct{}{}
	return c.SetDeadline(time.Now().Add(handshakeTime)) == nil
}

// idlest returns the client that was not used longest, of those in their handshake if there are any, nil if all work.
func (v *serving) idlest() *client {
	limit := int64(time.Since(v.start) - idleEnough)
	var found *client
	for c := range v.clients {
		in, used := c.enters.Load(), c.used.Load()
		switch {
		case in && used > limit:
		case found == nil, found.enters.Load() && !in, found.enters.Load() == in && used < found.used.Load():
			found = c
		}
	}
	return found
}

// run holds the conversation with a client. What a client does wrong ends its own session, without a word.
func (v *serving) run(c *client) {
	s := newSession(v.Export, c, v.failed)
	if err := s.handshake(); err != nil {
		return
	}
	size, ok := v.enter(c)
	if !ok {
		return
	}
	s.buf = make([]byte, size)
	_ = s.transmit()
}

// enter begins the transmission with a client, and returns the size of its buffer.
func (v *serving) enter(c *client) (size int, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.shutdown || c.SetDeadline(time.Time{}) != nil {
		return 0, false
	}
	c.enters.Store(true)
	v.entered++
	if v.entered <= fewClients {
		return fewBuffer, true
	}
	return manyBuffer, true
}

// remove closes a connection, the last of which ends a server that serves once.
func (v *serving) remove(c *client) {
	_ = c.Close() // read-only: nothing is lost
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.clients, c)
	if !c.enters.Load() {
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
