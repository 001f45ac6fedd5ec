package ntfs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge"
)

// entry is an index entry of a file.
func entry(n int64) []byte {
	b := make(forge.Bytes, 0x52)
	b.U64(0, uint64(n)|9<<48)
	return b
}

// sizes are those of an attribute: allocated, valid, and of the data.
func sizes(allocated, valid, data uint64) []byte {
	b := make(forge.Bytes, 24)
	b.U64(0, allocated)
	b.U64(8, valid)
	b.U64(16, data)
	return b
}

// resident is a change of a resident value, at an offset of the attribute at another of the record.
func resident(rec, att uint16, length, old int) op {
	return op{
		redo: residentValue, undo: residentValue, rec: rec, att: att, data: make([]byte, length),
		old: make([]byte, old),
	}
}

// times is a change within $STANDARD_INFORMATION, which is the first attribute of forged records.
func times(length, old int) op { return resident(0x38, 0x20, length, old) }

// resized is a change of the sizes of the attribute with data.
func resized(data []byte, flags uint16) op {
	return op{redo: attributeSizes, undo: attributeSizes, rec: 0x98, data: data, old: sizes(1, 2, 3), flags: flags}
}

// added and deleted are changes of an index, with the entry where the log has it.
func added(o Op, e []byte, flags uint16) op { return op{redo: o, undo: o + 1, data: e, flags: flags} }
func deleted(o Op, e []byte) op             { return op{redo: o, undo: o - 1, old: e} }

// onClusters is a write to clusters of the attribute that the index slot stands for.
func onClusters(lcns ...uint64) op {
	return op{redo: clusterValue, undo: noop, slot: indexSlot, lcns: lcns}
}

const (
	extension = 50 // record of the MFT that goes with the patched file
	patchedAt = 200
)

// judged are writes with one verdict. The index slot stands for the folder's index, where no other target is given.
type judged struct {
	target Target
	record int64
	what   string // nothing: they are harmless
	ops    map[string]op
}

var judgements = []judged{
	{ops: map[string]op{
		"another file is made":        onRecord(other, op{redo: initRecord, undo: noop}),
		"another file's runs":         onRecord(other, op{redo: 0x09, undo: 0x09}),
		"times of the file":           onRecord(file, times(0x40, 0x40)),
		"times, all that there is":    onRecord(file, resident(0x38, 0x18, 72, 48)),
		"times up to their end":       onRecord(file, times(0x40, 0x38)),
		"sizes as they are":           onRecord(file, resized(sizes(8192, 4000, 5000), 0)),
		"entry of a root, of another": onRecord(folder, added(addToRoot, entry(other), 0)),
		"times in a root": onRecord(folder, op{
			redo: nameInRoot, undo: nameInRoot,
			data: make([]byte, 56),
		}),
		"times of a folder":            onRecord(folder, times(8, 8)),
		"sizes of a folder":            onRecord(folder, resized(sizes(8192, 4000, 5000), 0)),
		"entry of a block, of another": onBlock(added(addToBlock, entry(other), 0)),
		"times in a block":             onBlock(op{redo: nameInBlock, undo: nameInBlock, data: make([]byte, 56)}),
		"times of $MFT":                onRecord(0, times(8, 8)),
	}},
	{target: Target{other, 0xa0}, ops: map[string]op{
		"block of another folder": onBlock(op{redo: 0x10, undo: 0x10}),
		"clusters beside":         onClusters(patchedAt-1, patchedAt+1),
	}},
	{target: Target{0, typeBitmap}, ops: map[string]op{"bits of $MFT": onBlock(op{redo: setBits, undo: clearBits})}},
	{record: file, what: "the file", ops: map[string]op{
		"times that shrink":            onRecord(file, times(0x30, 0x40)),
		"times behind their end":       onRecord(file, times(0x41, 0x41)),
		"head of the times":            onRecord(file, resident(0x38, 0x10, 8, 8)),
		"a value that is not resident": onRecord(file, resident(0x98, 0x18, 8, 8)),
		"an attribute that is none":    onRecord(file, resident(0x40, 0x20, 8, 8)),
		"sizes":                        onRecord(file, resized(sizes(8192, 5000, 5000), 0)),
		"more sizes":                   onRecord(file, resized(make([]byte, 32), 0)),
		"sizes that are not logged":    onRecord(file, resized(sizes(8192, 4000, 5000), noRedoData)),
	}},
	{record: extension, what: "the file", ops: map[string]op{"value of an extension": onRecord(extension,
		times(8, 8))}},
	{record: folder, what: "a folder of its path", ops: map[string]op{
		"entry of a root, of the file": onRecord(folder, added(addToRoot, entry(file), 0)),
		"entry that leaves a root":     onRecord(folder, deleted(deleteFromRoot, entry(file))),
		"entry that is not logged":     onRecord(folder, added(addToRoot, entry(other), noRedoData)),
		"entry cut short":              onRecord(folder, added(addToRoot, entry(other)[:15], 0)),
		"child of an entry of a root":  onRecord(folder, op{redo: 0x11, undo: 0x11, data: make([]byte, 8)}),
	}},
	{record: folder, what: "the index of a folder of its path", ops: map[string]op{
		"entry of a block, of the file": onBlock(added(addToBlock, entry(file), 0)),
		"entry of a block, of a folder": onBlock(deleted(deleteFromBlock, entry(folder))),
		"end of a block":                onBlock(op{redo: 0x10, undo: 0x10}),
		"child of an entry":             onBlock(op{redo: 0x12, undo: 0x12}),
		"new block of a folder":         onBlock(op{redo: clusterValue, undo: noop}),
		"bits of a folder":              onBlock(op{redo: setBits, undo: clearBits}),
	}},
	{
		target: Target{file, 0x80}, record: file, what: "clusters of the file",
		ops: map[string]op{"data": onClusters(90)},
	},
	{
		target: Target{file, 0x20}, record: file, what: "clusters of the file",
		ops: map[string]op{"list": onClusters(90)},
	},
	{target: Target{0, 0x20}, what: "clusters of $MFT", ops: map[string]op{"list of $MFT": onClusters(90)}},
	{what: "$MFT", ops: map[string]op{
		"runs of $MFT":  onRecord(0, op{redo: 0x09, undo: 0x09}),
		"sizes of $MFT": onRecord(0, resized(sizes(8192, 4000, 5000), 0)),
	}},
	{record: 15, what: "$MFT", ops: map[string]op{"extension of $MFT": onRecord(15, op{redo: 0x05, undo: 0x06})}},
	{target: Target{other, 0x80}, record: -1, what: "patched bytes or a boot sector", ops: map[string]op{
		"patched clusters": onClusters(patchedAt),
		"boot sector":      onClusters(1),
	}},
}

// A file, its folder and $MFT are left alone by writes that are harmless. All others are found, with their LSN.
func TestConflicts(t *testing.T) {
	all := judgements
	for _, redo := range []Op{0x02, 0x03, 0x04, 0x05, 0x06, 0x09, 0x25} {
		for n, what := range map[int64]string{file: "the file", extension: "the file", folder: "a folder of its path"} {
			all = append(all, judged{record: n, what: what, ops: map[string]op{
				redo.String() + " in " + what: onRecord(n, op{redo: redo, undo: noop}),
			}})
		}
	}
	for _, j := range all {
		for name, o := range j.ops {
			t.Run(name, func(t *testing.T) { j.check(t, o) })
		}
	}
}

func (j judged) check(t *testing.T, o op) {
	t.Helper()
	d := newDisk()
	d.data.U64(testMFT*testCluster+extension*testRecord+recordBase, file|3<<48)
	d.data.U32(testMFT*testCluster+extension*testRecord+0x38, 0x80) // no times in an extension
	if j.target == (Target{}) {
		j.target = Target{folder, 0xa0}
	}
	f := idle(1, 1)
	f.op(op{redo: openAttribute, slot: indexSlot, data: f.openEntry(j.target)})
	lsn := f.op(o)
	f.forget()
	c := f.read(t, d).Conflict(Patched{
		Records: []int64{file}, Folders: []int64{5, folder}, MFT: []int64{15},
		Bytes: []disk.Range{
			{Off: patchedAt*testCluster + 100, Len: 12},
			{Off: testMFT*testCluster + file*testRecord + 0x120, Len: 12}, // a value in the record itself
		},
	})
	if j.what == "" {
		require.Nil(t, c)
		return
	}
	require.Equal(t, &Conflict{LSN: lsn, Op: o.redo, Record: j.record, What: j.what}, c)
}

// What is undone is judged as what is done.
func TestConflictOfUndo(t *testing.T) {
	d := newDisk()
	f := idle(1, 1)
	lsn := f.op(onRecord(file, op{redo: noop, undo: freeRecord}))
	c := f.read(t, d).Conflict(Patched{Records: []int64{file}})
	require.Equal(t, &Conflict{LSN: lsn, Op: freeRecord, Undo: true, Record: file, What: "the file"}, c)
	require.Contains(t, c.String(), "undo of log record")
	require.Contains(t, c.String(), "(DeallocateFileRecordSegment) writes the file, record 40 of the MFT")
}

// A record that is going to be an extension of the file, or of $MFT, belongs to it.
func TestConflictOfNewExtension(t *testing.T) {
	for base, what := range map[int64]string{file: "the file", 0: "$MFT"} {
		head := make(forge.Bytes, 0x60)
		head.U64(recordBase, uint64(base)|1<<48)
		f := idle(1, 1)
		f.op(onRecord(other, op{redo: initRecord, undo: noop, data: head}))
		f.forget()
		c := f.read(t, newDisk()).Conflict(Patched{Records: []int64{file}})
		require.NotNil(t, c)
		require.Equal(t, []any{int64(other), what}, []any{c.Record, c.What})
	}
}

func TestConflictOfClusters(t *testing.T) {
	c := &Conflict{LSN: 7, Op: clusterValue, Record: -1, What: "patched bytes or a boot sector"}
	require.Equal(t, "redo of log record 7 (UpdateNonresidentValue) writes patched bytes or a boot sector", c.String())
}

func TestHits(t *testing.T) {
	j := judge{bytes: []disk.Range{{Off: 0, Len: 12}, {Off: 30, Len: 5}}}
	for off, hit := range map[int64]bool{0: true, 11: true, 12: false, 29: false, 34: true, 35: false} {
		require.Equal(t, hit, j.hits(disk.Range{Off: off, Len: 1}), "%d", off)
	}
	require.True(t, j.hits(disk.Range{Off: 12, Len: 19}))
}
