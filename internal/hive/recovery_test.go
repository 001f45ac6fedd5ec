package hive

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/hiveforge"
	"github.com/trueup/trueup/internal/ondisk"
)

// letter is the value in these tests, and hot a hive with it.
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

// with returns a copy of a hive with another number in the value.
func with(t testing.TB, f forge.Bytes, number string) forge.Bytes {
	t.Helper()
	f = slices.Clone(f)
	at := bytes.Index(f, []byte("--------"))
	require.Positive(t, at)
	f.Text(int64(at)-4, number)
	return f
}

// elsewhere returns a copy of a hive with another byte changed.
func elsewhere(f forge.Bytes) forge.Bytes {
	f = slices.Clone(f)
	f[len(f)-100]++
	return f
}

// states reads the value in each state of a recovery, as "0000@0 aaaa@1": the value, and the files that contain it. A
// state like the preceding one is omitted.
func states(r *Recovery) (string, error) {
	var out []string
	err := r.Each(func(h *Hive) error {
		k, err := h.Key("MountedDevices")
		if err != nil {
			return err
		}
		v, err := k.Value(letter)
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
		state := string(data[:4])
		var got []byte
		for _, r0 := range at {
			for _, p := range h.Places(r0) {
				b, err := ondisk.Bytes(r.files[p.File], p.Off, p.Len)
				if err != nil {
					return err
				}
				got, state = append(got, b...), fmt.Sprintf("%s@%d", state, p.File)
			}
		}
		if !bytes.Equal(got, data) {
			return errors.New("the places do not hold the value")
		}
		if n := len(out); n == 0 || out[n-1] != state {
			out = append(out, state)
		}
		return nil
	})
	return strings.Join(out, " "), err
}

// recoveryCase is the recovery of a hive with its logs.
type recoveryCase struct {
	logs    []forge.Bytes
	want    string // the states; empty: the hive's own alone
	applied int    // entries of new logs, or an old log
	refused string // part of the reason why the state is unknown; may be empty
}

func (tc recoveryCase) check(t *testing.T, hive forge.Bytes) {
	t.Helper()
	r := recovery(t, hive, tc.logs...)
	got, err := states(r)
	require.NoError(t, err)
	require.Equal(t, cmp.Or(tc.want, own), got)
	require.Equal(t, tc.applied, r.Applied)
	if tc.refused == "" {
		require.NoError(t, r.Certain())
	} else {
		require.ErrorContains(t, r.Certain(), tc.refused)
		require.True(t, known(r.Certain()))
	}
}

// own is the state of the hive without its logs.
const own = "0000@0"

func logs(l ...forge.Bytes) []forge.Bytes { return l }

func TestNewLogs(t *testing.T) {
	h := hot(t)
	a, b, c := with(t, h, "aaaa"), with(t, h, "bbbb"), with(t, h, "cccc")
	dirty := hiveforge.Dirty(h, 10) // numbers 10 and 9
	one, two := func() forge.Bytes { return hiveforge.Log(h, 9, a) }, hiveforge.Log(h, 9, a, b)
	const first, none = "0000@0 aaaa@1", "no log fits"
	for name, tc := range map[string]recoveryCase{
		"both":                   {logs(one(), hiveforge.Log(a, 10, b)), "0000@0 bbbb@2 0000@0 aaaa@1 bbbb@2", 2, ""},
		"the second comes first": {logs(hiveforge.Log(a, 10, b), one()), "0000@0 bbbb@1 0000@0 aaaa@2 bbbb@1", 2, ""},
		"in the second only": {
			logs(hiveforge.Log(h, 9, elsewhere(h)), hiveforge.Log(h, 10, b)), "0000@0 bbbb@2 0000@0 bbbb@2", 2, "",
		},
		"several in one":         {logs(hiveforge.Log(h, 9, a, b, c), nil), "0000@0 aaaa@1 bbbb@1 cccc@1", 3, ""},
		"a gap behind the hive":  {logs(hiveforge.Log(h, 500, a)), first, 1, ""},
		"the hive's own number":  {logs(one()), first, 1, ""},
		"a gap between the logs": {logs(one(), hiveforge.Log(h, 11, b)), "0000@0 bbbb@2 0000@0 aaaa@1", 1, ""},
		"the second is stale":    {logs(one(), hiveforge.Log(h, 2, b)), first, 1, ""},
		"nothing of it":          {logs(hiveforge.Log(h, 9, elsewhere(h))), "", 1, ""},
		"stale":                  {logs(hiveforge.Log(h, 8, a)), "", 0, none},
		"none":                   {nil, "", 0, "sequence numbers 10 and 9 differ, and no log fits"},
		"empty":                  {logs(nil, forge.Bytes{}), "", 0, none},
		"equal numbers": {
			logs(one(), hiveforge.Log(h, 9, b)), "", 0,
			"both of its logs begin with entry 9",
		},
		"torn at the end": {logs(append(two[:len(two)-1:len(two)-1], two[len(two)-1]+1)), first, 1, ""},
		"cut off":         {logs(two[:9000]), first, 1, ""},
		"remnants":        {logs(append(one(), hiveforge.Log(h, 3, b)[512:]...)), first, 1, ""},
		"of another hive": {
			logs(base32(one(), hiveforge.RootCell, 0x1000)), "", 0,
			"belongs to another hive",
		},
		"of two formats":            {logs(one(), hiveforge.OldLog(h, 1, b)), "", 0, "two formats"},
		"a page beyond the hive":    {logs(entry32(one(), 40, 1<<24)), "", 0, "entry 9 of a registry log"},
		"numbers that began again":  {logs(hiveforge.Log(h, 0xffffffff, a, b)), "", 0, none},
		"three":                     {logs(one(), hiveforge.Log(h, 10, b), hiveforge.Log(h, 11, c)), "", 0, "3 logs"},
		"half of the base block":    {logs(one()[:300]), "", 0, none},
		"base block being written":  {logs(base32(one(), hiveforge.Sequence2, 3)), "", 0, none},
		"an entry of no pages":      {logs(entry32(one(), 20, 0)), "", 0, none},
		"a leftover beside the new": {logs(one(), nil, forge.Bytes{1, 2, 3}), first, 1, ""},
	} {
		t.Run(name, func(t *testing.T) { tc.check(t, dirty) })
	}
	// The sequence numbers of entries and of the hive wrap to 0.
	again := logs(hiveforge.Log(a, 0, b), hiveforge.Log(h, 0xffffffff, a))
	recoveryCase{again, "0000@0 bbbb@1 0000@0 aaaa@2 bbbb@1", 2, ""}.check(t, hiveforge.Dirty(h, 0))
}

func TestOldLogs(t *testing.T) {
	h := hot(t)
	a, b := with(t, h, "aaaa"), with(t, h, "bbbb")
	dirty := hiveforge.Dirty(h, 10)
	one := func() forge.Bytes { return hiveforge.OldLog(h, 1, a) }
	undirty := one()
	undirty.Text(512, "dirt")
	const none = "no log fits"
	for name, tc := range map[string]recoveryCase{
		"one":              {logs(one()), "0000@0 aaaa@1", 1, ""},
		"of Windows 2000":  {logs(hiveforge.OldLog(h, 2, a)), "0000@0 aaaa@1", 1, ""},
		"two":              {logs(nil, one(), hiveforge.OldLog(h, 1, b)), "0000@0 bbbb@3 0000@0 aaaa@2", 1, ""},
		"of another time":  {logs(late(one())), "", 0, none},
		"one of two":       {logs(late(one()), hiveforge.OldLog(h, 1, b)), "0000@0 bbbb@2", 1, ""},
		"cut off":          {logs(one()[:1024]), "", 0, none},
		"no DIRT":          {logs(undirty), "", 0, none},
		"sectors of 1 KiB": {logs(base32(one(), 44, 2)), "", 0, "sectors of 1024 bytes"},
	} {
		t.Run(name, func(t *testing.T) { tc.check(t, dirty) })
	}
	half := ruined(t, dirty)
	recoveryCase{logs(hiveforge.OldLog(half, 1, a)), "aaaa@1", 1, ""}.check(t, half)
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

// base32 changes a word of the base block of a log, and entry32 one of its first entry, and update the checksums.
func base32(log forge.Bytes, at int64, v uint32) forge.Bytes {
	log.U32(at, v)
	hiveforge.Seal(log)
	return log
}

func entry32(log forge.Bytes, at int64, v uint32) forge.Bytes {
	log.U32(512+at, v)
	hiveforge.SealEntry(log[512:])
	return log
}

// A hive with a broken base block is read with that of the log, if there is only one.
func TestBrokenBaseBlock(t *testing.T) {
	h := hot(t)
	a, b := with(t, h, "aaaa"), with(t, h, "bbbb")
	broken := slices.Clone(h)
	clear(broken[:512])
	got, err := states(recovery(t, broken, hiveforge.Log(a, 10, b)))
	require.NoError(t, err)
	require.Equal(t, "0000@0 bbbb@1", got)
	_, err = NewBudget().Recover(bytes.NewReader(broken), Log{bytes.NewReader(hiveforge.Log(a, 10, b)), "1"},
		Log{bytes.NewReader(hiveforge.Log(h, 9, a)), "2"})
	require.ErrorIs(t, err, ondisk.ErrFormat, "Windows takes the latest that is not torn")
	_, err = NewBudget().Recover(bytes.NewReader(broken))
	require.ErrorIs(t, err, ondisk.ErrFormat, "without a log it is no hive")
	sum := slices.Clone(h)
	sum.U32(hiveforge.Checksum, 7)
	require.ErrorContains(t, recovery(t, sum).Certain(), "checksum of the base block is 0x7, want ")
}

// A value across two pages, one of which is in a log, is in both files. A value in a page that only a log has is found
// in the log.
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
	require.Equal(t, "0000@0 gggg@1", got, "the hive file ends in front of it")

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

// The hashes of the entry that covers a position must be updated.
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

// A log that Windows ignores for its number or time need not belong to this hive; an applicable log must.
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

// late gives an old log another time stamp.
func late(log forge.Bytes) forge.Bytes {
	log.U64(12, 5)
	hiveforge.Seal(log)
	return log
}

// A log with very many pages costs little: it is refused.
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

// A hive whose end is in no file is refused, though no key is there; one whose end is in a log is not.
func TestTruncatedHive(t *testing.T) {
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
			require.Regexp(t, ` aaaa@\d+$`, got)
		})
	}
}

// ruined is a hive in the middle of a write: the key of the value is half written.
func ruined(t testing.TB, f forge.Bytes) forge.Bytes {
	t.Helper()
	f = slices.Clone(f)
	at := bytes.Index(f, []byte("MountedDevices")) - 76
	require.Positive(t, at)
	clear(f[at : at+76])
	return f
}

// The last state, from which the guest may start, must be readable. An earlier state need not be.
func TestEndThatCannotBeRead(t *testing.T) {
	h := hot(t)
	a := with(t, h, "aaaa")
	r := recovery(t, hiveforge.Dirty(h, 10), hiveforge.Log(h, 9, a, ruined(t, a)))
	_, err := states(r)
	require.ErrorIs(t, err, ondisk.ErrFormat)
	got, err := states(recovery(t, hiveforge.Dirty(h, 10), hiveforge.Log(h, 9, ruined(t, a), a)))
	require.NoError(t, err, "a state on the way")
	require.Equal(t, "0000@0 aaaa@1", got)
}

// Entries that do not affect the read values cost no walk.
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
		for _, err := range root.Subkeys() {
			require.NoError(t, err)
		}
		return nil
	}))
	require.Equal(t, 51, r.Applied)
	require.Equal(t, 1, visits)
}

// newLog is a log of Windows 8.1 and later with entries of these sequence numbers, the second of which is long.
func newLog(base uint32, entries ...uint32) forge.Bytes {
	f := oldLog(6, base)[:512]
	for i, sequence := range entries {
		e := make(forge.Bytes, 512+1536*(i%2))
		e.Text(0, "HvLE")
		e.U32(4, uint32(len(e)-i%2*8))
		e.U32(12, sequence)
		f = append(f, e...)
	}
	return append(f, make(forge.Bytes, 4096)...)
}

// oldLog is a log until Windows 8.
func oldLog(kind, sequence uint32) forge.Bytes {
	f := hiveforge.New(5, hiveforge.Key{})[:1024]
	f.U32(hiveforge.FileType, kind)
	f.U32(hiveforge.Sequence1, sequence)
	f.U32(hiveforge.Sequence2, sequence)
	hiveforge.Seal(f)
	f.Text(512, "DIRT")
	return f
}

func TestNewerThanAClosedHive(t *testing.T) {
	torn := oldLog(1, 9)
	torn.U32(hiveforge.Sequence2, 8)
	hiveforge.Seal(torn)
	unsealed := newLog(9, 8)
	unsealed.U32(hiveforge.Checksum, 1)
	for name, tc := range map[string]struct { // the hive has number 7
		log  forge.Bytes
		want bool
	}{
		"empty":                           {nil, false},
		"zeros":                           {make(forge.Bytes, 8192), false},
		"entries that were applied":       {newLog(3, 3, 4, 5, 6, 7), false},
		"a newer entry":                   {newLog(3, 3, 4, 5, 6, 7, 8), true},
		"a newer one first":               {newLog(3, 9, 4), true},
		"behind where numbers began anew": {newLog(3, 0xfffffff0, 2), false},
		"nothing but a base block":        {newLog(9), false},
		"base block is wrong":             {unsealed, false},
		"old, of the hive":                {oldLog(1, 7), false},
		"old, older":                      {oldLog(1, 5), false},
		"old, newer":                      {oldLog(1, 8), true},
		"old, second, newer":              {oldLog(2, 8), true},
		"old, newer, not finished":        {torn, false},
		"a hive":                          {oldLog(0, 9), false},
		"half a sector":                   {oldLog(1, 9)[:300], false},
		"cut off within an entry's head":  {newLog(3, 8)[:520], false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := newer(bytes.NewReader(tc.log), 7)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}
}

// The longest walk ends, and entries of size 0 do not stop progress.
func TestLogOfManyEntries(t *testing.T) {
	f := newLog(3)[:512]
	for range maxLogEntries {
		e := make(forge.Bytes, 512)
		e.Text(0, "HvLE")
		f = append(f, e...)
	}
	got, err := newer(bytes.NewReader(f[:len(f)-512]), 7)
	require.NoError(t, err)
	require.False(t, got)
	_, err = newer(bytes.NewReader(f), 7)
	require.ErrorIs(t, err, ondisk.ErrLimit)
}
