package hive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// walk reads all that a hive holds, and gives the first error. It goes on behind what is broken, as a caller may.
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

// place is where a key of a forged hive lies in the file, behind its size.
func place(t testing.TB, f forge.Bytes, path ...string) int64 {
	t.Helper()
	k, err := open(t, f).Key(path...)
	require.NoError(t, err)
	return baseSize + int64(k.off) + 4
}

// valuePlace is the same of a value.
func valuePlace(t testing.TB, f forge.Bytes, name string, path ...string) int64 {
	t.Helper()
	k, err := open(t, f).Key(path...)
	require.NoError(t, err)
	v, err := k.Value(name)
	require.NoError(t, err)
	return v.cell.at
}

// u32 reads a field back.
func u32(f forge.Bytes, off int64) uint32 { return binary.LittleEndian.Uint32(f[off:]) }

// Fields of a key and of a value, from the start of their cells.
const (
	keyParent, keySubkeys, keySubkeyList, keyValues, keyValueList, keyNameLength = 16, 20, 28, 36, 40, 72
	valueSize, valueOffset                                                       = 4, 8
)

// listPlace returns where the list of the subkeys of a key lies.
func listPlace(t testing.TB, f forge.Bytes, path ...string) int64 {
	t.Helper()
	return baseSize + int64(u32(f, place(t, f, path...)+keySubkeyList)) + 4
}

// cellOffset returns how others refer to the cell that holds the byte at.
func cellOffset(at int64) uint32 { return uint32(at - 4 - baseSize) }

type brokenHive struct {
	want   string
	damage func(f forge.Bytes)
}

// Each change breaks a hive in one place: the walk says so, goes on elsewhere, and ends.
func TestBrokenHives(t *testing.T) {
	for _, cases := range []map[string]brokenHive{brokenCells(t), brokenKeys(t), brokenValues(t)} {
		for name, tc := range cases {
			t.Run(name, func(t *testing.T) {
				f := hiveforge.New(5, all())
				require.NoError(t, walk(open(t, f)))
				tc.damage(f)
				hiveforge.Seal(f)
				err := walk(open(t, f))
				require.ErrorIs(t, err, ondisk.ErrFormat)
				require.ErrorContains(t, err, tc.want)
			})
		}
	}
}

// brokenCells are faults of the root, its cell and the bins.
func brokenCells(t testing.TB) map[string]brokenHive {
	t.Helper()
	return map[string]brokenHive{
		"root cell of size 0":     {"cell size", func(f forge.Bytes) { f.U32(place(t, f)-4, 0) }},
		"root cell of size -2^31": {"cell size", func(f forge.Bytes) { f.U32(place(t, f)-4, 1<<31) }},
		"free root cell":          {"cell size", func(f forge.Bytes) { f.U32(place(t, f)-4, 96) }},
		"root cell of an odd size": {"cell size", func(f forge.Bytes) {
			f.U32(place(t, f)-4, u32(f, place(t, f)-4)-4)
		}},
		"root cell beyond its bin": {"cell size", func(f forge.Bytes) { f.U32(place(t, f)-4, ^uint32(8191)) }},
		"root cell in a bin's header": {"cell size", func(f forge.Bytes) {
			f.U32(baseSize+24, u32(f, place(t, f)-4))
			copy(f[baseSize+28:], f[place(t, f):][:80])
			f.U32(HiveRoot, 24)
		}},
		"no root cell":      {"cell offset", func(f forge.Bytes) { f.U32(HiveRoot, math.MaxUint32) }},
		"root cell outside": {"cell offset", func(f forge.Bytes) { f.U32(HiveRoot, 0xfffffff8) }},
		"root cell behind the bins": {
			"cell offset",
			func(f forge.Bytes) { f.U32(HiveRoot, uint32(len(f)-baseSize)) },
		},
		"root cell no multiple of 8": {
			"cell offset",
			func(f forge.Bytes) { f.U32(HiveRoot, cellOffset(place(t, f))+4) },
		},
		"root cell is no key": {"signature", func(f forge.Bytes) { f.Text(place(t, f), "kn") }},
		"bins of size 0":      {"cell offset", func(f forge.Bytes) { f.U32(hiveforge.BinsSize, 0) }},
		"bin of size 0":       {"hive bin at 0x1000: size", func(f forge.Bytes) { f.U32(baseSize+8, 0) }},
		"bin of an odd size":  {"hive bin at 0x1000: size", func(f forge.Bytes) { f.U32(baseSize+8, 4104) }},
		"bin of 4 GiB": {
			"hive bin at 0x1000: size",
			func(f forge.Bytes) { f.U32(baseSize+8, 0xfffff000) },
		},
		"bin of another place": {"hive bin at 0x1000: offset", func(f forge.Bytes) { f.U32(baseSize+4, 4096) }},
		"no bin": {
			"hive bin at 0x1000: signature",
			func(f forge.Bytes) { f.Text(baseSize, "nibh") },
		},
	}
}

// brokenKeys are faults of keys and their lists.
func brokenKeys(t testing.TB) map[string]brokenHive {
	t.Helper()
	return map[string]brokenHive{
		"2^32-1 subkeys": {
			"number of subkeys",
			func(f forge.Bytes) { f.U32(place(t, f)+keySubkeys, math.MaxUint32) },
		},
		"a subkey less than listed": {
			"number of subkeys",
			func(f forge.Bytes) { f.U32(place(t, f)+keySubkeys, u32(f, place(t, f)+keySubkeys)-1) },
		},
		"2^32-1 values": {
			"number of elements",
			func(f forge.Bytes) { f.U32(place(t, f, "sizes")+keyValues, math.MaxUint32) },
		},
		"65535 elements in a list": {
			"number of elements",
			func(f forge.Bytes) { f.U16(listPlace(t, f)+2, math.MaxUint16) },
		},
		"unknown list": {"signature", func(f forge.Bytes) { f.Text(listPlace(t, f), "lx") }},
		"list outside": {
			"cell offset",
			func(f forge.Bytes) { f.U32(place(t, f)+keySubkeyList, 0x7ffffff8) },
		},
		"no list of values": {
			"cell offset",
			func(f forge.Bytes) { f.U32(place(t, f, "sizes")+keyValueList, math.MaxUint32) },
		},
		"list that is a key": {
			"signature",
			func(f forge.Bytes) { f.U32(place(t, f)+keySubkeyList, cellOffset(place(t, f))) },
		},
		"root of lists names itself": {
			"lh or li below ri",
			func(f forge.Bytes) { f.U32(listPlace(t, f, "index root")+4, cellOffset(listPlace(t, f, "index root"))) },
		},
		"root of lists names a key": {
			"signature",
			func(f forge.Bytes) { f.U32(listPlace(t, f, "index root")+4, cellOffset(place(t, f))) },
		},
		"key names the root": {
			"parent",
			func(f forge.Bytes) { f.U32(listPlace(t, f, "deep")+4, cellOffset(place(t, f))) },
		},
		"key names its parent": {
			"parent",
			func(f forge.Bytes) { f.U32(listPlace(t, f, "deep", "deeper")+4, cellOffset(place(t, f, "deep"))) },
		},
		"key names itself": {
			"parent",
			func(f forge.Bytes) { f.U32(listPlace(t, f, "deep")+4, cellOffset(place(t, f, "deep"))) },
		},
		"key names a list of its parent": {
			"parent",
			func(f forge.Bytes) {
				f.U32(place(t, f, "deep", "deeper")+keySubkeyList, cellOffset(listPlace(t, f, "deep")))
			},
		},
		"root below a key that claims to be its parent": {"parent", func(f forge.Bytes) {
			f.U32(place(t, f)+keyParent, cellOffset(place(t, f, "deep")))
			f.U32(listPlace(t, f, "deep")+4, cellOffset(place(t, f)))
		}},
		"name of a key of 65535 bytes": {
			"name length",
			func(f forge.Bytes) { f.U16(place(t, f, "deep")+keyNameLength, math.MaxUint16) },
		},
		"odd UTF-16 name of a key": {
			"name length",
			func(f forge.Bytes) { f.U16(place(t, f, "names", "WideKey")+keyNameLength, 13) },
		},
	}
}

// brokenValues are faults of values and their data.
func brokenValues(t testing.TB) map[string]brokenHive {
	t.Helper()
	return map[string]brokenHive{
		"odd UTF-16 name of a value": {
			"name length",
			func(f forge.Bytes) { f.U16(valuePlace(t, f, "wide", "names")+2, 7) },
		},
		"value is no value": {
			"signature",
			func(f forge.Bytes) { f.Text(valuePlace(t, f, "8", "sizes"), "kv") },
		},
		"value outside": {
			"cell offset",
			func(f forge.Bytes) { f.U32(baseSize+4+int64(u32(f, place(t, f, "sizes")+keyValueList)), 0xfffffff0) },
		},
		"inline value of 5 bytes": {
			"data size",
			func(f forge.Bytes) { f.U32(valuePlace(t, f, "4", "sizes")+valueSize, 1<<31|5) },
		},
		"value longer than its cell": {
			"the size of its cell",
			func(f forge.Bytes) { f.U32(valuePlace(t, f, "12", "sizes")+valueSize, 13+8) },
		},
		"value of 0x7fffffff bytes": {
			"data size",
			func(f forge.Bytes) { f.U32(valuePlace(t, f, "12", "sizes")+valueSize, 0x7fffffff) },
		},
		"data outside": {
			"cell offset",
			func(f forge.Bytes) { f.U32(valuePlace(t, f, "12", "sizes")+valueOffset, 0xfffffff8) },
		},
		"data in a cell of size 0": {"cell size", func(f forge.Bytes) {
			f.U32(baseSize+int64(u32(f, valuePlace(t, f, "12", "sizes")+valueOffset)), 0)
		}},
		"big data of 0x7fffffff bytes": {
			"data size",
			func(f forge.Bytes) { f.U32(valuePlace(t, f, "long", "sizes")+valueSize, 0x7fffffff) },
		},
		"big data of a segment too few": {
			"number of segments",
			func(f forge.Bytes) { f.U32(valuePlace(t, f, "two segments", "sizes")+valueSize, 2*segmentSize+1) },
		},
		"big data without their list": {
			"cell offset",
			func(f forge.Bytes) { f.U32(bigPlace(t, f)+4, math.MaxUint32) },
		},
		"big data with another signature": {
			"the size of its cell",
			func(f forge.Bytes) { f.Text(bigPlace(t, f), "bd") },
		},
		"big data with a list too short": {
			"number of elements",
			func(f forge.Bytes) { f.U32(bigPlace(t, f)+4, cellOffset(listPlace(t, f, "deep"))) },
		},
		"segment of big data outside": {
			"cell offset",
			func(f forge.Bytes) { f.U32(baseSize+8+int64(u32(f, bigPlace(t, f)+4)), 0xfffffff8) },
		},
		"segment of big data too short": {
			"cell size",
			func(f forge.Bytes) {
				f.U32(baseSize+8+int64(u32(f, bigPlace(t, f)+4)), cellOffset(listPlace(t, f, "deep")))
			},
		},
	}
}

// HiveRoot is short for the table above.
const HiveRoot = hiveforge.RootCell

// bigPlace is where the record of parted data lies.
func bigPlace(t testing.TB, f forge.Bytes) int64 {
	t.Helper()
	return baseSize + 4 + int64(u32(f, valuePlace(t, f, "long", "sizes")+8))
}

// A broken neighbour hides nothing else, but nothing is said to be missing that might be it.
func TestBrokenNeighbour(t *testing.T) {
	f := hiveforge.New(5, all())
	f.U16(valuePlace(t, f, "wide", "names")+2, 7)
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

func TestWhatIsNoHive(t *testing.T) {
	good := hiveforge.New(5, all())
	for name, tc := range map[string]struct {
		damage func(f forge.Bytes) forge.Bytes
		want   error
	}{
		"empty":             {func(f forge.Bytes) forge.Bytes { return nil }, ondisk.ErrFormat},
		"half a sector":     {func(f forge.Bytes) forge.Bytes { return f[:256] }, ondisk.ErrFormat},
		"another signature": {func(f forge.Bytes) forge.Bytes { f.Text(0, "rege"); return f }, ondisk.ErrFormat},
		"zeros": {
			func(f forge.Bytes) forge.Bytes { return make(forge.Bytes, 8192) },
			ondisk.ErrFormat,
		},
		"a log": {
			func(f forge.Bytes) forge.Bytes { f.U32(hiveforge.FileType, 6); return f },
			ondisk.ErrFormat,
		},
		"version 1.2": {
			func(f forge.Bytes) forge.Bytes { f.U32(hiveforge.Minor, 2); return f },
			ondisk.ErrUnsupported,
		},
		"version 1.7": {
			func(f forge.Bytes) forge.Bytes { f.U32(hiveforge.Minor, 7); return f },
			ondisk.ErrUnsupported,
		},
		"version 2.5":         {func(f forge.Bytes) forge.Bytes { f.U32(20, 2); return f }, ondisk.ErrUnsupported},
		"another file format": {func(f forge.Bytes) forge.Bytes { f.U32(32, 2); return f }, ondisk.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			f := tc.damage(bytes.Clone(good))
			if len(f) > 512 {
				hiveforge.Seal(f)
			}
			_, err := Open(bytes.NewReader(f))
			require.ErrorIs(t, err, tc.want)
		})
	}
	_, err := Open(io.NewSectionReader(bytes.NewReader(nil), 0, maxFile+1))
	require.ErrorIs(t, err, ondisk.ErrLimit)
	h := open(t, good[:baseSize])
	_, err = h.root()
	require.ErrorIs(t, err, ondisk.ErrFormat, "a base block and nothing else")
}

// What Windows would mend is read, and told from what it takes as it is.
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
