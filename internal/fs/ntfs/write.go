package ntfs

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// keptData limits the bytes of data kept with a write: enough for a file reference, attribute sizes or a record header.
const keptData = 48

// Write is a change that a replay of the log may make.
type Write struct {
	LSN  uint64 // LSN of the log record
	Op   Op
	Undo bool // undo of an unfinished transaction

	// Record is the MFT record that is written, -1 for other clusters. Owners are that record and the base records that
	// it belongs to, now or after the replay.
	Record int64
	Owners []int64
	// Targets are the attributes that the write may be meant for, other than MFT records.
	Targets []Target

	Length int          // bytes
	Places []disk.Range // volume ranges: the MFT record, or all clusters of the log record

	// SameLayout reports that the layout of the MFT record stays: the write changes $STANDARD_INFORMATION without
	// resizing it, or sets the sizes of an attribute to their current values.
	SameLayout bool

	data, other  []byte // first bytes of the data written, and of the data of the opposite operation
	otherLength  int
	recordOffset int
	attrOffset   int
	block        int64 // byte offset in the first cluster
}

// note adds the redo or undo write of an action. Operations of class nothing have no write.
func (a *analysis) note(act *action, undo bool) error {
	op := act.Redo
	if undo {
		op = act.Undo
	}
	if op.class() == nothing {
		return nil
	}
	if len(a.pending) == maxWrites {
		return fmt.Errorf("$LogFile: %w of %d writes of a replay", ondisk.ErrLimit, maxWrites)
	}
	data, length, err := act.side(undo)
	if err != nil {
		return err
	}
	other, otherLength, err := act.side(!undo)
	if err != nil {
		return err
	}
	w := Write{
		LSN: act.LSN, Op: op, Undo: undo, Record: -1, data: kept(data), other: kept(other),
		Length: length, otherLength: otherLength,
		recordOffset: int(act.RecordOffset), attrOffset: int(act.AttrOffset), block: int64(act.BlockOffset) * blockUnit,
	}
	if err := a.place(act, &w); err != nil {
		return err
	}
	a.pending = append(a.pending, pending{w, int(act.Target)})
	return nil
}

// kept copies the first bytes of data, so that their page can be freed.
func kept(b []byte) []byte { return slices.Clone(b[:min(len(b), keptData)]) }

// place computes the volume ranges that a write changes.
func (a *analysis) place(act *action, w *Write) error {
	cluster := a.volume.Cluster
	from, size := int64(0), int64(len(act.lcns))*cluster
	switch w.Op.class() {
	case mftClass:
		off := ondisk.I64(act.VCN)*cluster + w.block
		if off%a.volume.Record != 0 {
			return act.broken(0x14, "place in the MFT", off, fmt.Sprintf("a multiple of %d", a.volume.Record))
		}
		w.Record = off / a.volume.Record
		if end := w.block + a.volume.Record; end > size {
			return act.broken(0x0e, "number of clusters", len(act.lcns), fmt.Sprintf("enough for %d bytes", end))
		}
		from, size = w.block, a.volume.Record
	case valueAt:
		if end := w.block + int64(w.recordOffset+w.attrOffset+w.Length); end > size {
			return act.broken(0x0e, "number of clusters", len(act.lcns), fmt.Sprintf("enough for %d bytes", end))
		}
	case bitmap:
		if end := bitsEnd(w.data); w.block+int64(w.recordOffset+w.attrOffset)+end > size {
			return act.broken(0x0e, "number of clusters", len(act.lcns),
				fmt.Sprintf("enough for %d bytes of bits", end))
		}
	case index, nothing: // a whole block, whose size the log does not give
	}
	for i, lcn := range act.lcns {
		if lcn >= ondisk.U64(a.volume.Size()/cluster) {
			return act.broken(actionSize+8*int64(i), "LCN", lcn, fmt.Sprintf("below %d", a.volume.Size()/cluster))
		}
		start, end := max(0, from-int64(i)*cluster), min(cluster, from+size-int64(i)*cluster)
		if start < end {
			w.Places = disk.Append(w.Places, disk.Range{Off: ondisk.I64(lcn)*cluster + start, Len: end - start})
		}
	}
	if a.places += len(w.Places); a.places > maxPlaces {
		return fmt.Errorf("$LogFile: %w of %d places that a replay writes to", ondisk.ErrLimit, maxPlaces)
	}
	return nil
}

// bitsEnd returns the byte offset past the last bit of a bit range. b holds the number of the first bit and the count.
func bitsEnd(b []byte) int64 {
	if len(b) < 8 {
		return 0
	}
	first, n := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	return (int64(first) + int64(n) + 7) / 8
}

// writes compares the pending writes with the volume, and returns those not done yet.
func (a *analysis) writes() ([]Write, error) {
	byRecord := map[int64][]int{}
	for i := range a.pending {
		p := &a.pending[i]
		if err := a.resolveTargets(p); err != nil {
			return nil, err
		}
		byRecord[p.Record] = append(byRecord[p.Record], i)
	}
	done := make([]bool, len(a.pending))
	for n, list := range byRecord {
		var err error
		if n >= 0 {
			err = a.holdRecord(n, list, done)
		} else {
			err = a.holdBlocks(list, done)
		}
		if err != nil {
			return nil, err
		}
	}
	var out []Write
	for i := range a.pending {
		if !done[i] {
			out = append(out, a.pending[i].Write)
		}
	}
	return out, nil
}

// resolveTargets sets the attributes that a write may be meant for. An attribute used before the checkpoint may be
// closed and unknown: then none of its pages was dirty, and a replay skips the write.
func (a *analysis) resolveTargets(p *pending) error {
	targets := a.slots[p.slot]
	bad := func(field string, got, want any) error {
		return ondisk.Field(fmt.Sprintf("$LogFile record of LSN %d", p.LSN), field,
			a.reader.place(p.LSN)+headerSize+0x0c, got, want)
	}
	if len(targets) == 0 && p.LSN > a.client.Start {
		return bad("target", p.slot, "an open attribute")
	}
	if p.Record < 0 {
		p.Targets = targets
		return nil
	}
	if len(targets) > 0 && !slices.Contains(targets, Target{0, typeData}) {
		return bad("target of "+p.Op.String(), targets, "data of $MFT")
	}
	return nil
}

// holdRecord compares the writes to one MFT record with the record. The list is in the order of a replay.
func (a *analysis) holdRecord(n int64, list []int, done []bool) error {
	raw, err := a.volume.MFT(n)
	if err != nil {
		return err
	}
	rec := logMFTRecord(raw)
	owners := []int64{n}
	if base, ok := rec.base(); ok {
		owners = append(owners, base)
	}
	renewed := false
	for _, i := range list {
		w := &a.pending[i].Write
		if w.Op == initRecord || w.Op == freeRecord {
			renewed = true
		}
		if base, ok := logMFTRecord(w.data).base(); w.Op == initRecord && ok && !slices.Contains(owners, base) {
			owners = append(owners, base)
		}
		if len(owners) > maxOwners {
			return fmt.Errorf("$LogFile: %w of %d owners of record %d of the MFT", ondisk.ErrLimit, maxOwners, n)
		}
		done[i] = !w.Undo && !renewed && w.Op.filtered() && rec.lsn() >= w.LSN
		w.SameLayout = rec.keepsLayout(w)
	}
	for _, i := range list {
		a.pending[i].Owners = owners
	}
	return nil
}

// holdBlocks compares writes to index blocks with the blocks.
func (a *analysis) holdBlocks(list []int, done []bool) error {
	for _, i := range list {
		w := &a.pending[i].Write
		if w.Undo || !w.Op.filtered() {
			continue
		}
		head := make([]byte, 16)
		at := w.Places[0].Off + w.block
		if at > a.volume.Size()-int64(len(head)) {
			continue
		}
		if err := ondisk.ReadFull(a.volume, head, at); err != nil {
			return err
		}
		done[i] = string(head[:4]) == "INDX" && binary.LittleEndian.Uint64(head[8:]) >= w.LSN
	}
	return nil
}

// bootBytes is the length of $Boot, at the start of each volume.
const bootBytes = 8 << 10

// Patched lists the records and bytes that a replay must leave alone for the patches of a file to last.
type Patched struct {
	Records []int64      // base and extension records of the file
	Folders []int64      // base and extension records of the folders on its path, including the root
	Parents []int64      // the Folders in which no name may be added or removed
	MFT     []int64      // extension records of $MFT; record 0 is always included
	Bytes   []disk.Range // patched ranges of the volume; its boot sectors are always included
}

// Conflict is a write of a replay that may undo a patch, or move patched bytes.
type Conflict struct {
	LSN    uint64
	Op     Op
	Undo   bool
	Record int64 // MFT record written, or base record of the file whose clusters are written; -1 if unknown
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

// Conflict returns the first write of a replay that may undo patches of a file. It returns nil if the patches survive.
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

// role is the relation of an MFT record to a patched file: a set of bits.
type role int

const (
	ofMFT role = 1 << iota
	ofFile
	ofFolder
	ofParent
)

// judge decides for each write. Only writes that are listed as harmless pass; all others are a conflict.
type judge struct {
	roles map[int64]role
	bytes []disk.Range // sorted, disjoint
}

func (j *judge) judge(w *Write) *Conflict {
	conflict := func(record int64, what string) *Conflict {
		return &Conflict{LSN: w.LSN, Op: w.Op, Undo: w.Undo, Record: record, What: what}
	}
	for _, n := range w.Owners {
		switch r := j.roles[n]; {
		case r&ofMFT != 0 && (w.Op != residentValue || !w.SameLayout):
			return conflict(w.Record, "$MFT")
		case r&ofFile != 0 && !w.SameLayout:
			return conflict(w.Record, "the file")
		case r&(ofFolder|ofParent) != 0 && !j.keepsFolder(w, r):
			return conflict(w.Record, "a folder of its path")
		}
	}
	for _, t := range w.Targets {
		switch r := j.roles[t.File]; {
		case r&ofMFT != 0 && (w.Op.class() != bitmap || t.Type != typeBitmap):
			return conflict(t.File, "clusters of $MFT")
		case r&ofFile != 0:
			return conflict(t.File, "clusters of the file")
		case r&(ofFolder|ofParent) != 0 && !j.keepsFolder(w, r):
			return conflict(t.File, "the index of a folder of its path")
		}
	}
	// A value in the file's own record was judged above.
	ours := slices.ContainsFunc(w.Owners, func(n int64) bool { return j.roles[n]&ofFile != 0 })
	if !ours && slices.ContainsFunc(w.Places, j.hits) {
		return conflict(w.Record, "patched bytes or a boot sector")
	}
	return nil
}

// keepsFolder reports whether every name on the path still leads to the same file after a write to a folder with role
// r.
func (j *judge) keepsFolder(w *Write, r role) bool {
	switch w.Op {
	case nameInRoot, nameInBlock: // times and sizes in an entry
		return true
	case residentValue, attributeSizes:
		return w.SameLayout
	case addToRoot, deleteFromRoot, addToBlock, deleteFromBlock:
		return r&ofParent == 0 && j.namesOther(w)
	default:
		return false
	}
}

// namesOther reports whether an added or deleted index entry refers to a file off the path. The entry is in the data of
// the operation that adds it, redo or undo. Spec: Linux-NTFS documentation, "Index Entry".
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
