package nbd

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Client reads an export of a server, over one connection with several requests in flight. It never reconnects: a
// restarted server may serve another disk. It is safe for concurrent use.
type Client struct {
	conn net.Conn
	r    *bufio.Reader
	name string

	size       int64
	block      int64 // offsets and lengths of requests are multiples, in bytes
	most       int64 // maximum bytes of a read
	structured bool
	status     bool   // base:allocation is selected
	context    uint32 // number of base:allocation

	sending sync.Mutex // held while a request is written
	mu      sync.Mutex
	last    uint64 // last cookie
	open    map[uint64]*pending
	broken  error         // ends all requests
	known   []disk.Extent // of the last block status reply, without gaps
}

const (
	maxName = 4096 // in bytes. Spec: "Strings"
	// answerTime limits the time from a request, or from the previous reply, to its reply.
	answerTime = time.Minute
	// maxRead limits the bytes of one request. unknownBlock is the block size for servers that report none. Spec:
	// "Block size constraints".
	maxRead      = 256 << 10
	leastMost    = 4 << 10 // lowest accepted limit of a server for one read, in bytes: each request needs memory
	maxBlock     = 64 << 10
	unknownBlock = 512
	// maxAnswers limits the replies to one option.
	maxAnswers = 64
)

// Dial connects to the server of an export.
func Dial(ctx context.Context, uri string) (*Client, error) {
	network, address, export, err := parseURI(uri)
	if err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{Timeout: handshakeTime}).DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("the server cannot be reached: %w; check the address, or start the server", err)
	}
	return NewClient(ctx, conn, export)
}

// NewClient negotiates over a connection, which it closes on an error.
func NewClient(ctx context.Context, conn net.Conn, export string) (*Client, error) {
	c := &Client{
		conn: conn, r: bufio.NewReader(conn), name: export, open: map[uint64]*pending{}, block: unknownBlock,
		most: maxRead,
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err := conn.SetDeadline(time.Now().Add(handshakeTime))
	if err == nil {
		err = c.negotiate()
	}
	if !stop() {
		err = ctx.Err()
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(explain(err), conn.Close())
	}
	go c.receive()
	return c, nil
}

// explain adds an explanation to the error of a connection.
func explain(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the server did not answer in time: %w", err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// negotiate performs the handshake up to the transmission phase. Spec: "Fixed newstyle negotiation".
func (c *Client) negotiate() error {
	var hello struct{ Server, Option uint64 }
	if err := binary.Read(c.r, be, &hello); err != nil {
		return err
	}
	switch {
	case hello.Server != magicServer:
		return violation("greeting %#x, want %#x: this is no NBD server", hello.Server, uint64(magicServer))
	case hello.Option == magicOldstyle:
		return fmt.Errorf("the server uses the oldstyle handshake, which is %w; serve the disk with "+
			"qemu-nbd or nbdkit", ondisk.ErrUnsupported)
	case hello.Option != magicOption:
		return violation("option magic %#x, want %#x", hello.Option, uint64(magicOption))
	}
	var flags uint16
	if err := binary.Read(c.r, be, &flags); err != nil {
		return err
	}
	if flags&flagFixedNewstyle == 0 {
		return fmt.Errorf("the server does not support the fixed newstyle handshake: %w; serve the disk with "+
			"qemu-nbd or nbdkit", ondisk.ErrUnsupported)
	}
	mine := be.AppendUint32(nil, uint32(flags&(flagFixedNewstyle|flagNoZeroes)))
	if _, err := c.conn.Write(mine); err != nil {
		return err
	}
	if err := c.offer(optStructuredReply, nil, func(uint32, []byte) error { return nil }, &c.structured); err != nil {
		return err
	}
	name := append(be.AppendUint32(nil, uint32(len(c.name))), c.name...) //nolint:gosec // maxName at most
	if c.structured {
		selected := false
		data := be.AppendUint32(be.AppendUint32(name, 1), uint32(len(allocation)))
		if err := c.offer(optSetMetaContext, append(data, allocation...), c.selected, &selected); err != nil {
			return err
		}
		c.status = c.status && selected
	}
	const queries = 1
	data := be.AppendUint16(be.AppendUint16(name, queries), infoBlockSize)
	return c.enter(data)
}

// offer sends an option that a server may reject, and sets taken if the server accepts it.
func (c *Client) offer(option uint32, data []byte, each func(kind uint32, data []byte) error, taken *bool) error {
	refused, err := c.ask(option, data, each)
	if refused == nil {
		*taken = err == nil
	}
	if refused != nil && refused.kind == repTLSRequired {
		return refused
	}
	return err
}

// selected stores the number of base:allocation.
func (c *Client) selected(kind uint32, data []byte) error {
	if kind != repMetaContext || len(data) < 4 || string(data[4:]) != allocation || c.status {
		return violation("answer %d to the selection of %s", kind, allocation)
	}
	c.status, c.context = true, be.Uint32(data)
	return nil
}

// enter starts the transmission phase with the export.
func (c *Client) enter(data []byte) error {
	said := false
	var sizes []byte // of blocks: the size of the export may follow them
	refused, err := c.ask(optGo, data, func(kind uint32, data []byte) error {
		if kind != repInfo || len(data) < 2 {
			return violation("answer %d of %d bytes to NBD_OPT_GO", kind, len(data))
		}
		switch be.Uint16(data) {
		case infoExport:
			said = true
			return c.exported(data[2:])
		case infoBlockSize:
			sizes = data[2:]
		}
		return nil // no others were requested
	})
	switch {
	case err != nil:
		return err
	case refused != nil:
		return refused
	case !said:
		return violation("the export has no size")
	case sizes != nil:
		return c.blocks(sizes)
	}
	return nil
}

// exported stores the size of the export, and checks its flags.
func (c *Client) exported(b []byte) error {
	if len(b) != 10 {
		return violation("%d bytes about the export, want 10", len(b))
	}
	size, flags := be.Uint64(b), be.Uint16(b[8:])
	switch {
	case size > math.MaxInt64-maxRead:
		return violation("an export of %d bytes", size)
	case flags&flagHasFlags == 0:
		return violation("flags %#x of the export, want bit 0 set", flags)
	}
	c.size = int64(size)
	return nil
}

// blocks checks and stores the block sizes of the server, for an export of known size.
func (c *Client) blocks(b []byte) error {
	if len(b) != 12 {
		return violation("%d bytes about block sizes, want 12", len(b))
	}
	least, preferred, most := int64(be.Uint32(b)), int64(be.Uint32(b[4:])), int64(be.Uint32(b[8:]))
	switch {
	case bits.OnesCount64(uint64(least)) != 1 || least > maxBlock, //nolint:gosec // 32 bits
		bits.OnesCount64(uint64(preferred)) != 1 || preferred < least, //nolint:gosec // 32 bits
		most < min(preferred, c.size), most != math.MaxUint32 && most%least != 0:
		return violation("block sizes %d, %d and %d", least, preferred, most)
	case most < min(leastMost, c.size):
		return fmt.Errorf("the server answers reads of %d bytes at most, which is %w: want %d", most,
			ondisk.ErrUnsupported, leastMost)
	case c.size%least != 0:
		return fmt.Errorf("the export has %d bytes, and the server reads blocks of %d bytes: reading its end is %w",
			c.size, least, ondisk.ErrUnsupported)
	}
	c.block, c.most = least, max(least, min(most, maxRead)&^(least-1))
	return nil
}

// refusal is the reply of a server that rejects an option.
type refusal struct {
	option, kind uint32
	text         string
}

func (r *refusal) Error() string {
	why := map[uint32]string{
		repUnsupported: "unknown option", repInvalid: "invalid option",
		repUnknown:     "no such export",
		repTLSRequired: "it requires TLS, which is not supported; forward the port with ssh -L",
	}[r.kind]
	if why == "" {
		why = fmt.Sprintf("error %d", r.kind&^uint32(repFails))
	}
	text := fmt.Sprintf("the server refuses option %d: %s", r.option, why)
	if r.kind == repUnknown {
		text = "the server has " + why
	}
	if r.text != "" {
		text += fmt.Sprintf(" (%.256q)", r.text)
	}
	return text
}

func (r *refusal) Unwrap() error {
	if r.kind == repUnknown {
		return os.ErrNotExist
	}
	return ondisk.ErrUnsupported
}

// ask sends an option and reads the replies to it. It calls each for all replies but the last.
func (c *Client) ask(
	option uint32, data []byte, each func(kind uint32, data []byte) error,
) (refused *refusal, err error) {
	b := be.AppendUint32(be.AppendUint64(nil, magicOption), option)
	b = append(be.AppendUint32(b, uint32(len(data))), data...) //nolint:gosec // a name and a few numbers
	if _, err := c.conn.Write(b); err != nil {
		return nil, err
	}
	for range maxAnswers {
		var head struct {
			Magic              uint64
			Option, Kind, Size uint32
		}
		if err := binary.Read(c.r, be, &head); err != nil {
			return nil, err
		}
		switch {
		case head.Magic != magicAnswer:
			return nil, violation("answer magic %#x, want %#x", head.Magic, uint64(magicAnswer))
		case head.Option != option:
			return nil, violation("an answer to option %d, want %d", head.Option, option)
		case head.Size > maxOption:
			return nil, violation("an answer of %d bytes to option %d, want %d at most", head.Size, option, maxOption)
		}
		data := make([]byte, head.Size)
		if _, err := io.ReadFull(c.r, data); err != nil {
			return nil, err
		}
		switch {
		case head.Kind == repAck && len(data) == 0:
			return nil, nil //nolint:nilnil // acknowledged
		case head.Kind&repFails != 0:
			return &refusal{option, head.Kind, strings.ToValidUTF8(string(data), "?")}, nil
		}
		if err := each(head.Kind, data); err != nil {
			return nil, err
		}
	}
	return nil, violation("more than %d answers to option %d", maxAnswers, option)
}

// Size returns the size of the export in bytes.
func (c *Client) Size() int64 { return c.size }

// Close ends the session.
func (c *Client) Close() error {
	if !c.markClosed() {
		return nil
	}
	_ = c.write(cmdDisconnect, 0, disk.Range{}) // the server sees the end of the connection too
	return c.conn.Close()
}

// Abort fails all requests, including requests in flight.
func (c *Client) Abort(err error) { c.breaks(err) }

// markClosed fails all further requests, and reports whether the connection still needs to be closed.
func (c *Client) markClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return false
	}
	c.broken = net.ErrClosed
	return true
}

// File is an export as an image file. It is safe for concurrent use.
type File struct {
	*Client
	uri   string
	pages pages
	stop  func() bool
}

// Open connects to the server of an export. The end of ctx ends all reads.
func Open(ctx context.Context, uri string) (*File, error) {
	c, err := Dial(ctx, uri)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Abort(ctx.Err()) })
	return &File{Client: c, uri: uri, pages: pages{of: c, size: c.size}, stop: stop}, nil
}

// Name returns the name of the export for messages.
func (f *File) Name() string { return cmp.Or(f.name, "default export") }

// ID identifies the file by its address.
func (f *File) ID() string { return f.uri }

// Device reports that the name of an export implies no format, and that Unchanged cannot detect writes.
func (*File) Device() bool { return true }

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) { return f.pages.ReadAt(p, off) }

// Forget drops all cached data and block states: later reads reach the server again.
func (f *File) Forget() {
	f.pages.forget()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known = nil
}

// Unchanged returns the error of a lost connection. It cannot detect writes by others to an export.
func (f *File) Unchanged() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		return fmt.Errorf("export %.256q: %w", f.name, f.broken)
	}
	return nil
}

// Close ends the connection.
func (f *File) Close() error {
	f.stop()
	return f.Client.Close()
}

// IsURI reports whether a command line argument names an export.
func IsURI(word string) bool {
	scheme, _, ok := strings.Cut(word, "://")
	scheme = strings.ToLower(scheme)
	return ok && (scheme == "nbd" || strings.HasPrefix(scheme, "nbd+") || strings.HasPrefix(scheme, "nbds"))
}

// defaultPort is the port for addresses without one. Spec: IANA, service nbd.
const defaultPort = "10809"

// parseURI splits the address of an export. Spec: NetworkBlockDevice/nbd, doc/uri.md.
func parseURI(uri string) (network, address, export string, err error) {
	u, err := url.Parse(uri)
	if err != nil {
		return "", "", "", ondisk.In(ondisk.ErrUsage, "the address of the export is malformed, must be "+
			"nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH")
	}
	export = strings.TrimPrefix(u.Path, "/")
	key, value, _ := strings.Cut(u.RawQuery, "=")
	socket, bad := url.PathUnescape(value) // a plus stays a plus, unlike in a form query
	switch {
	case strings.HasPrefix(u.Scheme, "nbds"):
		err = ondisk.In(ondisk.ErrUnsupported, "TLS is %w for NBD; forward the port with ssh -L, and use the "+
			"forwarded port", ondisk.ErrUnsupported)
	case u.User != nil, u.Fragment != "", bad != nil, strings.Contains(value, "&"),
		u.RawQuery != "" && key != "socket":
		err = ondisk.In(ondisk.ErrUsage, "the address of an export consists of a host or a socket, and a name; "+
			"leave out the rest")
	case len(export) > maxName:
		err = ondisk.In(ondisk.ErrUsage, "the name of the export has %d bytes, must have at most %d", len(export),
			maxName)
	case u.Scheme == "nbd" && u.Hostname() != "" && u.RawQuery == "":
		port := u.Port()
		if port == "" {
			port = defaultPort
		}
		return "tcp", net.JoinHostPort(u.Hostname(), port), export, nil
	case u.Scheme == "nbd+unix" && u.Host == "" && socket != "":
		return "unix", socket, export, nil
	default:
		err = ondisk.In(ondisk.ErrUsage, "the address of an export must be nbd://HOST:PORT/EXPORT or "+
			"nbd+unix:///EXPORT?socket=PATH")
	}
	return "", "", "", err
}

const (
	pageBytes = 64 << 10 // of one request; larger reads are not cached
	maxPages  = 64       // 4 MiB
)

// pages caches small reads with their surroundings. Each request costs a round trip to the server, and an inspection
// reads few sectors at few places, several times. It is safe for concurrent use.
type pages struct {
	of   io.ReaderAt
	size int64

	mu   sync.Mutex
	kept map[int64][]byte // by number
}

// ReadAt implements io.ReaderAt.
func (c *pages) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off >= c.size || len(p) >= pageBytes {
		return c.of.ReadAt(p, off)
	}
	if int64(len(p)) > c.size-off {
		p, err = p[:c.size-off], io.EOF
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for n < len(p) {
		at := off + int64(n)
		page, bad := c.page(at / pageBytes)
		if bad != nil {
			return n, bad
		}
		n += copy(p[n:], page[at%pageBytes:])
	}
	return n, err
}

// page returns a page from the cache or from the server. The caller holds the lock.
func (c *pages) page(number int64) ([]byte, error) {
	if page := c.kept[number]; page != nil {
		return page, nil
	}
	page := make([]byte, min(pageBytes, c.size-number*pageBytes))
	if n, err := c.of.ReadAt(page, number*pageBytes); n < len(page) {
		return nil, err
	}
	if c.kept == nil || len(c.kept) >= maxPages {
		c.kept = map[int64][]byte{}
	}
	c.kept[number] = page
	return page, nil
}

// forget drops all pages.
func (c *pages) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = nil
}
