package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// target is the scratch file, which fio reads and writes.
type target struct {
	file    *os.File
	size    int64
	storage measured.Storage
	notes   []string
}

// scratchName is the temporary name of the scratch file where unnamed files are not supported.
const scratchName = ".trueup-bench-scratch"

// share is the maximum share of the free space for the scratch file.
const share = 0.9

// open creates the scratch file, if it fits, and describes its storage.
func (o *Options) open() (*target, error) {
	if sys.Inherited(0) == "" { // fio opens the file by such a name
		return nil, ondisk.In(ondisk.ErrUnsupported, "trueup bench runs on Linux only")
	}
	if st, err := os.Stat(o.Folder); err != nil {
		return nil, err
	} else if !st.IsDir() {
		return nil, ondisk.In(ondisk.ErrUsage, "%s is no folder: a benchmark makes its own file in a folder, and "+
			"touches no other; give the folder", o.Folder)
	}
	d, err := sys.OpenFolder(o.Folder)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: o.Folder, Err: err}
	}
	defer d.Close()
	t := &target{size: o.length(), notes: []string{}}
	free, known, err := d.Free()
	if err == nil && known && float64(t.size) > share*float64(free) {
		return nil, ondisk.In(ondisk.ErrOutput, "%s: the scratch file takes %s, and %s are free; it takes %d %% of "+
			"them at most; give a smaller --size", o.Folder, units.Format(t.size), units.Format(free), int(100*share))
	}
	if t.file, err = sys.Scratch(o.Folder, scratchName); err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "no scratch file can be made: %w", err)
	}
	if err := t.describe(o); err != nil {
		return nil, errors.Join(err, t.file.Close())
	}
	return t, nil
}

// piece is the size of one write in bytes.
const piece = 1 << 20

// fill allocates and writes the scratch file, because reads of unwritten blocks do not reach the storage. The data are
// not compressible.
func (t *target) fill(ctx context.Context, o *Options) error {
	full := func(err error) error {
		return ondisk.In(ondisk.ErrOutput, "%s: the scratch file of %s does not fit: %w; give a smaller --size",
			o.Folder, units.Format(t.size), err)
	}
	if err := sys.Allocate(t.file, t.size); sys.Full(err) {
		return full(err)
	} else if err != nil {
		return err
	}
	random := rand.NewChaCha8([32]byte{})
	buf := make([]byte, piece)
	for off := int64(0); off < t.size; off += piece {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, _ = random.Read(buf) // it never fails
		if _, err := t.file.WriteAt(buf, off); sys.Full(err) {
			return full(err)
		} else if err != nil {
			return err
		}
	}
	err := t.file.Sync()
	if sys.Full(err) { // a server reports it late
		return full(err)
	}
	return err
}

// possible returns an error if the storage cannot be read from each start without the page cache. A disk with sectors
// of 4 KiB is read from multiples of them only.
func (t *target) possible(o *Options) error {
	if o.Buffered {
		return nil
	}
	f, err := sys.Direct(t.file)
	if err == nil {
		defer f.Close()
		err = tryRead(f, 0)
	}
	if sys.Unsupported(err) {
		return ondisk.In(ondisk.ErrUnsupported,
			"%s: direct I/O is refused (%w), and without it the page cache is measured "+
				"too; --buffered does so, with a flush after each write", t.storage.Where(), err)
	}
	for _, s := range o.Starts {
		if err == nil {
			err = tryRead(f, s)
		}
	}
	if sys.Unsupported(err) {
		return ondisk.In(ondisk.ErrUnsupported, "%s: it has sectors larger than 512 bytes, and takes no I/O that "+
			"starts off them; a guest cannot start there either", t.storage.Where())
	}
	return err
}

// tryRead reads as many bytes as the smallest load.
func tryRead(f *os.File, off int64) error {
	_, err := f.ReadAt(make([]byte, piece)[:minIO], off) // a buffer this large is page-aligned, for direct I/O
	return err
}

// kinds describes special file systems, by the kernel's names.
var kinds = []struct {
	names  []string
	refuse string // without --buffered
	never  string // refuse in any case
	note   string
}{
	{
		names: []string{"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"},
		never: "that is memory and no storage; name a folder on the storage of the images",
	},
	{
		names:  []string{"btrfs", "zfs", "bcachefs", "f2fs"},
		refuse: "it may answer direct I/O off its blocks from the page cache, which would be measured instead",
	},
	{
		names: []string{
			"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "virtiofs", "afs", "lustre", "gpfs", "ocfs2", "gfs2",
			"fuse.glusterfs", "fuse.sshfs", "vmhgfs",
		},
		note: "a network file system: the network and the caches of the server are measured too",
	},
	{names: []string{"overlay", "aufs"}, note: "a file system of layers: what lies below it is measured through it"},
	{names: []string{"fuse", "fuseblk"}, note: "a file system in user space: its program is measured too"},
}

// describe finds the storage of the folder. It returns an error for a file system without I/O to storage.
func (t *target) describe(o *Options) error {
	m, err := mountOf(t.file)
	if err != nil {
		return err
	}
	t.storage = measured.Storage{Path: o.Folder, FileSystem: m.kind, Source: m.source}
	for _, k := range kinds {
		base, _, _ := strings.Cut(t.storage.FileSystem, ".")
		if !slices.Contains(k.names, t.storage.FileSystem) && !slices.Contains(k.names, base) {
			continue
		}
		switch {
		case k.never != "":
			return ondisk.In(ondisk.ErrUnsupported, "%s: the file system is %s: %s", o.Folder, t.storage.FileSystem,
				k.never)
		case k.refuse != "" && !o.Buffered:
			return ondisk.In(ondisk.ErrUnsupported, "%s: the file system is %s: %s; --buffered measures with "+
				"the page cache",
				o.Folder, t.storage.FileSystem, k.refuse)
		case k.note != "":
			t.notes = append(t.notes, t.storage.FileSystem+" is "+k.note)
		}
		break
	}
	if o.Buffered {
		t.notes = append(t.notes, "measured through the page cache, with a flush after each write: reads show memory "+
			"more than storage")
	}
	return nil
}

// mount is a line of /proc/self/mountinfo. Spec: Linux, Documentation/filesystems/proc.rst, 3.5.
type mount struct{ kind, source string }

// mountOf returns the mount that holds an open file.
func mountOf(f *os.File) (m mount, err error) {
	info, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return m, err
	}
	id := ""
	for line := range strings.Lines(string(info)) {
		if rest, found := strings.CutPrefix(line, "mnt_id:"); found {
			id = strings.TrimSpace(rest)
		}
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return m, err
	}
	defer mounts.Close()
	for s := bufio.NewScanner(mounts); s.Scan(); {
		head, tail, found := strings.Cut(s.Text(), " - ")
		left, right := strings.Fields(head), strings.Fields(tail)
		if found && len(left) > 0 && len(right) > 1 && left[0] == id {
			blanks := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
			return mount{right[0], blanks.Replace(right[1])}, nil
		}
	}
	return m, fmt.Errorf("mount %q of the file: not in /proc/self/mountinfo", id)
}
