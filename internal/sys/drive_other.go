//go:build !windows

package sys

import "errors"

// OpenDrive is not supported: disks are files.
func OpenDrive(string) (*File, Drive, error) { return nil, Drive{}, errors.ErrUnsupported }
