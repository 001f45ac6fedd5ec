package nbd

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// File is an export as an image file. It is safe for concurrent use.
type File struct {
	client *Client
	uri    string
	pages  pages
	stop   func() bool
}

// Open connects to the server of an export. The end of ctx ends all reads.
func Open(ctx context.Context, uri string) (*File, error) {
	c, err := Dial(ctx, uri)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Abort(ctx.Err()) })
	return &File{client: c, uri: uri, pages: pages{of: c, size: c.Size()}, stop: stop}, nil
}

// Size returns the size in bytes.
func (f *File) Size() int64 { return f.client.Size() }

// Name returns the name of the export for messages.
func (f *File) Name() string {
	if name := f.client.Name(); name != "" {
		return name
	}
	return "default export"
}

// ID identifies the file by its address.
func (f *File) ID() string { return f.uri }

// Device reports that the name of an export implies no format, and that Unchanged cannot detect writes.
func (*File) Device() bool { return true }

// ReadAt implements io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) { return f.pages.ReadAt(p, off) }

// Forget drops all cached data: later reads reach the server again.
func (f *File) Forget() {
	f.pages.forget()
	f.client.Forget()
}

// Extent returns the state of a range, based on the holes reported by the server.
func (f *File) Extent(off, limit int64) (disk.Extent, error) { return f.client.Extent(off, limit) }

// Unchanged returns the error of a lost connection. It cannot detect writes by others to an export.
func (f *File) Unchanged() error {
	if err := f.client.Alive(); err != nil {
		return fmt.Errorf("export %.256q: %w", f.client.Name(), err)
	}
	return nil
}

// Close ends the connection.
func (f *File) Close() error {
	f.stop()
	return f.client.Close()
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

	mu    sync.Mutex
	kept  map[int64][]byte // by number
	round int              // number of forget calls: earlier requests are not cached
}

// ReadAt implements io.ReaderAt.
func (c *pages) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off >= c.size || len(p) >= pageBytes {
		return c.of.ReadAt(p, off)
	}
	if int64(len(p)) > c.size-off {
		p, err = p[:c.size-off], io.EOF
	}
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

// page returns a page from the cache or from the server.
func (c *pages) page(number int64) ([]byte, error) {
	c.mu.Lock()
	page, round := c.kept[number], c.round
	c.mu.Unlock()
	if page != nil {
		return page, nil
	}
	page = make([]byte, min(pageBytes, c.size-number*pageBytes))
	if n, err := c.of.ReadAt(page, number*pageBytes); n < len(page) {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil || len(c.kept) >= maxPages {
		c.kept = map[int64][]byte{}
	}
	if c.round == round {
		c.kept[number] = page
	}
	return page, nil
}

// forget drops all pages.
func (c *pages) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = nil
	c.round++
}
