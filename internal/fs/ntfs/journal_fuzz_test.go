package ntfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// known reports whether an error is one that a log can have: a source in memory has no others.
func known(err error) bool {
	return errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit) || errors.Is(err, ondisk.ErrUnsupported)
}

// resealed returns a log whose pages have right fix-ups, or hardly any mutation would come as far as the records.
func resealed(log []byte) []byte {
	log = bytes.Clone(log)
	for off := 0; off+pageSize <= len(log); off += pageSize {
		seal(log[off : off+pageSize])
	}
	return log
}

// addLogs adds logs with a bit of all.
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
			add(log.sealed())
			log.copyPage(log.first(), firstCopy, nil)
			add(log.sealed())
		}
	}
}

// FuzzLog reads whole logs: restart pages, copies, records, tables and all passes.
func FuzzLog(f *testing.F) {
	addLogs(f, func(log []byte) { f.Add(log) })
	volume := newDisk().volume()
	f.Fuzz(func(t *testing.T, log []byte) {
		l, err := Read(bytes.NewReader(resealed(log)), volume)
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

// FuzzRestartPage reads a restart page.
func FuzzRestartPage(f *testing.F) {
	addLogs(f, func(log []byte) { f.Add(log[:pageSize]) })
	f.Fuzz(func(t *testing.T, b []byte) {
		log := append(resealed(b), make([]byte, pageSize)...)
		p, err := newest(bytes.NewReader(log))
		if err != nil {
			require.True(t, known(err), "%v", err)
			return
		}
		if err := p.check(1 << 20); err != nil {
			require.True(t, known(err), "%v", err)
			return
		}
		require.LessOrEqual(t, p.area.FileSize, uint64(1<<20))
		require.LessOrEqual(t, p.client.RestartLSN, p.area.CurrentLSN)
	})
}

// FuzzRecord takes a record of NTFS apart.
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

// FuzzTable reads a dump of a table.
func FuzzTable(f *testing.F) {
	for _, client := range []uint32{0, 1} {
		log := newLog(1, client, 40)
		b := dump(log.openEntry(Target{0, typeData}), log.openEntry(Target{folder, 0xa0}))
		f.Add(op{redo: dumpAttributes, undo: noop, data: b}.bytes(), uint32(len(b)), client)
	}
	f.Fuzz(func(t *testing.T, data []byte, length, client uint32) {
		client %= 2
		rec := &logRecord{recordHeader: recordHeader{Type: ordinary}, data: data}
		tab, err := readTable(rec, dumpAttributes, length, layouts[client].attribute)
		if err != nil {
			require.True(t, known(err), "%v", err)
			return
		}
		entries := 0
		require.NoError(t, tab.live(func(index int, e []byte) error {
			entries++
			require.LessOrEqual(t, index+len(e), int(length))
			require.Equal(t, uint32(liveEntry), binary.LittleEndian.Uint32(e))
			target(client, e)
			return nil
		}))
		require.LessOrEqual(t, entries*layouts[client].attribute, len(data))
	})
}

// FuzzMFTRecord holds a write against a record of the MFT.
func FuzzMFTRecord(f *testing.F) {
	d := newDisk()
	f.Add([]byte(d.record(20)), 0x38, 0x18, 72)
	f.Add([]byte(d.record(20)), 0x98, 0, 24)
	f.Fuzz(func(t *testing.T, raw []byte, recordOffset, attrOffset, length int) {
		at := func(n int) int { return n & 0xffff }
		for _, o := range []Op{residentValue, attributeSizes} {
			w := &Write{Op: o, Length: at(length), data: make([]byte, 24)}
			w.recordOffset, w.attrOffset = at(recordOffset), at(attrOffset)
			if logMFTRecord(raw).keepsLayout(w) && o == residentValue {
				require.LessOrEqual(t, w.recordOffset+w.attrOffset+w.Length, len(raw)+1<<16)
			}
		}
		logMFTRecord(raw).lsn()
		logMFTRecord(raw).base()
	})
}
