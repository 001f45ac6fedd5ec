package ntfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// hostileBase is a volume with a file in the MFT ("small"), one in clusters ("large"), and a root whose index is in
// blocks.
func hostileBase(t testing.TB) *ntfsForge {
	t.Helper()
	vol := mkntfs(t, 2<<20, "-c", "512")
	ntfscp(t, vol, "small", filetest.Noise(1, 200))
	ntfscp(t, vol, "large", filetest.Noise(2, 5000))
	for i := range 30 {
		ntfscp(t, vol, fmt.Sprintf("%03d%s", i, strings.Repeat("x", 200)), nil)
	}
	m := forgeNTFS(t, vol)
	require.NoError(t, use(m))
	return m
}

// copied returns a copy of the volume, for changes of its own.
func (m *ntfsForge) copied() *ntfsForge { return &ntfsForge{Bytes: bytes.Clone(m.Bytes), fs: m.fs} }

// use opens a volume and the files of hostileBase, and lists its root.
func use(m *ntfsForge) error {
	v, err := alone(m.disk())
	if err != nil {
		return err
	}
	for _, path := range []string{"small", "large"} {
		f, err := v.Open(path)
		if err != nil {
			return err
		}
		if _, err := f.Where(0, f.Size()); err != nil {
			return err
		}
	}
	_, err = v.List("")
	return err
}

func requireRefused(t *testing.T, m *ntfsForge, want error) {
	t.Helper()
	n := disktest.Allocated(func() { require.ErrorIs(t, use(m), want) })
	require.Less(t, n, int64(32<<20))
}

// eachRefused requires that a volume is refused after each of the changes, which apply makes to a copy.
func eachRefused(t *testing.T, base *ntfsForge, changes map[string]func(forge.Bytes),
	apply func(m *ntfsForge, change func(forge.Bytes)),
) {
	t.Helper()
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			m := base.copied()
			apply(m, change)
			requireRefused(t, m, ondisk.ErrFormat)
		})
	}
}

// The boot sector.
func TestNTFSHostileBoot(t *testing.T) {
	base := hostileBase(t)
	eachRefused(t, base, map[string]func(forge.Bytes){
		"sector of 0 bytes":              func(b forge.Bytes) { b.U16(0x0b, 0) },
		"sector of 3 bytes":              func(b forge.Bytes) { b.U16(0x0b, 3) },
		"sector of 8192 bytes":           func(b forge.Bytes) { b.U16(0x0b, 8192) },
		"sector of 65535 bytes":          func(b forge.Bytes) { b.U16(0x0b, 65535) },
		"cluster of 0 sectors":           func(b forge.Bytes) { b.U8(0x0d, 0) },
		"cluster of 3 sectors":           func(b forge.Bytes) { b.U8(0x0d, 3) },
		"cluster of 129 sectors":         func(b forge.Bytes) { b.U8(0x0d, 129) },
		"cluster of 2^13 sectors":        func(b forge.Bytes) { b.U8(0x0d, 0xf3) },
		"no sectors":                     func(b forge.Bytes) { b.U64(0x28, 0) },
		"more sectors than there are":    func(b forge.Bytes) { b.U64(0x28, 4097) },
		"2^64-1 sectors":                 func(b forge.Bytes) { b.U64(0x28, math.MaxUint64) },
		"MFT in cluster 0":               func(b forge.Bytes) { b.U64(0x30, 0) },
		"MFT behind the end":             func(b forge.Bytes) { b.U64(0x30, 4095) },
		"MFT in a negative cluster":      func(b forge.Bytes) { b.U64(0x30, math.MaxUint64) },
		"MFT elsewhere":                  func(b forge.Bytes) { b.U64(0x30, 100) },
		"MFT where its mirror is":        func(b forge.Bytes) { copy(b[0x30:0x38], b[0x38:0x40]) },
		"record of 0 clusters":           func(b forge.Bytes) { b.U8(0x40, 0) },
		"record of 3 clusters":           func(b forge.Bytes) { b.U8(0x40, 3) },
		"record of 127 clusters":         func(b forge.Bytes) { b.U8(0x40, 127) },
		"record of 2^128 bytes":          func(b forge.Bytes) { b.U8(0x40, 0x80) },
		"record of 2^31 bytes":           func(b forge.Bytes) { b.U8(0x40, 0xe1) },
		"record of 8192 bytes":           func(b forge.Bytes) { b.U8(0x40, 0xf3) },
		"record of 256 bytes":            func(b forge.Bytes) { b.U8(0x40, 0xf8) },
		"record of another size":         func(b forge.Bytes) { b.U8(0x40, 0xf5) },
		"clusters of another size":       func(b forge.Bytes) { b.U8(0x0d, 2) },
		"sectors and clusters of 2 KiB":  func(b forge.Bytes) { b.U16(0x0b, 2048) },
		"clusters larger than the whole": func(b forge.Bytes) { b.U8(0x0d, 0xf4) },
	}, func(m *ntfsForge, change func(forge.Bytes)) { change(m.Bytes) })
}

// Records, and attributes in them.
func TestNTFSHostileRecord(t *testing.T) {
	base := hostileBase(t)
	number := base.number(t, "small")
	at := base.attrAt(t, number, attrData)
	eachRefused(t, base, map[string]func(forge.Bytes){
		"attributes from 65535 on":          func(r forge.Bytes) { r.U16(0x14, 65535) },
		"attributes from the bytes in use":  func(r forge.Bytes) { copy(r[0x14:0x16], r[0x18:0x1a]) },
		"attributes over the fix-ups":       func(r forge.Bytes) { r.U16(0x14, 0x30) },
		"attributes from an odd place":      func(r forge.Bytes) { r.U16(0x14, 0x3a) },
		"65535 bytes in use":                func(r forge.Bytes) { r.U32(0x18, 65535) },
		"no bytes in use":                   func(r forge.Bytes) { r.U32(0x18, 0) },
		"as many in use as the attributes":  func(r forge.Bytes) { r.U32(0x18, uint32(at)+8) },
		"2048 bytes allocated":              func(r forge.Bytes) { r.U32(0x1c, 2048) },
		"not in use":                        func(r forge.Bytes) { r.U16(0x16, 0) },
		"used again":                        func(r forge.Bytes) { r.U16(0x10, 77) },
		"extension of another":              func(r forge.Bytes) { r.U64(0x20, 5|5<<48) },
		"attribute of length 0":             func(r forge.Bytes) { r.U32(at+4, 0) },
		"attribute of length 4":             func(r forge.Bytes) { r.U32(at+4, 4) },
		"attribute of length 16":            func(r forge.Bytes) { r.U32(at+4, 16) },
		"attribute of odd length":           func(r forge.Bytes) { r.U32(at+4, 25) },
		"attribute of length 2^32-1":        func(r forge.Bytes) { r.U32(at+4, math.MaxUint32) },
		"attribute of length 2^32-8":        func(r forge.Bytes) { r.U32(at+4, math.MaxUint32-7) },
		"attributes without an end":         func(r forge.Bytes) { r.U32(at+4, 1024-uint32(at)); r.U32(0x18, 1024) },
		"value of 2^32-1 bytes":             func(r forge.Bytes) { r.U32(at+0x10, math.MaxUint32) },
		"value over the attribute's end":    func(r forge.Bytes) { r.U32(at+0x10, 300) },
		"value from 65535 on":               func(r forge.Bytes) { r.U16(at+0x14, 65535) },
		"value over its own header":         func(r forge.Bytes) { r.U16(at+0x14, 8) },
		"name of 255 characters":            func(r forge.Bytes) { r.U8(at+9, 255) },
		"name from 65535 on":                func(r forge.Bytes) { r.U8(at+9, 1); r.U16(at+0x0a, 65535) },
		"neither resident nor not":          func(r forge.Bytes) { r.U8(at+8, 2) },
		"not resident, with too few fields": func(r forge.Bytes) { r.U8(at+8, 1); r.U32(at+4, 0x38) },
	}, func(m *ntfsForge, change func(forge.Bytes)) { m.change(t, number, change) })
}

// Fix-ups. These are not sealed again.
func TestNTFSHostileFixups(t *testing.T) {
	base := hostileBase(t)
	places, err := base.fs.mft.Where(base.number(t, "small")*1024, 1024)
	require.NoError(t, err)
	eachRefused(t, base, map[string]func(forge.Bytes){
		"from 65535 on":               func(r forge.Bytes) { r.U16(4, 65535) },
		"from 0 on":                   func(r forge.Bytes) { r.U16(4, 0) },
		"over the header":             func(r forge.Bytes) { r.U16(4, 0x20) },
		"in their own sector's end":   func(r forge.Bytes) { r.U16(4, 506) },
		"of odd place":                func(r forge.Bytes) { r.U16(4, 0x31) },
		"none":                        func(r forge.Bytes) { r.U16(6, 0) },
		"65535":                       func(r forge.Bytes) { r.U16(6, 65535) },
		"one too few":                 func(r forge.Bytes) { r.U16(6, 2) },
		"another number at the first": func(r forge.Bytes) { r.U16(510, 0x7777) },
		"another number at the last":  func(r forge.Bytes) { r.U16(1022, 0x7777) },
		"BAAD, as after a torn write": func(r forge.Bytes) { r.Text(0, "BAAD") },
		"nothing":                     func(r forge.Bytes) { clear(r[:1024]) },
	}, func(m *ntfsForge, change func(forge.Bytes)) { change(m.Bytes[places[0].Off:]) })
}

// Run lists.
func TestNTFSHostileRuns(t *testing.T) {
	base := hostileBase(t)
	number := base.number(t, "large")
	at := base.attrAt(t, number, attrData)
	runs := func(b ...byte) func(r forge.Bytes) {
		return func(r forge.Bytes) { r.Put(at+0x40, b) }
	}
	eachRefused(t, base, map[string]func(forge.Bytes){
		"header 0xff":                     runs(0xff, 1, 1, 1, 1, 1, 1, 1),
		"header 0x99":                     runs(0x99, 1, 1, 1, 1, 1, 1, 1),
		"length of no bytes":              runs(0x20, 1, 1, 0),
		"length 0":                        runs(0x11, 0, 1, 0),
		"length -1":                       runs(0x11, 0xff, 1, 0),
		"start below 0":                   runs(0x11, 10, 0xff, 0),
		"start behind the end":            runs(0x21, 10, 0xff, 0x7f, 0),
		"end behind the end":              runs(0x21, 10, 0xf8, 0x0f, 0),
		"length of 2^31":                  runs(0x14, 0xff, 0xff, 0xff, 0x7f, 1, 0),
		"cut short":                       runs(0x84, 10, 0, 0, 0, 1, 0, 0),
		"fewer clusters than there are":   runs(0x21, 9, 0x40, 0x06, 0),
		"more clusters than there are":    runs(0x21, 11, 0x40, 0x06, 0),
		"one place twice":                 runs(0x21, 5, 0x40, 0x06, 0x11, 5, 0, 0),
		"runs from 0 on":                  func(r forge.Bytes) { r.U16(at+0x20, 0) },
		"runs from 65535 on":              func(r forge.Bytes) { r.U16(at+0x20, 65535) },
		"lowest cluster -1":               func(r forge.Bytes) { r.U64(at+0x10, math.MaxUint64) },
		"lowest cluster 1":                func(r forge.Bytes) { r.U64(at+0x10, 1) },
		"highest cluster 2^63-1":          func(r forge.Bytes) { r.U64(at+0x18, math.MaxInt64) },
		"highest cluster -5":              func(r forge.Bytes) { r.U64(at+0x18, math.MaxUint64-4) },
		"size above what is allocated":    func(r forge.Bytes) { r.U64(at+0x30, 5121) },
		"size above the runs":             func(r forge.Bytes) { r.U64(at+0x28, 1<<40); r.U64(at+0x30, 1<<40) },
		"negative size":                   func(r forge.Bytes) { r.U64(at+0x30, math.MaxUint64) },
		"initialised above size":          func(r forge.Bytes) { r.U64(at+0x38, 5001) },
		"initialised to a negative place": func(r forge.Bytes) { r.U64(at+0x38, 1<<63) },
	}, func(m *ntfsForge, change func(forge.Bytes)) { m.change(t, number, change) })
	m := base.copied()
	m.change(t, number, runs(0x01, 10, 0)) // a hole: it reads as zeros, and has no place
	requireRefused(t, m, guestfile.ErrHole)
	m.change(t, number, func(r forge.Bytes) { r.U16(at+0x0c, attrEncrypted) })
	requireRefused(t, m, ondisk.ErrUnsupported)
	require.ErrorContains(t, use(m), "encrypted")
}

// Sums at the edge of numbers, and too many runs.
func TestNTFSRunList(t *testing.T) {
	decode := func(b []byte, clusters int64) (out []extent, err error) {
		err = runList(b, clusters, func(e extent) error {
			out = append(out, e)
			return nil
		})
		return out, err
	}
	// Spec: Linux-NTFS documentation, "Data Runs", examples 1 and 3, and a negative start.
	got, err := decode([]byte{0x21, 0x18, 0x34, 0x56, 0}, 1<<20)
	require.NoError(t, err)
	require.Equal(t, []extent{{0x18, 0x5634}}, got)
	got, err = decode([]byte{
		0x11, 0x30, 0x60, 0x21, 0x10, 0x00, 0x01, 0x11, 0x20, 0xe0, 0x01, 0x30, 0x11, 0x05, 0x7f,
	}, 1<<20)
	require.NoError(t, err)
	require.Equal(t, []extent{{0x30, 0x60}, {0x10, 0x160}, {0x20, 0x140}, {0x30, extentHole}, {0x05, 0x1bf}}, got)
	for _, b := range [][]byte{
		{0x88, 1, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		{0x88, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80},
		{0x88, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0, 0, 0, 0, 0},
		{0x88, 0, 0, 0, 0, 0, 0, 0, 0x80, 1, 0, 0, 0, 0, 0, 0, 0},
		{0x11, 1, 1, 0x81, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
		{0x11, 1, 1, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0x80},
	} {
		_, err := decode(b, math.MaxInt64)
		require.ErrorIs(t, err, errRunList, "% x", b)
	}
	v := &value{fs: newFileSystem(guestfile.NewBudget(), nil)}
	v.fs.cluster, v.fs.clusters = 4096, 1<<40
	million := bytes.Repeat([]byte{0x11, 1, 2}, 1e6)
	require.ErrorIs(t, runList(million, v.fs.clusters, v.extend), ondisk.ErrLimit)
	require.Len(t, v.runs, guestfile.MaxRuns)
	v.runs, v.clusters = nil, math.MaxInt64/4096-1
	require.NoError(t, v.extend(extent{1, extentHole}))
	require.ErrorIs(t, v.extend(extent{1, extentHole}), errRunList)
}

// An MFT that maps itself onto itself.
func TestNTFSHostileMFT(t *testing.T) {
	base := hostileBase(t)
	start := filetest.RunsOf(t, base.fs.mft)[0].At / 512
	clusters := base.fs.mft.Size() / 512
	zero, err := base.fs.load(ref{})
	require.NoError(t, err)
	std, name, bitmap := attrBytes(zero, 0x10), attrBytes(zero, attrFileName), attrBytes(zero, 0xb0)
	withRuns := func(m *ntfsForge, runs ...extent) {
		m.put(t, 0, withAttrs(t, m.raw(t, 0), std, name, runsAttr(attrData, 1, 0, 512, m.fs.mft.Size(), runs), bitmap))
	}
	for name, runs := range map[string][]extent{
		"all records are the first ones": {{48, start}, {clusters - 48, start}},
		"the second run holds the first": {{48, start}, {clusters - 48, start - 100}},
		"the first record is elsewhere":  {{2, 100}, {clusters - 2, start + 2}},
		"a hole for the first record":    {{2, extentHole}, {clusters - 2, start + 2}},
	} {
		t.Run(name, func(t *testing.T) {
			m := base.copied()
			withRuns(m, runs...)
			requireRefused(t, m, ondisk.ErrFormat)
		})
	}
	// The record with the second part of the runs is in that part; another one is its own extension.
	for _, record := range []int64{40, 0} {
		m := base.copied()
		list := append(listEntry(attrData, 1, 0, 0, 1), listEntry(attrData, 2, 48, record, 1)...)
		m.put(t, 0, withAttrs(t, m.raw(t, 0), std, residentAttr(attrList, 9, list), name,
			runsAttr(attrData, 1, 0, 512, m.fs.mft.Size(), []extent{{48, start}}), bitmap))
		raw := withAttrs(t, m.raw(t, 40), runsAttr(attrData, 2, 48, 512, 0, []extent{{clusters - 48, start + 48}}))
		raw.U16(0x10, 1)
		raw.U16(0x16, recordInUse)
		raw.U64(0x20, 1<<48)
		m.put(t, 40, raw)
		requireRefused(t, m, ondisk.ErrFormat)
	}
}

// Attribute lists.
func TestNTFSHostileList(t *testing.T) {
	base := hostileBase(t)
	number := base.number(t, "large")
	rec, err := base.fs.load(ref{number: number})
	require.NoError(t, err)
	data := attrBytes(rec, attrData)
	id := binary.LittleEndian.Uint16(data[0x0e:])
	own := listEntry(attrData, id, 0, number, rec.Sequence)
	entry := func(change func(e forge.Bytes)) forge.Bytes {
		e := forge.Bytes(bytes.Clone(own))
		change(e)
		return e
	}
	with := func(list []byte) *ntfsForge {
		m := base.copied()
		m.put(t, number, withAttrs(t, m.raw(t, number), residentAttr(attrList, 99, list), data))
		return m
	}
	require.NoError(t, use(with(own)))
	self := listEntry(attrList, 99, 0, number, rec.Sequence)
	require.NoError(t, use(with(append(self, own...))),
		"the list is an attribute like others, and it is not read twice")
	for name, list := range map[string][]byte{
		"entry of length 0":         entry(func(e forge.Bytes) { e.U16(4, 0) }),
		"entry of length 25":        entry(func(e forge.Bytes) { e.U16(4, 25) }),
		"entry behind the end":      entry(func(e forge.Bytes) { e.U16(4, 40) }),
		"entry cut short":           append(bytes.Clone(own), 0x80, 0, 0, 0),
		"name behind the entry":     entry(func(e forge.Bytes) { e.U8(6, 200) }),
		"data twice":                append(bytes.Clone(own), own...),
		"record behind the MFT":     entry(func(e forge.Bytes) { e.U64(0x10, 1<<40|1<<48) }),
		"record that is not in use": entry(func(e forge.Bytes) { e.U64(0x10, 40|1<<48) }),
		"record of another file":    entry(func(e forge.Bytes) { e.U64(0x10, uint64(number-1)|1<<48) }),
		"other use of its own record": entry(func(e forge.Bytes) {
			e.U64(0x10, uint64(number)|uint64(rec.Sequence+1)<<48)
		}),
		"other number of the attribute": entry(func(e forge.Bytes) { e.U16(0x18, id+7) }),
	} {
		t.Run(name, func(t *testing.T) { requireRefused(t, with(list), ondisk.ErrFormat) })
	}
	t.Run("no entry", func(t *testing.T) { requireRefused(t, with(nil), ondisk.ErrUnsupported) })
	list := func(size int64, runs ...extent) *ntfsForge {
		m := base.copied()
		m.put(t, number, withAttrs(t, m.raw(t, number), runsAttr(attrList, 99, 0, 512, size, runs), data))
		return m
	}
	long := list(32, extent{1, 3000})
	long.Put(3000*512, own)
	require.NoError(t, use(long))
	t.Run("list of 4 GiB that is not there", func(t *testing.T) {
		requireRefused(t, list(4<<30, extent{2, 1000}), ondisk.ErrFormat)
	})
	t.Run("list of zeros", func(t *testing.T) { requireRefused(t, list(1024, extent{2, 3000}), ondisk.ErrFormat) })
	t.Run("list of 1 MiB and more", func(t *testing.T) {
		requireRefused(t, list(1<<20+1, extent{2049, 1000}), ondisk.ErrLimit)
	})
	t.Run("list that names one part for ever", func(t *testing.T) {
		m := list(1<<20, extent{2048, 1500})
		copy(m.Bytes[1500*512:], bytes.Repeat(listEntry(attrReparse, 5, 0, number, rec.Sequence), 1<<15))
		requireRefused(t, m, ondisk.ErrFormat)
	})
}
