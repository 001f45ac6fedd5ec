package ntfs

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

// transaction is an entry of the transaction table: a transaction without a ForgetTransaction record.
type transaction struct {
	state    int
	undoNext uint64 // LSN of the first record to undo
}

// analysis runs the passes of an NTFS restart (analysis, redo, undo) and collects the writes that a replay may make. It
// treats every page as dirty. Spec: Linux fs/ntfs3/fslog.c, log_replay.
type analysis struct {
	*reader
	volume       LogVolume
	client       *clientData
	slots        map[int][]Target // attributes by index in the open attribute table; an index can be reused
	transactions map[uint32]*transaction
	start        uint64 // LSN where the redo pass begins
	pending      []pending
	places       int // volume ranges of all pending writes
}

// pending is a write not yet compared with the volume.
type pending struct {
	Write
	slot int
}

// run fills l from the records of the log.
func (a *analysis) run(l *Log) error {
	checkpoint, err := a.record(a.page.client.RestartLSN)
	if err != nil {
		return err
	}
	if a.client, err = readClient(checkpoint); err != nil {
		return err
	}
	if int64(a.client.ClusterBytes) != a.volume.Cluster {
		return checkpoint.broken(0x50, "bytes of a cluster", a.client.ClusterBytes, a.volume.Cluster)
	}
	if err := a.readTables(); err != nil {
		return err
	}
	if l.End, err = a.analyse(); err != nil {
		return err
	}
	if l.State == OpenLog {
		if err := a.complete(l.End); err != nil {
			return err
		}
	}
	l.Since = a.start
	if oldest := a.page.client.OldestLSN; a.start != 0 && a.start < oldest {
		return checkpoint.broken(0x10, "LSN that a replay begins with", a.start,
			fmt.Sprintf("%d at least, the oldest of the restart area", oldest))
	}
	if a.start != 0 {
		if _, err := a.each(a.start, a.redo); err != nil {
			return err
		}
	}
	if err := a.undo(); err != nil {
		return err
	}
	l.Writes, err = a.writes()
	return err
}

// complete returns an error if a page is newer than the last record: the records between them are lost. Windows 8 and
// later first write a page in place without an LSN, while its copy has one. If that copy is lost, so are the last
// records.
func (a *analysis) complete(end uint64) error {
	lost := func(n int64, got uint64) error {
		return ondisk.Field(fmt.Sprintf("$LogFile page %d", n), "last LSN", n*pageSize+pageLastEnd, got,
			fmt.Sprintf("1 to %d, the end of the records", end))
	}
	n, lsn, err := a.newer(end)
	if err != nil {
		return err
	}
	if n > 0 {
		return lost(n, lsn)
	}
	if a.page.Major == 1 || a.ended >= a.count {
		return nil
	}
	p, err := a.load(a.ended)
	if err == nil && p != nil && p.last() == 0 {
		return lost(a.ended, 0)
	}
	return err
}

// readTables reads the table dumps of the checkpoint.
func (a *analysis) readTables() error {
	c, l := a.client, &layouts[a.client.Major]
	err := a.table(c.Attributes, dumpAttributes, c.AttributesLength, l.attribute, func(i int, e []byte) error {
		return a.opened(i, target(c.Major, e))
	})
	if err != nil {
		return err
	}
	err = a.table(c.DirtyPages, dumpDirtyPages, c.DirtyPagesLength, l.dirtyPage, func(_ int, e []byte) error {
		a.startAt(binary.LittleEndian.Uint64(e[l.oldest:]))
		return nil
	})
	if err != nil {
		return err
	}
	return a.table(c.Transactions, dumpTransaction, c.TransactionsLength, transactionSize, func(i int, e []byte) error {
		t := &transaction{
			state:    int(e[transactionState]),
			undoNext: binary.LittleEndian.Uint64(e[transactionUndoNext:]),
		}
		a.transactions[uint32(i)] = t //nolint:gosec // an offset in a table of 4 MiB at most
		if t.state == active {
			a.startAt(binary.LittleEndian.Uint64(e[transactionFirst:]))
		}
		return nil
	})
}

// table visits the live entries of a table dump. A length of zero means that the checkpoint dumped no table.
func (a *analysis) table(lsn uint64, op Op, length uint32, least int, visit func(int, []byte) error) error {
	if length == 0 {
		return nil
	}
	r, err := a.record(lsn)
	if err != nil {
		return err
	}
	t, err := readTable(r, op, length, least)
	if err != nil {
		return err
	}
	return t.live(visit)
}

// startAt moves the start of the redo pass back to lsn, if lsn is older.
func (a *analysis) startAt(lsn uint64) {
	if lsn != 0 && (a.start == 0 || lsn < a.start) {
		a.start = lsn
	}
}

// opened records an attribute under its index in the open attribute table. A reused index keeps all its attributes.
func (a *analysis) opened(slot int, t Target) error {
	if slices.Contains(a.slots[slot], t) {
		return nil
	}
	if len(a.slots[slot]) == maxOwners {
		return fmt.Errorf("$LogFile: %w of %d attributes of one index", ondisk.ErrLimit, maxOwners)
	}
	a.slots[slot] = append(a.slots[slot], t)
	return nil
}

// analyse scans the records behind the checkpoint for open attributes and unfinished transactions. It returns the LSN
// of the last record.
func (a *analysis) analyse() (end uint64, err error) {
	from := a.client.Start
	return a.each(from, func(r *logRecord) error {
		if r.LSN == from || r.Type != ordinary {
			return nil
		}
		act, err := decodeAction(r)
		if err != nil {
			return err
		}
		if act.Redo == hotFix || act.Undo == hotFix {
			// HotFix moves a cluster, but later records still use its old location.
			return fmt.Errorf("$LogFile record of LSN %d: %s: %w", r.LSN, hotFix, ondisk.ErrUnsupported)
		}
		if act.Redo.class() != nothing {
			a.startAt(r.LSN)
		}
		a.transact(act)
		return a.open(act)
	})
}

// transact updates the transaction of a record.
func (a *analysis) transact(act *action) {
	t := a.transactions[act.Transaction]
	if t == nil {
		t = &transaction{state: active}
		a.transactions[act.Transaction] = t
	}
	t.undoNext = act.LSN
	if act.Undo == compensation {
		t.undoNext = act.UndoNext
	}
	switch act.Redo {
	case endTopLevel:
		t.undoNext = act.UndoNext
	case prepare, commit:
		t.state = int(act.Redo-prepare) + active + 1
	case forget:
		delete(a.transactions, act.Transaction)
	default: // changes, and other bookkeeping
	}
}

// open records the attribute that an OpenNonresidentAttribute record opens.
func (a *analysis) open(act *action) error {
	if act.Redo != openAttribute {
		return nil
	}
	e, _, err := act.side(false)
	if err != nil {
		return err
	}
	if want := layouts[a.client.Major].attribute; len(e) < want {
		return act.broken(6, "entry of an open attribute", len(e), fmt.Sprintf("%d bytes at least", want))
	}
	return a.opened(int(act.Target), target(a.client.Major, e))
}

// redo adds the redo write of a record.
func (a *analysis) redo(r *logRecord) error {
	if r.Type != ordinary {
		return nil
	}
	act, err := decodeAction(r)
	if err != nil {
		return err
	}
	if err := a.open(act); err != nil {
		return err
	}
	return a.note(act, false)
}

// undo adds the undo writes of the transactions still active at the end of the log.
func (a *analysis) undo() error {
	ids := make([]uint32, 0, len(a.transactions))
	for id, t := range a.transactions {
		if t.state == active {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		if err := a.undoChain(a.transactions[id].undoNext); err != nil {
			return err
		}
	}
	return nil
}

// undoChain adds the undo writes of a transaction, from lsn back along its undo next LSNs.
func (a *analysis) undoChain(lsn uint64) error {
	for lsn != 0 {
		r, err := a.record(lsn)
		if err != nil {
			return err
		}
		if oldest := a.page.client.OldestLSN; r.Type != ordinary || lsn < oldest {
			return r.broken(-headerSize, "LSN to undo", lsn, fmt.Sprintf("one of a change, %d at least", oldest))
		}
		if r.UndoNext >= lsn {
			return r.broken(0x10-headerSize, "undo next LSN", r.UndoNext, fmt.Sprintf("one before %d", lsn))
		}
		act, err := decodeAction(r)
		if err != nil {
			return err
		}
		if err := a.note(act, true); err != nil {
			return err
		}
		lsn = r.UndoNext
	}
	return nil
}

// Op is an operation of a log record. Spec: dfir_ntfs LogFile.py; Linux fs/ntfs3/fslog.c, enum NTFS_LOG_OPERATION.
type Op uint16

// Operations that the analysis distinguishes.
const (
	noop            Op = 0x00
	compensation    Op = 0x01
	initRecord      Op = 0x02
	freeRecord      Op = 0x03
	residentValue   Op = 0x07
	clusterValue    Op = 0x08
	attributeSizes  Op = 0x0b
	addToRoot       Op = 0x0c
	deleteFromRoot  Op = 0x0d
	addToBlock      Op = 0x0e
	deleteFromBlock Op = 0x0f
	nameInRoot      Op = 0x13
	nameInBlock     Op = 0x14
	setBits         Op = 0x15
	clearBits       Op = 0x16
	hotFix          Op = 0x17
	endTopLevel     Op = 0x18
	prepare         Op = 0x19
	commit          Op = 0x1a
	forget          Op = 0x1b
	openAttribute   Op = 0x1c
	dumpAttributes  Op = 0x1d
	dumpDirtyPages  Op = 0x1f
	dumpTransaction Op = 0x20
)

// class is the kind of structure that an operation changes.
type class int

const (
	nothing  class = iota
	mftClass       // an MFT record
	index          // an index block
	valueAt        // clusters of an attribute
	bitmap         // bits of a non-resident bitmap
)

var ops = [...]struct {
	name string
	class
}{
	{"Noop", nothing},
	{"CompensationLogRecord", nothing},
	{"InitializeFileRecordSegment", mftClass},
	{"DeallocateFileRecordSegment", mftClass},
	{"WriteEndOfFileRecordSegment", mftClass},
	{"CreateAttribute", mftClass},
	{"DeleteAttribute", mftClass},
	{"UpdateResidentValue", mftClass},
	{"UpdateNonresidentValue", valueAt},
	{"UpdateMappingPairs", mftClass},
	{"DeleteDirtyClusters", nothing},
	{"SetNewAttributeSizes", mftClass},
	{"AddIndexEntryRoot", mftClass},
	{"DeleteIndexEntryRoot", mftClass},
	{"AddIndexEntryAllocation", index},
	{"DeleteIndexEntryAllocation", index},
	{"WriteEndOfIndexBuffer", index},
	{"SetIndexEntryVcnRoot", mftClass},
	{"SetIndexEntryVcnAllocation", index},
	{"UpdateFileNameRoot", mftClass},
	{"UpdateFileNameAllocation", index},
	{"SetBitsInNonresidentBitMap", bitmap},
	{"ClearBitsInNonresidentBitMap", bitmap},
	{"HotFix", nothing},
	{"EndTopLevelAction", nothing},
	{"PrepareTransaction", nothing},
	{"CommitTransaction", nothing},
	{"ForgetTransaction", nothing},
	{"OpenNonresidentAttribute", nothing},
	{"OpenAttributeTableDump", nothing},
	{"AttributeNamesDump", nothing},
	{"DirtyPageTableDump", nothing},
	{"TransactionTableDump", nothing},
	{"UpdateRecordDataRoot", mftClass},
	{"UpdateRecordDataAllocation", index},
	{"UpdateRelativeDataInIndex", mftClass},
	{"UpdateRelativeDataInAllocation", index},
	{"ZeroEndOfFileRecord", mftClass},
}

func (o Op) known() bool { return int(o) < len(ops) }

// class returns the class of the operation, nothing for an unknown operation.
func (o Op) class() class {
	if !o.known() {
		return nothing
	}
	return ops[o].class
}

func (o Op) String() string {
	if !o.known() {
		return fmt.Sprintf("operation %#x", uint16(o))
	}
	return ops[o].name
}

// filtered reports whether a replay skips the operation if the MFT record or index block already has its LSN. It
// returns false for operations that store no LSN, and for operations whose rule in Windows is unknown: their writes are
// always pending.
func (o Op) filtered() bool {
	switch o {
	case initRecord, freeRecord, nameInRoot, nameInBlock:
		return false
	default:
		return o.class() == mftClass || o.class() == index
	}
}

const (
	actionSize = 0x20
	blockUnit  = 512 // unit of BlockOffset in bytes, for every sector size

	noRedoData = 2 // record flags: the length is valid, but the data is not logged
	noUndoData = 4

	maxVCN = 1 << 40 // no file has more clusters
)

// actionHeader begins the data of an ordinary record; the LCNs follow. Spec: Linux fs/ntfs3/fslog.c, struct
// LOG_REC_HDR; dfir_ntfs LogFile.py, NTFSLogRecord.
type actionHeader struct {
	Redo, Undo   Op
	RedoOffset   uint16
	RedoLength   uint16
	UndoOffset   uint16
	UndoLength   uint16
	Target       uint16 // offset in the table of open attributes
	LCNs         uint16
	RecordOffset uint16 // of the attribute in its MFT record, or of the entry in its index block
	AttrOffset   uint16 // in the attribute or entry
	BlockOffset  uint16 // of the record or block in its cluster
	_            uint16
	VCN          uint64
}

// action is a decoded ordinary record.
type action struct {
	actionHeader
	*logRecord
	lcns []uint64
}

// decodeAction decodes an ordinary record.
func decodeAction(r *logRecord) (*action, error) {
	a := &action{logRecord: r}
	if len(r.data) < actionSize {
		return nil, r.broken(-headerSize+0x18, "data length", len(r.data), "32 at least")
	}
	ondisk.Fill(r.data[:actionSize], binary.LittleEndian, &a.actionHeader)
	for i, op := range []Op{a.Redo, a.Undo} {
		if !op.known() {
			return nil, fmt.Errorf("$LogFile record of LSN %d: %s at byte %d: %w", r.LSN, op, 2*i,
				ondisk.ErrUnsupported)
		}
	}
	if a.Redo.class() == nothing && a.Undo.class() == nothing {
		return a, nil // the other fields may hold anything
	}
	n := int(a.LCNs)
	if n == 0 || actionSize+8*n > len(r.data) {
		return nil, r.broken(0x0e, "number of clusters", n, fmt.Sprintf("1 to %d", (len(r.data)-actionSize)/8))
	}
	for i := range n {
		a.lcns = append(a.lcns, binary.LittleEndian.Uint64(r.data[actionSize+8*i:]))
	}
	if a.VCN > maxVCN {
		return nil, r.broken(0x18, "VCN", a.VCN, fmt.Sprintf("at most %d", int64(maxVCN)))
	}
	return a, nil
}

// side returns the data of the redo or undo operation, and their length. Data that is not logged is nil. For an
// operation that writes nothing, except OpenNonresidentAttribute, it returns neither, since the length can be anything:
// 219 records of Windows XP and 2003 in the corpus have a CompensationLogRecord whose length leads past their data.
// Source: Linux fs/ntfs3/fslog.c, can_skip_action, called before both places where log_replay reads offset and length.
func (a *action) side(undo bool) (data []byte, length int, err error) {
	op, from, n, absent, field := a.Redo, a.RedoOffset, a.RedoLength, uint16(noRedoData), "redo"
	if undo {
		op, from, n, absent, field = a.Undo, a.UndoOffset, a.UndoLength, noUndoData, "undo"
	}
	switch {
	case op.class() == nothing && op != openAttribute:
		return nil, 0, nil
	case a.Flags&absent != 0 || n == 0:
		return nil, int(n), nil
	case int(from)+int(n) > len(a.data):
		return nil, 0, a.broken(4, field+" data", fmt.Sprintf("%d bytes at %d", n, from),
			fmt.Sprintf("some within %d", len(a.data)))
	}
	return a.data[from : from+n], int(n), nil
}
