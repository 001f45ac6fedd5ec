package boot

import (
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// SetReader makes volumes of a kind hold the files of a test until restore is called.
func SetReader(kind volume.Kind, open func(disk.Disk) (guestfile.FS, error)) (restore func()) {
	was, had := readers[kind]
	readers[kind] = func(_ *guestfile.Budget, d disk.Disk) (guestfile.FS, error) { return open(d) }
	return func() {
		if delete(readers, kind); had {
			readers[kind] = was
		}
	}
}

// Distinct is what becomes of references that share bytes.
func Distinct(refs []Ref) (kept []Ref, clash *ondisk.Issue) { return distinct(refs) }
