package journal_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

var id = journal.ID{1, 2, 3}

// TestPowerCut cuts the power at each call of a journal's life: what is found then is the last record that was put, or
// the one that was being put, whole, with the bytes that it vouches for.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	const records = 5
	record := func(n int) []byte { return bytes.Repeat([]byte{byte(n)}, 1000*n) }
	life := func(m *disktest.Medium) (put int, err error) {
		j, err := journal.Create(m.File("j"), "test", id, []byte("plan"), 8192)
		for n := 1; n <= records && err == nil; n++ {
			if err = j.WriteAt(record(n)[:1000], int64(n%2)*4096); err == nil {
				err = j.Put(record(n))
			}
			if err == nil {
				put = n
			}
		}
		return put, err
	}
	whole := disktest.NewMedium()
	_, err := life(whole)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	for cut := range whole.Calls {
		for range 20 {
			m := disktest.NewMedium()
			m.Power = cut
			put, err := life(m)
			require.ErrorIs(t, err, disktest.ErrPower)
			after := m.AfterCrash(disktest.Some(r, r.Float64()))
			j, err := journal.Open(after.File("j"))
			if put == 0 && err != nil {
				require.ErrorIs(t, err, journal.ErrNotBegun, "cut at call %d", cut)
				continue
			}
			require.NoError(t, err, "cut at call %d", cut)
			assert.Equal(t, "test", j.Kind())
			assert.Equal(t, "plan", string(j.Plan()))
			got := len(j.Record()) / 1000
			require.Contains(t, []int{put, put + 1}, got, "cut at call %d", cut)
			if got > 0 {
				require.Equal(t, record(got), j.Record())
				saved := make([]byte, 1000)
				require.NoError(t, j.ReadAt(saved, int64(got%2)*4096))
				require.True(t, bytes.Equal(record(got)[:1000], saved),
					"cut at call %d: record %d does not vouch for its bytes", cut, got)
			}
			// It continues from there.
			require.NoError(t, j.Put([]byte("next")))
			j, err = journal.Open(after.File("j"))
			require.NoError(t, err)
			assert.Equal(t, "next", string(j.Record()))
		}
	}
}

// TestFlushesAreNeeded shows that TestPowerCut can fail: without flushes the last record is lost.
func TestFlushesAreNeeded(t *testing.T) {
	t.Parallel()
	m := disktest.NewMedium()
	j, err := journal.Create(m.File("j"), "test", id, nil, 0)
	require.NoError(t, err)
	m.Lie = func(string) bool { return true }
	require.NoError(t, j.Put([]byte("lost")))
	j, err = journal.Open(m.AfterCrash(func(string, int64) bool { return false }).File("j"))
	require.NoError(t, err)
	assert.Empty(t, j.Record())
}

// TestDamagedJournals flips each byte of head, plan and records: the journal is refused, or says what it said, or what
// it said before.
func TestDamagedJournals(t *testing.T) {
	t.Parallel()
	m := disktest.NewMedium()
	j, err := journal.Create(m.File("j"), "test", id, []byte("plan"), 0)
	require.NoError(t, err)
	require.NoError(t, j.Put([]byte("first")))
	require.NoError(t, j.Put([]byte("second")))
	good := m.File("j").Bytes()
	torn := bytes.Clone(good)
	torn[68<<10] ^= 1
	_, err = journal.Read(bytes.NewReader(torn), journal.MaxPlan)
	require.ErrorContains(t, err, fmt.Sprintf("SHA-256 of the plan % x, want % x", sha256.Sum256([]byte("qlan")),
		sha256.Sum256([]byte("plan"))))
	for off := range good {
		if off >= 512 && good[off] == 0 {
			continue // nothing is there, or a byte of a number, of which others are flipped
		}
		bad := disktest.NewMedium()
		b := bytes.Clone(good)
		b[off] ^= 0x40
		_, err := bad.File("j").WriteAt(b, 0)
		require.NoError(t, err)
		j, err := journal.Open(bad.File("j"))
		if err != nil {
			assert.True(t, errors.Is(err, ondisk.ErrFormat) || errors.Is(err, ondisk.ErrUnsupported), "byte %#x: %v",
				off, err)
			require.NotErrorIs(t, err, journal.ErrNotBegun, "byte %#x", off)
			continue
		}
		require.GreaterOrEqual(t, off, 512, "byte %#x of the head is not checked", off)
		require.Less(t, off, 68<<10, "byte %#x of the plan is not checked", off)
		assert.Contains(t, []string{"first", "second"}, string(j.Record()), "byte %#x", off)
	}
	short := disktest.NewMedium()
	_, err = short.File("j").WriteAt([]byte("a text of the user's"), 0)
	require.NoError(t, err)
	_, err = journal.Open(short.File("j"))
	require.NotErrorIs(t, err, journal.ErrNotBegun)
	require.ErrorIs(t, err, ondisk.ErrFormat)
	for _, size := range []int{0, 511, 512, 4096, 69631, 69633, len(good) - 1} {
		cut := disktest.NewMedium()
		_, err := cut.File("j").WriteAt(good[:min(size, len(good))], 0)
		require.NoError(t, err)
		if j, err := journal.Open(cut.File("j")); err == nil {
			assert.Equal(t, len(good), size, "%q", j.Record())
		}
	}
}

// TestRecordsOfAnotherJournal gives a journal the slots of another one, like a file system that hands out blocks before
// they are written.
func TestRecordsOfAnotherJournal(t *testing.T) {
	t.Parallel()
	m := disktest.NewMedium()
	old, err := journal.Create(m.File("old"), "test", journal.ID{9}, nil, 0)
	require.NoError(t, err)
	require.NoError(t, old.Put([]byte("stale")))
	_, err = journal.Create(m.File("new"), "test", id, nil, 0)
	require.NoError(t, err)
	_, err = m.File("new").WriteAt(m.File("old").Bytes()[4096:68<<10], 4096)
	require.NoError(t, err)
	j, err := journal.Open(m.File("new"))
	require.NoError(t, err)
	assert.Empty(t, j.Record())
}

// TestPeek reads kind and record of a journal whose plan and saved bytes are not looked at.
func TestPeek(t *testing.T) {
	t.Parallel()
	m := disktest.NewMedium()
	_, _, err := journal.Peek(m.File("j"))
	require.ErrorIs(t, err, journal.ErrNotBegun)
	j, err := journal.Create(m.File("j"), "test", id, []byte("plan"), 8192)
	require.NoError(t, err)
	kind, record, err := journal.Peek(m.File("j"))
	require.NoError(t, err)
	assert.Equal(t, "test", kind)
	assert.Empty(t, record)
	require.NoError(t, j.WriteAt([]byte("saved"), 0))
	require.NoError(t, j.Put([]byte("first")))
	_, err = m.File("j").WriteAt([]byte("torn!"), 72<<10)
	require.NoError(t, err)
	_, record, err = journal.Peek(m.File("j"))
	require.NoError(t, err)
	assert.Equal(t, "first", string(record))
	j, err = journal.Open(m.File("j"))
	require.NoError(t, err)
	assert.Empty(t, j.Record(), "the bytes that it vouches for are torn")
}

// FuzzJournal opens any bytes as a journal.
func FuzzJournal(f *testing.F) {
	m := disktest.NewMedium()
	j, err := journal.Create(m.File("j"), "test", id, []byte("plan"), 4096)
	require.NoError(f, err)
	require.NoError(f, j.Put([]byte("record")))
	f.Add(m.File("j").Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		m := disktest.NewMedium()
		_, err := m.File("j").WriteAt(b, 0)
		require.NoError(t, err)
		kind, _, peeked := journal.Peek(m.File("j"))
		if j, err := journal.Open(m.File("j")); err == nil {
			require.LessOrEqual(t, len(j.Plan()), len(b))
			require.LessOrEqual(t, len(j.Record()), len(b))
			require.NoError(t, peeked)
			require.Equal(t, j.Kind(), kind)
		}
	})
}
