package hive

import (
	"bytes"
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// counted returns n bytes that differ from their neighbours and from those of other segments.
func counted(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i/251)
	}
	return b
}

// numbered returns n keys with a number in their names.
func numbered(n int) (out []hiveforge.Key) {
	for i := range n {
		value := hiveforge.Value{Name: "n", Type: 4, Data: []byte{byte(i), byte(i >> 8), 0, 0}}
		out = append(out, hiveforge.Key{Name: fmt.Sprintf("Key%04d", i), Values: []hiveforge.Value{value}})
	}
	return out
}

// longSize is a size for data of four segments.
const longSize = 3*segmentSize + 100

// all is a hive with each kind of list, name and data.
func all() hiveforge.Key {
	value := func(name string, kind uint32, n int) hiveforge.Value {
		return hiveforge.Value{Name: name, Type: kind, Data: counted(n)}
	}
	return hiveforge.Key{Name: "ROOT", Values: []hiveforge.Value{value("", 1, 10)}, Keys: []hiveforge.Key{
		{Name: "sizes", Values: []hiveforge.Value{
			value("0", 3, 0), value("1", 3, 1), value("3", 3, 3), value("4", 3, 4), value("5", 3, 5), value("8", 11,
				8), value("11", 3, 11),
			value("12", 3, 12), value("13", 3, 13), value("one page", 3, 5000), value("one segment", 3, segmentSize),
			value("a byte more", 3, segmentSize+1), value("two segments", 3, 2*segmentSize), value("long", 3, longSize),
			value("odd type", 0xffff0017, 6),
		}},
		{Name: "names", Values: []hiveforge.Value{
			value(`\DosDevices\C:`, 3, 12), value(`"quoted"`, 1, 4), value("größer", 1, 6), value("日本語", 1, 6),
			{Name: "wide", Type: 1, Data: counted(6), Wide: true},
		}, Keys: []hiveforge.Key{{Name: "Straße"}, {
			Name:   "Ключ",
			Values: []hiveforge.Value{value("x", 3, 9)},
		}, {Name: "WideKey", Wide: true}}},
		{Name: "index leaf", List: "li", Keys: numbered(40)},
		{Name: "fast leaf", List: "lf", Keys: numbered(41)},
		{Name: "hash leaf", List: "lh", Keys: numbered(42)},
		{Name: "index root", List: "ri", Keys: numbered(43)},
		{Name: "deep", Keys: []hiveforge.Key{{
			Name: "deeper",
			Keys: []hiveforge.Key{{Name: "deepest", Values: []hiveforge.Value{value("v", 3, 20)}}},
		}}},
	}}
}

// Other programs read the forged hives too, in all versions, with the same result.
func TestForgedLikeHivex(t *testing.T) {
	for minor := uint32(3); minor <= 6; minor++ {
		t.Run(fmt.Sprintf("1.%d", minor), func(t *testing.T) {
			f := hiveforge.New(minor, all())
			path := filepath.Join(t.TempDir(), "hive")
			f.Write(t, path)
			want := export(t, path)
			require.Greater(t, len(want), 300)
			sameLines(t, want, exported(t, bytes.NewReader(f)))
			require.NoError(t, certain(bytes.NewReader(f)))
		})
	}
}

// open opens a forged hive.
func open(t testing.TB, f []byte) *Hive {
	t.Helper()
	h, err := Open(bytes.NewReader(f))
	require.NoError(t, err)
	return h
}

// valueOf returns an existing value.
func valueOf(t testing.TB, h *Hive, name string, path ...string) *Value {
	t.Helper()
	k, err := h.Key(path...)
	require.NoError(t, err)
	v, err := k.Value(name)
	require.NoError(t, err)
	return v
}

func TestLookups(t *testing.T) {
	h := open(t, hiveforge.New(5, all()))
	k, err := h.Key("NAMES", "КЛЮЧ")
	require.NoError(t, err)
	require.Equal(t, "Ключ", k.Name)
	v := valueOf(t, h, `\dosdevices\c:`, "names")
	require.Equal(t, `\DosDevices\C:`, v.Name)
	require.Equal(t, int64(12), v.Size)
	require.Equal(t, uint32(3), v.Type)
	k, err = h.Key("names")
	require.NoError(t, err)
	v, err = k.Value("GRÖSSER")
	require.ErrorIs(t, err, fs.ErrNotExist, "Windows does not take ss for ß")
	require.Nil(t, v)
	valueOf(t, h, "GRÖßER", "names")
	_, err = k.Value("")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = h.Key("index root", "key0042", "none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.EqualError(t, err, `registry key "none" below "Key0042": file does not exist`)
	require.Equal(t, int64(10), valueOf(t, h, "").Size)
	require.False(t, sameName("ſ", "S"), "a long s is no S for Windows")
	require.False(t, sameName("a", "ab"))
}

// A range over the border of two segments has two places. A range outside of the data has none.
func TestWhereInSegments(t *testing.T) {
	f := hiveforge.New(5,
		hiveforge.Key{Values: []hiveforge.Value{{Name: "million", Type: 3, Data: counted(1_000_000)}}})
	v := valueOf(t, open(t, f), "million")
	for _, off := range []int64{0, segmentSize - 8, segmentSize - 3, segmentSize, 5*segmentSize - 1, 1_000_000 - 8} {
		require.Equal(t, counted(1_000_000)[off:off+8], atPlaces(t, bytes.NewReader(f), v, off, 8), "at %d", off)
	}
	places, err := v.Where(segmentSize-3, 8)
	require.NoError(t, err)
	require.Len(t, places, 2)
	require.Equal(t, int64(3), places[0].Len)
	for _, r := range [][2]int64{
		{-1, 1}, {0, 0}, {0, -1}, {0, 1_000_001}, {999_999, 2}, {1_000_000, 1}, {1 << 62, 1 << 62},
	} {
		_, err := v.Where(r[0], r[1])
		require.ErrorIs(t, err, fs.ErrInvalid, "%v", r)
	}
}

// Data that begin like a big data record are normal if Windows would not split them.
func TestDataLikeBigData(t *testing.T) {
	for minor, n := range map[uint32]int{5: segmentSize, 3: longSize} {
		data := counted(n)
		copy(data, "db")
		f := hiveforge.New(minor, hiveforge.Key{Values: []hiveforge.Value{{Name: "v", Type: 3, Data: data}}})
		got, err := valueOf(t, open(t, f), "v").Data()
		require.NoError(t, err)
		require.Equal(t, data, got)
	}
}

// A value of more than 1 MiB is not read, but has positions.
func TestLongValue(t *testing.T) {
	f := hiveforge.New(5,
		hiveforge.Key{Values: []hiveforge.Value{{Name: "long", Type: 3, Data: counted(maxData + 1)}}})
	v := valueOf(t, open(t, f), "long")
	_, err := v.Data()
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.Equal(t, counted(maxData + 1)[maxData-7:], atPlaces(t, bytes.NewReader(f), v, maxData-7, 8))
}

// Open opens one hive as its file has it, without logs.
func Open(src ondisk.Source) (*Hive, error) {
	r, err := NewBudget().Recover(src)
	if err != nil {
		return nil, err
	}
	w := walker{Recovery: r}
	w.begin()
	return r.hive(w.state), nil
}

// certain reports whether the state in which Windows starts from a hive and its logs is known.
func certain(src ondisk.Source, logs ...Log) error {
	r, err := NewBudget().Recover(src, logs...)
	if err != nil {
		return err
	}
	return r.Certain()
}
