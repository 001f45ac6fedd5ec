//go:build !linux

package sys

import "errors"

// Share is not supported.
func (*File) Share(*File, int64, int64, int64) error { return errors.ErrUnsupported }

// SharesBlocks returns false: it is not known.
func (*File) SharesBlocks(*File, int64, int64, int64) bool { return false }

// Uncached returns false: it is not known.
func (*File) Uncached() bool { return false }

// Memory returns 0: it is not known.
func Memory() int64 { return 0 }

// FileSystem returns "": it is not known.
func FileSystem(string) string { return "" }
