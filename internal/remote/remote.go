// Package remote reads files that servers have, by their URIs. It knows nothing of images.
package remote

import (
	"context"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/nbd"
)

// IsURI reports whether a word of a command line names what a server has, and no file.
func IsURI(word string) bool { return nbd.IsURI(word) }

// Export is an export of an NBD server as a file of an image. Safe for concurrent use.
type Export struct {
	client *nbd.Client
	uri    string
	pages  pages
}

// Connect connects to the server of a URI. Nothing of what it has is read before the first call of the result.
func Connect(ctx context.Context, uri string) (*Export, error) {
	c, err := nbd.Dial(ctx, uri)
	if err != nil {
		return nil, err
	}
	return &Export{client: c, uri: uri, pages: pages{of: c, size: c.Size()}}, nil
}

// Size returns the size in bytes.
func (e *Export) Size() int64 { return e.client.Size() }

// Name returns the name of the export for messages.
func (e *Export) Name() string {
	if name := e.client.Name(); name != "" {
		return name
	}
	return "default export"
}

// ID tells the export from others.
func (e *Export) ID() string { return e.uri }

// Device reports whether the bytes are those of a device: its name says nothing of a format, and it does not show that
// others have written to it.
func (*Export) Device() bool { return true }

// ReadAt follows the contract of io.ReaderAt.
func (e *Export) ReadAt(p []byte, off int64) (int, error) { return e.pages.ReadAt(p, off) }

// Forget has bytes that were read before be read from the server again.
func (e *Export) Forget() { e.pages.forget() }

// Extent returns what the server knows of holes.
func (e *Export) Extent(off, limit int64) (disk.Extent, error) { return e.client.Extent(off, limit) }

// Unchanged returns the error of a server that was lost. It cannot see what others write.
func (e *Export) Unchanged() error {
	if err := e.client.Alive(); err != nil {
		return fmt.Errorf("export %.256q: %w", e.client.Name(), err)
	}
	return nil
}

// Close ends the connection.
func (e *Export) Close() error { return e.client.Close() }
