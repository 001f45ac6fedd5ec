package scan

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// Shard is a share of the images, number K of N. The zero value is all of them.
type Shard struct{ K, N int }

// maxShards bounds N.
const maxShards = 1 << 16

// ParseShard parses the value of --shard. Empty is all images.
func ParseShard(s string) (Shard, error) {
	if s == "" {
		return Shard{}, nil
	}
	first, second, _ := strings.Cut(s, "/")
	k, kErr := strconv.ParseUint(first, 10, 32)
	n, nErr := strconv.ParseUint(second, 10, 32)
	if kErr != nil || nErr != nil || k < 1 || k > n || n > maxShards {
		return Shard{}, ondisk.In(ondisk.ErrUsage, "--shard %.40q, want K/N, such as 3/16, with K from 1 to N, "+
			"and N at most %d", s, maxShards)
	}
	return Shard{int(k), int(n)}, nil
}

// String returns K/N, empty for all images.
func (s Shard) String() string {
	if s.N == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", s.K, s.N)
}

// Has reports whether the image with an absolute path, or the images that share files, with the first of their paths,
// are in the share. It depends on the path and on N alone: the first eight bytes of the SHA-256 of the path, as a
// number, modulo N.
func (s Shard) Has(path string) bool {
	if s.N <= 1 {
		return true
	}
	sum := sha256.Sum256([]byte(path))
	return binary.BigEndian.Uint64(sum[:])%uint64(s.N) == uint64(s.K)-1 //nolint:gosec // both are positive
}

// shared leaves the rows of this share. Those of others are counted.
func (r *search) shared(f *folder, c *contents, rows []*found) []*found {
	if r.shard.N <= 1 {
		return rows
	}
	mine := slices.DeleteFunc(slices.Clone(rows), func(x *found) bool {
		return !r.shard.Has(filepath.Join(f.path, c.unitOf(x.Name)))
	})
	r.count(&r.summary.Others, len(rows)-len(mine))
	return mine
}

// unitOf returns the name by which an image is shared out that a file belongs to. Files that own parts of each other
// stay together, since a part has a row if its owners cannot be judged. The first name that is no part stands for them.
func (c *contents) unitOf(name string) string {
	if c.units == nil {
		c.unite()
	}
	if unit, ok := c.units[name]; ok {
		return unit
	}
	return name
}

// unite finds the units of all files that are parts or have any.
func (c *contents) unite() {
	up := map[string]string{} // towards the file that stands for its group, which is above itself
	top := func(name string) string {
		if up[name] == "" {
			up[name] = name
		}
		for up[name] != name {
			up[name] = up[up[name]]
			name = up[name]
		}
		return name
	}
	for part, owners := range c.owners {
		for _, o := range owners {
			up[top(part)] = top(o.Name)
		}
	}
	best := map[string]string{}
	first := func(a, b string) bool { // a stands for the group rather than b
		if whole := len(c.owners[a]) == 0; whole != (len(c.owners[b]) == 0) {
			return whole
		}
		return a < b
	}
	for name := range up {
		if t := top(name); best[t] == "" || first(name, best[t]) {
			best[t] = name
		}
	}
	c.units = map[string]string{}
	for name := range up {
		c.units[name] = best[top(name)]
	}
}
