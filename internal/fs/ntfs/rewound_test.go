package ntfs

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
)

// rewind sets a log back to the checkpoint of a restart record, so that it is open. Pages of later mounts, to which no
// record of this one leads, are blanked, because they did not exist yet.
func rewind(t testing.TB, log []byte, to uint64) []byte {
	t.Helper()
	r, all := allRecords(t, log)
	end := to
	for rec := all[to]; rec != nil; rec = all[rec.next] {
		end = rec.LSN
	}
	out := bytes.Clone(log)
	for n := int64(firstCopy); n < r.count; n++ {
		p := page(out[n*pageSize : (n+1)*pageSize])
		if string(p[:4]) == "RCRD" && p.lastEnd() > end {
			copy(p, bytes.Repeat([]byte{0xff}, pageSize))
		}
	}
	for off := int64(0); off < 2*pageSize; off += pageSize {
		b := forge.Bytes(out[off : off+pageSize])
		a := b[binary.LittleEndian.Uint16(b[0x18:]):] // before the first fix-up
		a.U64(0, to)
		a.U16(0x0e, binary.LittleEndian.Uint16(a[0x0e:])&^markedClean)
		a.U32(0x20, all[to].Length)
		c := a[binary.LittleEndian.Uint16(a[0x16:]):]
		c.U64(0, slices.Min(slices.Collect(maps.Keys(all))))
		c.U64(8, to)
	}
	return out
}

// rewound is the result of another program, written from the same sources, for the logs of Windows set back to an older
// checkpoint. Most changes are in the volumes already. The rest are operations that always count as pending, and those
// after them.
var rewound = []struct {
	volume         int // of windows
	to, since, end uint64
	writes         int
	records        []int64 // of the MFT; other clusters are written wherever records are
}{
	{0, 1054756, 1054224, 1088833, 380, span(27, 38)},
	{0, 1076287, 1074463, 1088833, 121, append([]int64{27}, span(29, 38)...)},
	{0, 1086691, 1085354, 1088833, 33, span(29, 37)},
	{0, 1088833, 0, 1088833, 0, nil},
	{1, 1055054, 1050668, 1058085, 103, append([]int64{9, 11}, span(24, 29)...)},
	{1, 1056174, 1056193, 1058085, 14, []int64{29}},
	{1, 1058027, 1058046, 1058085, 0, nil},
	{2, 2113617, 2112219, 2155442, 2063, span(35, 41)},
	{2, 2135834, 2135063, 2155442, 1004, []int64{40, 41}},
	{2, 2155104, 2154574, 2155442, 11, []int64{41}},
	{3, 1073523, 1071901, 1078171, 73, span(34, 38)},
	{3, 1077810, 1077830, 1078171, 9, []int64{38}},
}

func span(from, to int64) (out []int64) {
	for n := from; n <= to; n++ {
		out = append(out, n)
	}
	return out
}

// unnamed is a record of the MFT that does not occur in those logs: $Quota, or reserved.
const unnamed = 8

func TestRewoundLogs(t *testing.T) {
	for i, w := range windows {
		v := real(t, w.rel, w.start, w.size)
		for _, want := range rewound {
			if want.volume != i {
				continue
			}
			l := v.replay(t, rewind(t, v.log, want.to))
			require.Equal(t, OpenLog, l.State)
			require.Equal(t, []uint64{want.to, want.since, want.end}, []uint64{l.Current, l.Since, l.End}, w.name)
			require.Len(t, l.Writes, want.writes, "%s from %d", w.name, want.to)
			records := map[int64]bool{}
			for _, x := range l.Writes {
				records[x.Record] = true
				require.False(t, x.Undo, "no transaction was active")
			}
			require.Equal(t, len(want.records) > 0, records[-1])
			delete(records, -1)
			require.Equal(t, want.records, slices.Sorted(maps.Keys(records)), "%s from %d", w.name, want.to)
			// Files without writes are safe.
			require.Nil(t, l.Conflict(Patched{Records: []int64{unnamed}}))
			if len(want.records) > 0 {
				require.NotNil(t, l.Conflict(Patched{Records: want.records}))
			}
		}
	}
}

// The start of a replay can be lost: the next mount restarted the log.
func TestRewoundTooFar(t *testing.T) {
	v := real(t, windows[2].rel, 0, 0)
	_, err := Read(bytes.NewReader(rewind(t, v.log, 2109647)), v.volume())
	require.ErrorContains(t, err, "LSN that a replay begins with 2099244, want 2099723 at least")
	v = real(t, windows[0].rel, 0, 0)
	_, err = Read(bytes.NewReader(rewind(t, v.log, 1050632)), v.volume())
	require.ErrorContains(t, err, "place of LSN 0", "the first checkpoint of all has none before it")
}

// The mount before the last of this volume was by Windows 8 or later, which wrote version 2.0. A copy of one of its
// pages was lost in the next mount, so later pages cannot be reached.
func TestRewoundVersion2(t *testing.T) {
	w := windows[3]
	v := real(t, w.rel, w.start, w.size)
	log := rewind(t, v.log, 1073523)
	for off := int64(0); off < 2*pageSize; off += pageSize {
		forge.Bytes(log).U16(off+0x1a, 0)
		forge.Bytes(log).U16(off+0x1c, 2)
	}
	_, err := Read(bytes.NewReader(log), v.volume())
	require.ErrorIs(t, err, ondisk.ErrFormat)
	require.ErrorContains(t, err, "$LogFile page 58 at 0x3a020: last LSN 0, want 1 to 1078171, the end of the records")
}

// changesOf returns the changes of records of the MFT from an LSN on, by record.
func changesOf(t testing.TB, v *realVolume, log []byte, since uint64) map[int64][]Write {
	t.Helper()
	r, all := allRecords(t, log)
	changes := map[int64][]Write{}
	for lsn := since; since != 0 && all[lsn] != nil; lsn = all[lsn].next {
		if p := v.change(t, r, all[lsn]); p != nil {
			changes[p.Record] = append(changes[p.Record], *p)
		}
	}
	return changes
}

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

// resident is a write to a resident value: the offset of the attribute, and that in the record.
func resident(rec, att uint16, length, old int) op {
	return op{
		redo: residentValue, undo: residentValue, rec: rec, att: att, data: make([]byte, length),
		old: make([]byte, old),
	}
}

// times is a write within $STANDARD_INFORMATION, the first attribute of forged records.
func times(length, old int) op { return resident(0x38, 0x20, length, old) }

// resized is a change of the sizes of the attribute with data.
func resized(data []byte, flags uint16) op {
	return op{redo: attributeSizes, undo: attributeSizes, rec: 0x98, data: data, old: sizes(1, 2, 3), flags: flags}
}

// added and deleted are writes to an index, with the entry at the log's offset.
func added(o Op, e []byte, flags uint16) op { return op{redo: o, undo: o + 1, data: e, flags: flags} }
func deleted(o Op, e []byte) op             { return op{redo: o, undo: o - 1, old: e} }

// onClusters is a write to clusters of the attribute in the index slot.
func onClusters(lcns ...uint64) op {
	return op{redo: clusterValue, undo: noop, slot: indexSlot, lcns: lcns}
}

const (
	extension = 50 // record of the MFT beside the patched file
	patchedAt = 200
)

// judged lists writes with one verdict. The index slot is the folder's index, unless there is another target.
type judged struct {
	target Target
	record int64
	what   string // none: harmless
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

// A file, its folder and $MFT are unaffected by harmless writes. All others are found, with their LSN.
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
			{Off: testMFT*testCluster + file*testRecord + 0x120, Len: 12}, // a resident value
		},
	})
	if j.what == "" {
		require.Nil(t, c)
		return
	}
	require.Equal(t, &Conflict{LSN: lsn, Op: o.redo, Record: j.record, What: j.what}, c)
}

// An undo is judged like a redo.
func TestConflictOfUndo(t *testing.T) {
	d := newDisk()
	f := idle(1, 1)
	lsn := f.op(onRecord(file, op{redo: noop, undo: freeRecord}))
	c := f.read(t, d).Conflict(Patched{Records: []int64{file}})
	require.Equal(t, &Conflict{LSN: lsn, Op: freeRecord, Undo: true, Record: file, What: "the file"}, c)
	require.Contains(t, c.String(), "undo of log record")
	require.Contains(t, c.String(), "(DeallocateFileRecordSegment) writes the file, record 40 of the MFT")
}

// A record that becomes an extension of the file, or of $MFT, belongs to it.
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
