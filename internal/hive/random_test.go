package hive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// moved are positions of partitions before and after a move.
var moved = map[uint64]uint64{63 * 512: 2048 * 512, 0x1_2345_0000: 0x1_2350_0000}

// randomHive makes hives and logs of one seed.
type randomHive struct {
	*rand.Rand

	tree hiveforge.Key
}

func (r *randomHive) data() []byte {
	n := []int{r.IntN(5), r.IntN(60), r.IntN(60), r.IntN(4000), 16_000 + r.IntN(20_000)}[r.IntN(5)]
	if n > 100 && r.IntN(8) > 0 {
		n = 12
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// letter is a value of MountedDevices: of a partition that moves, of another disk, or of a path.
func (r *randomHive) letter(name string) hiveforge.Value {
	if r.IntN(8) == 0 {
		return hiveforge.Value{Name: name, Type: 3, Data: []byte(`\??\STORAGE#RemovableMedia#`)}
	}
	at := []uint64{63 * 512, 0x1_2345_0000, 0x1_2345_0000, 0x1_0000_0000}[r.IntN(4)]
	return hiveforge.Value{Name: name, Type: 3, Data: binary.LittleEndian.AppendUint64([]byte("disk"), at)}
}

func (r *randomHive) key(depth int) hiveforge.Key {
	k := hiveforge.Key{Name: fmt.Sprintf("k%d", r.IntN(1<<20)), List: []string{"", "", "li", "ri"}[r.IntN(4)]}
	for i := range r.IntN(4) {
		k.Values = append(k.Values, hiveforge.Value{Name: fmt.Sprint("v", i), Type: uint32(r.IntN(8)), Data: r.data()})
	}
	for i := range r.IntN(4) * depth {
		k.Keys = append(k.Keys, r.key(depth-1))
		k.Keys[i].Name = fmt.Sprint(k.Keys[i].Name, i)
	}
	if len(k.Keys) == 0 {
		k.List = ""
	}
	return k
}

// newRandomHive returns a hive that was not closed, with two logs, and the successive states of the hive.
func newRandomHive(seed uint64) (files, states []forge.Bytes) {
	r := &randomHive{Rand: rand.New(rand.NewPCG(seed, 13))}
	minor := uint32(3 + r.IntN(4))
	letters := hiveforge.Key{Name: "MountedDevices"}
	for i := range 1 + r.IntN(5) {
		letters.Values = append(letters.Values, r.letter(fmt.Sprintf(`\DosDevices\%c:`, 'C'+i)))
	}
	r.tree = hiveforge.Key{Name: "SYSTEM", Keys: []hiveforge.Key{letters}}
	for i := range r.IntN(6) {
		r.tree.Keys = append(r.tree.Keys, r.key(2))
		r.tree.Keys[i+1].Name += fmt.Sprint("r", i)
	}
	states = []forge.Bytes{hiveforge.New(minor, r.tree)}
	for range 1 + r.IntN(5) {
		// Changes of letters, and other changes with and without moved cells.
		for range 1 + r.IntN(3) {
			k := &r.tree.Keys[0]
			switch i := r.IntN(len(k.Values)); r.IntN(4) {
			case 0:
				k.Values = append(slices.Clone(k.Values), r.letter(fmt.Sprintf(`\DosDevices\%d:`, r.IntN(1<<20))))
			case 1:
				k.Values = slices.Clone(k.Values)
				k.Values[i] = r.letter(k.Values[i].Name)
			case 2:
				r.tree.Keys = append(slices.Clone(r.tree.Keys), r.key(1))
				r.tree.Keys[len(r.tree.Keys)-1].Name += fmt.Sprint("n", len(r.tree.Keys))
			case 3:
				if n := len(r.tree.Keys); n > 1 {
					r.tree.Keys = slices.Delete(slices.Clone(r.tree.Keys), n-1, n)
				}
			}
		}
		states = append(states, hiveforge.New(minor, r.tree))
	}
	if r.IntN(3) == 0 {
		return r.oldFiles(states), states
	}
	return r.newFiles(states), states
}

// newFiles spreads the states over two logs of Windows 8.1 and later, with possible damage.
func (r *randomHive) newFiles(states []forge.Bytes) []forge.Bytes {
	primary := []uint32{10, 0, 1, 0x80000000, uint32(r.IntN(1 << 20))}[r.IntN(5)]
	first := primary - 1
	if r.IntN(2) == 0 {
		first += uint32(r.IntN(1000))
	}
	cut := 1 + r.IntN(len(states)-1)
	one, two := hiveforge.Log(states[0], first, states[1:cut+1]...), forge.Bytes{}
	if cut < len(states)-1 {
		two = hiveforge.Log(states[cut], first+uint32(cut), states[cut+1:]...)
	}
	switch r.IntN(8) {
	case 0: // torn
		one[512+r.IntN(len(one)-512)] ^= 4
	case 1:
		if len(two) > 0 {
			two[512+r.IntN(len(two)-512)] ^= 4
		}
	case 2: // of an earlier round
		two = hiveforge.Log(states[0], primary-5, states[1])
	case 3: // remains of an earlier round
		one = append(one, hiveforge.Log(states[0], first-7, states[1])[512:]...)
	case 4: // a gap between both
		if len(two) > 0 {
			two = hiveforge.Log(states[cut], first+uint32(cut)+3, states[cut+1:]...)
		}
	case 5:
		one = one[:512+r.IntN(len(one)-512)]
	}
	files := []forge.Bytes{hiveforge.Dirty(states[0], primary), one, two}
	if r.IntN(2) == 0 {
		files[1], files[2] = two, one
	}
	return files
}

// oldFiles returns a hive in the middle of a write, and the log of Windows until 8, of which Vista has two.
func (r *randomHive) oldFiles(states []forge.Bytes) []forge.Bytes {
	to := states[1]
	hive, log := hiveforge.Dirty(states[0], 10), hiveforge.OldLog(states[0], uint32(1+r.IntN(2)), to)
	if r.IntN(4) > 0 {
		for at := hiveforge.Bins; at+512 <= min(len(hive), len(to)); at += 512 {
			if r.IntN(2) == 0 {
				copy(hive[at:at+512], to[at:])
			}
		}
	}
	var second forge.Bytes
	switch r.IntN(4) {
	case 0: // of another time
		second = hiveforge.OldLog(states[0], 1, states[len(states)-1])
		second.U64(12, 1)
		hiveforge.Seal(second)
	case 1: // possible choices of the boot loader
		second = slices.Clone(log)
	case 2:
		log = log[:600+r.IntN(len(log)-600)]
	}
	return []forge.Bytes{hive, log, second}
}

// errTwice is the error of a byte in two positions.
var errTwice = errors.New("a byte with two meanings")

// patchAll rewrites the moved positions in every state of a hive and its logs, and returns the new files.
func patchAll(t *testing.T, r *Recovery, files []forge.Bytes) ([]forge.Bytes, error) {
	t.Helper()
	out := make([]forge.Bytes, len(files))
	for i := range files {
		out[i] = slices.Clone(files[i])
	}
	type at struct {
		file int
		off  int64
	}
	written, sealed := map[at]byte{}, map[Place]bool{}
	err := r.Each(func(h *Hive) error {
		k, err := h.Key("MountedDevices")
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for v, err := range k.Values() {
			if err != nil {
				return err
			}
			data, err := v.Data()
			if err != nil {
				return err
			}
			if len(data) != 12 {
				continue
			}
			to, ok := moved[binary.LittleEndian.Uint64(data[4:])]
			ranges, err := v.Where(4, 8)
			if err != nil || !ok {
				continue
			}
			bytes := binary.LittleEndian.AppendUint64(nil, to)
			for _, where := range ranges {
				for _, p := range h.Places(where) {
					for off := p.Off; off < p.End(); off, bytes = off+1, bytes[1:] {
						if b, ok := written[at{p.File, off}]; ok && b != bytes[0] {
							return errTwice
						}
						written[at{p.File, off}], out[p.File][off] = bytes[0], bytes[0]
					}
					if entry, ok := r.Seal(p); ok {
						sealed[Place{p.File, entry}] = true
					}
				}
			}
		}
		return nil
	})
	for p := range sealed {
		Reseal(out[p.File][p.Off:p.End()])
	}
	return out, err
}

// fates returns possible states of the logs of a hive between the copy and the next start: all exist, none, one alone,
// swapped, and each new one torn at one of its entries.
func fates(files []forge.Bytes) (out []func([]forge.Bytes) [][]byte) {
	add := func(f func(hive, one, two []byte) [][]byte) {
		out = append(out, func(x []forge.Bytes) [][]byte {
			return f(slices.Clone(x[0]), slices.Clone(x[1]), slices.Clone(x[2]))
		})
	}
	add(func(hive, one, two []byte) [][]byte { return [][]byte{hive, one, two} })
	add(func(hive, one, two []byte) [][]byte { return [][]byte{hive, two, one} })
	add(func(hive, _, _ []byte) [][]byte { return [][]byte{hive} })
	add(func(hive, one, _ []byte) [][]byte { return [][]byte{hive, one} })
	add(func(hive, _, two []byte) [][]byte { return [][]byte{hive, two} })
	for i, log := range files[1:] {
		if len(log) < 512 || log[28] != 6 {
			continue
		}
		for _, e := range hiveforge.Entries(log) {
			add(func(hive, one, two []byte) [][]byte {
				[][]byte{one, two}[i][e.At+e.Size-1] ^= 1
				return [][]byte{hive, one, two}
			})
		}
	}
	return out
}

// TestRandomHives rewrites positions in random hives with random logs, and recovers them with an independent program,
// before and after: whatever happens to the logs, every value is the same except for moved positions. TRUEUP_HIVES is
// the number of hives, from TRUEUP_HIVES_SEED on.
func TestRandomHives(t *testing.T) {
	t.Parallel()
	if strconv.IntSize == 32 {
		t.Skip("the recovery of the test has an int for an offset of 32 bits")
	}
	seeds, _ := strconv.ParseUint(os.Getenv("TRUEUP_HIVES"), 10, 64)
	from, _ := strconv.ParseUint(os.Getenv("TRUEUP_HIVES_SEED"), 10, 64)
	if seeds == 0 {
		seeds = 150
	}
	n := map[string]uint64{}
	for seed := from; seed < from+seeds; seed++ {
		n[randomlyMoved(t, seed)]++
	}
	t.Log(n)
	require.Greater(t, n["moved"], seeds/2)
	require.Less(t, n["twice"], seeds/5)
}

// randomlyMoved tries one seed and returns the result.
func randomlyMoved(t *testing.T, seed uint64) string {
	t.Helper()
	files, states := newRandomHive(seed)
	r := recovery(t, files[0], files[1:]...)
	_, applied := hiveforge.Recover(files[0], files[1], files[2])
	if r.Certain() != nil {
		require.Zero(t, applied, "seed %d: %v", seed, r.Certain())
		return "refused"
	}
	require.Equal(t, applied, r.Applied, "seed %d", seed)
	after, err := patchAll(t, r, files)
	if errors.Is(err, errTwice) {
		return "twice"
	}
	require.NoError(t, err, "seed %d", seed)
	for i, fate := range fates(files) {
		was, n := hiveforge.Recover(fate(files)[0], fate(files)[1:]...)
		is, m := hiveforge.Recover(fate(after)[0], fate(after)[1:]...)
		require.Equal(t, n, m, "seed %d, fate %d: entries applied", seed, i)
		if !slices.ContainsFunc(states, func(s forge.Bytes) bool { return bytes.Equal(s[4096:], was[4096:]) }) {
			// States that no Windows wrote: half a hive without its log, or a log without the preceding one.
			require.Contains(t, []int{2, 3, 4}, i, "seed %d, fate %d", seed, i)
			continue
		}
		want, err := hiveforge.Values(was)
		require.NoError(t, err, "seed %d, fate %d", seed, i)
		for name, v := range want {
			if len(v) == 14 && len(name) > 16 && name[:16] == "\\MountedDevices\x00" {
				if to, ok := moved[binary.LittleEndian.Uint64([]byte(v[6:]))]; ok {
					want[name] = v[:6] + string(binary.LittleEndian.AppendUint64(nil, to))
				}
			}
		}
		now, err := hiveforge.Values(is)
		require.NoError(t, err, "seed %d, fate %d", seed, i)
		require.Equal(t, want, now, "seed %d, fate %d", seed, i)
	}

	// Every value of the guest's initial state equals that of the plain recovery.
	image, _ := hiveforge.Recover(after[0], after[1], after[2])
	want, err := hiveforge.Values(image)
	require.NoError(t, err, "seed %d", seed)
	var got map[string]string
	r = recovery(t, after[0], after[1:]...)
	require.NoError(t, r.Certain())
	require.NoError(t, r.Each(func(h *Hive) error {
		got = map[string]string{}
		return visit(h, func(string) {}, func(path string, v *Value) error {
			data, err := v.Data()
			got[path+"\x00"+v.Name] = fmt.Sprintf("%d:%s", v.Type, data)
			return err
		})
	}))
	require.Equal(t, want, got, "seed %d", seed)
	return "moved"
}

// seed is a hive with all structures, small enough for many mutations.
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

// known reports whether an error is of a class expected for hives. A source in memory has no other errors.
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

// placesAgree compares the positions of a value with the file and its data.
func placesAgree(t *testing.T, file []byte, v *Value) {
	t.Helper()
	data, err := v.Data()
	if err != nil || len(data) == 0 {
		return
	}
	left := v.hive.steps
	v.hive.steps = &ondisk.Budget{Limit: 1000} // enough for the positions of what Data reads
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
			hiveforge.Seal(forge.Bytes(data)) // otherwise hardly any mutation reaches the entries
		}
		if _, err := newer(bytes.NewReader(data), 7); err != nil {
			require.True(t, known(err), "%v", err)
		}
	})
}

// A hive with a log of any bytes is read, or refused with an error that states the reason.
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
