//go:build linux && !386

package oddfs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// begin takes all files as flushed.
func (p *Power) begin(behind string) error {
	if p == nil {
		return nil
	}
	p.behind, p.flushed, p.seen = behind, map[uint64][]byte{}, map[string]bool{}
	p.list = p.names
	p.named = p.names()
	for folder, names := range p.named {
		for name, inode := range names {
			b, err := os.ReadFile(filepath.Join(behind, folder, name))
			if err != nil {
				return err
			}
			p.flushed[inode] = b
		}
	}
	return nil
}

// names returns the present names of files with their inodes, by the path of the folder.
func (p *Power) names() map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	_ = filepath.WalkDir(p.behind, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err // a file that is removed meanwhile has none
		}
		path, _ = filepath.Rel(p.behind, path)
		if e.IsDir() {
			all[path] = map[string]uint64{}
		} else if info, err := e.Info(); err == nil {
			all[filepath.Dir(path)][e.Name()] = info.Sys().(*syscall.Stat_t).Ino
		}
		return nil
	})
	return all
}

// before records the cuts before an operation.
func (p *Power) before(op string) {
	if p != nil && slices.Contains(changing, op) {
		p.cut()
	}
}

// created forgets the bytes of an earlier file with the inode.
func (p *Power) created(inode uint64) {
	if p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.flushed, inode)
	}
}

// flush flushes a file.
func (p *Power) flush(f *file) syscall.Errno {
	if p == nil {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d", f.f.Fd()))
	if err != nil {
		return syscall.EIO
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flushed[f.ino] = b
	return 0
}

// flushFolder flushes the names of a folder.
func (p *Power) flushFolder(path string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	folder, _ := filepath.Rel(p.behind, path)
	p.named[folder] = p.names()[folder]
}
