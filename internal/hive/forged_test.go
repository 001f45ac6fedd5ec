package hive

import (
	"bytes"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// counted is n bytes that differ from their neighbours and from those of other segments.
func counted(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i/251)
	}
	return b
}

// numbered are so many keys with a number in their names.
func numbered(n int) (out []hiveforge.Key) {
	for i := range n {
		value := hiveforge.Value{Name: "n", Type: 4, Data: []byte{byte(i), byte(i >> 8), 0, 0}}
		out = append(out, hiveforge.Key{Name: fmt.Sprintf("Key%04d", i), Values: []hiveforge.Value{value}})
	}
	return out
}

// longSize is for data of four segments.
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

// What is forged is a hive for others too, in all versions, and they find the same in it.
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

func TestLookups(t *testing.T) {
	h := open(t, hiveforge.New(5, all()))
	k, err := h.Key("NAMES", "КЛЮЧ")
	require.NoError(t, err)
	require.Equal(t, "Ключ", k.Name)
	k, err = h.Key("names")
	require.NoError(t, err)
	v, err := k.Value(`\dosdevices\c:`)
	require.NoError(t, err)
	require.Equal(t, `\DosDevices\C:`, v.Name)
	require.Equal(t, int64(12), v.Size)
	require.Equal(t, uint32(3), v.Type)
	v, err = k.Value("GRÖSSER")
	require.ErrorIs(t, err, fs.ErrNotExist, "Windows does not take ss for ß")
	require.Nil(t, v)
	_, err = k.Value("GRÖßER")
	require.NoError(t, err)
	_, err = k.Value("")
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = h.Key("index root", "key0042", "none")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.EqualError(t, err, `registry key "none" below "Key0042": file does not exist`)
	root, err := h.Key()
	require.NoError(t, err)
	v, err = root.Value("")
	require.NoError(t, err)
	require.Equal(t, int64(10), v.Size)
	require.False(t, sameName("ſ", "S"), "a long s is no S for Windows")
	require.False(t, sameName("a", "ab"))
}

// Parts of long data are where they should be, at the borders of the segments too.
func TestWhereInSegments(t *testing.T) {
	f := hiveforge.New(5,
		hiveforge.Key{Values: []hiveforge.Value{{Name: "million", Type: 3, Data: counted(1_000_000)}}})
	path := filepath.Join(t.TempDir(), "hive")
	f.Write(t, path)
	k, err := open(t, f).root()
	require.NoError(t, err)
	v, err := k.Value("million")
	require.NoError(t, err)
	require.Equal(t, disktest.Output(t, "hivexget", path, `\`, "million"),
		string(atPlaces(t, bytes.NewReader(f), v, 0, v.Size)))
	want := counted(1_000_000)
	for _, off := range []int64{
		0, 1, segmentSize - 8, segmentSize - 3, segmentSize - 1, segmentSize, 5*segmentSize - 1,
		1_000_000 - 8,
	} {
		for _, n := range []int64{1, 8, segmentSize, segmentSize + 2} {
			if off+n <= v.Size {
				require.Equal(t, want[off:off+n], atPlaces(t, bytes.NewReader(f), v, off, n), "%d bytes at %d", n, off)
			}
		}
	}
	places, err := v.Where(segmentSize-3, 8)
	require.NoError(t, err)
	require.Len(t, places, 2)
	require.Equal(t, int64(3), places[0].Len)
	for _, r := range [][2]int64{
		{-1, 1},
		{0, 0},
		{0, -1},
		{0, 1_000_001},
		{999_999, 2},
		{1_000_000, 1},
		{1 << 62, 1 << 62},
	} {
		_, err := v.Where(r[0], r[1])
		require.ErrorIs(t, err, fs.ErrInvalid, "%v", r)
	}
}

// Data that begin like the record of parted data are none where Windows would not part them.
func TestDataLikeBigData(t *testing.T) {
	for minor, n := range map[uint32]int{5: segmentSize, 3: longSize} {
		data := counted(n)
		copy(data, "db")
		f := hiveforge.New(minor, hiveforge.Key{Values: []hiveforge.Value{{Name: "v", Type: 3, Data: data}}})
		k, err := open(t, f).root()
		require.NoError(t, err)
		v, err := k.Value("v")
		require.NoError(t, err)
		got, err := v.Data()
		require.NoError(t, err)
		require.Equal(t, data, got)
	}
}

// A value of more than 1 MiB is not read, but has its places.
func TestLongValue(t *testing.T) {
	f := hiveforge.New(5,
		hiveforge.Key{Values: []hiveforge.Value{{Name: "long", Type: 3, Data: counted(maxData + 1)}}})
	k, err := open(t, f).root()
	require.NoError(t, err)
	v, err := k.Value("long")
	require.NoError(t, err)
	_, err = v.Data()
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.Equal(t, counted(maxData + 1)[maxData-7:], atPlaces(t, bytes.NewReader(f), v, maxData-7, 8))
}

// hivexsh runs commands of hivexsh that change the hive at path.
func hivexsh(t testing.TB, path string, commands ...string) {
	t.Helper()
	disktest.RunInput(t, strings.Join(commands, "\n")+"\n", "hivexsh", "-w", path)
}

// A hive that hivexsh wrote: the values of MountedDevices, and long data in one piece.
func TestHiveOfHivexsh(t *testing.T) {
	path := filepath.Join(t.TempDir(), "SYSTEM")
	hiveforge.New(5, hiveforge.Key{Name: "ROOT"}).Write(t, path)
	hivexsh(t, path, "cd \\", "add MountedDevices", "cd MountedDevices", "setval 3",
		`\DosDevices\C:`, "hex:3:fe,4c,3e,27,00,00,f0,15,00,00,00,00",
		`\??\Volume{9a3f4a34-1f6a-11e3-824f-806e6f6e6963}`, "hex:3:fe,4c,3e,27,00,00,10,00,00,00,00,00",
		`\DosDevices\D:`, "hex:3:5c,00,3f,00", "commit", "quit")
	long := "[\\MountedDevices]\n\"long\"=hex(3):" + strings.Repeat("de,ad,", 9_999) + "de,ad\n"
	disktest.RunInput(t, long, "hivexregedit", "--merge", path)
	raw := disktest.ReadFile(t, path)
	sameLines(t, export(t, path), exported(t, bytes.NewReader(raw)))
	h := open(t, raw)
	k, err := h.Key("MountedDevices")
	require.NoError(t, err)
	v, err := k.Value(`\DosDevices\C:`)
	require.NoError(t, err)
	data, err := v.Data()
	require.NoError(t, err)
	require.Equal(t, []byte{0xfe, 0x4c, 0x3e, 0x27, 0, 0, 0xf0, 0x15, 0, 0, 0, 0}, data)
	v, err = k.Value("long")
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte{0xde, 0xad}, 10_000), atPlaces(t, bytes.NewReader(raw), v, 0, v.Size))
}
