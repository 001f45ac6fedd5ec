package ntfs

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
)

const (
	file   = 40 // record of the MFT of the patched file
	folder = 41
	other  = 42
)

// named returns the records of the MFT that a replay writes, in order.
func named(l *Log) (out []int64) {
	for _, w := range l.Writes {
		out = append(out, w.Record)
	}
	return out
}

// Records that cross pages, and a log that wraps to its first page, read as written.
func TestRecordsAcrossPages(t *testing.T) {
	for _, major := range []uint16{1, 2} {
		f := newLog(major, 1, 34+30)
		rounds := f.Round
		var since uint64
		for f.Round < rounds+2 {
			since = f.op(onRecord(20, op{redo: initRecord, undo: noop, data: make([]byte, 900)}))
			f.forget()
		}
		f.checkpoint(tables{oldest: since})
		for n := range int64(30) {
			f.op(onRecord(10+n, op{redo: initRecord, undo: noop, data: make([]byte, 1000)}))
		}
		f.forget()
		l := f.read(t, newDisk())
		require.Equal(t, append([]int64{20}, span(10, 39)...), named(l))
		require.Equal(t, []uint64{since, f.Last}, []uint64{l.Since, l.End})
	}
}

// If Windows left the rest of a page empty, the next record is in the next page.
func TestPageThatIsNotFull(t *testing.T) {
	f := idle(1, 0)
	f.op(onRecord(20, op{redo: initRecord, undo: noop}))
	f.NextPage()
	f.op(onRecord(21, op{redo: initRecord, undo: noop}))
	require.Equal(t, []int64{20, 21}, named(f.read(t, newDisk())))
}

// The newest records may be only in a copy of their page.
func TestCopiesOfPages(t *testing.T) {
	for _, major := range []uint16{1, 2} {
		f := idle(major, 1)
		n := f.At / pageSize
		older := bytes.Clone(f.Bytes[n*pageSize : (n+1)*pageSize])
		f.op(onRecord(20, op{redo: initRecord, undo: noop}))
		middle := bytes.Clone(f.Bytes[n*pageSize : (n+1)*pageSize])
		f.op(onRecord(21, op{redo: initRecord, undo: noop}))
		f.CopyPage(n, 3, middle)
		f.CopyPage(n, 2, older)
		require.Equal(t, []int64{20, 21}, named(f.read(t, newDisk())), "the newer of two copies counts, in any order")

		f.Copied[3][pageData+1]++ // torn: the fix-ups of a forged page are valid, so its signature is removed
		f.Copied[3] = []byte("BAAD")
		require.Equal(t, []int64{20}, named(f.read(t, newDisk())))

		delete(f.Copied, 2)
		require.Empty(t, f.read(t, newDisk()).Writes)
	}
}

// A copy older than its page does not count.
func TestOldCopyOfPage(t *testing.T) {
	for _, major := range []uint16{1, 2} {
		f := idle(major, 1)
		n := f.At / pageSize
		older := bytes.Clone(f.Bytes[n*pageSize : (n+1)*pageSize])
		f.op(onRecord(20, op{redo: initRecord, undo: noop}))
		newer := bytes.Clone(f.Bytes[n*pageSize : (n+1)*pageSize])
		copy(f.Bytes[n*pageSize:], older)
		f.CopyPage(n, 2, newer)
		require.Equal(t, []int64{20}, named(f.read(t, newDisk())))
	}
}

func TestCopyOfNoPage(t *testing.T) {
	for major, at := range map[uint16]int64{1: pageLast, 2: pageCopyOf} {
		for _, place := range []uint32{3 * pageSize, 64 * pageSize, 40*pageSize + 512} {
			f := idle(major, 1)
			f.CopyPage(f.At/pageSize, 2, nil)
			forge.Bytes(f.Copied[2]).U32(at, place)
			require.ErrorContains(t, f.refused(t), "place of a copied page")
		}
	}
}

// Data after the newest checkpoint may be torn: the log ends there. A whole page after it shows that records between
// them were lost.
func TestTornPages(t *testing.T) {
	f := idle(1, 0)
	f.op(onRecord(20, op{redo: initRecord, undo: noop}))
	f.NextPage()
	torn := f.At / pageSize
	f.op(onRecord(21, op{redo: initRecord, undo: noop}))
	tear := func(n int64) []byte {
		log := f.Sealed()
		log[n*pageSize+2*blockUnit-1]++
		return log
	}
	l, err := Read(bytes.NewReader(tear(torn)), newDisk().volume())
	require.NoError(t, err)
	require.Equal(t, []int64{20}, named(l))

	_, err = Read(bytes.NewReader(tear(torn-1)), newDisk().volume())
	require.ErrorContains(t, err, "$LogFile page 4 at 0x4000: record page")
	require.ErrorIs(t, err, ondisk.ErrFormat)

	f.NextPage()
	f.op(onRecord(22, op{redo: initRecord, undo: noop}))
	_, err = Read(bytes.NewReader(tear(torn)), newDisk().volume())
	require.ErrorContains(t, err, "$LogFile page 6 at 0x6020: last LSN")
}

// The current LSN must be on the chain of records.
func TestCurrentLSNOffTheChain(t *testing.T) {
	f := idle(1, 0)
	last := f.op(onRecord(20, op{redo: initRecord, undo: noop}))
	f.op(onRecord(20, op{redo: initRecord, undo: noop}))
	f.Restart(last+1, f.checkpointed(t), 0, 0)
	require.ErrorContains(t, f.refused(t), "want the current LSN")
}

// A replay begins with the oldest change of a dirty page, or of an active transaction.
func TestStartOfReplay(t *testing.T) {
	for _, client := range []uint32{0, 1} {
		f := newLog(1, client, 64)
		lost := f.op(onRecord(19, op{redo: initRecord, undo: noop}))
		dirty := f.op(onRecord(20, op{redo: initRecord, undo: noop}))
		f.forget()
		change := resident(0x38, 0x18, 8, 8)
		change.tx = 0x68
		first := f.op(onRecord(21, change))
		f.checkpoint(tables{oldest: dirty, transactions: []transaction{{state: active, undoNext: first}}, first: first})
		l := f.read(t, newDisk())
		require.Equal(t, dirty, l.Since)
		require.Equal(t, []int64{20, 21, 21}, named(l))
		require.True(t, l.Writes[2].Undo)

		f.checkpoint(tables{transactions: []transaction{{state: active, undoNext: first}}, first: first})
		require.Equal(t, first, f.read(t, newDisk()).Since)
		ended := []transaction{{state: 2, undoNext: first}, {state: 3, undoNext: first}}
		f.checkpoint(tables{first: first, transactions: ended})
		require.Empty(t, f.read(t, newDisk()).Writes, "prepared and committed ones are not undone")

		f.checkpoint(tables{oldest: dirty})
		f.Restart(f.checkpointed(t), f.checkpointed(t), dirty+1, 0)
		require.ErrorContains(t, f.refused(t), "LSN that a replay begins with")
		require.Less(t, lost, dirty)
	}
}

// An undo follows its own chain: undone actions are skipped, and so are nested top actions.
func TestUndo(t *testing.T) {
	change := func(n int64, tx uint32, next uint64) op {
		return onRecord(n, op{
			redo: residentValue, undo: residentValue, data: []byte{1}, old: []byte{0}, rec: 0x38, att: 0x20,
			tx: tx, undoNext: next,
		})
	}
	f := idle(1, 1)
	first := f.op(change(20, 0x68, 0))
	second := f.op(change(21, 0x68, first))
	third := change(22, 0x68, second)
	f.op(third)
	third.undo, third.undoNext = compensation, second
	f.op(third) // undoes the third
	d := newDisk()
	for n := range int64(testRecords) {
		d.data.U64(testMFT*testCluster+n*testRecord+recordLSN, math.MaxInt64)
	}
	l := f.read(t, d)
	require.Equal(t, []int64{21, 20}, named(l), "the redo is in the volume")
	require.Equal(t, []uint64{second, first}, []uint64{l.Writes[0].LSN, l.Writes[1].LSN})

	f.op(op{redo: endTopLevel, undo: compensation, tx: 0x68, undoNext: first})
	require.Equal(t, []int64{20}, named(f.read(t, d)))
	f.op(op{redo: commit, undo: compensation, tx: 0x68})
	require.Empty(t, f.read(t, d).Writes)
	end := op{redo: forget, undo: compensation, tx: 0x68}
	f.op(end)
	f.op(change(23, 0x68, 0))
	require.Equal(t, []int64{23}, named(f.read(t, d)), "another transaction of this number")
	f.op(end)
	require.Empty(t, f.read(t, d).Writes)
}

// The length of a side that writes nothing is meaningless: Windows leaves one in compensation records, without data.
// The other side writes the same as without it.
func TestLengthsWithoutData(t *testing.T) {
	for o := range Op(len(ops)) {
		if o.class() != mftClass {
			continue
		}
		for side := range Op(len(ops)) {
			if side.class() != nothing || side == hotFix || side == openAttribute {
				continue
			}
			var found [2][]Write
			for i, bare := range []bool{false, true} {
				f := idle(1, 1)
				f.op(onRecord(20, op{redo: o, undo: side, data: []byte{1}, rec: 0x38, att: 0x20, tx: 0x40, bare: bare}))
				if side != forget {
					f.forget()
				}
				f.op(onRecord(21, op{redo: side, undo: o, old: []byte{1}, rec: 0x38, att: 0x20, tx: 0x68, bare: bare}))
				found[i] = f.read(t, newDisk()).Writes
			}
			require.NotEmpty(t, found[0], "%s, %s", o, side)
			for i := range found[1] {
				found[0][i].LSN = found[1][i].LSN
			}
			require.Equal(t, found[0], found[1], "%s, %s", o, side)
		}
	}
}

// An undo chain that does not go back, or leads to nothing, is refused.
func TestUndoChainBroken(t *testing.T) {
	f := idle(1, 1)
	f.op(onRecord(20, op{redo: residentValue, undo: residentValue, tx: 0x68, undoNext: math.MaxInt64}))
	require.ErrorContains(t, f.refused(t), "undo next LSN")
	f = idle(1, 1)
	f.op(onRecord(20, op{redo: residentValue, undo: residentValue, tx: 0x68, undoNext: 1}))
	require.ErrorContains(t, f.refused(t), "place of LSN 1")
}

// Changes that are in a record or an index block already are not pending.
func TestLSNFilter(t *testing.T) {
	const runs Op = 0x09
	d := newDisk()
	f := idle(1, 1)
	f.op(op{redo: openAttribute, slot: indexSlot, data: f.openEntry(Target{folder, 0xa0})})
	stamp := func(n int64, lsn uint64) { d.data.U64(testMFT*testCluster+n*testRecord+recordLSN, lsn) }
	stamp(20, f.op(onRecord(20, op{redo: runs, undo: runs, data: []byte{0}})))
	f.op(onRecord(20, op{redo: runs, undo: runs, data: []byte{0}}))
	stamp(21, math.MaxInt64)
	f.op(onRecord(21, op{redo: runs, undo: runs}))
	f.op(onRecord(21, op{redo: nameInRoot, undo: nameInRoot})) // does not store its LSN
	stamp(22, math.MaxInt64)
	f.op(onRecord(22, op{redo: runs, undo: runs}))
	f.op(onRecord(22, op{redo: initRecord, undo: noop}))
	f.op(onRecord(22, op{redo: runs, undo: runs}))
	d.block(f.op(onBlock(op{redo: addToBlock, undo: deleteFromBlock})))
	f.op(onBlock(op{redo: addToBlock, undo: deleteFromBlock}))
	f.forget()
	require.Equal(t, []int64{20, 21, 22, 22, -1}, named(f.read(t, d)))
	d.data.Text(testBlocks*testCluster, "none")
	require.Equal(t, []int64{20, 21, 22, 22, -1, -1}, named(f.read(t, d)), "without a block there is no LSN")
}

// Tables of both layouts, free entries, and reused indexes.
func TestTargets(t *testing.T) {
	for _, client := range []uint32{0, 1} {
		f := newLog(1, client, 64)
		slot := uint16(mftSlot + layouts[client].attribute)
		f.checkpoint(tables{open: []Target{{folder, 0xa0}}})
		f.op(op{redo: clusterValue, undo: noop, slot: slot, lcns: []uint64{testBlocks}, data: []byte{1}})
		l := f.read(t, newDisk())
		require.Equal(t, []Target{{folder, 0xa0}}, l.Writes[0].Targets)
		require.Equal(t, []disk.Range{{Off: testBlocks * testCluster, Len: testCluster}}, l.Writes[0].Places)

		f.op(op{redo: openAttribute, slot: slot, data: f.openEntry(Target{other, 0x80})})
		require.Equal(t, []Target{{folder, 0xa0}, {other, 0x80}}, f.read(t, newDisk()).Writes[0].Targets)

		f.op(op{redo: clusterValue, undo: noop, slot: 0x400, lcns: []uint64{testBlocks}})
		require.ErrorContains(t, f.refused(t), "target 1024, want an open attribute")
	}
}

// A record before the checkpoint may belong to a closed attribute: only its clusters count.
func TestTargetForgotten(t *testing.T) {
	f := newLog(1, 1, 64)
	oldest := f.op(op{redo: clusterValue, undo: noop, slot: 0x400, lcns: []uint64{testBlocks}})
	f.forget()
	f.checkpoint(tables{oldest: oldest})
	l := f.read(t, newDisk())
	require.Len(t, l.Writes, 1)
	require.Empty(t, l.Writes[0].Targets)
	require.NotNil(t, l.Conflict(Patched{Bytes: []disk.Range{{Off: testBlocks*testCluster + 7, Len: 1}}}))
}

func TestBrokenRecords(t *testing.T) {
	initOn := func(block uint16, vcn uint64, lcns ...uint64) op {
		return op{redo: initRecord, slot: mftSlot, block: block, vcn: vcn, lcns: lcns}
	}
	two := []byte{0, 0x80, 0, 0, 1, 0, 0, 0} // a bit in the second cluster
	few := "number of clusters 1, want enough"
	for name, tc := range map[string]struct {
		op    op
		class error
		text  string
	}{
		"moved cluster":       {op{redo: hotFix}, ondisk.ErrUnsupported, "HotFix"},
		"operation":           {op{redo: 0x26}, ondisk.ErrUnsupported, "operation 0x26"},
		"undo operation":      {op{undo: 0xffff}, ondisk.ErrUnsupported, "operation 0xffff"},
		"no clusters":         {initOn(0, 0), ondisk.ErrFormat, "number of clusters 0"},
		"VCN":                 {initOn(0, 1<<41, 1), ondisk.ErrFormat, "VCN"},
		"LCN behind the end":  {initOn(0, 0, testVolume), ondisk.ErrFormat, "LCN 256"},
		"LCN of 64 bits":      {initOn(0, 0, math.MaxUint64), ondisk.ErrFormat, "LCN"},
		"half a record":       {initOn(1, 0, 1), ondisk.ErrFormat, "place in the MFT"},
		"behind its clusters": {initOn(8, 0, 1), ondisk.ErrFormat, few},
		"value of two": {
			op{redo: clusterValue, lcns: []uint64{1}, rec: 4095, data: two},
			ondisk.ErrFormat,
			few,
		},
		"bits of two": {op{redo: setBits, lcns: []uint64{1}, data: two}, ondisk.ErrFormat, few},
		"record of other data": {
			op{redo: initRecord, slot: indexSlot, lcns: []uint64{1}},
			ondisk.ErrFormat,
			"target of",
		},
		"short attribute": {op{redo: openAttribute, data: make([]byte, 0x27)}, ondisk.ErrFormat, "entry of an open"},
	} {
		t.Run(name, func(t *testing.T) {
			f := idle(1, 1)
			f.op(op{redo: openAttribute, slot: indexSlot, data: f.openEntry(Target{folder, 0xa0})})
			f.op(tc.op)
			err := f.refused(t)
			require.ErrorIs(t, err, tc.class)
			require.ErrorContains(t, err, tc.text)
		})
	}
}

// Fields of the header of a record, and offsets of its data.
func TestBrokenHeaders(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(h forge.Bytes)
		text   string
	}{
		"type":          {func(h forge.Bytes) { h.U32(0x20, 3) }, "type 3"},
		"client":        {func(h forge.Bytes) { h.U16(0x1e, 1) }, "client"},
		"sequence":      {func(h forge.Bytes) { h.U16(0x1c, 1) }, "client"},
		"length":        {func(h forge.Bytes) { h.U32(0x18, 60*pageSize) }, "data length"},
		"limit":         {func(h forge.Bytes) { h.U32(0x18, math.MaxUint32) }, "limit exceeded"},
		"short":         {func(h forge.Bytes) { h.U32(0x18, 31) }, "data length 31"},
		"redo":          {func(h forge.Bytes) { h.U16(headerSize+4, 4000) }, "redo data"},
		"undo":          {func(h forge.Bytes) { h.U16(headerSize+0x0a, 4000) }, "undo data"},
		"many clusters": {func(h forge.Bytes) { h.U16(headerSize+0x0e, 4000) }, "number of clusters 4000"},
	} {
		t.Run(name, func(t *testing.T) {
			f := idle(1, 1)
			at := f.At
			f.op(onRecord(20, op{redo: residentValue, undo: residentValue, data: []byte{1}, old: []byte{2}}))
			tc.change(f.Bytes[at:])
			require.ErrorContains(t, f.refused(t), tc.text)
		})
	}
}

func TestBrokenTables(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(c, dump forge.Bytes)
		text   string
	}{
		"major version": {func(c, _ forge.Bytes) { c.U32(0, 2) }, "version 2.0"},
		"cluster":       {func(c, _ forge.Bytes) { c.U32(0x50, 512) }, "bytes of a cluster 512"},
		"start":         {func(c, _ forge.Bytes) { c.U64(8, 0) }, "place of LSN 0"},
		"no table":      {func(c, _ forge.Bytes) { c.U64(0x10, 1) }, "place of LSN 1"},
		"length":        {func(c, _ forge.Bytes) { c.U32(0x30, 8000) }, "table"},
		"short":         {func(c, _ forge.Bytes) { c.U32(0x30, tableHeader-1) }, "table"},
		"other table": {func(c, _ forge.Bytes) {
			c.U64(0x20, binary.LittleEndian.Uint64(c[0x10:]))
			c.U32(0x38, 64)
		}, "operation"},
		"entry size": {func(_, d forge.Bytes) { d.U16(0, 0x27) }, "entries of the table"},
		"entries":    {func(_, d forge.Bytes) { d.U16(2, 2) }, "entries of the table"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newLog(1, 1, 64)
			f.checkpoint(tables{})
			r := &reader{offset: f.Offset()}
			c := f.Bytes[r.place(f.checkpointed(t))+headerSize:]
			d := f.Bytes[r.place(binary.LittleEndian.Uint64(c[0x10:]))+headerSize+actionSize:]
			tc.change(c, d)
			require.ErrorContains(t, f.refused(t), tc.text)
		})
	}
	f := newLog(1, 1, 64)
	lsn := f.checkpoint(tables{})
	r := &reader{offset: f.Offset()}
	f.U32(r.place(lsn)+0x18, 0x67)
	require.ErrorContains(t, f.refused(t), "data length 103, want 104")
	f.U32(r.place(lsn)+0x20, ordinary)
	require.ErrorContains(t, f.refused(t), "type 1")
}

// A log with nothing but writes exceeds a limit at some point.
func TestManyWrites(t *testing.T) {
	f := newLog(1, 1, 4096)
	f.checkpoint(tables{})
	o := onRecord(20, op{redo: initRecord, undo: noop})
	for range maxWrites {
		f.op(o)
	}
	require.Len(t, f.read(t, newDisk()).Writes, maxWrites)
	f.op(o)
	require.ErrorIs(t, f.refused(t), ondisk.ErrLimit)
}

// Costs that a hostile log can multiply are bounded: changes that many transactions undo, attributes of one index,
// owners of one record.
func TestMultipliedWork(t *testing.T) {
	scattered := op{redo: noop, undo: clusterValue, slot: mftSlot, tx: 0x100}
	for i := range uint64(1 << 12) {
		scattered.lcns = append(scattered.lcns, i%2*8)
	}
	f := newLog(1, 1, 256)
	f.checkpoint(tables{})
	shared := f.op(scattered)
	for i := range uint32(400) {
		f.op(op{redo: noop, undo: compensation, tx: 0x200 + i, undoNext: shared})
	}
	require.ErrorContains(t, f.refused(t), "limit exceeded of 1048576 places")

	f = newLog(1, 1, 256)
	f.checkpoint(tables{})
	for n := range int64(maxOwners + 1) {
		f.op(op{redo: openAttribute, slot: indexSlot, data: f.openEntry(Target{n, 0x80})})
	}
	require.ErrorIs(t, f.refused(t), ondisk.ErrLimit)

	f = newLog(1, 1, 256)
	f.checkpoint(tables{})
	for n := range uint64(maxOwners + 1) {
		head := make(forge.Bytes, keptData)
		head.U64(recordBase, 100+n)
		f.op(onRecord(20, op{redo: initRecord, undo: noop, data: head}))
	}
	require.ErrorIs(t, f.refused(t), ondisk.ErrLimit)
}
