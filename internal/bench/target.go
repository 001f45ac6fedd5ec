package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/trueup/trueup/internal/bench/measured"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/units"
)

// target is what fio reads and writes.
type target struct {
	file    *os.File
	size    int64
	storage measured.Storage
	notes   []string
}

// open opens the target and describes its storage.
func (o *Options) open() (*target, error) {
	if sys.Inherited(0) == "" { // by such a name fio opens the file
		return nil, ondisk.In(ondisk.ErrUnsupported, "trueup bench runs on Linux only")
	}
	st, err := os.Stat(o.Target)
	if err != nil {
		return nil, err
	}
	t := &target{notes: []string{}}
	switch mode := st.Mode(); {
	case !o.ReadOnly && !st.IsDir():
		return nil, ondisk.In(ondisk.ErrUsage,
			"%s is no folder: a benchmark with writes makes its own file in a folder, and "+
				"touches no other; give the folder, or --read-only", o.Target)
	case !o.ReadOnly:
		err = t.makeScratch(o)
	case mode.IsRegular() || mode&(os.ModeDevice|os.ModeCharDevice) == os.ModeDevice:
		err = t.openExisting(o, st)
	default:
		return nil, ondisk.In(ondisk.ErrUsage, "%s is neither an image nor a block device; --read-only wants one",
			o.Target)
	}
	if err == nil {
		err = t.describe(o)
	}
	if err != nil && t.file != nil {
		err = errors.Join(err, t.file.Close())
	}
	return t, err
}

// scratchName is a name that a file has for a moment, where it cannot be made without one.
const scratchName = ".trueup-bench-scratch"

// share is the most that a scratch file takes of the free space.
const share = 0.9

func (t *target) makeScratch(o *Options) (err error) {
	d, err := sys.OpenFolder(o.Target)
	if err != nil {
		return &fs.PathError{Op: "open", Path: o.Target, Err: err}
	}
	defer d.Close()
	t.size = o.length()
	free, known, err := d.Free()
	if err == nil && known && float64(t.size) > share*float64(free) {
		return ondisk.In(ondisk.ErrOutput, "%s: the scratch file takes %s, and %s are free; it takes %d %% of them "+
			"at most; give a smaller --size", o.Target, units.Format(t.size), units.Format(free), int(100*share))
	}
	if t.file, err = sys.Scratch(o.Target, scratchName); err != nil {
		return ondisk.In(ondisk.ErrOutput, "no scratch file can be made: %w", err)
	}
	return nil
}

// stored is the least share of a file that must be stored: holes are read from no storage.
const stored = 0.95

func (t *target) openExisting(o *Options, st fs.FileInfo) (err error) {
	if t.file, err = os.Open(o.Target); err != nil {
		return err
	}
	if t.size, err = t.file.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if t.size < slices.Max(o.Starts)+minSize {
		return ondisk.In(ondisk.ErrUsage, "%s has %s, want %s behind each start", o.Target, units.Format(t.size),
			units.Format(minSize))
	}
	if st.Mode().IsRegular() {
		info, err := sys.Of(t.file).Stat()
		if err != nil {
			return err
		}
		if float64(info.Allocated) < stored*float64(t.size) {
			return ondisk.In(ondisk.ErrUnsupported, "%s: %d %% of it are stored, the rest are holes, which are read "+
				"from no storage; measure in its folder instead, or another image", o.Target, 100*info.Allocated/t.size)
		}
	}
	return nil
}

// covered returns the bytes that the I/O of each start covers.
func (t *target) covered(o *Options) int64 {
	return units.AlignDown(t.size-slices.Max(o.Starts), units.MiB)
}

// piece is how much is written at a time, in bytes.
const piece = 1 << 20

// fill reserves the scratch file and writes it: blocks that were never written are read from no storage. The bytes
// cannot be compressed.
func (t *target) fill(ctx context.Context, o *Options) error {
	full := func(err error) error {
		return ondisk.In(ondisk.ErrOutput, "%s: the scratch file of %s does not fit: %w; give a smaller --size",
			o.Target, units.Format(t.size), err)
	}
	if err := sys.Allocate(t.file, t.size); sys.Full(err) {
		return full(err)
	} else if err != nil {
		return err
	}
	o.Watch.Begin(Fill, t.size)
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
		o.Watch.Add(piece)
	}
	err := t.file.Sync()
	if sys.Full(err) { // a server says it late
		return full(err)
	}
	return err
}

// possible returns the starts that the storage can do. A disk with sectors of 4 KiB knows no start off them.
func (t *target) possible(o *Options, r *measured.Result) ([]int64, error) {
	if o.Buffered {
		return o.Starts, nil
	}
	f, err := sys.Direct(t.file)
	if err == nil {
		defer f.Close()
		err = tryRead(f, 0)
	}
	if sys.Unsupported(err) {
		return nil, ondisk.In(ondisk.ErrUnsupported,
			"%s: direct I/O is refused (%w), and without it the page cache is measured "+
				"too; --buffered does so, with a flush after each write", t.storage.Where(), err)
	} else if err != nil {
		return nil, err
	}
	var out []int64
	for _, s := range o.Starts {
		err := tryRead(f, s)
		switch {
		case err == nil:
			out = append(out, s)
		case sys.Unsupported(err):
			r.Skipped = append(r.Skipped, s)
		default:
			return nil, err
		}
	}
	if len(out) < 2 {
		block := "blocks larger than 512 bytes"
		if n := t.storage.Logical; n > units.SectorSize {
			block = "sectors of " + units.Format(n)
		}
		return nil, ondisk.In(ondisk.ErrUnsupported,
			"%s: it has %s, and takes no I/O that starts off them (tried: %s); a guest "+
				"cannot start there either; --starts may name multiples of them", t.storage.Where(), block,
			list(r.Skipped))
	}
	return out, nil
}

// tryRead reads as much as the smallest load does.
func tryRead(f *os.File, off int64) error {
	_, err := f.ReadAt(make([]byte, piece)[:minIO], off) // so much memory begins on a page, as direct I/O wants it
	return err
}

func list(starts []int64) string {
	var out []string
	for _, s := range starts {
		out = append(out, units.Format(s))
	}
	return strings.Join(out, ", ")
}

// kinds say what is special about file systems, by the kernel's names.
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

// describe finds out what the storage is, and refuses all else.
func (t *target) describe(o *Options) error {
	t.storage.Path = o.Target
	st, err := t.file.Stat()
	if err != nil {
		return err
	}
	var device string
	if st.Mode()&os.ModeDevice != 0 {
		path, err := filepath.EvalSymlinks(o.Target)
		if err != nil {
			return err
		}
		device = "/sys/class/block/" + filepath.Base(path)
	} else {
		m, err := mountOf(t.file)
		if err != nil {
			return err
		}
		t.storage.FileSystem, t.storage.Source = m.kind, m.source
		device = m.device()
	}
	t.describeDevice(device)
	for _, k := range kinds {
		base, _, _ := strings.Cut(t.storage.FileSystem, ".")
		if !slices.Contains(k.names, t.storage.FileSystem) && !slices.Contains(k.names, base) {
			continue
		}
		switch {
		case k.never != "":
			return ondisk.In(ondisk.ErrUnsupported, "%s: the file system is %s: %s", o.Target, t.storage.FileSystem,
				k.never)
		case k.refuse != "" && !o.Buffered:
			return ondisk.In(ondisk.ErrUnsupported, "%s: the file system is %s: %s; --buffered measures with "+
				"the page cache",
				o.Target, t.storage.FileSystem, k.refuse)
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
type mount struct{ number, kind, source string }

// mountOf returns the mount that an open file is on.
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
		if found && len(left) > 2 && len(right) > 1 && left[0] == id {
			return mount{left[2], right[0], unescape(right[1])}, nil
		}
	}
	return m, fmt.Errorf("mount %q of the file: not in /proc/self/mountinfo", id)
}

// unescape decodes the octal numbers that stand for blanks.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// device returns the folder of the kernel with what it knows of the device.
func (m mount) device() string {
	if path := "/sys/dev/block/" + m.number; exists(path) {
		return path
	}
	if path, err := filepath.EvalSymlinks(m.source); err == nil && strings.HasPrefix(path, "/dev/") {
		return "/sys/class/block/" + filepath.Base(path)
	}
	return ""
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// describeDevice reads what the kernel knows of a block device. Spec: Linux, Documentation/ABI/stable/sysfs-block.
func (t *target) describeDevice(folder string) {
	folder, err := filepath.EvalSymlinks(folder)
	if folder == "" || err != nil {
		return // not of this kernel
	}
	if exists(filepath.Join(folder, "partition")) {
		folder = filepath.Dir(folder)
	}
	word := func(name string) string {
		b, err := os.ReadFile(filepath.Join(folder, name)) //nolint:gosec // of the kernel
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(word(name), 10, 64) // 0: not known
		return n
	}
	s := &t.storage
	s.Device, s.Model, s.Rotational = filepath.Base(folder), word("device/model"), word("queue/rotational") == "1"
	s.Logical, s.Physical = number("queue/logical_block_size"), number("queue/physical_block_size")
	if word("loop/dio") == "0" {
		t.notes = append(t.notes, s.Device+" is a loop device that reads and writes its file through the page cache, "+
			"which is measured too")
	}
}
