package ntfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// requirePlaces requires that the positions of a file, if any, are in its volume, are distinct, and hold its bytes.
func requirePlaces(t *testing.T, volume disk.Disk, f *guestfile.File) {
	t.Helper()
	var all []disk.Range
	size := min(f.Size(), 1<<20)
	for off := int64(0); off < size; {
		n := min(1+off%700, size-off)
		read := make([]byte, n)
		_, err := f.ReadAt(read, off)
		require.NoError(t, err)
		places, err := f.Where(off, n)
		if err == nil {
			var there []byte
			for _, p := range places {
				b, err := ondisk.Bytes(volume, p.Off, p.Len)
				require.NoError(t, err)
				there = append(there, b...)
			}
			require.Equal(t, read, there)
			all = append(all, places...)
		}
		off += n
	}
	slices.SortFunc(all, func(a, b disk.Range) int { return int(a.Off - b.Off) })
	for i := 1; i < len(all); i++ {
		require.LessOrEqual(t, all[i-1].End(), all[i].Off)
	}
}

// FuzzNTFSRuns decodes anything as a run list.
func FuzzNTFSRuns(f *testing.F) {
	f.Add([]byte{0x21, 0x18, 0x34, 0x56, 0}, int64(1<<20))
	f.Add([]byte{0x11, 0x30, 0x60, 0x21, 0x10, 0x00, 0x01, 0x11, 0x20, 0xe0, 0x01, 0x30, 0}, int64(1<<20))
	f.Add([]byte{0x88, 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, b []byte, clusters int64) {
		if clusters <= 0 || clusters > math.MaxInt64/512 {
			return
		}
		v := &value{fs: newFileSystem(guestfile.NewBudget(), nil), found: true}
		v.fs.cluster, v.fs.clusters = 512, clusters
		if err := runList(b, clusters, v.extend); err != nil {
			require.True(t, errors.Is(err, errRunList) || errors.Is(err, ondisk.ErrLimit))
		}
		end := int64(0)
		for _, r := range v.runs {
			require.GreaterOrEqual(t, r.Off, end)
			require.Positive(t, r.Len)
			end = r.Off + r.Len
			require.True(t, end > r.Off && r.At >= 0 && r.At/512 < clusters && r.Len/512 <= clusters-r.At/512)
		}
		require.LessOrEqual(t, len(v.runs), len(b)/2)
	})
}

// ntfsFuzzBase is a volume with all structures: a fragmented MFT with an attribute list, an index with blocks, files in
// split records.
func ntfsFuzzBase(f *testing.F) *ntfsForge {
	f.Helper()
	m := hostileBase(f)
	m.splitMFT(f, forgeNTFS(f, m.save(f)).scatterMFT(f))
	m.scatterMFT(f)
	return forgeNTFS(f, m.save(f))
}

// FuzzNTFS changes bytes of a real volume: of its boot sector, its records and the blocks of its root's index. Each
// four bytes of the input are a position and a value. Fix-ups are recomputed.
func FuzzNTFS(f *testing.F) {
	m := ntfsFuzzBase(f)
	require.NoError(f, use(m))

	// The units of fix-ups that a run changes.
	index, err := m.fs.at(f, "").index(nil)
	require.NoError(f, err)
	require.NotNil(f, index.blocks)
	parts := [][]disk.Range{{{Len: 512}}}
	add := func(file *guestfile.File, unit int64) {
		for at := int64(0); at+unit <= file.Size(); at += unit {
			places, err := file.Where(at, unit)
			require.NoError(f, err)
			parts = append(parts, places)
		}
	}
	add(m.fs.mft, m.fs.record)
	add(index.blocks, index.block)

	large, at := uint32(m.number(f, "large"))+1, uint32(m.attrAt(f, m.number(f, "large"), attrData))
	f.Add([]byte{})
	f.Add(binary.LittleEndian.AppendUint32(nil, large<<20|(at+0x41)<<8|1))
	f.Add(binary.LittleEndian.AppendUint32(nil, 1<<20|0x16<<8))

	f.Fuzz(func(t *testing.T, changes []byte) {
		c := m.copied()
		for change := range slices.Chunk(changes[:len(changes)&^3], 4) {
			n := binary.LittleEndian.Uint32(change)
			places, off := parts[int(n>>20)%len(parts)], int(n>>8&0xfff)
			// A byte of a record or a block, without fix-ups, or of the boot sector.
			var b []byte
			for _, p := range places {
				b = append(b, c.Bytes[p.Off:p.End()]...)
			}
			guarded := len(b) > 512 && UndoFixups(b, 0x28)
			b[off%len(b)] = byte(n)
			if at := int(binary.LittleEndian.Uint16(b[4:])); guarded && at+2*(len(b)/512+1) <= len(b) {
				b = sealNTFS(b)
			}
			for _, p := range places {
				b = b[copy(c.Bytes[p.Off:p.End()], b):]
			}
		}
		volume := c.disk()
		filetest.ExerciseCensus(t, volume, Fragments)
		v, err := alone(volume)
		filetest.Known(t, err)
		if err != nil {
			return
		}
		entries, err := v.List("")
		filetest.Known(t, err)
		for _, path := range []string{"small", "large", "$Bitmap", "$Extend/$ObjId", "000", fmt.Sprint(len(entries))} {
			file, err := v.Open(path)
			filetest.Known(t, err)
			if err == nil {
				requirePlaces(t, volume, file)
			}
		}
	})
}

// ntfsForge is a real volume in memory, to be changed.
type ntfsForge struct {
	forge.Bytes
	fs *fileSystem // the original bytes
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

// raw returns a record with its fix-ups undone.
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

// put stores a record, also in the mirror, with new fix-ups.
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

// attrAt returns the offset of an unnamed attribute in a record.
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

// withAttrs returns a record with other attributes, in the order of their types.
func withAttrs(t testing.TB, raw []byte, attrs ...[]byte) forge.Bytes {
	t.Helper()
	at := int(binary.LittleEndian.Uint16(raw[0x14:]))
	out := append(bytes.Clone(raw[:at]), bytes.Join(attrs, nil)...)
	out = append(out, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0)
	require.LessOrEqual(t, len(out), len(raw))
	binary.LittleEndian.PutUint32(out[0x18:], uint32(len(out)))
	return append(out, make([]byte, len(raw)-len(out))...)
}

// attrBytes returns the stored bytes of an attribute.
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

// runsAttr returns a nonresident attribute with runs from a VCN on.
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
