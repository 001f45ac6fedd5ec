package hive

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/bits"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
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

// Parts of long data are at the right positions, also at the borders of segments.
func TestWhereInSegments(t *testing.T) {
	f := hiveforge.New(5,
		hiveforge.Key{Values: []hiveforge.Value{{Name: "million", Type: 3, Data: counted(1_000_000)}}})
	path := filepath.Join(t.TempDir(), "hive")
	f.Write(t, path)
	v := valueOf(t, open(t, f), "million")
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

// A hive written by hivexsh: the values of MountedDevices, and long data in one piece.
func TestHiveOfHivexsh(t *testing.T) {
	path := filepath.Join(t.TempDir(), "SYSTEM")
	hiveforge.New(5, hiveforge.Key{Name: "ROOT"}).Write(t, path)
	disktest.RunInput(t, strings.Join([]string{
		"cd \\", "add MountedDevices", "cd MountedDevices", "setval 3",
		`\DosDevices\C:`, "hex:3:fe,4c,3e,27,00,00,f0,15,00,00,00,00",
		`\??\Volume{9a3f4a34-1f6a-11e3-824f-806e6f6e6963}`, "hex:3:fe,4c,3e,27,00,00,10,00,00,00,00,00",
		`\DosDevices\D:`, "hex:3:5c,00,3f,00", "commit", "quit", "",
	}, "\n"), "hivexsh", "-w", path)
	long := "[\\MountedDevices]\n\"long\"=hex(3):" + strings.Repeat("de,ad,", 9_999) + "de,ad\n"
	disktest.RunInput(t, long, "hivexregedit", "--merge", path)
	raw := disktest.ReadFile(t, path)
	sameLines(t, export(t, path), exported(t, bytes.NewReader(raw)))
	h := open(t, raw)
	data, err := valueOf(t, h, `\DosDevices\C:`, "MountedDevices").Data()
	require.NoError(t, err)
	require.Equal(t, []byte{0xfe, 0x4c, 0x3e, 0x27, 0, 0, 0xf0, 0x15, 0, 0, 0, 0}, data)
	v := valueOf(t, h, "long", "MountedDevices")
	require.Equal(t, bytes.Repeat([]byte{0xde, 0xad}, 10_000), atPlaces(t, bytes.NewReader(raw), v, 0, v.Size))
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

// The code below shares nothing with the package: a recovery in memory and a reader of values, directly from the
// specification. Spec: https://github.com/msuhanov/regf, "Windows registry file format specification".

func plain32(b []byte, at int) int {
	if at < 0 || at+4 > len(b) {
		panic("outside of the file")
	}
	return int(binary.LittleEndian.Uint32(b[at:]))
}

func plain16(b []byte, at int) int {
	if at < 0 || at+2 > len(b) {
		panic("outside of the file")
	}
	return int(binary.LittleEndian.Uint16(b[at:]))
}

// plainBase reports whether a base block is whole.
func plainBase(b []byte) bool {
	if len(b) < 512 || string(b[:4]) != "regf" {
		return false
	}
	sum := uint32(0)
	for at := 0; at < 508; at += 4 {
		sum ^= binary.LittleEndian.Uint32(b[at:])
	}
	switch sum {
	case 0:
		sum = 1
	case 0xffffffff:
		sum = 0xfffffffe
	}
	return sum == binary.LittleEndian.Uint32(b[508:])
}

// plainEntry is an entry of a new log.
type plainEntry struct {
	at, size, bins int
	pages          [][3]int // offset in the hive bins, offset in the log, bytes
}

func plainMarvin(b []byte) uint64 {
	lo, hi := uint32(0x7a4e55c5), uint32(0x82ef4d88)
	mix := func(v uint32) {
		lo += v
		hi ^= lo
		lo = bits.RotateLeft32(lo, 20) + hi
		hi = bits.RotateLeft32(hi, 9) ^ lo
		lo = bits.RotateLeft32(lo, 27) + hi
		hi = bits.RotateLeft32(hi, 19)
	}
	for ; len(b) >= 4; b = b[4:] {
		mix(binary.LittleEndian.Uint32(b))
	}
	mix(0x80)
	mix(0)
	return uint64(hi)<<32 | uint64(lo)
}

// plainEntries returns the entries of a new log up to the first that is torn.
func plainEntries(log []byte) (out []plainEntry) {
	number := uint32(plain32(log, 4))
	for at := 512; at+40 <= len(log); number++ {
		e := plainEntry{at: at, size: plain32(log, at+4), bins: plain32(log, at+16)}
		n := plain32(log, at+20)
		if string(log[at:at+4]) != "HvLE" || uint32(plain32(log, at+12)) != number || e.size%512 != 0 || e.size < 512 ||
			at+e.size > len(log) || e.bins%4096 != 0 || e.bins == 0 || n == 0 || 40+8*n > e.size {
			return out
		}
		raw := log[at : at+e.size]
		if plainMarvin(raw[40:]) != binary.LittleEndian.Uint64(raw[24:]) ||
			plainMarvin(raw[:32]) != binary.LittleEndian.Uint64(raw[32:]) {
			return out
		}
		from := at + 40 + 8*n
		for i := range n {
			ref := [3]int{plain32(raw, 40+8*i), from, plain32(raw, 44+8*i)}
			e.pages, from = append(e.pages, ref), from+ref[2]
		}
		out = append(out, e)
		at += e.size
	}
	return out
}

// plainRecover returns a dirty hive as Windows reads it, and the number of applied entries. It supports hives with a
// valid base block. Of two old logs it uses the first.
func plainRecover(hive []byte, logs ...[]byte) (out []byte, applied int) {
	out = append(out, hive[:min(len(hive), 4096+plain32(hive, 40))]...)
	apply := func(log []byte, e plainEntry) {
		for len(out) < 4096+e.bins {
			out = append(out, 0)
		}
		out = out[:4096+e.bins]
		for _, p := range e.pages {
			copy(out[4096+p[0]:4096+p[0]+p[2]], log[p[1]:p[1]+p[2]])
		}
		applied++
	}
	var fresh [][]byte
	for _, log := range logs {
		if !plainBase(log) || plain32(log, 4) != plain32(log, 8) {
			continue
		}
		if kind := plain32(log, 28); kind != 6 {
			old := plainEntry{bins: plain32(log, 40)} // the whole content of an old log
			from := (516 + old.bins/4096 + 511) / 512 * 512
			if len(log) < 516+old.bins/4096 || string(log[512:516]) != "DIRT" {
				continue
			}
			for page := range old.bins / 512 {
				if log[516+page/8]>>(page%8)&1 == 1 {
					old.pages, from = append(old.pages, [3]int{page * 512, from, 512}), from+512
				}
			}
			if applied == 0 && from <= len(log) && // not cut off
				binary.LittleEndian.Uint64(log[12:]) == binary.LittleEndian.Uint64(hive[12:]) {
				apply(log, old)
			}
		} else if int32(uint32(plain32(log, 4))-uint32(plain32(hive, 8))) >= 0 {
			fresh = append(fresh, log)
		}
	}
	if len(fresh) == 2 && int32(uint32(plain32(fresh[1], 4))-uint32(plain32(fresh[0], 4))) < 0 {
		fresh[0], fresh[1] = fresh[1], fresh[0]
	}
	for i, log := range fresh {
		if i > 0 && (applied == 0 || uint32(plain32(log, 4)) != uint32(plain32(fresh[0], 4))+uint32(applied)) {
			break
		}
		for _, e := range plainEntries(log) {
			apply(log, e)
		}
	}
	return out, applied
}

// plainValues returns all values of a hive by their path, with their kind; err where it cannot be read.
func plainValues(hive []byte) (out map[string]string, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	out = map[string]string{}
	for at := 4096; at < len(hive); at += plain32(hive, at+8) {
		if string(hive[at:at+4]) != "hbin" || plain32(hive, at+4) != at-4096 || plain32(hive, at+8) == 0 {
			panic("no bin")
		}
	}
	cell := func(off int) int { // place of its data
		if size := -int(int32(uint32(plain32(hive, 4096+off)))); size <= 0 || 4096+off+size > len(hive) {
			panic("not a cell in use")
		}
		return 4096 + off + 4
	}
	type node struct {
		off  int
		path string
	}
	for todo := []node{{plain32(hive, 36), ""}}; len(todo) > 0; todo = todo[1:] {
		nk, path := cell(todo[0].off), todo[0].path
		if string(hive[nk:nk+2]) != "nk" || len(todo) > 100_000 {
			panic("no key")
		}
		if n := plain32(hive, nk+36); n > 0 {
			list := cell(plain32(hive, nk+40))
			for i := range n {
				name, data := plainValue(hive, cell, cell(plain32(hive, list+4*i)))
				if _, twice := out[path+"\x00"+name]; twice {
					panic("two values of one name")
				}
				out[path+"\x00"+name] = data
			}
		}
		lists := []int{}
		if plain32(hive, nk+20) > 0 {
			lists = append(lists, plain32(hive, nk+28))
		}
		for ; len(lists) > 0; lists = lists[1:] {
			at := cell(lists[0])
			for i := range plain16(hive, at+2) {
				switch kind := string(hive[at : at+2]); kind {
				case "ri":
					lists = append(lists, plain32(hive, at+4+4*i))
				case "li", "lf", "lh":
					step := map[string]int{"li": 4, "lf": 8, "lh": 8}[kind]
					key := plain32(hive, at+4+step*i)
					k := cell(key)
					todo = append(todo, node{key, path + "\\" + string(hive[k+76:k+76+plain16(hive, k+72)])})
				default:
					panic("no list")
				}
			}
		}
	}
	return out, nil
}

// plainValue returns name and bytes of the value at an offset.
func plainValue(hive []byte, cell func(int) int, vk int) (name, data string) {
	if string(hive[vk:vk+2]) != "vk" {
		panic("no value")
	}
	name = string(hive[vk+20 : vk+20+plain16(hive, vk+2)])
	kind := fmt.Sprintf("%d:", plain32(hive, vk+12))
	size := plain32(hive, vk+4)
	if size>>31 == 1 {
		return name, kind + string(hive[vk+8:vk+8+size&0x7fffffff])
	}
	if size == 0 {
		return name, kind
	}
	at := cell(plain32(hive, vk+8))
	if size <= 16344 || plain32(hive, 24) < 4 {
		return name, kind + string(hive[at:at+size])
	}
	if string(hive[at:at+2]) != "db" {
		panic("no segments")
	}
	list := cell(plain32(hive, at+4))
	for i := range plain16(hive, at+2) {
		part := cell(plain32(hive, list+4*i))
		n := min(16344, size-len(data))
		data += string(hive[part : part+n])
	}
	return name, kind + data
}
