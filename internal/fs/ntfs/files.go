package ntfs

import (
	"bytes"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// fileSystem reads files of NTFS, from the version of NT 4 (1.2) to that of Windows 11 (3.1).
type fileSystem struct {
	volume   disk.Disk
	cluster  int64           // bytes
	clusters int64           // of the volume
	record   int64           // bytes of a record of the MFT
	mft      *guestfile.File // complete, save while it is being read
	upper    upcaseTable
	own      *ondisk.Budget // of its records and indexes
	budget   *guestfile.Budget
}

// maxStructures bounds the bytes of records and indexes that are read, so that a malicious volume cannot take more
// time. Opening a hundred files takes about 20 MiB.
const maxStructures = 128 << 20

// weight is the cost of a byte of these structures relative to one that is only read, since records and indexes are
// parsed.
const weight = 4

// spend counts bytes of structures before they are read.
func (n *fileSystem) spend(bytes int64) error {
	if err := n.own.Spend(bytes); err != nil {
		return err
	}
	return n.budget.Work.Spend(weight * bytes)
}

// Records of the MFT that have a fixed place. Spec: Linux-NTFS documentation, "Files: overview".
const (
	mftRecord    = 0
	volumeRecord = 3
	rootRecord   = 5
	upcaseRecord = 10
)

// Open opens the NTFS of a partition. It returns ErrNoMatch if it is not NTFS.
func Open(b *guestfile.Budget, volume disk.Disk) (guestfile.FS, error) {
	n, err := open(b, volume, maxStructures)
	if err != nil {
		return nil, err
	}
	return n, n.findUpcase()
}

// open opens an NTFS without the table of capital letters. limit bounds the bytes of its structures that are read.
func open(b *guestfile.Budget, volume disk.Disk, limit int64) (*fileSystem, error) {
	boot, err := readBoot(volume)
	if err != nil {
		return nil, err
	}
	n := newFileSystem(b, volume)
	n.own.Limit = limit
	n.cluster, n.clusters, n.record = boot.cluster(), boot.clusters(), boot.record()
	return n, n.readMFT(boot.mft())
}

// newFileSystem returns a volume of which nothing is known yet.
func newFileSystem(b *guestfile.Budget, volume disk.Disk) *fileSystem {
	own := &ondisk.Budget{What: "ntfs", Unit: "bytes of records and indexes", Limit: maxStructures}
	return &fileSystem{volume: volume, own: own, budget: b, upper: upcaseTable{file: bytes.NewReader(nil)}}
}

// readMFT finds the records of the MFT, which is itself a file with a record. If its runs are in several records, the
// first runs lead to the record with the next ones.
func (n *fileSystem) readMFT(at int64) error {
	boot, err := guestfile.NewFile(n.volume, "$MFT", n.record, []guestfile.Run{{Len: n.record, At: at}})
	if err != nil {
		return err
	}
	n.mft = boot
	first, err := n.node(ref{number: mftRecord}, "$MFT")
	if err != nil {
		return err
	}
	v := value{fs: n, growing: true}
	if err := first.read(attrData, "", &v); err != nil {
		return err
	}
	if n.mft, err = v.file("$MFT"); err != nil {
		return err
	}
	if err := n.budget.Runs.Spend(int64(len(v.runs))); err != nil {
		return err
	}
	if places, err := n.mft.Where(0, n.record); err != nil || len(places) != 1 || places[0].Off != at {
		return ondisk.Field("ntfs $MFT", "first run", at, fmt.Sprint(places), "the place that the boot sector gives")
	}
	return nil
}

// List returns the long names of a folder.
func (n *fileSystem) List(path string) ([]guestfile.Entry, error) {
	dir, err := n.find(path)
	if err != nil {
		return nil, err
	}
	var out []guestfile.Entry
	return out, dir.names(nil, func(name *fileName) error {
		if name.space != spaceDOS { // a second name of a file that has a long one
			out = append(out, guestfile.Entry{Name: name.text(), Dir: name.dir})
		}
		return nil
	})
}

// Open finds a file by its long or its short name.
func (n *fileSystem) Open(path string) (*guestfile.File, error) {
	node, err := n.find(path)
	if err != nil {
		return nil, err
	}
	if node.rec.dir() {
		return nil, fmt.Errorf("file %.256q: %w: it is a folder", path, fs.ErrNotExist)
	}
	v := value{fs: n}
	if err := node.read(attrData, "", &v); err != nil {
		return nil, err
	}
	if err := v.plain(node.path); err != nil {
		return nil, err
	}
	return v.file(node.path)
}

// find follows a path from the root.
func (n *fileSystem) find(path string) (*node, error) {
	node, err := n.node(ref{number: rootRecord}, "")
	if err != nil || path == "" {
		return node, err
	}
	if strings.Count(path, "/") >= guestfile.MaxDepth {
		return nil, fmt.Errorf("file %.256q: %w of %d folders", path, ondisk.ErrLimit, guestfile.MaxDepth)
	}
	for name := range strings.SplitSeq(path, "/") {
		if node, err = node.child(name); err != nil {
			return nil, err
		}
		if err := node.passable(); err != nil {
			return nil, err
		}
	}
	return node, nil
}

// vcnLimit is the first cluster of a file whose bytes cannot be counted.
func (n *fileSystem) vcnLimit() int64 { return math.MaxInt64 / n.cluster }

// Trace has the records of the MFT that lead to a file.
type Trace struct {
	File    []int64 // base record and extensions
	Folders []int64 // those of the folders on its path, from the root on
	Parent  []int64 // those of the last of them
	MFT     []int64 // those of the MFT itself
}

// Volume is what Open returns, for the reader of the volume's log.
type Volume interface {
	// Trace returns the records of a file, by its path.
	Trace(path string) (Trace, error)
	// Record returns a record of the MFT with its fix-ups undone, nil if none is stored there. It need not be in use.
	Record(number int64) ([]byte, error)
	// Sizes returns the bytes of a cluster and of a record.
	Sizes() (cluster, record int64)
	// Disk returns the partition.
	Disk() disk.Disk
}

var _ Volume = (*fileSystem)(nil)

// Trace follows Volume.
func (n *fileSystem) Trace(path string) (t Trace, err error) {
	mft, err := n.node(ref{number: mftRecord}, "$MFT")
	if err != nil {
		return t, err
	}
	if t.MFT, err = mft.records(); err != nil {
		return t, err
	}
	elements := strings.Split(path, "/")
	for i := range elements {
		folder, err := n.find(strings.Join(elements[:i], "/"))
		if err != nil {
			return t, err
		}
		records, err := folder.records()
		if err != nil {
			return t, err
		}
		t.Folders, t.Parent = append(t.Folders, records...), records
	}
	file, err := n.find(path)
	if err != nil {
		return t, err
	}
	t.File, err = file.records()
	return t, err
}

// records returns the numbers of the base record and of those in the attribute list.
func (node *node) records() ([]int64, error) {
	out := []int64{node.rec.number}
	for b := node.list; len(b) > 0; {
		e, err := node.listed(b)
		if err != nil {
			return nil, err
		}
		b = b[e.length:]
		if !slices.Contains(out, e.ref.number) {
			out = append(out, e.ref.number)
		}
	}
	return out, nil
}

// Record follows Volume.
func (n *fileSystem) Record(number int64) ([]byte, error) {
	if number < 0 || number >= n.mft.Size()/n.record {
		return nil, nil
	}
	if err := n.spend(n.record); err != nil {
		return nil, err
	}
	raw, err := ondisk.Bytes(n.mft, number*n.record, n.record)
	if err != nil || string(raw[:4]) != "FILE" || !UndoFixups(raw, recordHeadSize) {
		return nil, err
	}
	return raw, nil
}

// Sizes follows Volume.
func (n *fileSystem) Sizes() (cluster, record int64) { return n.cluster, n.record }

// Disk follows Volume.
func (n *fileSystem) Disk() disk.Disk { return n.volume }
