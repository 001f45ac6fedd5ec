package ntfs

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
)

// ntfsForge is a real volume in memory, to be changed.
type ntfsForge struct {
	forge.Bytes
	fs *fileSystem // as it was
}

// forgeNTFS takes the bytes of a volume.
func forgeNTFS(t testing.TB, path string) *ntfsForge {
	t.Helper()
	b := disktest.ReadFile(t, path)
	v := alone.Sound(t, disktest.ShortDisk(b, int64(len(b))))
	return &ntfsForge{Bytes: b, fs: v.(*fileSystem)}
}

func (m *ntfsForge) disk() disk.Disk { return disktest.ShortDisk(m.Bytes, int64(len(m.Bytes))) }

// save writes the volume to a file, for tools.
func (m *ntfsForge) save(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "forged")
	m.Write(t, path)
	return path
}

// record is the number of the record of a file.
func (m *ntfsForge) number(t testing.TB, path string) int64 {
	t.Helper()
	return m.fs.at(t, path).rec.number
}

// raw is a record with its fix-ups undone.
func (m *ntfsForge) raw(t testing.TB, number int64) forge.Bytes {
	t.Helper()
	places, err := m.fs.mft.Where(number*m.fs.record, m.fs.record)
	require.NoError(t, err)
	var b []byte
	for _, p := range places {
		b = append(b, m.Bytes[p.Off:p.End()]...)
	}
	require.True(t, UndoFixups(b, recordHeadSize))
	return b
}

// put stores a record, in the mirror too, with new fix-ups.
func (m *ntfsForge) put(t testing.TB, number int64, raw []byte) {
	t.Helper()
	raw = sealNTFS(raw)
	m.store(t, "$MFT", number, raw)
	if number < 4 {
		m.store(t, "$MFTMirr", number, raw)
	}
}

func (m *ntfsForge) store(t testing.TB, file string, number int64, raw []byte) {
	t.Helper()
	places, err := m.fs.file(t, file).Where(number*m.fs.record, m.fs.record)
	require.NoError(t, err)
	for _, p := range places {
		raw = raw[copy(m.Bytes[p.Off:p.End()], raw):]
	}
}

// change stores a record with a change.
func (m *ntfsForge) change(t testing.TB, number int64, change func(r forge.Bytes)) {
	t.Helper()
	r := m.raw(t, number)
	change(r)
	m.put(t, number, r)
}

// attrAt is where an attribute without a name stands in a record.
func (m *ntfsForge) attrAt(t testing.TB, number int64, kind uint32) int64 {
	t.Helper()
	rec, err := m.fs.load(ref{number: number})
	require.NoError(t, err)
	for _, a := range rec.attrs {
		if a.Type == kind {
			return a.at
		}
	}
	t.Fatalf("record %d has no attribute %#x", number, kind)
	return 0
}

// sealNTFS puts fix-ups into a record or an index block.
func sealNTFS(raw []byte) []byte {
	raw = bytes.Clone(raw)
	at := int(binary.LittleEndian.Uint16(raw[4:]))
	binary.LittleEndian.PutUint16(raw[at:], 0x4242)
	for i := 1; i*512 <= len(raw); i++ {
		copy(raw[at+2*i:], raw[i*512-2:i*512])
		copy(raw[i*512-2:], raw[at:at+2])
	}
	return raw
}

// withAttrs is a record with other attributes, in the order of their types.
func withAttrs(t testing.TB, raw []byte, attrs ...[]byte) forge.Bytes {
	t.Helper()
	at := int(binary.LittleEndian.Uint16(raw[0x14:]))
	out := append(bytes.Clone(raw[:at]), bytes.Join(attrs, nil)...)
	out = append(out, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0)
	require.LessOrEqual(t, len(out), len(raw))
	binary.LittleEndian.PutUint32(out[0x18:], uint32(len(out)))
	return append(out, make([]byte, len(raw)-len(out))...)
}

// attrBytes is an attribute of a record as it is stored.
func attrBytes(rec *record, kind uint32) []byte {
	for _, a := range rec.attrs {
		if a.Type == kind {
			return bytes.Clone(rec.raw[a.at : a.at+int64(a.Length)])
		}
	}
	return nil
}

// residentAttr is an attribute with its value.
func residentAttr(kind uint32, id uint16, value []byte) forge.Bytes {
	a := make(forge.Bytes, (0x18+len(value)+7)&^7)
	a.U32(0, kind)
	a.U32(4, uint32(len(a)))
	a.U16(0x0a, 0x18)
	a.U16(0x0e, id)
	a.U32(0x10, uint32(len(value)))
	a.U16(0x14, 0x18)
	a.Put(0x18, value)
	return a
}

// runsAttr is an attribute with the runs from a cluster of the value on.
func runsAttr(kind uint32, id uint16, vcn, cluster, size int64, extents []extent) forge.Bytes {
	var runs []byte
	last, n := int64(0), vcn
	for _, e := range extents {
		runs = append(runs, 0x44)
		runs = binary.LittleEndian.AppendUint32(runs, uint32(e.length))
		runs = binary.LittleEndian.AppendUint32(runs, uint32(int32(e.start-last)))
		last = e.start
		n += e.length
	}
	a := make(forge.Bytes, (0x40+len(runs)+1+7)&^7)
	a.U32(0, kind)
	a.U32(4, uint32(len(a)))
	a.U8(8, 1)
	a.U16(0x0a, 0x40)
	a.U16(0x0e, id)
	a.U64(0x10, uint64(vcn))
	a.U64(0x18, uint64(n-1))
	a.U16(0x20, 0x40)
	if vcn == 0 {
		a.U64(0x28, uint64((size+cluster-1)/cluster*cluster))
		a.U64(0x30, uint64(size))
		a.U64(0x38, uint64(size))
	}
	a.Put(0x40, runs)
	return a
}

// listEntry is an entry of an attribute list.
func listEntry(kind uint32, id uint16, vcn, record int64, sequence uint16) forge.Bytes {
	e := make(forge.Bytes, 0x20)
	e.U32(0, kind)
	e.U16(4, 0x20)
	e.U8(7, 0x1a)
	e.U64(8, uint64(vcn))
	e.U64(0x10, uint64(record)|uint64(sequence)<<48)
	e.U16(0x18, id)
	return e
}
