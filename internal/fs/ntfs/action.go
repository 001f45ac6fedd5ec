package ntfs

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
)

// Op is an operation of a log record. Spec: dfir_ntfs LogFile.py; Linux fs/ntfs3/fslog.c, enum NTFS_LOG_OPERATION.
type Op uint16

// Operations that decisions name.
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

// class is what an operation writes to.
type class int

const (
	nothing  class = iota
	mftClass       // a record of the MFT
	index          // an index block
	valueAt        // clusters of an attribute
	bitmap         // bits of a bitmap in clusters
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

// class returns what the operation writes to; nothing for one that is not known.
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

// filtered reports whether a replay skips the operation where the record or the index block has its LSN already.
// Operations that do not store their LSN, and those of which Windows' rule is not known, count as pending always.
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
	blockUnit  = 512 // bytes that BlockOffset counts, whatever the size of a sector

	noRedoData = 2 // flags of a record: its lengths count, but the bytes are not logged
	noUndoData = 4

	maxVCN = 1 << 40 // no file has more clusters
)

// actionHeader is what the data of an ordinary record begin with; the LCNs follow.
// Spec: Linux fs/ntfs3/fslog.c, struct LOG_REC_HDR; dfir_ntfs LogFile.py, NTFSLogRecord.
type actionHeader struct {
	Redo, Undo   Op
	RedoOffset   uint16
	RedoLength   uint16
	UndoOffset   uint16
	UndoLength   uint16
	Target       uint16 // offset in the table of open attributes
	LCNs         uint16
	RecordOffset uint16 // of the attribute in its record of the MFT, or of an entry in its index block
	AttrOffset   uint16 // in the attribute or entry
	BlockOffset  uint16 // of the record or block in its cluster
	_            uint16
	VCN          uint64
}

// action is an ordinary record, taken apart.
type action struct {
	actionHeader
	*logRecord
	lcns []uint64
}

// takeApart decodes an ordinary record.
func takeApart(r *logRecord) (*action, error) {
	a := &action{logRecord: r}
	if len(r.data) < actionSize {
		return nil, r.broken(-headerSize+0x18, "data length", len(r.data), "32 at least")
	}
	if err := ondisk.Fill(r.data[:actionSize], binary.LittleEndian, &a.actionHeader); err != nil {
		return nil, err
	}
	for i, op := range []Op{a.Redo, a.Undo} {
		if !op.known() {
			return nil, fmt.Errorf("$LogFile record of LSN %d: %s at byte %d: %w", r.LSN, op, 2*i,
				ondisk.ErrUnsupported)
		}
	}
	if a.Redo.class() == nothing && a.Undo.class() == nothing {
		return a, nil // what else it has need not make sense
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

// side returns what one of the operations has for data, and their length: none where they are not logged, and none of
// an operation that writes nothing. Such a one has any length: 219 records of Windows XP and 2003 in the corpus have
// CompensationLogRecord with one that leads behind their data. Source: Linux fs/ntfs3/fslog.c, can_skip_action, in
// front of both places where log_replay takes offset and length.
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
