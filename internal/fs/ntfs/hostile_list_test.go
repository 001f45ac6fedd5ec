package ntfs

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/filetest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/ondisk"
)

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
	// The record with the second part of the runs lies in that part; and one that says it is its own extension.
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
