package align

import (
	_ "embed" // the table of named storages
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Storage is the storage below a disk. It reads and writes whole blocks, or maps each block to its own location.
type Storage struct {
	Name   string `json:"name"`  // "netapp"; "64K" for a plain size
	About  string `json:"about"` // description for readers
	Block  int64  `json:"block"` // bytes, a power of two
	Offset int64  `json:"offset,omitempty"`
	// Rewrites reports whether a partial write of a block reads the block first and writes it as a whole.
	Rewrites bool `json:"rewrites,omitempty"`
	// Documented reports whether the vendor or its manual names the size. Otherwise it is common practice.
	Documented bool   `json:"documented"`
	Source     string `json:"source,omitempty"` // source of the size; lines
}

// Range of the blocks of a storage, in bytes.
const (
	minStorage = units.SectorSize
	maxStorage = 4 * units.MiB
)

//go:embed storages.json
var storageTable []byte

// storages returns all named storages, the generic one first.
var storages = sync.OnceValue(func() []Storage { return ondisk.Embedded[[]Storage](storageTable) })

// Generic returns the default storage.
func Generic() Storage { return storages()[0] }

// String returns the name.
func (s *Storage) String() string { return s.Name }

// Type returns the placeholder of the argument of --storage in help texts.
func (s *Storage) Type() string { return "STORAGE" }

// Set parses the argument of --storage.
func (s *Storage) Set(arg string) (err error) {
	*s, err = ParseStorage(arg)
	return err
}

// StorageNames returns the names for ParseStorage, the generic storage first.
func StorageNames() []string {
	var out []string
	for _, s := range storages() {
		out = append(out, s.Name)
	}
	return out
}

// ParseStorage returns a storage by name or block size. A plus sign and the start of a block on the disk, in bytes,
// describe a misaligned partition, LUN or datastore below it.
func ParseStorage(s string) (Storage, error) {
	name, offset, shifted := strings.Cut(s, "+")
	out, err := namedStorage(strings.ToLower(name))
	if err != nil || !shifted {
		return out, err
	}
	out.Name += "+" + offset
	return out, out.shift(offset)
}

func namedStorage(name string) (Storage, error) {
	names := StorageNames()
	if i := slices.Index(names, name); i >= 0 {
		return storages()[i], nil
	}
	n, err := units.Parse(name)
	if err != nil || n < minStorage || n > maxStorage || !units.IsPowerOfTwo(n) {
		return Storage{}, fmt.Errorf("must be one of %s, or a power of two from %s to %s%s",
			strings.Join(names, ", "), units.Short(minStorage), units.Short(maxStorage),
			ondisk.DidYouMean(name, names...))
	}
	return Storage{
		Name: units.Short(n), Block: n, About: "blocks of " + units.Format(n), Source: "--storage",
		Rewrites: n != minStorage,
	}, nil
}

// shift parses the start of any block and stores the first such byte.
func (s *Storage) shift(offset string) error {
	n, err := units.Parse(offset)
	if err == nil && (n < 0 || n%units.SectorSize != 0) {
		err = fmt.Errorf("must be a multiple of %d", units.SectorSize)
	}
	if err != nil {
		return fmt.Errorf("offset %.64q: %w", offset, err)
	}
	if n %= s.Block; n != 0 {
		s.Offset, s.About = n, fmt.Sprintf("%s, from byte %d on", s.About, n)
	}
	return nil
}
