//go:build !linux

package sys

import (
	"errors"
	"fmt"
)

// needsLinux returns the error of a call that this system has no implementation of.
func needsLinux(what string) error {
	return fmt.Errorf("%s needs Linux: %w", what, errors.ErrUnsupported)
}
