package scan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/exchange"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/sys"
)

// contents holds the relevant files of a folder.
type contents struct {
	mu     sync.Mutex
	files  map[string]*found
	names  int // number of extents and parents that the files name
	beside image.Folder
	// owners maps the name of a file to the images that contain the file, and children to the images that name it as
	// their parent, in name order. The children of a hard-linked file are listed under its first name.
	owners, children map[string][]*found
	lineages         []*found                // images that identify their parent by its ContentID
	alike            map[string][]string     // names by their lower-case form
	journals         map[string]results.File // of unfinished runs, by the names of their disks
	links            map[sys.ID]string       // first names of hard-linked files, by device and inode
}

// maxFolderNames bounds the names in all images of one folder. A million names take some 100 MB.
const maxFolderNames = 1 << 20

// maxChildren bounds the listed snapshots of an image.
const maxChildren = 64

// maxDepth bounds the length of a chain of parents, like maxChain of package image.
const maxDepth = 16

func newContents() *contents {
	return &contents{
		files: map[string]*found{}, owners: map[string][]*found{}, children: map[string][]*found{},
		alike: map[string][]string{}, links: map[sys.ID]string{}, journals: map[string]results.File{},
	}
}

// add stores a file. If the folder has too many names, it drops the names in the file and returns false.
func (c *contents) add(x *found) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.files[x.Name] = x
	n := len(x.id.Extents) + len(x.id.Parents)
	if c.names+n > maxFolderNames {
		x.id.Extents, x.id.Parents = nil, nil
		return false
	}
	c.names += n
	return true
}

// addJournal stores a file with the name of a journal.
func (c *contents) addJournal(e entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if disk, ok := strings.CutSuffix(e.Name, journal.Suffix); ok && e.regular {
		c.journals[disk] = e.File
	}
}

// work returns the open journals of x and their disks as a text, to compare with the text of another scan.
func (c *contents) work(x *found) string {
	var files []results.File
	for _, disk := range []string{x.Name, exchange.DiskOf(x.Name)} {
		if j, ok := c.journals[disk]; ok {
			files = append(files, j)
			if at := c.files[disk]; at != nil {
				files = append(files, at.File)
			}
		}
	}
	if files == nil {
		return ""
	}
	return fmt.Sprintf(" %+v", files)
}

// sorted returns the files in name order.
func (c *contents) sorted() []*found {
	return slices.SortedFunc(maps.Values(c.files), func(a, b *found) int { return cmp.Compare(a.Name, b.Name) })
}

// relate finds the owners, the children and the links of all files.
func (c *contents) relate() {
	c.beside.Done()
	files := c.sorted()
	for _, x := range files {
		low := strings.ToLower(x.Name)
		c.alike[low] = append(c.alike[low], x.Name)
		if inode := x.inode(); x.links > 1 && c.links[inode] == "" {
			c.links[inode] = x.Name
		}
	}
	c.joinCompanions(files)
	c.joinBundle(files)
	c.joinChunks(files)
	for _, x := range files {
		for _, part := range x.id.Extents {
			if p := c.files[part]; p != nil && x.canOwn(p) {
				c.owners[part] = append(c.owners[part], x)
			}
		}
		if x.id.Kind != image.Disk {
			continue
		}
		if x.id.Lineage != "" && len(c.lineages) < maxChildren {
			c.lineages = append(c.lineages, x)
		}
		for _, parent := range slices.Concat(x.id.Parents, x.id.Views) {
			for _, at := range c.find(parent) {
				if at = c.first(at); at != c.first(x.Name) && len(c.children[at]) < maxChildren {
					c.children[at] = append(c.children[at], x)
				}
			}
		}
	}
}

// joinCompanions makes disks the owners of their companions.
func (c *contents) joinCompanions(files []*found) {
	for _, x := range files {
		if x.id.Kind != image.Companion {
			continue
		}
		_, of := image.CompanionOf(x.Name)
		for _, disk := range c.find(of) {
			if d := c.files[disk]; d.id.Kind == image.Disk {
				c.owners[x.Name] = append(c.owners[x.Name], d)
			}
		}
	}
}

// joinBundle makes the descriptor of a Parallels disk the owner of all files in its folder: they share its row.
func (c *contents) joinBundle(files []*found) {
	d := c.files[image.BundleDescriptor]
	if d == nil || d.id.Format != image.Parallels {
		return
	}
	d.bundle = true
	for _, x := range files {
		if x != d && (x.id.Format == image.Parallels || image.InBundle(x.Name)) {
			c.owners[x.Name] = append(c.owners[x.Name], d)
		}
	}
}

// joinChunks makes an OVF the owner of the chunks of a file that it references. Spec: DSP0243 7.1.
func (c *contents) joinChunks(files []*found) {
	packs := map[string]*found{}
	for _, x := range files {
		for _, name := range x.id.Extents {
			if x.id.Kind == image.Pack {
				packs[name] = x
			}
		}
	}
	for _, x := range files {
		whole, _ := ovf.Whole(x.Name)
		if p := packs[whole]; p != nil && c.files[whole] == nil {
			x.chunk = true
			c.owners[x.Name] = append(c.owners[x.Name], p)
		}
	}
}

// find returns the files with a name, ignoring case if none matches exactly: the system that wrote the name may ignore
// case.
func (c *contents) find(name string) []string {
	if c.files[name] != nil {
		return []string{name}
	}
	return c.alike[strings.ToLower(name)]
}

// first returns the first name in the folder of a hard-linked file, and the name itself of any other file.
func (c *contents) first(name string) string {
	if x := c.files[name]; x != nil && x.links > 1 {
		return c.links[x.inode()]
	}
	return name
}

// own lists the files of an image: itself and its extents, and for a package the extents of its disks.
func (c *contents) own(x *found) []string {
	out := append([]string{x.Name}, x.id.Extents...)
	if x.id.Kind != image.Pack {
		return out
	}
	for _, name := range x.id.Extents {
		if p := c.files[name]; p != nil {
			out = append(out, p.id.Extents...)
		}
	}
	return out
}

// family lists the files of an image and of its chain of parents.
func (c *contents) family(x *found) (out []string) {
	seen := map[string]bool{}
	next := []*found{x}
	for depth := 0; len(next) > 0 && depth <= maxDepth; depth++ {
		var above []*found
		for _, x := range next {
			for _, name := range c.own(x) {
				if seen[name] {
					continue
				}
				seen[name] = true
				out = append(out, name)
				if p := c.files[name]; p != nil {
					above = append(above, c.parents(p)...)
				}
			}
		}
		next = above
	}
	return out
}

func (c *contents) parents(x *found) (out []*found) {
	for _, name := range x.id.Parents {
		for _, at := range c.find(name) {
			out = append(out, c.files[at])
		}
	}
	return out
}

// snapshots returns the images of the folder that may be children of x: they name a file of x, or have its format and
// identify their parent by its ContentID.
func (c *contents) snapshots(x *found) (out []image.Child) {
	seen := map[string]bool{}
	add := func(children []*found) {
		for _, child := range children {
			if child != x && !seen[child.Name] && len(out) < maxChildren {
				seen[child.Name] = true
				out = append(out, image.Child{
					Name: []byte(child.Name), Parents: child.id.Parents, Views: child.id.Views,
					Lineage: child.id.Lineage,
				})
			}
		}
	}
	for _, name := range c.own(x) {
		add(c.children[c.first(name)])
	}
	add(slices.DeleteFunc(slices.Clone(c.lineages), func(l *found) bool { return l.id.Format != x.id.Format }))
	slices.SortFunc(out, func(a, b image.Child) int { return slices.Compare(a.Name, b.Name) })
	return out
}

// images returns the files that still need a row, in name order, and marks them as done.
func (c *contents) images() []*found {
	rows := c.sorted()
	rows = slices.DeleteFunc(rows, func(x *found) bool { return x.rowed || x.second || !x.wanted || c.hidden(x) })
	for _, x := range rows {
		x.rowed = true
	}
	return rows
}

// hidden reports whether the row of another file covers x.
func (c *contents) hidden(x *found) bool {
	return slices.ContainsFunc(c.owners[x.Name], func(o *found) bool {
		switch {
		case o.silent:
			return x.chunk || x.isExtent() // alone it would be reported as a disk or an orphan, which is wrong
		case o.wanted:
			return true
		case x.named:
			return false
		}
		return o.id.Kind != image.Pack // the disks of a package can have rows of their own
	})
}

// read returns the number of bytes read to identify an image and its parts.
func (c *contents) read(x *found) int64 {
	n := x.read
	for _, part := range x.id.Extents {
		if p := c.files[part]; p != nil && p != x {
			n += p.read
		}
	}
	return n
}

// Shard is share K of N of the images. The zero value stands for all images.
type Shard struct{ K, N int }

// maxShards bounds N.
const maxShards = 1 << 16

// ParseShard parses the value of --shard. An empty string stands for all images.
func ParseShard(s string) (Shard, error) {
	if s == "" {
		return Shard{}, nil
	}
	first, second, _ := strings.Cut(s, "/")
	k, kErr := strconv.ParseUint(first, 10, 32)
	n, nErr := strconv.ParseUint(second, 10, 32)
	if kErr != nil || nErr != nil || k < 1 || k > n || n > maxShards {
		return Shard{}, ondisk.In(ondisk.ErrUsage, "--shard %.40q: must be K/N, such as 3/16, with K from 1 to N, "+
			"and N at most %d", s, maxShards)
	}
	return Shard{int(k), int(n)}, nil
}

// String returns K/N, or an empty string for all images.
func (s Shard) String() string {
	if s.N == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", s.K, s.N)
}

// Has reports whether the share contains the image with an absolute path. The parts of an image are selected by its
// path. The choice depends on the path and on N alone: the first eight bytes of the SHA-256 of the path, as a number,
// modulo N.
func (s Shard) Has(path string) bool {
	if s.N <= 1 {
		return true
	}
	sum := sha256.Sum256([]byte(path))
	return binary.BigEndian.Uint64(sum[:])%uint64(s.N) == uint64(s.K)-1 //nolint:gosec // both are positive
}

// shared returns the rows of this share. Images of other shares do not cover their parts here.
func (r *search) shared(f *folder, c *contents, rows []*found) (mine []*found) {
	for _, x := range rows {
		if r.shard.Has(filepath.Join(f.path, c.unitOf(x.Name))) {
			mine = append(mine, x)
		} else {
			x.silent = true
		}
	}
	return mine
}

// unitOf returns the name of the file that selects the share of another: its first owner. A part of an image has a row
// in that share if its owners cannot be judged.
func (c *contents) unitOf(name string) string {
	for depth := 0; len(c.owners[name]) > 0 && depth < maxDepth; depth++ {
		name = c.owners[name][0].Name
	}
	return name
}
