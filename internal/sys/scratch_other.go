//go:build !linux

package sys

import (
	"errors"
	"os"
)

// Allocate is not supported.
func Allocate(*os.File, int64) error { return errors.ErrUnsupported }

// Direct is not supported.
func Direct(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }

// Inherited returns no path.
func Inherited(int) string { return "" }
