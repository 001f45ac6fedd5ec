package vmdk

import (
	"fmt"
	"io"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// sharedCache is one cache for the tables of many files, so that memory does not grow with their number: the files
// stand one behind the other in it.
type sharedCache struct {
	pages *ondisk.Pages
	files []cachedFile
	known map[string]bool // by ID
	size  int64
}

// cachedFile is a file and its place in the cache, which zeros fill behind the end of the file.
type cachedFile struct {
	disk.Range
	file driver.File
}

// cacheAlign keeps every page within one file.
const cacheAlign = 1 << 20

// newSharedCache keeps at most limit bytes.
func newSharedCache(limit int64) *sharedCache {
	c := &sharedCache{known: map[string]bool{}}
	c.pages = ondisk.NewPages(c, limit)
	return c
}

func (c *sharedCache) has(f driver.File) bool { return c.known[f.ID()] }

func (c *sharedCache) add(f driver.File) error {
	if f.Size() > math.MaxInt64-cacheAlign-c.size {
		return fmt.Errorf("extent files up to %.256q: %w of 2^63 bytes together", f.Name(), ondisk.ErrLimit)
	}
	c.known[f.ID()] = true
	place := disk.Range{Off: c.size, Len: units.AlignUp(f.Size(), cacheAlign)}
	c.files = append(c.files, cachedFile{place, f})
	c.size = place.End()
	return nil
}

// last reads the tables of the file that was added last.
func (c *sharedCache) last() tableReader {
	return cachedTables{c.pages, c.files[len(c.files)-1].Off}
}

// Size returns where the last file ends.
func (c *sharedCache) Size() int64 { return c.size }

// at returns the file that stands at off.
func (c *sharedCache) at(off int64) (cachedFile, error) {
	i := disk.Behind(c.files, off)
	if i == len(c.files) {
		return cachedFile{}, io.EOF
	}
	return c.files[i], nil
}

// Extent reports the holes of the files: a disk can have gigabytes of tables that are nothing else.
func (c *sharedCache) Extent(off, most int64) (disk.Extent, error) {
	f, err := c.at(off)
	if err != nil {
		return disk.Extent{}, err
	}
	left := f.Off + f.file.Size() - off
	if left <= 0 {
		return disk.Extent{Range: disk.Range{Off: off, Len: min(most, f.End()-off)}, Zero: true}, nil
	}
	e, err := f.file.Extent(off-f.Off, min(most, left))
	e.Off += f.Off
	return e, err
}

// ReadAt reads one page, which is zero where its file has ended.
func (c *sharedCache) ReadAt(p []byte, off int64) (int, error) {
	f, err := c.at(off)
	if err != nil {
		return 0, err
	}
	n := max(0, min(int64(len(p)), f.Off+f.file.Size()-off))
	clear(p[n:])
	if err := ondisk.ReadFull(f.file, p[:n], off-f.Off); err != nil {
		return 0, err
	}
	return len(p), nil
}

// cachedTables are the tables of one file.
type cachedTables struct {
	pages *ondisk.Pages
	base  int64
}

func (t cachedTables) Read(b []byte, off int64) error { return t.pages.Read(b, t.base+off) }

func (t cachedTables) Zeros(off, most int64) (int64, error) { return t.pages.Zeros(t.base+off, most) }

func (t cachedTables) U32(off int64) (uint32, error) { return t.pages.U32(t.base + off) }

func (t cachedTables) U64(off int64) (uint64, error) { return t.pages.U64(t.base + off) }
