// Package remote reads files that servers have, by their URIs. It knows nothing of images.
package remote

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/nbd"
)

// IsURI reports whether a word of a command line names what a server has, and no file.
func IsURI(word string) bool { return nbd.IsURI(word) || isWeb(word) }

// Shown returns a URI for messages, without a password that should not be in it.
func Shown(uri string) string {
	scheme, at, _ := strings.Cut(uri, "://")
	host, rest, ok := strings.Cut(at, "/")
	if i := strings.LastIndexByte(host, '@'); i >= 0 {
		host = host[i+1:]
	}
	if ok {
		host += "/"
	}
	return scheme + "://" + host + rest
}

// File is what a server has: an export of NBD, or an object of a web server, which a fetcher serves by NBD. Safe for
// concurrent use.
type File struct {
	client  *nbd.Client
	uri     string
	pages   pages
	fetcher *fetcher // nil for an export
}

// Connect connects to the server of a URI. authorization is the value of this header for a web server, empty for none.
func Connect(ctx context.Context, uri, authorization string) (*File, error) {
	var f *fetcher
	at := uri
	if isWeb(uri) {
		var err error
		if f, at, err = startFetcher(order{uri, authorization}); err != nil {
			return nil, err
		}
	}
	c, err := nbd.Dial(ctx, at)
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	if f != nil {
		c.Wait(fetchTime)
	}
	return &File{client: c, uri: uri, pages: pages{of: c, size: c.Size()}, fetcher: f}, nil
}

// Size returns the size in bytes.
func (f *File) Size() int64 { return f.client.Size() }

// Name returns the name of the file, or that of the export for messages.
func (f *File) Name() string {
	if u, err := url.Parse(f.uri); err == nil && f.fetcher != nil {
		return path.Base(u.Path)
	}
	if name := f.client.Name(); name != "" {
		return name
	}
	return "default export"
}

// ID tells the file from others.
func (f *File) ID() string { return f.uri }

// Device reports whether the bytes are those of a device: its name says nothing of a format, and it does not show that
// others have written to it.
func (f *File) Device() bool { return f.fetcher == nil }

// ReadAt follows the contract of io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.pages.ReadAt(p, off)
	if f.fetcher != nil && err != nil && !errors.Is(err, io.EOF) {
		err = cmp.Or(f.Unchanged(), err)
	}
	return n, err
}

// Forget has bytes that were read before be read from the server again.
func (f *File) Forget() { f.pages.forget() }

// Extent returns what the server knows of holes.
func (f *File) Extent(off, limit int64) (disk.Extent, error) { return f.client.Extent(off, limit) }

// Unchanged returns the error of a server that was lost, and of an object that is another one by now. What others write
// to an export cannot be seen.
func (f *File) Unchanged() error {
	if f.fetcher != nil {
		return f.fetcher.unchanged()
	}
	if err := f.client.Alive(); err != nil {
		return fmt.Errorf("export %.256q: %w", f.client.Name(), err)
	}
	return nil
}

// Close ends the connection.
func (f *File) Close() error { return errors.Join(f.client.Close(), f.fetcher.close()) }
