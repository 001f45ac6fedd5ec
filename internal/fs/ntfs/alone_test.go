package ntfs

import (
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
)

// alone opens the files of one volume, with a budget of its own.
func alone(volume disk.Disk) (guestfile.FS, error) { return Open(guestfile.NewBudget(), volume) }
