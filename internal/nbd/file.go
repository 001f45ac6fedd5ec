package nbd

import (
	"context"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
)

// File is an export as the file of an image. Safe for concurrent use.
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

// ID tells the file from others.
func (f *File) ID() string { return f.uri }

// Device reports that the name of an export says nothing of a format, and that Unchanged does not see writes.
func (*File) Device() bool { return true }

// ReadAt follows the contract of io.ReaderAt.
func (f *File) ReadAt(p []byte, off int64) (int, error) { return f.pages.ReadAt(p, off) }

// Forget drops all that was read: later reads reach the server again.
func (f *File) Forget() {
	f.pages.forget()
	f.client.Forget()
}

// Extent returns the state of a range, by the holes that the server reports.
func (f *File) Extent(off, limit int64) (disk.Extent, error) { return f.client.Extent(off, limit) }

// Unchanged returns the error of a lost connection. Writes of others to an export cannot be seen.
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
