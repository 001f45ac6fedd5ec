package ntfs

import "fmt"

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
