package driver

import "encoding/binary"

// tableWindow is how many entries of a Table are in memory.
const tableWindow = 4 << 10

// Table writes a table of 32-bit entries, which are set in ascending order. All bits of an entry that is not set are
// one, which marks an absent block. Only a window of the table is in memory.
type Table struct {
	f      WriteFile
	off    int64 // of the table in the file, bytes
	size   int64 // bytes
	order  binary.ByteOrder
	window int64 // number of the window in work
	work   [4 * tableWindow]byte
}

// NewTable begins a table at an offset of the file; size and off are in bytes.
func NewTable(f WriteFile, off, size int64, order binary.ByteOrder) *Table {
	t := &Table{f: f, off: off, size: size, order: order}
	t.clear()
	return t
}

func (t *Table) clear() {
	for i := range t.work {
		t.work[i] = 0xff // absent, in every entry
	}
}

// Set sets the entry of block i.
func (t *Table) Set(i int64, entry uint32) error {
	if err := t.flush(i / tableWindow); err != nil {
		return err
	}
	t.order.PutUint32(t.work[4*(i%tableWindow):], entry)
	return nil
}

// flush writes the table up to window w.
func (t *Table) flush(w int64) error {
	for t.window < w {
		at := t.window * int64(len(t.work))
		if _, err := t.f.WriteAt(t.work[:min(int64(len(t.work)), t.size-at)], t.off+at); err != nil {
			return err
		}
		t.clear()
		t.window++
	}
	return nil
}

// Finish writes what is left of the table.
func (t *Table) Finish() error {
	whole := int64(len(t.work))
	return t.flush((t.size + whole - 1) / whole)
}
