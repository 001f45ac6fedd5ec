package hive

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// seed is a hive with a bit of all, small enough to be mutated much.
func seed() hiveforge.Key {
	return hiveforge.Key{
		Name: "R",
		Values: []hiveforge.Value{
			{Type: 1, Data: counted(6)},
			{Name: "four", Type: 4, Data: counted(4)},
		}, Keys: []hiveforge.Key{
			{Name: "lists", List: "ri", Keys: numbered(5)},
			{Name: "li", List: "li", Keys: numbered(2)},
			{Name: "Ключ", Values: []hiveforge.Value{
				{Name: "日本", Type: 3, Data: counted(12)},
				{Name: "big", Type: 3, Data: counted(segmentSize + 9)},
			}},
		},
	}
}

// known reports whether an error is one that a hive can have: a source in memory has no others.
func known(err error) bool {
	return errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrLimit) || errors.Is(err, ondisk.ErrUnsupported)
}

func FuzzHive(f *testing.F) {
	for minor := uint32(3); minor <= 6; minor++ {
		f.Add([]byte(hiveforge.New(minor, seed())))
	}
	for _, s := range disktest.Seeds(f, 1<<20, "regipy/BCD.xz") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := Open(bytes.NewReader(data))
		if err != nil {
			require.True(t, known(err), "%v", err)
			return
		}
		h.steps = &ondisk.Budget{Limit: 1 << 13}
		if err := walk(h); err != nil {
			require.True(t, known(err), "%v", err)
		}
		h.steps = &ondisk.Budget{Limit: 1 << 13}
		root, err := h.root()
		if err != nil {
			return
		}
		for v, err := range root.Values() {
			if err == nil {
				placesAgree(t, data, v)
			}
		}
		for k, err := range root.Subkeys() {
			if err != nil {
				continue
			}
			for v, err := range k.Values() {
				if err == nil {
					placesAgree(t, data, v)
				}
			}
			if _, err := h.Key(k.Name, "Key0001"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				require.True(t, known(err), "%v", err)
			}
		}
	})
}

// placesAgree holds the places of a value to the file and to its data.
func placesAgree(t *testing.T, file []byte, v *Value) {
	t.Helper()
	data, err := v.Data()
	if err != nil || len(data) == 0 {
		return
	}
	left := v.hive.steps
	v.hive.steps = &ondisk.Budget{Limit: 1000} // enough for the places of what Data reads
	defer func() { v.hive.steps = left }()
	places, err := v.Where(0, v.Size)
	require.NoError(t, err)
	var got []byte
	for _, r := range places {
		b := make([]byte, r.Len)
		_, err := io.ReadFull(io.NewSectionReader(bytes.NewReader(file), r.Off, r.Len), b)
		require.NoError(t, err)
		require.GreaterOrEqual(t, r.Off, int64(baseSize+binHeaderSize))
		got = append(got, b...)
	}
	require.Equal(t, data, got)
	if len(data) > 8 {
		mid := int64(len(data))/2 - 4
		require.Equal(t, data[mid:mid+8], atPlaces(t, bytes.NewReader(file), v, mid, 8))
	}
}

func FuzzNewer(f *testing.F) {
	f.Add([]byte(newLog(3, 5, 6, 7)))
	f.Add([]byte(newLog(3, 9)))
	f.Add([]byte(oldLog(1, 8)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= logSector {
			data = bytes.Clone(data)
			hiveforge.Seal(forge.Bytes(data)) // or hardly any mutation comes as far as the entries
		}
		if _, err := newer(bytes.NewReader(data), 7); err != nil {
			require.True(t, known(err), "%v", err)
		}
	})
}

// A hive with a log of any bytes is read, or refused with an error that says why.
func FuzzRecovery(f *testing.F) {
	h := hiveforge.New(5, seed())
	to := bytes.Clone(h)
	to[len(to)-40]++
	for _, log := range []forge.Bytes{
		hiveforge.Log(h, 9, to), hiveforge.Log(h, 9, to, h), hiveforge.OldLog(h, 1, to),
		hiveforge.OldLog(h, 2, to),
	} {
		f.Add([]byte(log), []byte{}, true)
		f.Add([]byte(log), []byte(hiveforge.Log(forge.Bytes(to), 10, h)), false)
	}
	dirty := hiveforge.Dirty(h, 10)
	f.Fuzz(func(t *testing.T, first, second []byte, seal bool) {
		first = bytes.Clone(first)
		if seal && len(first) >= logSector {
			hiveforge.Seal(forge.Bytes(first))
			if rest := first[logSector:]; len(rest) >= entryHeaderSize && len(rest)%4 == 0 {
				hiveforge.SealEntry(forge.Bytes(rest))
			}
		}
		b := NewBudget()
		b.steps = &ondisk.Budget{Limit: 1 << 13}
		r, err := b.Recover(bytes.NewReader(dirty), Log{bytes.NewReader(first), "1"}, Log{bytes.NewReader(second), "2"})
		if err != nil {
			require.True(t, known(err), "%v", err)
			return
		}
		if err := r.Certain(); err != nil {
			require.True(t, known(err), "%v", err)
		}
		err = r.Each(func(h *Hive) error {
			if err := walk(h); err != nil {
				return err
			}
			n := int64(0)
			for _, p := range h.Places(disk.Range{Off: baseSize, Len: h.end - baseSize}) {
				n += p.Len
			}
			require.Equal(t, h.end-baseSize, n)
			return nil
		})
		if err != nil {
			require.True(t, known(err), "%v", err)
		}
	})
}
