package gate

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/trueup/trueup/internal/sys"
)

// maxHandles is how many files of an image are open at once: a disk of 8 TiB in extents of 2 GB has 4096.
const maxHandles = 48

// handles closes the file that was not used for longest when another needs its place.
type handles struct {
	clock atomic.Int64

	mu   sync.Mutex
	open []*File
}

// room makes room for f. The caller holds the lock.
func (h *handles) room(f *File) error {
	if slices.Contains(h.open, f) {
		return nil
	}
	var err error
	if len(h.open) >= maxHandles {
		// The first is the one that the user named: locks on it must last.
		oldest := 1
		for i := range h.open {
			if i > 0 && h.open[i].used.Load() < h.open[oldest].used.Load() {
				oldest = i
			}
		}
		err = h.open[oldest].shut()
		h.open = slices.Delete(h.open, oldest, oldest+1)
	}
	f.used.Store(h.clock.Add(1))
	h.open = append(h.open, f)
	return err
}

func (h *handles) forget(f *File) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if i := slices.Index(h.open, f); i >= 0 {
		h.open = slices.Delete(h.open, i, i+1)
	}
}

// Rest closes the files of an image until they are read again, on a system that gives the name of an open file to no
// other.
func (d *Folder) Rest() error {
	if sys.ReplacesOpen {
		return nil
	}
	return d.CloseFiles()
}

// CloseFiles closes the files of an image until they are read again.
func (d *Folder) CloseFiles() error {
	h := d.handles
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, f := range h.open {
		errs = append(errs, f.shut())
	}
	h.open = nil
	return errors.Join(errs...)
}
