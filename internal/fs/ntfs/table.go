package ntfs

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/ondisk"
)

// clientData is the restart record of NTFS, which a checkpoint ends with. Spec: Linux fs/ntfs3/fslog.c, NTFS_RESTART;
// dfir_ntfs LogFile.py, NTFSRestartArea. Since Windows Vista another LSN follows.
type clientData struct {
	Major, Minor uint32
	Start        uint64 // LSN in front of the first record that the checkpoint does not cover
	Attributes   uint64 // LSN of a table, as the next three
	Names        uint64
	DirtyPages   uint64
	Transactions uint64

	AttributesLength   uint32 // bytes, as the next three
	NamesLength        uint32
	DirtyPagesLength   uint32
	TransactionsLength uint32

	_            [16]byte // place in the change journal, last LSN
	ClusterBytes uint32
	_            [20]byte
}

const (
	fileNumber  = 1<<48 - 1  // bits of a reference that number a record of the MFT
	liveEntry   = 0xffffffff // first field of an entry of a table
	tableHeader = 0x18
	active      = 1 // state of a transaction
)

// readClient decodes the restart record of NTFS.
func readClient(r *logRecord) (*clientData, error) {
	c := &clientData{}
	size := binary.Size(c)
	if r.Type != clientRestart {
		return nil, r.broken(0x20-headerSize, "type", r.Type, "2, as the restart area says")
	}
	if len(r.data) < size {
		return nil, r.broken(0x18-headerSize, "data length", len(r.data), fmt.Sprintf("%d at least", size))
	}
	if err := ondisk.Fill(r.data[:size], binary.LittleEndian, c); err != nil {
		return nil, err
	}
	if c.Major > 1 {
		return nil, ondisk.In(ondisk.ErrUnsupported, "$LogFile with NTFS records of version %d.%d is not supported, "+
			"only 0 and 1 are", c.Major, c.Minor)
	}
	return c, nil
}

// table is a dump of a table of NTFS. Spec: Linux fs/ntfs3/fslog.c, struct RESTART_TABLE.
type table struct {
	entrySize int
	used      int // entries, live or not
	entries   []byte
}

// readTable decodes the dump that a record holds: bytes long, as the checkpoint says, of entries of so many at least.
func readTable(r *logRecord, op Op, length uint32, least int) (*table, error) {
	if r.Type != ordinary {
		return nil, r.broken(0x20-headerSize, "type", r.Type, "1, a dump")
	}
	a, err := takeApart(r)
	if err != nil {
		return nil, err
	}
	if a.Redo != op || a.Flags&noRedoData != 0 {
		return nil, r.broken(0, "operation", a.Redo, op)
	}
	from := int(a.RedoOffset) // its length has only 16 bits
	if from+tableHeader > len(r.data) || int64(length) < tableHeader || int64(length) > int64(len(r.data)-from) {
		return nil, r.broken(4, "table", fmt.Sprintf("%d bytes at %d", length, from),
			fmt.Sprintf("%d at least, within %d", tableHeader, len(r.data)))
	}
	b := r.data[from : from+int(length)]
	t := &table{
		entrySize: int(binary.LittleEndian.Uint16(b)), used: int(binary.LittleEndian.Uint16(b[2:])),
		entries: b[tableHeader:],
	}
	if t.entrySize < least || t.used*t.entrySize > len(t.entries) {
		return nil, r.broken(int64(from), "entries of the table", fmt.Sprintf("%d of %d bytes", t.used, t.entrySize),
			fmt.Sprintf("of %d at least, within %d bytes", least, len(t.entries)))
	}
	return t, nil
}

// live visits the entries in use. An entry's index is its offset in the table.
func (t *table) live(visit func(index int, entry []byte) error) error {
	for i := range t.used {
		e := t.entries[i*t.entrySize : (i+1)*t.entrySize]
		if binary.LittleEndian.Uint32(e) != liveEntry {
			continue
		}
		if err := visit(tableHeader+i*t.entrySize, e); err != nil {
			return err
		}
	}
	return nil
}

// layouts of tables, by the major version of the client. Spec: dfir_ntfs LogFile.py; Linux fs/ntfs3/fslog.c,
// struct OPEN_ATTR_ENRTY_32, OPEN_ATTR_ENRTY, DIR_PAGE_ENTRY_32, DIR_PAGE_ENTRY.
var layouts = [...]struct {
	attribute, attrFile, attrType int // bytes of an entry, offsets
	dirtyPage, oldest             int
}{
	{0x2c, 0x08, 0x1c, 0x24, 0x1c},
	{0x28, 0x10, 0x08, 0x20, 0x18},
}

const (
	transactionSize     = 0x28
	transactionState    = 0x04
	transactionFirst    = 0x08
	transactionUndoNext = 0x18
)

// Target is an attribute that records of the log name.
type Target struct {
	File int64  // base record of the MFT
	Type uint32 // of the attribute
}

// $MFT's own attributes.
const (
	typeData   = 0x80
	typeBitmap = 0xb0
)

// target decodes an entry of the table of open attributes.
func target(major uint32, e []byte) Target {
	l := &layouts[major]
	return Target{
		File: ondisk.I64(binary.LittleEndian.Uint64(e[l.attrFile:]) & fileNumber),
		Type: binary.LittleEndian.Uint32(e[l.attrType:]),
	}
}
