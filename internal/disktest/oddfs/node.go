//go:build linux && !386

package oddfs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// node is a file or a folder.
type node struct {
	fs.LoopbackNode
	s *server
}

// WrapChild wraps an entry of the underlying folder in a node of this file system.
func (n *node) WrapChild(_ context.Context, child fs.InodeEmbedder) fs.InodeEmbedder {
	return n.s.node(child.(*fs.LoopbackNode).RootData)
}

// behind returns the path of the node in the underlying folder.
func (n *node) behind() string {
	path := n.RootData.Path
	for part := range strings.SplitSeq(n.EmbeddedInode().Path(nil), "/") {
		path = filepath.Join(path, n.s.spelled(path, part))
	}
	return path
}

// spelled returns a name as spelled in the folder, if case is ignored.
func (s *server) spelled(folder, name string) string {
	if !s.Caseless {
		return name
	}
	if _, err := os.Lstat(filepath.Join(folder, name)); err == nil {
		return name
	}
	list, _ := os.ReadDir(folder) // an unreadable folder has no such name
	for _, e := range list {
		if strings.EqualFold(e.Name(), name) {
			return e.Name()
		}
	}
	return name
}

func (n *node) here(name string) string { return n.s.spelled(n.behind(), name) }

// Lookup finds a name.
func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.s.begin("lookup", name); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Lookup(ctx, n.here(name), out)
}

// Getattr returns the attributes of the underlying file, even if it was renamed after it was opened.
func (n *node) Getattr(ctx context.Context, f fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if errno := n.s.begin("getattr", ""); errno != 0 {
		return errno
	}
	if x, ok := f.(*file); ok {
		return x.Getattr(ctx, out)
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(n.behind(), &st); err != nil {
		return fs.ToErrno(err)
	}
	out.FromStat(&st)
	return 0
}

// Setattr sets size and permissions.
func (n *node) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	op := "truncate"
	if _, ok := in.GetMode(); ok {
		op = "chmod"
	}
	if errno := n.s.begin(op, ""); errno != 0 {
		return errno
	}
	if size, ok := in.GetSize(); ok && n.s.Capacity > 0 {
		if size > uint64(n.s.Capacity) {
			return syscall.ENOSPC
		}
		if err := unix.Fallocate(int(f.(*file).f.Fd()), 0, 0, int64(size)); err != nil {
			return fs.ToErrno(err)
		}
	}
	return n.LoopbackNode.Setattr(ctx, f, in, out)
}

// Open opens a file. The kernel does not cache its bytes, so every call arrives here.
func (n *node) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.s.begin("open", ""); errno != 0 {
		return nil, 0, errno
	}
	f, err := os.OpenFile(n.behind(), int(flags)&^(syscall.O_APPEND|syscall.O_CREAT|syscall.O_EXCL), 0)
	if err != nil {
		return nil, 0, fs.ToErrno(err)
	}
	h, errno := newFile(f, n.s)
	return h, fuse.FOPEN_DIRECT_IO, errno
}

// Create makes a file.
func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (
	*fs.Inode, fs.FileHandle, uint32, syscall.Errno,
) {
	if errno := n.s.begin("create", name); errno != 0 {
		return nil, nil, 0, errno
	}
	if found := n.here(name); found != name && flags&syscall.O_EXCL != 0 {
		return nil, nil, 0, syscall.EEXIST
	}
	child, h, _, errno := n.LoopbackNode.Create(ctx, n.here(name), flags, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	_ = h.(fs.FileReleaser).Release(ctx) // replaced by a node of its own kind
	f, err := os.OpenFile(filepath.Join(n.behind(), n.here(name)), int(flags)&syscall.O_ACCMODE, 0)
	if err != nil {
		return nil, nil, 0, fs.ToErrno(err)
	}
	own, errno := newFile(f, n.s)
	if errno == 0 {
		n.s.Power.created(own.ino)
	}
	return child, own, fuse.FOPEN_DIRECT_IO, errno
}

// Tmpfile is not supported, as on network file systems.
func (n *node) Tmpfile(context.Context, uint32, uint32, *fuse.EntryOut) (
	*fs.Inode, fs.FileHandle, uint32, syscall.Errno,
) {
	return nil, nil, 0, syscall.ENOSYS
}

// Unlink removes a name.
func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	if errno := n.s.begin("unlink", name); errno != 0 {
		return errno
	}
	return n.s.end("unlink", name, n.LoopbackNode.Unlink(ctx, n.here(name)))
}

// Link adds a second name.
func (n *node) Link(ctx context.Context, target fs.InodeEmbedder, name string, out *fuse.EntryOut) (
	*fs.Inode, syscall.Errno,
) {
	if errno := n.s.begin("link", name); errno != 0 {
		return nil, errno
	}
	if n.here(name) != name {
		return nil, syscall.EEXIST
	}
	child, errno := n.LoopbackNode.Link(ctx, target, name, out)
	if errno = n.s.end("link", name, errno); errno != 0 {
		return nil, errno
	}
	n.s.link(out.Ino)
	return child, 0
}

// Rename renames an entry.
func (n *node) Rename(
	ctx context.Context, name string, to fs.InodeEmbedder, newName string, flags uint32,
) syscall.Errno {
	op := "rename"
	if flags != 0 {
		op = "rename2"
	}
	if errno := n.s.begin(op, newName); errno != 0 {
		return errno
	}
	return n.s.end(op, newName, n.LoopbackNode.Rename(ctx, n.here(name), to, n.here(newName), flags))
}

// Statfs returns the free space.
func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	if errno := n.s.begin("statfs", ""); errno != 0 {
		return errno
	}
	errno := n.LoopbackNode.Statfs(ctx, out)
	if n.s.Capacity > 0 {
		out.Bsize, out.Frsize = 512, 512
		out.Blocks = uint64(n.s.Capacity / 512)
		out.Bavail = out.Blocks - min(out.Blocks, n.taken())
	}
	if n.s.isFull() {
		out.Bavail = 0
	}
	return errno
}

// taken returns the space used by files of the underlying folder, in blocks of stat(2).
func (n *node) taken() (blocks uint64) {
	list, _ := os.ReadDir(n.RootData.Path)
	for _, e := range list {
		var st syscall.Stat_t
		if syscall.Lstat(filepath.Join(n.RootData.Path, e.Name()), &st) == nil {
			blocks += uint64(st.Blocks)
		}
	}
	return blocks
}

// OpendirHandle opens a folder.
func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.s.begin("opendir", ""); errno != 0 {
		return nil, 0, errno
	}
	h, f, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return &folder{FileHandle: h, s: n.s, path: n.behind()}, f, 0
}

// folder is an open folder.
type folder struct {
	fs.FileHandle
	s    *server
	path string // in the underlying file system
	read bool   // at least in part
}

// Readdirent reads a name. The list of names is one operation.
func (f *folder) Readdirent(ctx context.Context) (*fuse.DirEntry, syscall.Errno) {
	if !f.read {
		f.read = true
		if errno := f.s.begin("readdir", ""); errno != 0 {
			return nil, errno
		}
	}
	return f.FileHandle.(fs.FileReaddirenter).Readdirent(ctx)
}

// Releasedir closes it.
func (f *folder) Releasedir(ctx context.Context, flags uint32) {
	f.FileHandle.(fs.FileReleasedirer).Releasedir(ctx, flags)
}

// Fsyncdir flushes for the record of power cuts only.
func (f *folder) Fsyncdir(context.Context, uint32) syscall.Errno {
	if errno := f.s.begin("fsyncdir", ""); errno != 0 {
		return errno
	}
	f.s.Power.flushFolder(f.path)
	return 0
}
