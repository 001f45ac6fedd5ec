//go:build !linux

package sys

import "errors"

// PunchHole needs Linux: zeros are written instead.
func (*File) PunchHole(int64, int64) error { return errors.ErrUnsupported }
