package journal

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
)

// entry is an index entry of a file.
func entry(n int64) []byte {
	b := make(disktest.Forged, 0x52)
	b.U64(0, uint64(n)|9<<48)
	return b
}

// sizes are those of an attribute: allocated, valid, and of the data.
func sizes(allocated, valid, data uint64) []byte {
	b := make(disktest.Forged, 24)
	b.U64(0, allocated)
	b.U64(8, valid)
	b.U64(16, data)
	return b
}

// times is a change within $STANDARD_INFORMATION, which is the first attribute of forged records.
func times(length, old int) op {
	return op{redo: residentValue, undo: residentValue, rec: 0x38, att: 0x20, data: make([]byte, length), old: make([]byte, old)}
}

const (
	extension = 50 // record of the MFT that goes with the patched file
	patchedAt = 200
)

// A file, its folder and $MFT are patched where a write to them is harmless, and refused where it may not be.
func TestConflicts(t *testing.T) {
	type row struct {
		op     op
		target Target // of the index slot; the folder's index when it is zero
		record int64
		what   string // nothing: the write is harmless
	}
	rows := map[string]row{
		"another file is made":         {op: onRecord(other, op{redo: initRecord, undo: noop})},
		"another file's runs":          {op: onRecord(other, op{redo: 0x09, undo: 0x09})},
		"times of the file":            {op: onRecord(file, times(0x40, 0x40))},
		"times of its extension":       {op: onRecord(extension, times(8, 8)), record: extension, what: "the file"}, // has none
		"times, all that there is":     {op: onRecord(file, op{redo: residentValue, undo: residentValue, rec: 0x38, att: 0x18, data: make([]byte, 72), old: make([]byte, 48)})},
		"times that grow":              {op: onRecord(file, times(0x40, 0x38))},
		"times that shrink":            {op: onRecord(file, times(0x30, 0x40)), record: file, what: "the file"},
		"times behind their end":       {op: onRecord(file, times(0x41, 0x41)), record: file, what: "the file"},
		"head of the times":            {op: onRecord(file, op{redo: residentValue, undo: residentValue, rec: 0x38, att: 0x10, data: make([]byte, 8), old: make([]byte, 8)}), record: file, what: "the file"},
		"a value that is not resident": {op: onRecord(file, op{redo: residentValue, undo: residentValue, rec: 0x98, att: 0x18, data: make([]byte, 8), old: make([]byte, 8)}), record: file, what: "the file"},
		"an attribute that is none":    {op: onRecord(file, op{redo: residentValue, undo: residentValue, rec: 0x40, att: 0x20, data: make([]byte, 8), old: make([]byte, 8)}), record: file, what: "the file"},
		"sizes as they are":            {op: onRecord(file, op{redo: attributeSizes, undo: attributeSizes, rec: 0x98, data: sizes(8192, 4000, 5000), old: sizes(1, 2, 3)})},
		"sizes":                        {op: onRecord(file, op{redo: attributeSizes, undo: attributeSizes, rec: 0x98, data: sizes(8192, 5000, 5000)}), record: file, what: "the file"},
		"sizes that are not logged":    {op: onRecord(file, op{redo: attributeSizes, undo: attributeSizes, rec: 0x98, data: sizes(8192, 4000, 5000), flags: noRedoData}), record: file, what: "the file"},
		"entry of a root, of another":  {op: onRecord(folder, op{redo: addToRoot, undo: deleteFromRoot, data: entry(other)})},
		"entry of a root, of the file": {op: onRecord(folder, op{redo: addToRoot, undo: deleteFromRoot, data: entry(file)}), record: folder, what: "a folder of its path"},
		"entry that leaves a root":     {op: onRecord(folder, op{redo: deleteFromRoot, undo: addToRoot, old: entry(file)}), record: folder, what: "a folder of its path"},
		"entry that is not logged":     {op: onRecord(folder, op{redo: addToRoot, undo: deleteFromRoot, data: entry(other), flags: noRedoData}), record: folder, what: "a folder of its path"},
		"entry cut short":              {op: onRecord(folder, op{redo: addToRoot, undo: deleteFromRoot, data: entry(other)[:15]}), record: folder, what: "a folder of its path"},
		"times in a root":              {op: onRecord(folder, op{redo: nameInRoot, undo: nameInRoot, data: make([]byte, 56)})},
		"times of a folder":            {op: onRecord(folder, times(8, 8))},
		"child of an entry of a root":  {op: onRecord(folder, op{redo: 0x11, undo: 0x11, data: make([]byte, 8)}), record: folder, what: "a folder of its path"},
		"entry of a block, of another": {op: onBlock(op{redo: addToBlock, undo: deleteFromBlock, data: entry(other)})},
		"entry of a block, of the file": {
			op: onBlock(op{redo: addToBlock, undo: deleteFromBlock, data: entry(file)}), record: folder,
			what: "the index of a folder of its path",
		},
		"entry of a block, of a folder": {
			op: onBlock(op{redo: deleteFromBlock, undo: addToBlock, old: entry(folder)}), record: folder,
			what: "the index of a folder of its path",
		},
		"times in a block":          {op: onBlock(op{redo: nameInBlock, undo: nameInBlock, data: make([]byte, 56)})},
		"end of a block":            {op: onBlock(op{redo: 0x10, undo: 0x10}), record: folder, what: "the index of a folder of its path"},
		"child of an entry":         {op: onBlock(op{redo: 0x12, undo: 0x12}), record: folder, what: "the index of a folder of its path"},
		"new block of a folder":     {op: onBlock(op{redo: clusterValue, undo: noop}), record: folder, what: "the index of a folder of its path"},
		"bits of a folder":          {op: onBlock(op{redo: setBits, undo: clearBits}), record: folder, what: "the index of a folder of its path"},
		"block of another folder":   {op: onBlock(op{redo: 0x10, undo: 0x10}), target: Target{other, 0xa0}},
		"clusters of the file":      {op: onBlock(op{redo: clusterValue, undo: noop}), target: Target{file, 0x80}, record: file, what: "clusters of the file"},
		"list of its attributes":    {op: onBlock(op{redo: clusterValue, undo: noop}), target: Target{file, 0x20}, record: file, what: "clusters of the file"},
		"bits of $MFT":              {op: onBlock(op{redo: setBits, undo: clearBits}), target: Target{0, typeBitmap}},
		"list of $MFT's attributes": {op: onBlock(op{redo: clusterValue, undo: noop}), target: Target{0, 0x20}, what: "clusters of $MFT"},
		"times of $MFT":             {op: onRecord(0, times(8, 8))},
		"runs of $MFT":              {op: onRecord(0, op{redo: 0x09, undo: 0x09}), what: "$MFT"},
		"sizes of $MFT":             {op: onRecord(0, op{redo: attributeSizes, undo: attributeSizes, rec: 0x98, data: sizes(8192, 4000, 5000)}), what: "$MFT"},
		"extension of $MFT":         {op: onRecord(15, op{redo: 0x05, undo: 0x06}), record: 15, what: "$MFT"},
		"patched clusters":          {op: op{redo: clusterValue, undo: noop, slot: indexSlot, lcns: []uint64{patchedAt}}, target: Target{other, 0x80}, record: -1, what: "patched bytes or a boot sector"},
		"cluster beside them":       {op: op{redo: clusterValue, undo: noop, slot: indexSlot, lcns: []uint64{patchedAt - 1, patchedAt + 1}}, target: Target{other, 0x80}},
		"boot sector":               {op: op{redo: clusterValue, undo: noop, slot: indexSlot, lcns: []uint64{1}}, target: Target{other, 0x80}, record: -1, what: "patched bytes or a boot sector"},
		"record beside the file's":  {op: onRecord(file+2, op{redo: 0x09, undo: 0x09})},
	}
	for _, redo := range []Op{0x02, 0x03, 0x04, 0x05, 0x06, 0x09, 0x25} {
		rows["file: "+redo.String()] = row{op: onRecord(file, op{redo: redo, undo: noop}), record: file, what: "the file"}
		rows["folder: "+redo.String()] = row{op: onRecord(folder, op{redo: redo, undo: noop}), record: folder, what: "a folder of its path"}
		rows["extension: "+redo.String()] = row{op: onRecord(extension, op{redo: redo, undo: noop}), record: extension, what: "the file"}
	}
	for name, r := range rows {
		t.Run(name, func(t *testing.T) {
			d := newDisk()
			d.data.U64(testMFT*testCluster+extension*testRecord+recordBase, file|3<<48)
			d.data.U32(testMFT*testCluster+extension*testRecord+0x38, 0x80) // no times in an extension
			f := idle(1, 1)
			if r.target == (Target{}) {
				r.target = Target{folder, 0xa0}
			}
			f.op(op{redo: openAttribute, slot: indexSlot, data: f.openEntry(r.target)})
			lsn := f.op(r.op)
			f.forget()
			c := f.read(t, d).Conflict(Patched{
				Records: []int64{file}, Folders: []int64{5, folder}, MFT: []int64{15},
				Bytes: []disk.Range{
					{Off: patchedAt*testCluster + 100, Len: 12},
					{Off: testMFT*testCluster + file*testRecord + 0x120, Len: 12}, // a value in the record itself
				},
			})
			if r.what == "" {
				require.Nil(t, c)
				return
			}
			require.Equal(t, &Conflict{LSN: lsn, Op: r.op.redo, Record: r.record, What: r.what}, c)
		})
	}
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
		head := make(disktest.Forged, 0x60)
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

func TestMergedRanges(t *testing.T) {
	in := []disk.Range{{Off: 30, Len: 5}, {Off: 0, Len: 10}, {Off: 10, Len: 2}, {Off: 32, Len: 1}}
	require.Equal(t, []disk.Range{{Off: 0, Len: 12}, {Off: 30, Len: 5}}, merged(in))
	j := judge{bytes: merged(in)}
	for off, hit := range map[int64]bool{0: true, 11: true, 12: false, 29: false, 34: true, 35: false} {
		require.Equal(t, hit, j.hits(disk.Range{Off: off, Len: 1}), "%d", off)
	}
	require.True(t, j.hits(disk.Range{Off: 12, Len: 19}))
}
