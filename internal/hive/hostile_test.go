package hive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// walk reads everything in a hive, and returns the first error. It continues after errors, as a caller may.
func walk(h *Hive) error {
	root, err := h.root()
	if err != nil {
		return err
	}
	var first error
	note := func(err error) (stop bool) {
		if first == nil || !errors.Is(err, ondisk.ErrFormat) {
			first = err
		}
		return !errors.Is(err, ondisk.ErrFormat)
	}
	for todo := []*Key{root}; len(todo) > 0; {
		k := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for v, err := range k.Values() {
			if err == nil {
				_, err = v.Data()
			}
			if err != nil && note(err) {
				return first
			}
		}
		for sub, err := range k.Subkeys() {
			if err == nil {
				todo = append(todo, sub)
			} else if note(err) {
				return first
			}
		}
	}
	return first
}

// fields finds the fields of a forged hive in its file.
type fields struct {
	t testing.TB
	forge.Bytes
}

// key is the offset of a key, after its size.
func (f fields) key(path ...string) int64 {
	f.t.Helper()
	k, err := open(f.t, f.Bytes).Key(path...)
	require.NoError(f.t, err)
	return baseSize + int64(k.off) + 4
}

// value is the offset of a value, after its size.
func (f fields) value(name string, path ...string) int64 {
	f.t.Helper()
	return valueOf(f.t, open(f.t, f.Bytes), name, path...).cell.at
}

// list is the offset of a key's subkey list, and big that of the big data record.
func (f fields) list(path ...string) int64 { return f.cell(f.key(path...) + keySubkeyList) }
func (f fields) big() int64                { return f.cell(f.value("long", "sizes") + valueOffset) }

// cell is the offset of the cell that a field refers to, after its size.
func (f fields) cell(off int64) int64 { return baseSize + 4 + int64(f.u32(off)) }

// u32 reads a field back.
func (f fields) u32(off int64) uint32 { return binary.LittleEndian.Uint32(f.Bytes[off:]) }

// Fields of a key and of a value, from the start of their cells.
const (
	keyParent, keySubkeys, keySubkeyList, keyValues, keyValueList, keyNameLength = 16, 20, 28, 36, 40, 72
	valueSize, valueOffset                                                       = 4, 8
)

// cellOffset returns the offset by which other cells refer to the cell whose content begins at byte at of the file.
func cellOffset(at int64) uint32 { return uint32(at - 4 - baseSize) }

type brokenHive struct {
	want   string
	damage func(f fields)
}

// Each change breaks a hive in one place: the walk reports it, continues elsewhere, and ends.
func TestBrokenHives(t *testing.T) {
	for name, tc := range brokenHives {
		t.Run(name, func(t *testing.T) {
			f := hiveforge.New(5, all())
			require.NoError(t, walk(open(t, f)))
			tc.damage(fields{t, f})
			hiveforge.Seal(f)
			err := walk(open(t, f))
			require.ErrorIs(t, err, ondisk.ErrFormat)
			require.ErrorContains(t, err, tc.want)
		})
	}
}

var brokenHives = map[string]brokenHive{
	// Faults of the root, its cell and the bins.
	"root cell of size 0":      {"cell size", func(f fields) { f.U32(f.key()-4, 0) }},
	"free root cell":           {"cell size", func(f fields) { f.U32(f.key()-4, 96) }},
	"no root cell":             {"cell offset", func(f fields) { f.U32(hiveforge.RootCell, math.MaxUint32) }},
	"bins of size 0":           {"cell offset", func(f fields) { f.U32(hiveforge.BinsSize, 0) }},
	"bin of size 0":            {"hive bin at 0x1000: size", func(f fields) { f.U32(baseSize+8, 0) }},
	"bin of an odd size":       {"hive bin at 0x1000: size", func(f fields) { f.U32(baseSize+8, 4104) }},
	"root cell of size -2^31":  {"cell size", func(f fields) { f.U32(f.key()-4, 1<<31) }},
	"root cell of an odd size": {"cell size", func(f fields) { f.U32(f.key()-4, f.u32(f.key()-4)-4) }},
	"root cell beyond its bin": {"cell size", func(f fields) { f.U32(f.key()-4, ^uint32(8191)) }},
	"root cell in a bin's header": {"cell size", func(f fields) {
		f.U32(baseSize+24, f.u32(f.key()-4))
		copy(f.Bytes[baseSize+28:], f.Bytes[f.key():][:80])
		f.U32(hiveforge.RootCell, 24)
	}},
	"root cell outside": {"cell offset", func(f fields) { f.U32(hiveforge.RootCell, 0xfffffff8) }},
	"root cell behind the bins": {"cell offset", func(f fields) {
		f.U32(hiveforge.RootCell, uint32(len(f.Bytes)-baseSize))
	}},
	"root cell no multiple of 8": {"cell offset", func(f fields) {
		f.U32(hiveforge.RootCell, cellOffset(f.key())+4)
	}},
	"root cell is no key":  {"signature", func(f fields) { f.Text(f.key(), "kn") }},
	"bin of 4 GiB":         {"hive bin at 0x1000: size", func(f fields) { f.U32(baseSize+8, 0xfffff000) }},
	"bin of another place": {"hive bin at 0x1000: offset", func(f fields) { f.U32(baseSize+4, 4096) }},
	"no bin":               {"hive bin at 0x1000: signature", func(f fields) { f.Text(baseSize, "nibh") }},

	// Faults of keys and their lists.
	"2^32-1 subkeys": {"number of subkeys", func(f fields) { f.U32(f.key()+keySubkeys, math.MaxUint32) }},
	"a subkey less than listed": {"number of subkeys", func(f fields) {
		f.U32(f.key()+keySubkeys, f.u32(f.key()+keySubkeys)-1)
	}},
	"2^32-1 values": {"number of elements", func(f fields) {
		f.U32(f.key("sizes")+keyValues, math.MaxUint32)
	}},
	"65535 elements in a list": {"number of elements", func(f fields) { f.U16(f.list()+2, math.MaxUint16) }},
	"unknown list":             {"signature", func(f fields) { f.Text(f.list(), "lx") }},
	"list outside":             {"cell offset", func(f fields) { f.U32(f.key()+keySubkeyList, 0x7ffffff8) }},
	"no list of values": {"cell offset", func(f fields) {
		f.U32(f.key("sizes")+keyValueList, math.MaxUint32)
	}},
	"list that is a key": {"signature", func(f fields) { f.U32(f.key()+keySubkeyList, cellOffset(f.key())) }},
	"root of lists names itself": {"lh or li below ri", func(f fields) {
		f.U32(f.list("index root")+4, cellOffset(f.list("index root")))
	}},
	"root of lists names a key": {"signature", func(f fields) { f.U32(f.list("index root")+4, cellOffset(f.key())) }},
	"key names the root":        {"parent", func(f fields) { f.U32(f.list("deep")+4, cellOffset(f.key())) }},
	"key names its parent": {"parent", func(f fields) {
		f.U32(f.list("deep", "deeper")+4, cellOffset(f.key("deep")))
	}},
	"key names itself": {"parent", func(f fields) { f.U32(f.list("deep")+4, cellOffset(f.key("deep"))) }},
	"key names a list of its parent": {"parent", func(f fields) {
		f.U32(f.key("deep", "deeper")+keySubkeyList, cellOffset(f.list("deep")))
	}},
	"root below a key that claims to be its parent": {"parent", func(f fields) {
		f.U32(f.key()+keyParent, cellOffset(f.key("deep")))
		f.U32(f.list("deep")+4, cellOffset(f.key()))
	}},
	"name of a key of 65535 bytes": {"name length", func(f fields) {
		f.U16(f.key("deep")+keyNameLength, math.MaxUint16)
	}},
	"odd UTF-16 name of a key": {"name length", func(f fields) {
		f.U16(f.key("names", "WideKey")+keyNameLength, 13)
	}},

	// Faults of values and their data.
	"odd UTF-16 name of a value": {"name length", func(f fields) { f.U16(f.value("wide", "names")+2, 7) }},
	"value is no value":          {"signature", func(f fields) { f.Text(f.value("8", "sizes"), "kv") }},
	"value outside": {"cell offset", func(f fields) {
		f.U32(f.cell(f.key("sizes")+keyValueList), 0xfffffff0)
	}},
	"inline value of 5 bytes": {"data size", func(f fields) { f.U32(f.value("4", "sizes")+valueSize, 1<<31|5) }},
	"value longer than its cell": {"the size of its cell", func(f fields) {
		f.U32(f.value("12", "sizes")+valueSize, 13+8)
	}},
	"value of 0x7fffffff bytes": {"data size", func(f fields) {
		f.U32(f.value("12", "sizes")+valueSize, 0x7fffffff)
	}},
	"data outside": {"cell offset", func(f fields) {
		f.U32(f.value("12", "sizes")+valueOffset, 0xfffffff8)
	}},
	"data in a cell of size 0": {"cell size", func(f fields) {
		f.U32(f.cell(f.value("12", "sizes")+valueOffset)-4, 0)
	}},
	"big data of 0x7fffffff bytes": {"data size", func(f fields) {
		f.U32(f.value("long", "sizes")+valueSize, 0x7fffffff)
	}},
	"big data of a segment too few": {"number of segments", func(f fields) {
		f.U32(f.value("two segments", "sizes")+valueSize, 2*segmentSize+1)
	}},
	"big data without their list":     {"cell offset", func(f fields) { f.U32(f.big()+4, math.MaxUint32) }},
	"big data with another signature": {"the size of its cell", func(f fields) { f.Text(f.big(), "bd") }},
	"big data with a list too short": {"number of elements", func(f fields) {
		f.U32(f.big()+4, cellOffset(f.list("deep")))
	}},
	"segment of big data outside": {"cell offset", func(f fields) { f.U32(f.cell(f.big()+4)+4, 0xfffffff8) }},
	"segment of big data too short": {"cell size", func(f fields) {
		f.U32(f.cell(f.big()+4)+4, cellOffset(f.list("deep")))
	}},
}

// A broken neighbour hides nothing else, and no value is reported missing that could be in it.
func TestBrokenNeighbour(t *testing.T) {
	f := hiveforge.New(5, all())
	f.U16(fields{t, f}.value("wide", "names")+2, 7)
	k, err := open(t, f).Key("names")
	require.NoError(t, err)
	_, err = k.Value("日本語")
	require.NoError(t, err)
	_, err = k.Value("none")
	require.ErrorIs(t, err, ondisk.ErrFormat)
	n, broken := 0, 0
	for _, err := range k.Values() {
		if n++; err != nil {
			broken++
		}
	}
	require.Equal(t, []int{5, 1}, []int{n, broken})
}

func TestNotAHive(t *testing.T) {
	good := hiveforge.New(5, all())
	for name, tc := range map[string]struct {
		f    forge.Bytes
		want error
	}{
		"empty":               {nil, ondisk.ErrFormat},
		"half a sector":       {good[:256], ondisk.ErrFormat},
		"zeros":               {make(forge.Bytes, 8192), ondisk.ErrFormat},
		"another signature":   {base32(bytes.Clone(good), 0, 0x65676572), ondisk.ErrFormat}, // rege
		"a log":               {base32(bytes.Clone(good), hiveforge.FileType, 6), ondisk.ErrFormat},
		"version 1.2":         {base32(bytes.Clone(good), hiveforge.Minor, 2), ondisk.ErrUnsupported},
		"version 1.7":         {base32(bytes.Clone(good), hiveforge.Minor, 7), ondisk.ErrUnsupported},
		"version 2.5":         {base32(bytes.Clone(good), 20, 2), ondisk.ErrUnsupported},
		"another file format": {base32(bytes.Clone(good), 32, 2), ondisk.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(bytes.NewReader(tc.f))
			require.ErrorIs(t, err, tc.want)
		})
	}
	_, err := Open(io.NewSectionReader(bytes.NewReader(nil), 0, maxFile+1))
	require.ErrorIs(t, err, ondisk.ErrLimit)
	h := open(t, good[:baseSize])
	_, err = h.root()
	require.ErrorIs(t, err, ondisk.ErrFormat, "a base block and nothing else")
}

// Damage that Windows would repair can be read, and is distinguished from variants that it accepts.
func TestClean(t *testing.T) {
	for name, tc := range map[string]struct {
		damage func(f forge.Bytes) forge.Bytes
		want   string
	}{
		"sequence numbers differ": {func(f forge.Bytes) forge.Bytes {
			f.U32(hiveforge.Sequence1, 5)
			f.U32(hiveforge.Sequence2, 4)
			hiveforge.Seal(f)
			return f
		}, "sequence numbers 5 and 4 differ, and no log fits: Windows was not shut down cleanly"},
		"checksum": {
			func(f forge.Bytes) forge.Bytes { f.U32(hiveforge.Checksum, 7); return f },
			"checksum of the base block is 0x7, want ",
		},
		"cut off, or not grown yet": {func(f forge.Bytes) forge.Bytes {
			f.U32(hiveforge.BinsSize, uint32(len(f)))
			hiveforge.Seal(f)
			return f
		}, "it was cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			f := tc.damage(hiveforge.New(5, all()))
			err := certain(bytes.NewReader(f))
			require.ErrorIs(t, err, ondisk.ErrUnsupported)
			require.ErrorContains(t, err, tc.want)
			k, err := open(t, f).Key("names")
			require.NoError(t, err)
			_, err = k.Value(`\DosDevices\C:`)
			require.NoError(t, err)
		})
	}
	padded := append(hiveforge.New(5, all()), bytes.Repeat([]byte{0xff}, 10_000)...)
	require.NoError(t, certain(bytes.NewReader(padded)), "bytes behind the bins mean nothing")
	require.NoError(t, walk(open(t, padded)))
	require.Equal(t, uint32(1), checksum(make([]byte, 512)), "0 is never a checksum")
	require.Equal(t, uint32(math.MaxUint32-1), checksum(append([]byte{255, 255, 255, 255}, make([]byte, 508)...)),
		"nor is -1")
}

// cost runs do, and requires that its memory stays within the budget of an untrusted image. Its time is limited by the
// steps of a hive and the bytes read, both of which end with ErrLimit.
func cost(t testing.TB, do func()) {
	t.Helper()
	taken := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapSys - m.HeapReleased)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // whatever the suite has set: uncollected memory is not counted
	debug.FreeOSMemory()                             // so that further memory is new
	before := taken()
	do()
	require.Less(t, taken()-before, int64(64<<20), "bytes")
}

// mounted returns a hive with n values in MountedDevices.
func mounted(n int) forge.Bytes {
	values := make([]hiveforge.Value, n)
	for i := range values {
		values[i] = hiveforge.Value{
			Name: fmt.Sprintf(`\??\Volume{%08x-0000-0000-0000-000000000000}`, i), Type: 3, Data: counted(12),
		}
	}
	return hiveforge.New(5,
		hiveforge.Key{Name: "ROOT", Keys: []hiveforge.Key{{Name: "MountedDevices", Values: values}}})
}

func TestManyValues(t *testing.T) {
	f := mounted(100_000)
	cost(t, func() {
		h := open(t, f)
		k, err := h.Key("MountedDevices")
		require.NoError(t, err)
		n := 0
		for v, err := range k.Values() {
			require.NoError(t, err)
			data, err := v.Data()
			require.NoError(t, err)
			require.Len(t, data, 12)
			n++
		}
		require.Equal(t, 100_000, n)
	})
}

// Three keys, each of which refers to the next one 3334 times, would be 37 billion keys.
func TestRepeatedSubkeys(t *testing.T) {
	k := hiveforge.Key{Name: "Key"}
	for range 3 {
		k = hiveforge.Key{Name: "Key", Keys: append(numbered(9_999), k), List: "ri"}
	}
	f := hiveforge.New(5, k)
	// whose first leaf has the next one, since its name sorts first
	for _, path := range [][]string{{}, {"Key"}, {"Key", "Key"}} {
		list := fields{t, f}.list(path...)
		for i := range int64(3334) {
			f.U32(list+4+4*i, fields{t, f}.u32(list+4))
		}
	}
	cost(t, func() { require.ErrorIs(t, walk(open(t, f)), ondisk.ErrLimit) })
}

// Empty elements cost steps too, otherwise a list of lists of them would be endless.
func TestManyBrokenKeys(t *testing.T) {
	f := hiveforge.New(5, hiveforge.Key{Keys: numbered(100), List: "ri"})
	h := open(t, f)
	root, err := h.root()
	require.NoError(t, err)
	for i := range 100 {
		f.Text(fields{t, f}.key(fmt.Sprintf("Key%04d", 99-i)), "kn")
	}
	h.steps = &ondisk.Budget{Limit: 100}
	err = nil
	for _, e := range root.Subkeys() {
		err = e
	}
	require.ErrorIs(t, err, ondisk.ErrLimit)
}

// No more subkeys are returned than the key has.
func TestSubkeysOfKey(t *testing.T) {
	f := hiveforge.New(5, hiveforge.Key{Keys: numbered(100)})
	f.U32(fields{t, f}.key()+20, 7)
	root, err := open(t, f).root()
	require.NoError(t, err)
	keys, broken := 0, 0
	for _, err := range root.Subkeys() {
		if keys++; err != nil {
			keys, broken = keys-1, broken+1
		}
	}
	require.Equal(t, []int{7, 1}, []int{keys, broken})
}

// huge is a source of 512 MiB in bins of 4096 bytes, none of which is stored.
type huge struct{ begin forge.Bytes }

func (h huge) Size() int64 { return maxFile }

func (h huge) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	for at := (off + 4095) / 4096 * 4096; at+32 <= off+int64(len(p)); at += 4096 {
		bin := forge.Bytes(p[at-off:])
		bin.Text(0, "hbin")
		bin.U32(4, uint32(at-baseSize))
		bin.U32(8, 4096)
	}
	if off < int64(len(h.begin)) {
		copy(p, h.begin[off:])
	}
	return len(p), nil
}

// All bins of the largest hive are walked once, with little memory. Reading it repeatedly ends with a limit.
func TestHugeHive(t *testing.T) {
	src := huge{hiveforge.New(5,
		hiveforge.Key{Name: "ROOT", Values: []hiveforge.Value{{Name: "far", Type: 3, Data: counted(8)}}})}
	src.begin.U32(fields{t, src.begin}.value("far")+8, maxFile-baseSize-8)
	src.begin.U32(hiveforge.BinsSize, maxFile-baseSize)
	hiveforge.Seal(src.begin)
	h, err := Open(src)
	require.NoError(t, err)
	cost(t, func() {
		_, err := valueOf(t, h, "far").Where(0, 8)
		require.ErrorIs(t, err, ondisk.ErrFormat, "there is no cell")
		require.Len(t, h.bins, maxFile/4096-1)
		for off := int64(0); err != nil &&
			!errors.Is(err, ondisk.ErrLimit); off = (off + 131*4096) % (maxFile - baseSize) {
			_, err = h.cell(uint32(off), "cell")
		}
		require.ErrorIs(t, err, ondisk.ErrLimit)
	})
}

func TestDeepKeys(t *testing.T) {
	k := hiveforge.Key{Name: "deepest"}
	for range maxDepth {
		k = hiveforge.Key{Name: "k", Keys: []hiveforge.Key{k}}
	}
	require.NoError(t, walk(open(t, hiveforge.New(5, k))))
	k = hiveforge.Key{Name: "k", Keys: []hiveforge.Key{k}}
	require.ErrorIs(t, walk(open(t, hiveforge.New(5, k))), ondisk.ErrLimit)
}

// A value costs its caller few allocations, for any number of values.
func TestAllocations(t *testing.T) {
	h := open(t, mounted(100))
	h.steps = &ondisk.Budget{Limit: math.MaxInt64}
	k, err := h.Key("MountedDevices")
	require.NoError(t, err)
	n := testing.AllocsPerRun(10, func() {
		for _, err := range k.Values() {
			require.NoError(t, err)
		}
	})
	require.Less(t, n, 100*8.0)
}
