//go:build !linux

package sys

import (
	"errors"
	"os"
)

// OpenDevice is not supported, nor is anything else that a block device is written with.
func OpenDevice(string) (*os.File, error) { return nil, errors.ErrUnsupported }

// ReadOnly is not supported.
func (*File) ReadOnly() (bool, error) { return false, errors.ErrUnsupported }

// ZeroOut is not supported.
func (*File) ZeroOut(int64, int64) error { return errors.ErrUnsupported }

// Discard is not supported.
func (*File) Discard(int64, int64) error { return errors.ErrUnsupported }

// RereadTable is not supported.
func (*File) RereadTable() error { return errors.ErrUnsupported }

// LoopFile knows of no file.
func (*File) LoopFile() (ID, bool) { return ID{}, false }

// NodeName returns no name.
func NodeName(uint64) string { return "" }
