package ntfs

import (
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

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
