package ntfs

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// The forged volume: clusters of 4096 bytes, records of 1024, the MFT in one run.
const (
	testCluster = 4096
	testRecord  = 1024
	testMFT     = 16  // first cluster
	testRecords = 64  // of the MFT
	testBlocks  = 100 // first cluster of index blocks
	testVolume  = 256 // clusters

	mftSlot   = 0x18 // in the table of open attributes, like in all logs of Windows
	indexSlot = mftSlot + 0x28
)

// forged is a log with records of a version of NTFS.
type forged struct {
	*fsforge.Log
	client uint32 // major version of the records
}

// op is a record of NTFS.
type op struct {
	redo, undo      Op
	data, old       []byte
	slot            uint16
	lcns            []uint64
	rec, att, block uint16
	vcn             uint64
	tx              uint32
	undoNext        uint64
	flags           uint16
	// bare makes the side without a write claim 4 KiB of data, which are missing.
	bare bool
}

func newLog(major uint16, client uint32, pages int64) *forged {
	return &forged{fsforge.NewLog(major, pages*pageSize), client}
}

// bytes returns the data of a record.
func (o op) bytes() []byte {
	b := make(forge.Bytes, actionSize+8*len(o.lcns))
	b.U16(0, uint16(o.redo))
	b.U16(2, uint16(o.undo))
	redo := len(b)
	undo := redo + (len(o.data)+7)/8*8
	b.U16(4, uint16(redo))
	b.U16(6, uint16(len(o.data)))
	b.U16(8, uint16(undo))
	b.U16(0x0a, uint16(len(o.old)))
	b.U16(0x0c, o.slot)
	b.U16(0x0e, uint16(len(o.lcns)))
	b.U16(0x10, o.rec)
	b.U16(0x12, o.att)
	b.U16(0x14, o.block)
	b.U64(0x18, o.vcn)
	for i, lcn := range o.lcns {
		b.U64(int64(actionSize+8*i), lcn)
	}
	for i, side := range []Op{o.redo, o.undo} {
		if o.bare && side.class() == nothing {
			b.U16(int64(6+4*i), 4096)
		}
	}
	return append(append(append(b, o.data...), make([]byte, undo-redo-len(o.data))...), o.old...)
}

func (f *forged) op(o op) uint64 {
	if o.tx == 0 {
		o.tx = 0x40
	}
	return f.Append(ordinary, o.tx, o.flags, o.undoNext, o.bytes())
}

// onRecord is an operation on a record of the MFT.
func onRecord(n int64, o op) op {
	o.slot, o.vcn = mftSlot, uint64(n*testRecord/testCluster)
	o.block = uint16(n * testRecord % testCluster / blockUnit)
	o.lcns = []uint64{testMFT + o.vcn}
	return o
}

// onBlock is an operation on an index block of the folder in the index slot.
func onBlock(o op) op {
	o.slot, o.lcns = indexSlot, []uint64{testBlocks}
	return o
}

// forget ends the transaction of operations without another one.
func (f *forged) forget() { f.op(op{redo: forget, undo: compensation}) }

// openEntry is an entry of the table of open attributes.
func (f *forged) openEntry(t Target) []byte {
	l := layouts[f.client]
	e := make(forge.Bytes, l.attribute)
	e.U32(0, liveEntry)
	e.U64(int64(l.attrFile), uint64(t.File)|7<<48)
	e.U32(int64(l.attrType), t.Type)
	return e
}

// dump is a table of entries of one size.
func dump(entries ...[]byte) []byte {
	b := make(forge.Bytes, tableHeader)
	b.U16(0, uint16(len(entries[0])))
	b.U16(2, uint16(len(entries)))
	return append(b, bytes.Join(entries, nil)...)
}

// tables are the tables of a checkpoint beside $MFT's data.
type tables struct {
	open         []Target
	oldest       uint64 // of a dirty page
	transactions []transaction
	first        uint64 // LSN of the transactions
}

// checkpoint writes the tables and a restart record, and makes it the current one. It returns its LSN.
func (f *forged) checkpoint(t tables) uint64 {
	start := f.op(op{redo: noop, undo: noop})
	f.forget()
	c := make(forge.Bytes, 0x70)
	dumped := func(op Op, at, length int64, entries ...[]byte) {
		b := dump(entries...)
		c.U64(at, f.dumped(op, b))
		c.U32(length, uint32(len(b)))
	}
	open := [][]byte{f.openEntry(Target{0, typeData})}
	for _, o := range t.open {
		open = append(open, f.openEntry(o))
	}
	dumped(dumpAttributes, 0x10, 0x30, open...)
	if t.oldest != 0 {
		l := layouts[f.client]
		e := make(forge.Bytes, l.dirtyPage+8)
		e.U32(0, liveEntry)
		e.U64(int64(l.oldest), t.oldest)
		free := make([]byte, len(e))
		dumped(dumpDirtyPages, 0x20, 0x38, free, e)
	}
	if len(t.transactions) > 0 {
		all := [][]byte{make([]byte, transactionSize), make([]byte, transactionSize)} // 0x18 is the checkpoint's own
		for _, x := range t.transactions {
			e := make(forge.Bytes, transactionSize)
			e.U32(0, liveEntry)
			e[transactionState] = byte(x.state)
			e.U64(transactionFirst, t.first)
			e.U64(transactionUndoNext, x.undoNext)
			all = append(all, e)
		}
		dumped(dumpTransaction, 0x28, 0x3c, all...)
	}
	oldest := start
	for _, l := range []uint64{t.oldest, t.first} {
		if l != 0 {
			oldest = min(oldest, l)
		}
	}

	c.U32(0, f.client)
	c.U64(8, start)
	c.U32(0x50, testCluster)
	if f.client == 0 {
		c = c[:0x68]
	}
	lsn := f.Append(clientRestart, 0, 0, 0, c)
	f.Restart(lsn, lsn, oldest, 0)
	return lsn
}

func (f *forged) dumped(table Op, b []byte) uint64 {
	return f.op(op{redo: table, data: b, tx: 0x18})
}

// testDisk is the forged volume.
type testDisk struct {
	*bytes.Reader
	data forge.Bytes
}

func newDisk() *testDisk {
	d := &testDisk{data: make(forge.Bytes, testVolume*testCluster)}
	for n := range int64(testRecords) {
		d.record(n)
	}
	d.block(0)
	return d
}

// record returns record n of the MFT, newly made: times, and data in clusters.
func (d *testDisk) record(n int64) forge.Bytes {
	r := d.data[testMFT*testCluster+n*testRecord:][:testRecord]
	clear(r)
	r.Text(0, "FILE")
	r.U16(0x14, 0x38)
	r.U16(0x16, 1)
	r.U32(0x38, standardInformation)
	r.U32(0x3c, 0x60)
	r.U32(0x48, 0x48)
	r.U16(0x4c, 0x18)
	a := r[0x98:]
	a.U32(0, typeData)
	a.U32(4, 0x48)
	a[8] = 1
	a.U64(0x28, 8192)
	a.U64(0x30, 5000)
	a.U64(0x38, 4000)
	r.U32(0xe0, 0xffffffff)
	return r
}

// block makes the index block, with an LSN.
func (d *testDisk) block(lsn uint64) {
	b := d.data[testBlocks*testCluster:]
	b.Text(0, "INDX")
	b.U64(8, lsn)
}

func (d *testDisk) volume() LogVolume {
	mft := func(n int64) ([]byte, error) {
		if n >= testRecords {
			return nil, nil
		}
		return d.data[testMFT*testCluster+n*testRecord:][:testRecord], nil
	}
	return LogVolume{Source: bytes.NewReader(d.data), Cluster: testCluster, Record: testRecord, MFT: mft}
}

func (f *forged) read(t testing.TB, d *testDisk) *Log {
	t.Helper()
	l, err := Read(bytes.NewReader(f.Sealed()), d.volume())
	require.NoError(t, err)
	requireLook(t, l.State, f.Sealed())
	return l
}

// refused returns the error of a broken log.
func (f *forged) refused(t testing.TB) error {
	t.Helper()
	l, err := Read(bytes.NewReader(f.Sealed()), newDisk().volume())
	require.Nil(t, l)
	require.Error(t, err)
	return err
}

var _ ondisk.Source = (*bytes.Reader)(nil)

// known reports whether an error is of a class for logs: a source in memory has no others.
func known(err error) bool {
	return errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit) || errors.Is(err, ondisk.ErrUnsupported)
}

// addLogs adds logs with all features.
func addLogs(f *testing.F, add func(log []byte)) {
	f.Helper()
	for _, major := range []uint16{1, 2} {
		for _, client := range []uint32{0, 1} {
			log := newLog(major, client, 40)
			dirty := log.op(onRecord(20, op{redo: initRecord, undo: noop, data: make([]byte, 600)}))
			undone := resident(0x38, 0x18, 8, 8)
			undone.tx = 0x68
			first := log.op(onRecord(21, undone))
			log.checkpoint(tables{
				open: []Target{{folder, 0xa0}, {0, typeBitmap}}, oldest: dirty, first: first,
				transactions: []transaction{{state: active, undoNext: first}},
			})
			log.op(op{redo: openAttribute, slot: indexSlot, data: log.openEntry(Target{folder, 0xa0})})
			log.op(onBlock(op{redo: addToBlock, undo: deleteFromBlock, data: entry(other)}))
			log.op(onBlock(op{redo: setBits, undo: clearBits, data: make([]byte, 8), old: make([]byte, 8)}))
			change := resized(sizes(8192, 4000, 5000), 0)
			change.tx = 0x90
			log.op(onRecord(file, change))
			log.forget()
			add(log.Sealed())
			log.CopyPage(log.First(), firstCopy, nil)
			add(log.Sealed())
		}
	}
}

// FuzzLog reads whole logs: restart pages, copies, records, tables and all passes.
func FuzzLog(f *testing.F) {
	addLogs(f, func(log []byte) { f.Add(log) })
	volume := newDisk().volume()
	f.Fuzz(func(t *testing.T, log []byte) {
		log = bytes.Clone(log)
		fsforge.SealLog(log) // without valid fix-ups hardly any mutation reaches the records
		l, err := Read(bytes.NewReader(log), volume)
		if err != nil {
			require.True(t, known(err), "%v", err)
			return
		}
		if len(l.Writes) == 0 {
			return
		}
		require.Equal(t, OpenLog, l.State)
		for i := range l.Writes {
			for _, p := range l.Writes[i].Places {
				require.True(t, disk.Range{Len: volume.Size()}.Contains(p))
			}
		}
		everything := Patched{Bytes: []disk.Range{{Len: volume.Size()}}}
		if c := l.Conflict(everything); c != nil {
			require.NotEmpty(t, c.String())
		}
	})
}

// FuzzRecord decodes a record of NTFS.
func FuzzRecord(f *testing.F) {
	for _, o := range []op{
		onRecord(20, op{redo: initRecord, undo: noop, data: make([]byte, 60)}),
		onBlock(op{redo: addToBlock, undo: deleteFromBlock, data: entry(other)}),
		onBlock(op{redo: setBits, undo: clearBits, data: make([]byte, 8), old: make([]byte, 8)}),
		onBlock(op{redo: clusterValue, undo: clusterValue, data: make([]byte, 8), old: make([]byte, 8)}),
		{redo: openAttribute, undo: noop, data: make([]byte, 0x28)},
	} {
		f.Add(o.bytes(), uint16(0))
	}
	volume := newDisk().volume()
	f.Fuzz(func(t *testing.T, data []byte, flags uint16) {
		act, err := decodeAction(&logRecord{recordHeader: recordHeader{LSN: 1, Flags: flags}, data: data})
		if err != nil {
			require.True(t, known(err), "%v", err)
			return
		}
		for client := range uint32(2) {
			a := analysis{volume: volume, client: &clientData{Major: client}, slots: map[int][]Target{}}
			for _, err := range []error{a.open(act), a.note(act, false), a.note(act, true)} {
				require.True(t, err == nil || known(err), "%v", err)
			}
			for _, p := range a.pending {
				require.LessOrEqual(t, len(p.data)+len(p.other), 2*keptData)
				require.Equal(t, p.Op.class() == mftClass, p.Record >= 0)
			}
		}
	})
}
