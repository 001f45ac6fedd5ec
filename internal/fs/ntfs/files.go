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

// fileSystem reads files of NTFS versions 1.2 (NT 4) to 3.1 (Windows 11).
type fileSystem struct {
	volume   disk.Disk
	cluster  int64           // bytes
	clusters int64           // of the volume
	record   int64           // bytes of a record of the MFT
	mft      *guestfile.File // complete, except while readMFT reads it
	upper    upcaseTable
	own      *ondisk.Budget // limits bytes of records and indexes
	budget   *guestfile.Budget
}

// maxStructures limits the bytes of records and indexes that are read, which bounds the time spent on a malicious
// volume. Opening a hundred files reads about 20 MiB.
const maxStructures = 128 << 20

// weight is the cost of a byte of records and indexes, which are parsed, relative to a byte that is only read.
const weight = 4

// spend charges bytes of structures to both budgets, before the read.
func (n *fileSystem) spend(bytes int64) error {
	if err := n.own.Spend(bytes); err != nil {
		return err
	}
	return n.budget.Work.Spend(weight * bytes)
}

// Fixed numbers of MFT records. Spec: Linux-NTFS documentation, "Files: overview".
const (
	mftRecord    = 0
	volumeRecord = 3
	rootRecord   = 5
	upcaseRecord = 10
)

// Open opens an NTFS volume. It returns ErrNoMatch if the volume is not NTFS.
func Open(b *guestfile.Budget, volume disk.Disk) (guestfile.FS, error) {
	n, err := open(b, volume, maxStructures)
	if err != nil {
		return nil, err
	}
	return n, n.findUpcase()
}

// open opens an NTFS volume without its upper-case table. limit bounds the bytes of records and indexes to read.
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

// newFileSystem returns a fileSystem with its budgets; sizes and MFT are still unset.
func newFileSystem(b *guestfile.Budget, volume disk.Disk) *fileSystem {
	own := &ondisk.Budget{What: "ntfs", Unit: "bytes of records and indexes", Limit: maxStructures}
	return &fileSystem{volume: volume, own: own, budget: b, upper: upcaseTable{file: bytes.NewReader(nil)}}
}

// readMFT finds the runs of the MFT, which is itself a file with a record. If several records hold its runs, the first
// runs locate the record with the next ones.
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
		if name.space != spaceDOS { // the file has a long name too
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

// vcnLimit returns the number of clusters of a file up to which byte offsets fit into an int64.
func (n *fileSystem) vcnLimit() int64 { return math.MaxInt64 / n.cluster }

// Trace holds the numbers of the MFT records that lead to a file.
type Trace struct {
	File    []int64 // base record and extensions
	Folders []int64 // records of the folders on the path, from the root on
	Parent  []int64 // records of the last folder
	MFT     []int64 // records of the MFT itself
}

// Volume is implemented by the result of Open, for the reader of the volume's log.
type Volume interface {
	// Trace returns the records of a file, by its path.
	Trace(path string) (Trace, error)
	// Log reads the log of the volume, see Read.
	Log(src ondisk.Source) (*Log, error)
}

var _ Volume = (*fileSystem)(nil)

// Trace implements Volume.
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

// records returns the numbers of the base record and of the records in the attribute list.
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

// Log implements Volume.
func (n *fileSystem) Log(src ondisk.Source) (*Log, error) {
	return Read(src, LogVolume{Source: n.volume, Cluster: n.cluster, Record: n.record, MFT: n.logged})
}

// logged implements the MFT of LogVolume.
func (n *fileSystem) logged(number int64) ([]byte, error) {
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
