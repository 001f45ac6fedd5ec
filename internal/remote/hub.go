package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// FetchMany is the command of what asks the servers of a scan: this program once more, which decodes nothing of an
// image.
const FetchMany = "fetch-clerks"

// Hub reads files of many servers, by clerks that it starts: one for the network, and one for the sockets of this
// machine. They are started before the process confines itself. Safe for concurrent use.
type Hub struct {
	network, machine *clerk // nil: no address needs it
	slots            chan struct{}
	time             time.Duration // for one file
}

// orders are what a clerk is told first.
type orders struct {
	Authorization string
	Sockets       []string // that it connects to; none: it asks the network
	Each          int      // connections to one web server
}

// FileTime bounds the time for one file of many.
const FileTime = 2 * time.Minute

// Limits of one file, and of the files that are open.
const (
	maxFileBytes = 768 << 20
	maxOpen      = 16 // files
	maxOfServer  = 8  // files of one web server
)

// StartHub starts what asks servers, so many at once, which ends with ctx.
func StartHub(ctx context.Context, addresses []Address, authorization string, most int) (*Hub, error) {
	h := &Hub{slots: make(chan struct{}, min(most, maxOpen)), time: FileTime}
	network := orders{Authorization: authorization, Each: maxOfServer}
	machine, needed := orders{}, false
	for _, a := range addresses {
		if socket := socketOf(a.URI); socket != "" {
			machine.Sockets = append(machine.Sockets, socket)
		} else {
			needed = true
		}
	}
	var err error
	if needed {
		h.network, err = startClerk(ctx, network)
	}
	if err == nil && len(machine.Sockets) > 0 {
		h.machine, err = startClerk(ctx, machine)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start of the process that asks servers: %w", err), h.Close())
	}
	return h, nil
}

// Files is how many files can be open at once.
func (h *Hub) Files() int { return cap(h.slots) }

// Close ends all connections at once.
func (h *Hub) Close() error { return errors.Join(h.network.close(), h.machine.close()) }

// clerk is the other process.
type clerk struct {
	*sys.Clerk
	stop func() bool
	done chan struct{} // closed when it has ended

	sending sync.Mutex // held while a message is written
	mu      sync.Mutex
	last    uint32
	waiting map[uint32]chan []byte // for an answer, by the number of the file
	broken  error
}

func startClerk(ctx context.Context, o orders) (*clerk, error) {
	c := &clerk{waiting: map[uint32]chan []byte{}, done: make(chan struct{})}
	var err error
	if c.Clerk, err = sys.StartClerk(os.Stderr, FetchMany); err != nil {
		return nil, err
	}
	c.stop = context.AfterFunc(ctx, func() { _ = c.In.Close() })
	go c.receive()
	text, err := json.Marshal(o)
	if err == nil {
		_, err = c.In.Write(append(text, '\n'))
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *clerk) close() error {
	if c == nil {
		return nil
	}
	c.stop()
	_ = c.In.Close()
	<-c.done // which reads its output, until that ends
	return c.Close()
}

// receive passes answers on until the clerk ends.
func (c *clerk) receive() {
	defer close(c.done)
	for {
		number, body, err := readMessage(c.Out)
		c.mu.Lock()
		if err != nil {
			c.broken = ondisk.In(ErrServer, "the process that asks servers has ended: %w", err)
			for _, to := range c.waiting {
				close(to)
			}
			clear(c.waiting)
			c.mu.Unlock()
			_ = c.In.Close()
			_, _ = io.Copy(io.Discard, c.Out)
			return
		}
		if to := c.waiting[number]; to != nil {
			delete(c.waiting, number)
			to <- body
		}
		c.mu.Unlock()
	}
}

// ask has the clerk answer a question about a file.
func (c *clerk) ask(ctx context.Context, number uint32, question []byte) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	to := make(chan []byte, 1)
	c.mu.Lock()
	if err := c.broken; err != nil {
		c.mu.Unlock()
		return nil, err
	}
	c.waiting[number] = to
	c.mu.Unlock()
	if err := c.say(number, question); err != nil {
		return nil, err
	}
	select {
	case answer, ok := <-to:
		if !ok {
			return nil, c.broken
		}
		return answer, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *clerk) say(number uint32, body []byte) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	return writeMessage(c.In, number, body)
}

// Opened is a file of a server that a clerk has opened.
type Opened struct {
	Info
	// Bytes is how many were read of it.
	Bytes int64

	ctx    context.Context //nolint:containedctx // of all that is done with the file
	clerk  *clerk
	number uint32
	lost   error // the server does not answer
}

// open opens a file. The time of all that is done with it is that of ctx.
func (h *Hub) open(ctx context.Context, uri string) (*Opened, error) {
	c := h.network
	if socketOf(uri) != "" {
		c = h.machine
	}
	if len(uri) > maxURI {
		return nil, ondisk.In(ondisk.ErrUsage, "the address has %d bytes, want %d at most", len(uri), maxURI)
	}
	c.mu.Lock()
	c.last++
	o := &Opened{ctx: ctx, clerk: c, number: c.last}
	c.mu.Unlock()
	answer, err := c.ask(ctx, o.number, append([]byte{asksOpen}, uri...))
	if err == nil {
		answer, err = dataOf(answer)
	}
	if err == nil {
		err = json.Unmarshal(answer, &o.Info)
	}
	if err == nil && (o.Size < 0 || o.Modified < 0) {
		err = fmt.Errorf("size %d and time %d of a file", o.Size, o.Modified)
	}
	if err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

// Answer answers a question of a Served, by asking the clerk. Neither is believed.
func (o *Opened) Answer(question []byte) []byte {
	answer, err := o.answer(question)
	if err == nil {
		_, err = dataOf(answer)
	} else {
		answer = answerOf(nil, err)
	}
	if errors.Is(err, errUnavailable) {
		o.lost = err
	}
	return answer
}

func (o *Opened) answer(question []byte) ([]byte, error) {
	switch {
	case len(question) == 0:
		return nil, errors.New("an empty question")
	case question[0] == asksUnchanged:
		return o.clerk.ask(o.ctx, o.number, question[:1])
	case question[0] != asksRead:
		return nil, fmt.Errorf("a question of the kind %q", question[0])
	}
	_, n, err := readOf(question, o.Size)
	if err != nil {
		return nil, err
	}
	if o.Bytes += int64(n); o.Bytes > maxFileBytes {
		return nil, fmt.Errorf("reading of one file: %w of %d bytes", ondisk.ErrLimit, maxFileBytes)
	}
	return o.clerk.ask(o.ctx, o.number, question)
}

func (o *Opened) close() {
	c := o.clerk
	c.mu.Lock()
	delete(c.waiting, o.number)
	c.mu.Unlock()
	_ = c.say(o.number, []byte{saysClose}) // one that has ended has closed it
}
