package driver

import (
	"errors"
	"fmt"
)

// Flat is the target that several formats share: a file that holds the disk byte for byte. What is not written stays
// a hole.
type Flat struct {
	WriteFile
}

// flatUnit is the block size of the file systems that images lie on, in bytes: a smaller hole saves nothing.
const flatUnit = 4 << 10

// NewFlat sizes f.
func NewFlat(f WriteFile, size int64) (*Flat, error) {
	if err := f.Truncate(size); err != nil {
		return nil, fmt.Errorf("%w (%d bytes)", err, size)
	}
	return &Flat{f}, nil
}

// Unit returns the smallest hole worth leaving.
func (t *Flat) Unit() int64 { return flatUnit }

// Reserve has nothing to do: offsets of the disk are offsets of the file.
func (t *Flat) Reserve(int64, int64) error { return nil }

// Finish makes the bytes durable.
func (t *Flat) Finish() error { return t.Sync() }

// Sharer is a file or a target that can take over a stretch of another file without a copy: n bytes from off on, at its
// own offset at. An error says that they have to be copied.
type Sharer interface {
	Share(from File, off, n, at int64) error
}

// Share passes the request on to the file.
func (t *Flat) Share(from File, off, n, at int64) error {
	if f, ok := t.WriteFile.(Sharer); ok {
		return f.Share(from, off, n, at)
	}
	return errors.ErrUnsupported
}
