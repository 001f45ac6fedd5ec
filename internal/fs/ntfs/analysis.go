package ntfs

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
)

// transaction is one that has not ended.
type transaction struct {
	state    int
	undoNext uint64 // LSN of the record that an undo begins with
}

// analysis finds what a replay of the log may write: the passes of a restart, with every page taken as dirty.
// Spec: Linux fs/ntfs3/fslog.c, log_replay.
type analysis struct {
	*reader
	volume       LogVolume
	client       *clientData
	slots        map[int][]Target // all that an index of the table of open attributes stood for
	transactions map[uint32]*transaction
	start        uint64 // of the redo
	pending      []pending
	places       int // of all of them
}

// pending is a write before it is held against the volume.
type pending struct {
	Write
	slot int
}

// run fills in what the records say.
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

// complete reports a page that is newer than the end of the records: a record between them was lost. Windows 8 and
// later write pages to their place without an LSN first, while a copy has it. Where the copy is lost, so is the end.
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

// readTables reads the tables that the checkpoint dumped.
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

// table visits the live entries of a dump; a length of zero means that there is none.
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

// startAt moves the start of the redo back to an LSN.
func (a *analysis) startAt(lsn uint64) {
	if lsn != 0 && (a.start == 0 || lsn < a.start) {
		a.start = lsn
	}
}

// opened notes what an index of the table of open attributes stands for. One that was used again stands for both.
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

// analyse follows the records behind the checkpoint: who is active in the end, and which attributes are open. It
// returns the LSN of the last record.
func (a *analysis) analyse() (end uint64, err error) {
	from := a.client.Start
	return a.each(from, func(r *logRecord) error {
		if r.LSN == from || r.Type != ordinary {
			return nil
		}
		act, err := takeApart(r)
		if err != nil {
			return err
		}
		if act.Redo == hotFix || act.Undo == hotFix {
			// It moves a cluster, and later records still name the old place.
			return fmt.Errorf("$LogFile record of LSN %d: %s: %w", r.LSN, hotFix, ondisk.ErrUnsupported)
		}
		if act.Redo.class() != nothing {
			a.startAt(r.LSN)
		}
		a.transact(act)
		return a.open(act)
	})
}

// transact follows the transaction of a record.
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
	default: // a change, or bookkeeping of other kinds
	}
}

// open notes the attribute that a record opens.
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

// redo notes what the redo of a record writes.
func (a *analysis) redo(r *logRecord) error {
	if r.Type != ordinary {
		return nil
	}
	act, err := takeApart(r)
	if err != nil {
		return err
	}
	if err := a.open(act); err != nil {
		return err
	}
	return a.note(act, false)
}

// undo notes what the undo of the transactions writes that are active in the end.
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

// undoChain follows a transaction back.
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
		act, err := takeApart(r)
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
