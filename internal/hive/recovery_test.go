package hive

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// letter is the value that the tests follow, and hot a hive with it.
const letter = `\DosDevices\C:`

func hot(t testing.TB) forge.Bytes {
	t.Helper()
	return hiveforge.New(5, hiveforge.Key{Keys: append(numbered(40), hiveforge.Key{
		Name: "MountedDevices", Values: []hiveforge.Value{
			{Name: `\DosDevices\D:`, Type: 3, Data: counted(12)},
			{Name: letter, Type: 3, Data: []byte("0000--------")},
		},
	}, hiveforge.Key{Name: "zzz", Values: []hiveforge.Value{{Name: "big", Type: 3, Data: counted(30_000)}}})})
}

// with gives a copy of a hive in which the value has another number.
func with(t testing.TB, f forge.Bytes, number string) forge.Bytes {
	t.Helper()
	f = slices.Clone(f)
	at := bytes.Index(f, []byte("--------"))
	require.Positive(t, at)
	f.Text(int64(at)-4, number)
	return f
}

// elsewhere gives a copy in which something else changed.
func elsewhere(f forge.Bytes) forge.Bytes {
	f = slices.Clone(f)
	f[len(f)-100]++
	return f
}

// seen is a state: the value in it, and the files that hold it.
type seen struct {
	value string
	files []int
}

// states reads the value in each state that a recovery has.
func states(r *Recovery) (out []seen, err error) {
	err = r.Each(func(h *Hive) error {
		k, err := h.Key("MountedDevices")
		if err != nil {
			return err
		}
		v, err := k.Value(letter)
		if errors.Is(err, fs.ErrNotExist) {
			out = append(out, seen{})
			return nil
		}
		if err != nil {
			return err
		}
		data, err := v.Data()
		if err != nil {
			return err
		}
		at, err := v.Where(0, v.Size)
		if err != nil {
			return err
		}
		s := seen{value: string(data[:4])}
		var got []byte
		for _, r0 := range at {
			for _, p := range h.Places(r0) {
				b, err := ondisk.Bytes(r.files[p.File], p.Off, p.Len)
				if err != nil {
					return err
				}
				got, s.files = append(got, b...), append(s.files, p.File)
			}
		}
		if !bytes.Equal(got, data) {
			return errors.New("the places do not hold the value")
		}
		if n := len(out); n == 0 || !reflect.DeepEqual(out[n-1], s) {
			out = append(out, s)
		}
		return nil
	})
	return out, err
}

func TestNewLogs(t *testing.T) {
	h := hot(t)
	a, b, c := with(t, h, "aaaa"), with(t, h, "bbbb"), with(t, h, "cccc")
	dirty := hiveforge.Dirty(h, 10) // numbers 10 and 9
	own := []seen{{"0000", []int{0}}}
	for name, tc := range map[string]struct {
		logs    []forge.Bytes
		want    []seen
		applied int
		refused string
	}{
		"both": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, a), hiveforge.Log(a, 10, b)},
			want: []seen{own[0], {"bbbb", []int{2}}, own[0], {"aaaa", []int{1}}, {"bbbb", []int{2}}}, applied: 2,
		},
		"the second comes first": {
			logs: []forge.Bytes{hiveforge.Log(a, 10, b), hiveforge.Log(h, 9, a)},
			want: []seen{own[0], {"bbbb", []int{1}}, own[0], {"aaaa", []int{2}}, {"bbbb", []int{1}}}, applied: 2,
		},
		"in the second only": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, elsewhere(h)), hiveforge.Log(h, 10, b)},
			want: []seen{own[0], {"bbbb", []int{2}}, own[0], {"bbbb", []int{2}}}, applied: 2,
		},
		"several in one": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, a, b, c), nil},
			want: []seen{own[0], {"aaaa", []int{1}}, {"bbbb", []int{1}}, {"cccc", []int{1}}}, applied: 3,
		},
		"a gap behind the hive": {
			logs: []forge.Bytes{hiveforge.Log(h, 500, a)},
			want: []seen{own[0], {"aaaa", []int{1}}}, applied: 1,
		},
		"the hive's own number": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, a)},
			want: []seen{own[0], {"aaaa", []int{1}}}, applied: 1,
		},
		"a gap between the logs": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, a), hiveforge.Log(h, 11, b)},
			want: []seen{own[0], {"bbbb", []int{2}}, own[0], {"aaaa", []int{1}}}, applied: 1,
		},
		"the second is stale": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, a), hiveforge.Log(h, 2, b)},
			want: []seen{own[0], {"aaaa", []int{1}}}, applied: 1,
		},
		"nothing of it": {logs: []forge.Bytes{hiveforge.Log(h, 9, elsewhere(h))}, want: own, applied: 1},
		"stale":         {logs: []forge.Bytes{hiveforge.Log(h, 8, a)}, want: own, refused: "no log fits"},
		"none":          {want: own, refused: "sequence numbers 10 and 9 differ, and no log fits"},
		"empty":         {logs: []forge.Bytes{nil, {}}, want: own, refused: "no log fits"},
		"equal numbers": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, a), hiveforge.Log(h, 9, b)}, want: own,
			refused: "both of its logs begin with entry 9",
		},
		"torn at the end": {
			logs: []forge.Bytes{torn(hiveforge.Log(h, 9, a, b))},
			want: []seen{own[0], {"aaaa", []int{1}}}, applied: 1,
		},
		"cut off": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, a, b)[:9000]},
			want: []seen{own[0], {"aaaa", []int{1}}}, applied: 1,
		},
		"remnants": {logs: []forge.Bytes{append(hiveforge.Log(h, 9, a),
			hiveforge.Log(h, 3, b)[512:]...)}, want: []seen{own[0], {"aaaa", []int{1}}}, applied: 1},
		"of another hive": {
			logs: []forge.Bytes{other(hiveforge.Log(h, 9, a))}, want: own,
			refused: "belongs to another hive",
		},
		"of two formats": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, a), hiveforge.OldLog(h, 1, b)}, want: own, refused: "two formats",
		},
		"a page beyond the hive": {
			logs: []forge.Bytes{beyond(hiveforge.Log(h, 9, a))}, want: own,
			refused: "entry 9 of a registry log",
		},
		"numbers that began again": {
			logs: []forge.Bytes{hiveforge.Log(h, 0xffffffff, a, b)}, want: own,
			refused: "no log fits",
		},
		"three": {logs: []forge.Bytes{
			hiveforge.Log(h, 9, a), hiveforge.Log(h, 10, b),
			hiveforge.Log(h, 11, c),
		}, want: own, refused: "3 logs"},
		"half of the base block": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, a)[:300]}, want: own,
			refused: "no log fits",
		},
		"base block being written": {
			logs: []forge.Bytes{unclosed(hiveforge.Log(h, 9, a))}, want: own,
			refused: "no log fits",
		},
		"an entry of no pages": {
			logs: []forge.Bytes{pageless(hiveforge.Log(h, 9, a))}, want: own,
			refused: "no log fits",
		},
		"a leftover beside the new": {
			logs: []forge.Bytes{hiveforge.Log(h, 9, a), nil, {1, 2, 3}},
			want: []seen{own[0], {"aaaa", []int{1}}}, applied: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := recovery(t, dirty, tc.logs...)
			got, err := states(r)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.applied, r.Applied)
			if tc.refused == "" {
				require.NoError(t, r.Certain())
			} else {
				require.ErrorContains(t, r.Certain(), tc.refused)
				require.True(t, known(r.Certain()))
			}
		})
	}
}

func recovery(t testing.TB, hive forge.Bytes, logs ...forge.Bytes) *Recovery {
	t.Helper()
	var sources []Log
	for i, l := range logs {
		sources = append(sources, Log{bytes.NewReader(l), fmt.Sprint("log ", i)})
	}
	r, err := NewBudget().Recover(bytes.NewReader(hive), sources...)
	require.NoError(t, err)
	return r
}

func torn(log forge.Bytes) forge.Bytes {
	log[len(log)-1]++
	return log
}

func other(log forge.Bytes) forge.Bytes {
	log.U32(hiveforge.RootCell, 0x1000)
	hiveforge.Seal(log)
	return log
}

func unclosed(log forge.Bytes) forge.Bytes {
	log.U32(hiveforge.Sequence2, 3)
	hiveforge.Seal(log)
	return log
}

func beyond(log forge.Bytes) forge.Bytes {
	log.U32(512+40, 1<<24)
	hiveforge.SealEntry(log[512:])
	return log
}

func pageless(log forge.Bytes) forge.Bytes {
	log.U32(512+20, 0)
	hiveforge.SealEntry(log[512:])
	return log
}

// The numbers of entries and of the hive begin again from 0.
func TestNumbersBeginAgain(t *testing.T) {
	h := hot(t)
	a, b := with(t, h, "aaaa"), with(t, h, "bbbb")
	dirty := hiveforge.Dirty(h, 0)
	got, err := states(recovery(t, dirty, hiveforge.Log(a, 0, b), hiveforge.Log(h, 0xffffffff, a)))
	require.NoError(t, err)
	require.Equal(t, []seen{
		{"0000", []int{0}},
		{"bbbb", []int{1}},
		{"0000", []int{0}},
		{"aaaa", []int{2}},
		{"bbbb", []int{1}},
	}, got)
}

// A hive whose base block is broken is read with that of the log, if there is one only.
func TestBrokenBaseBlock(t *testing.T) {
	h := hot(t)
	a, b := with(t, h, "aaaa"), with(t, h, "bbbb")
	broken := slices.Clone(h)
	clear(broken[:512])
	got, err := states(recovery(t, broken, hiveforge.Log(a, 10, b)))
	require.NoError(t, err)
	require.Equal(t, []seen{{"0000", []int{0}}, {"bbbb", []int{1}}}, got)
	_, err = NewBudget().Recover(bytes.NewReader(broken), Log{bytes.NewReader(hiveforge.Log(a, 10, b)), "1"},
		Log{bytes.NewReader(hiveforge.Log(h, 9, a)), "2"})
	require.ErrorIs(t, err, ondisk.ErrFormat, "Windows takes the latest that is not torn")
	_, err = NewBudget().Recover(bytes.NewReader(broken))
	require.ErrorIs(t, err, ondisk.ErrFormat, "without a log it is no hive")
	sum := slices.Clone(h)
	sum.U32(hiveforge.Checksum, 7)
	require.ErrorContains(t, recovery(t, sum).Certain(), "checksum of the base block is 0x7, want ")
}

// A value that crosses the border of two pages, one of which a log has, is in both files; one in a page that only a log
// has is there.
func TestPagesOfValues(t *testing.T) {
	h := hot(t)
	grown := append(with(t, h, "aaaa"), make(forge.Bytes, 4096)...)
	grown.U32(hiveforge.BinsSize, uint32(len(grown)-4096))
	bin := grown[len(h):]
	bin.Text(0, "hbin")
	bin.U32(4, uint32(len(h)-4096))
	bin.U32(8, 4096)
	bin.U32(32, 1<<32-24) // a cell with the value
	bin.Text(36, "gggg========")
	vk := int64(bytes.LastIndex(h, []byte(letter))) - 20
	grown.U32(vk+8, uint32(len(h)-4096+32))
	got, err := states(recovery(t, hiveforge.Dirty(h, 10), hiveforge.Log(h, 9, grown)))
	require.NoError(t, err)
	require.Equal(t, []seen{{"0000", []int{0}}, {"gggg", []int{1}}}, got, "the hive file ends in front of it")

	h = hiveforge.New(3, hiveforge.Key{Name: "R", Values: []hiveforge.Value{{
		Name: "wide", Type: 3,
		Data: counted(1500),
	}}})
	to := slices.Clone(h)
	to[bytes.Index(h, counted(1500))+1499]++
	err = recovery(t, hiveforge.Dirty(h, 10), hiveforge.OldLog(h, 2, to)).Each(func(h *Hive) error {
		root, err := h.root()
		require.NoError(t, err)
		v, err := root.Value("wide")
		require.NoError(t, err)
		data, err := v.Data()
		require.NoError(t, err)
		at, err := v.Where(0, 1500)
		require.NoError(t, err)
		places := h.Places(at[0])
		if data[1499] == counted(1500)[1499] {
			require.Equal(t, []Place{{0, at[0]}}, places)
			return nil
		}
		require.Len(t, places, 2)
		require.Equal(t, [2]int{0, 1}, [2]int{places[0].File, places[1].File})
		require.Equal(t, int64(1500), places[0].Len+places[1].Len)
		require.Equal(t, at[0].Off, places[0].Off)
		require.Zero(t, places[1].Off%512, "the log holds whole sectors")
		require.Zero(t, places[0].End()%512)
		return nil
	})
	require.NoError(t, err)
}

// The entry that covers a place is the one whose hashes must follow.
func TestSeal(t *testing.T) {
	h := hot(t)
	a, b := with(t, h, "aaaa"), with(t, h, "bbbb")
	log := hiveforge.Log(h, 9, a, elsewhere(a), b)
	r := recovery(t, hiveforge.Dirty(h, 10), log)
	for i, want := range []int{bytes.Index(log, []byte("aaaa")), bytes.Index(log, []byte("bbbb"))} {
		entry, ok := r.Seal(Place{1, disk.Range{Off: int64(want), Len: 4}})
		require.True(t, ok)
		require.Equal(t, "HvLE", string(log[entry.Off:entry.Off+4]))
		require.Equal(t, uint32(9+2*i), binary.LittleEndian.Uint32(log[entry.Off+12:]))
		require.Equal(t, int64(binary.LittleEndian.Uint32(log[entry.Off+4:])), entry.Len)
	}
	_, ok := r.Seal(Place{1, disk.Range{Off: 100, Len: 4}})
	require.False(t, ok, "the base block of the log")
	_, ok = r.Seal(Place{0, disk.Range{Off: 4096, Len: 4}})
	require.False(t, ok, "the hive")
}

// A log that Windows ignores for its number or its time need not be of this hive; one that fits must be.
func TestLogsOfOtherHives(t *testing.T) {
	h := hot(t)
	a := with(t, h, "aaaa")
	h = hiveforge.Dirty(h, 10)
	stale := hiveforge.Log(h, 2, a)
	stale.U32(hiveforge.Minor, 6)
	hiveforge.Seal(stale)
	require.NoError(t, recovery(t, h, hiveforge.Log(h, 9, a), stale).Certain())
	require.NoError(t, recovery(t, h, hiveforge.Log(h, 9, a), late(hiveforge.OldLog(h, 1, a))).Certain())
	const manager = 112
	owned := slices.Clone(h)
	owned.Put(manager, bytes.Repeat([]byte{1}, 16))
	hiveforge.Seal(owned)
	log := hiveforge.Log(owned, 9, a)
	require.NoError(t, recovery(t, owned, log).Certain())
	log.Put(manager, bytes.Repeat([]byte{2}, 16))
	hiveforge.Seal(log)
	require.ErrorContains(t, recovery(t, owned, log).Certain(), "belongs to another hive: resource manager")
}

// late gives an old log the time of another moment.
func late(log forge.Bytes) forge.Bytes {
	log.U64(12, 5)
	hiveforge.Seal(log)
	return log
}

// A log of very many pages costs little: it is refused.
func TestLogOfManyPages(t *testing.T) {
	h := hiveforge.Dirty(hot(t), 10)
	bins := uint32(maxLogPages+8) * 512 / 4096 * 4096
	log := slices.Clone(h[:512])
	log.U32(hiveforge.FileType, 1)
	log.U32(hiveforge.Sequence2, 10)
	log.U32(hiveforge.BinsSize, bins)
	hiveforge.Seal(log)
	log = append(append(log, "DIRT"...), bytes.Repeat([]byte{0xff}, int(bins/4096))...)
	log = append(log, make(forge.Bytes, 4096)...)
	require.ErrorIs(t, recovery(t, h, log).Certain(), ondisk.ErrLimit)
}

// A hive whose end is in no file is refused, though no key lies there; one whose end is in a log is not.
func TestHiveThatWasCutOff(t *testing.T) {
	h := hot(t)
	tail := len(h)
	h = append(h, make(forge.Bytes, 4096)...)
	h.Text(int64(tail), "hbin")
	h.U32(int64(tail)+4, uint32(tail-4096))
	h.U32(int64(tail)+8, 4096)
	h.U32(int64(tail)+32, 4096-32) // a free cell
	h.U32(hiveforge.BinsSize, uint32(len(h)-4096))
	a := with(t, h, "aaaa")
	dirty := hiveforge.Dirty(h, 10)
	for name, tc := range map[string]struct {
		hive, from forge.Bytes
		why        string
	}{
		"whole":                    {dirty, h, ""},
		"cut off":                  {dirty[:tail], h, "it was cut off"},
		"its end is in the log":    {dirty[:tail], h[:tail], ""},
		"cut off within a sector":  {dirty[:tail+100], h, "it was cut off"},
		"which the log has, again": {dirty[:tail+100], h[:tail], ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := states(recovery(t, tc.hive, hiveforge.Log(tc.from, 9, a)))
			if tc.why != "" {
				require.ErrorContains(t, err, tc.why)
				return
			}
			require.NoError(t, err)
			require.Equal(t, "aaaa", got[len(got)-1].value)
		})
	}
}

func TestOldLogs(t *testing.T) {
	h := hot(t)
	a, b := with(t, h, "aaaa"), with(t, h, "bbbb")
	dirty := hiveforge.Dirty(h, 10)
	late := slices.Clone(a)
	late.U64(12, 5)
	hiveforge.Seal(late)
	own := seen{"0000", []int{0}}
	for name, tc := range map[string]struct {
		hive    forge.Bytes
		logs    []forge.Bytes
		want    []seen
		refused string
	}{
		"one": {
			hive: dirty, logs: []forge.Bytes{hiveforge.OldLog(h, 1, a)},
			want: []seen{own, {"aaaa", []int{1}}},
		},
		"of Windows 2000": {
			hive: dirty, logs: []forge.Bytes{hiveforge.OldLog(h, 2, a)},
			want: []seen{own, {"aaaa", []int{1}}},
		},
		"two": {hive: dirty, logs: []forge.Bytes{
			nil, hiveforge.OldLog(h, 1, a),
			hiveforge.OldLog(h, 1, b),
		}, want: []seen{own, {"bbbb", []int{3}}, own, {"aaaa", []int{2}}}},
		"of another time": {
			hive: dirty, logs: []forge.Bytes{hiveforge.OldLog(h, 1, late)}, want: []seen{own}, refused: "no log fits",
		},
		"one of two": {
			hive: dirty, logs: []forge.Bytes{hiveforge.OldLog(h, 1, late), hiveforge.OldLog(h, 1, b)},
			want: []seen{own, {"bbbb", []int{2}}},
		},
		"cut off": {
			hive: dirty, logs: []forge.Bytes{hiveforge.OldLog(h, 1, a)[:1024]}, want: []seen{own},
			refused: "no log fits",
		},
		"no DIRT": {
			hive: dirty, logs: []forge.Bytes{undirty(hiveforge.OldLog(h, 1, a))}, want: []seen{own},
			refused: "no log fits",
		},
		"half written hive": {
			hive: ruined(t, dirty), logs: []forge.Bytes{hiveforge.OldLog(ruined(t, dirty), 1, a)},
			want: []seen{{"aaaa", []int{1}}},
		},
		"sectors of 1 KiB": {
			hive: dirty, logs: []forge.Bytes{factor(hiveforge.OldLog(h, 1, a))}, want: []seen{own},
			refused: "sectors of 1024 bytes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := recovery(t, tc.hive, tc.logs...)
			got, err := states(r)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
			if tc.refused == "" {
				require.NoError(t, r.Certain())
			} else {
				require.ErrorContains(t, r.Certain(), tc.refused)
			}
		})
	}
}

func undirty(log forge.Bytes) forge.Bytes {
	log.Text(512, "dirt")
	return log
}

func factor(log forge.Bytes) forge.Bytes {
	log.U32(44, 2)
	hiveforge.Seal(log)
	return log
}

// ruined is a hive that was being written: the key of the value is half there.
func ruined(t testing.TB, f forge.Bytes) forge.Bytes {
	t.Helper()
	f = slices.Clone(f)
	at := bytes.Index(f, []byte("MountedDevices")) - 76
	require.Positive(t, at)
	clear(f[at : at+76])
	return f
}

// A state in which the guest starts must be readable.
func TestEndThatCannotBeRead(t *testing.T) {
	h := hot(t)
	a := with(t, h, "aaaa")
	r := recovery(t, hiveforge.Dirty(h, 10), hiveforge.Log(h, 9, a, ruined(t, a)))
	_, err := states(r)
	require.ErrorIs(t, err, ondisk.ErrFormat)
	got, err := states(recovery(t, hiveforge.Dirty(h, 10), hiveforge.Log(h, 9, ruined(t, a), a)))
	require.NoError(t, err, "a state on the way")
	require.Equal(t, []seen{{"0000", []int{0}}, {"aaaa", []int{1}}}, got)
}

// Entries that change nothing of what was read cost no walk.
func TestStatesThatReadAlike(t *testing.T) {
	h := hiveforge.New(5, hiveforge.Key{
		Keys:   numbered(3),
		Values: []hiveforge.Value{{Name: "big", Type: 3, Data: make([]byte, 900_000)}},
	})
	var steps []forge.Bytes
	for i := range 51 {
		to := slices.Clone(h)
		to[500_000] = byte(i + 1)
		steps = append(steps, to)
	}
	visits := 0
	r := recovery(t, hiveforge.Dirty(h, 10), hiveforge.Log(h, 9, steps...))
	require.NoError(t, r.Each(func(h *Hive) error {
		visits++
		root, err := h.root()
		require.NoError(t, err)
		return walkKeys(root)
	}))
	require.Equal(t, 51, r.Applied)
	require.Equal(t, 1, visits)
}
