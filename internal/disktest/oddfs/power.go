package oddfs

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Power records the files after a power cut before each change. A file has the bytes of its last flush. A name that
// changed since the last flush of its folder is as before, or as it is now; chosen in turn: all names, those with a
// suffix, and the others.
type Power struct {
	Suffix string

	mu      sync.Mutex
	behind  string
	list    func() map[string]map[string]uint64 // the present names, like named
	flushed map[uint64][]byte                   // bytes of files by inode
	named   map[string]map[string]uint64        // flushed names and their inodes, by the path of the folder
	marks   int
	cuts    []Cut
	seen    map[string]bool
}

// Cut has the files after a power cut, by paths below the mounted folder.
type Cut struct {
	Files map[string][]byte
	Marks int // calls of Mark before it
}

// Mark makes later cuts different from earlier ones.
func (p *Power) Mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marks++
}

// Cuts returns the states that differ.
func (p *Power) Cuts() []Cut {
	p.cut()
	return p.cuts
}

// cut adds the cuts at this moment.
func (p *Power) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.list()
	for _, isNew := range []func(name string) bool{
		func(string) bool { return false },
		func(string) bool { return true },
		func(name string) bool { return strings.HasSuffix(name, p.Suffix) },
		func(name string) bool { return !strings.HasSuffix(name, p.Suffix) },
	} {
		c := Cut{Files: map[string][]byte{}, Marks: p.marks}
		for folder := range now {
			for _, all := range []map[string]uint64{p.named[folder], now[folder]} {
				for name, inode := range all {
					from := p.named[folder]
					if isNew(name) {
						from = now[folder]
					}
					if from[name] == inode {
						c.Files[folder+"/"+name] = p.flushed[inode]
					}
				}
			}
		}
		sum := sha256.New()
		for _, path := range slices.Sorted(maps.Keys(c.Files)) {
			fmt.Fprintf(sum, "%s %x\n", path, sha256.Sum256(c.Files[path]))
		}
		key := fmt.Sprintf("%d %x", p.marks, sum.Sum(nil))
		if !p.seen[key] {
			p.seen[key] = true
			p.cuts = append(p.cuts, c)
		}
	}
}
