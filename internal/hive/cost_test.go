package hive

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// cost runs do and holds its memory to what a stranger's image may waste. What time it takes is bounded by the steps
// of a hive and the bytes that are read of it, both of which end with ErrLimit.
func cost(t testing.TB, do func()) {
	t.Helper()
	taken := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapSys - m.HeapReleased)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // whatever the suite has set: what is not collected is not waste
	debug.FreeOSMemory()                             // so that what is taken from here on is new
	before := taken()
	do()
	require.Less(t, taken()-before, int64(64<<20), "bytes")
}

// mounted is a hive with so many values in MountedDevices.
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

// Three keys, each of which names the next one 3334 times, would be 37 billion keys.
func TestManyTimesTheSame(t *testing.T) {
	k := hiveforge.Key{Name: "Key"}
	for range 3 {
		k = hiveforge.Key{Name: "Key", Keys: append(numbered(9_999), k), List: "ri"}
	}
	f := hiveforge.New(5, k)
	// whose first leaf holds the next one, since its name sorts first
	for _, path := range [][]string{{}, {"Key"}, {"Key", "Key"}} {
		list := fields{t, f}.list(path...)
		for i := range int64(3334) {
			f.U32(list+4+4*i, fields{t, f}.u32(list+4))
		}
	}
	cost(t, func() { require.ErrorIs(t, walk(open(t, f)), ondisk.ErrLimit) })
}

// Elements that name nothing cost steps too, or a list of lists of them would have no end.
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

// No more subkeys come out than the key has.
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

// huge is a source of 512 MiB in bins of 4096 bytes, none of which is kept.
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

// All bins of the largest hive are walked once, and are small in memory. To read all over it again and again comes to
// an end.
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

// A value costs its caller few allocations, however many there are.
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
