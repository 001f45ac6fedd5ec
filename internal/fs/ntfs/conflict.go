package ntfs

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// bootBytes is the length of $Boot, at the start of each volume.
const bootBytes = 8 << 10

// Patched is what a replay must leave alone for patches of a file to last.
type Patched struct {
	Records []int64      // base and extension records of the file
	Folders []int64      // base and extension records of the folders on its path, with the root
	Parents []int64      // of them, folders in which no name may come or go
	MFT     []int64      // extension records of $MFT; record 0 counts always
	Bytes   []disk.Range // that are patched, in the volume; its boot sectors count always
}

// Conflict is a write of a replay that may undo a patch, or move what is patched.
type Conflict struct {
	LSN    uint64
	Op     Op
	Undo   bool
	Record int64 // of the MFT: the record itself, or the file whose clusters are written; -1: not known
	What   string
}

func (c *Conflict) String() string {
	pass := "redo"
	if c.Undo {
		pass = "undo"
	}
	if c.Record < 0 {
		return fmt.Sprintf("%s of log record %d (%s) writes %s", pass, c.LSN, c.Op, c.What)
	}
	return fmt.Sprintf("%s of log record %d (%s) writes %s, record %d of the MFT", pass, c.LSN, c.Op, c.What, c.Record)
}

// Conflict returns the first write of a replay that patches of a file would not survive for certain, nil if there is
// none.
func (l *Log) Conflict(p Patched) *Conflict {
	j := judge{roles: map[int64]role{0: ofMFT}, bytes: disk.Merge(append([]disk.Range{{Len: bootBytes}}, p.Bytes...))}
	for r, records := range map[role][]int64{
		ofMFT: p.MFT, ofFile: p.Records, ofFolder: p.Folders,
		ofParent: p.Parents,
	} {
		for _, n := range records {
			j.roles[n] |= r
		}
	}
	for i := range l.Writes {
		if c := j.judge(&l.Writes[i]); c != nil {
			return c
		}
	}
	return nil
}

// role is what a record of the MFT has to do with a patched file: a set of bits.
type role int

const (
	ofMFT role = 1 << iota
	ofFile
	ofFolder
	ofParent
)

// judge decides for each write. It has a list of what is harmless; all else is a conflict.
type judge struct {
	roles map[int64]role
	bytes []disk.Range // sorted, disjoint
}

func (j *judge) judge(w *Write) *Conflict {
	conflict := func(record int64, what string) *Conflict {
		return &Conflict{LSN: w.LSN, Op: w.Op, Undo: w.Undo, Record: record, What: what}
	}
	ours := false
	for _, n := range w.Owners {
		r := j.roles[n]
		ours = ours || r&ofFile != 0
		switch {
		case r&ofMFT != 0 && (w.Op != residentValue || !w.Same):
			return conflict(w.Record, "$MFT")
		case r&ofFile != 0 && !w.Same:
			return conflict(w.Record, "the file")
		case r&(ofFolder|ofParent) != 0 && !j.keepsFolder(w, r):
			return conflict(w.Record, "a folder of its path")
		}
	}
	for _, t := range w.Targets {
		r := j.roles[t.File]
		switch {
		case r&ofMFT != 0 && (w.Op.class() != bitmap || t.Type != typeBitmap):
			return conflict(t.File, "clusters of $MFT")
		case r&ofFile != 0:
			return conflict(t.File, "clusters of the file")
		case r&(ofFolder|ofParent) != 0 && !j.keepsFolder(w, r):
			return conflict(t.File, "the index of a folder of its path")
		}
	}
	if !ours && slices.ContainsFunc(w.Places, j.hits) { // a value in the file's own record was judged above
		return conflict(w.Record, "patched bytes or a boot sector")
	}
	return nil
}

// keepsFolder reports whether every name on the path still leads to the same file after a write to a folder of a role.
func (j *judge) keepsFolder(w *Write, r role) bool {
	switch w.Op {
	case nameInRoot, nameInBlock: // times and sizes in an entry
		return true
	case residentValue, attributeSizes:
		return w.Same
	case addToRoot, deleteFromRoot, addToBlock, deleteFromBlock:
		return r&ofParent == 0 && j.namesOther(w)
	default:
		return false
	}
}

// namesOther reports whether the entry of an index that is added or deleted is of a file off the path. The entry is
// with the operation that adds it. Spec: Linux-NTFS documentation, "Index Entry".
func (j *judge) namesOther(w *Write) bool {
	const least = 0x10
	known := false
	for _, entry := range [][]byte{w.data, w.other} {
		if len(entry) < least {
			continue
		}
		known = true
		n := ondisk.I64(binary.LittleEndian.Uint64(entry) & fileNumber)
		if j.roles[n]&(ofFile|ofFolder) != 0 {
			return false
		}
	}
	return known
}

// hits reports whether a range holds patched bytes.
func (j *judge) hits(r disk.Range) bool { return len(disk.Overlapping(j.bytes, r)) > 0 }
