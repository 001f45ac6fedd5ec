package journal_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
)

// Places of a journal, as the comment of its package has them.
const (
	sumAt  = 508
	slotAt = 4096
	planAt = 68 << 10
)

// lives writes and reads all parts of a journal, with a second run that continues from the first.
func lives(f journal.File) error {
	j, err := journal.Create(f, "test", id, []byte("plan"), 8192)
	for i, record := range []string{"first", "second", "third"} {
		if err == nil && i == 1 {
			if _, _, err = journal.Peek(f); err == nil {
				j, err = journal.Open(f)
			}
		}
		if err == nil {
			err = j.WriteAt(bytes.Repeat([]byte{byte(i)}, 1000), int64(i%2)*4096)
		}
		if err == nil {
			err = j.Put([]byte(record))
		}
	}
	if err == nil {
		err = j.ReadAt(make([]byte, 1000), 0)
	}
	return err
}

// TestEachCallFails fails each write, flush and read of a journal in turn: none goes unnoticed.
func TestEachCallFails(t *testing.T) {
	t.Parallel()
	whole := disktest.NewMedium()
	require.NoError(t, lives(whole.File("j")))
	for n := 1; n <= whole.Calls; n++ {
		m := disktest.NewMedium()
		m.Fail = n
		require.ErrorIs(t, lives(m.File("j")), disktest.ErrFault, "writing call %d", n)
	}
	require.Greater(t, whole.Reads, 10)
	for n := 1; n <= whole.Reads; n++ {
		m := disktest.NewMedium()
		m.FailRead = n
		require.ErrorIs(t, lives(m.File("j")), disktest.ErrFault, "read %d", n)
	}
}

// TestFailedFlushThenPower has a flush of a run fail, after which the kernel takes what it could not write for clean.
// The next run continues from a record that only the cache has, and loses its power: one of the records is whole.
func TestFailedFlushThenPower(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(5, 9))
	long := func(record string) []byte { return bytes.Repeat([]byte(record), 1500) } // some sectors
	run := func(m *disktest.Medium, records ...string) (err error) {
		j, err := journal.Create(m.File("j"), "test", id, nil, 8192)
		for i, record := range records {
			if err == nil {
				err = j.WriteAt(long(record), int64(i%2)*4096)
			}
			if err == nil {
				err = j.Put(long(record))
			}
		}
		return err
	}
	whole := disktest.NewMedium()
	require.NoError(t, run(whole, "1", "2"))
	cuts := 0
	for try := range 10 * 8 {
		m := disktest.NewMedium()
		m.Fail = whole.Calls // the flush of the second record
		require.ErrorIs(t, run(m, "1", "2"), disktest.ErrFault)
		j, err := journal.Open(m.File("j"))
		require.NoError(t, err)
		require.Equal(t, long("2"), j.Record())
		m.Power = try % 8
		err = j.Put(long("3"))
		if err != nil {
			cuts++
		}
		j, openErr := journal.Open(m.AfterCrash(disktest.Some(r, r.Float64())).File("j"))
		require.NoError(t, openErr, "power lost at call %d", try%8)
		require.Contains(t, "123", string(j.Record()[:1]))
		require.True(t, err != nil || j.Record()[0] == '3', "%.9q", j.Record())
		if n := j.Record()[0]; n != '3' {
			saved := make([]byte, 1500)
			require.NoError(t, j.ReadAt(saved, int64(n-'1')*4096))
			require.Equal(t, long(string(n)), saved, "power lost at call %d", try%8)
		}
	}
	require.Positive(t, cuts)
	require.Less(t, cuts, 80)
}

// TestForgedHeads has heads with numbers out of bounds and the right checksum.
func TestForgedHeads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		version uint32
		plan    int64
		area    int64 // its offset
		length  int64
		says    string
	}{
		{"another version", 2, 4, planAt + 4096, 0, "journal of version 2, want 1"},
		{"a plan of -1 byte", 1, -1, planAt, 0, "length of the plan"},
		{"a plan that is too long", 1, journal.MaxPlan + 1, planAt + journal.MaxPlan + 4096, 0, "length of the plan"},
		{"an area in the plan", 1, 4, planAt, 0, "area"},
		{"an area of -1 byte", 1, 4, planAt + 4096, -1, "area"},
		{"an area that is too long", 1, 4, planAt + 4096, journal.MaxArea + 1, "area"},
	} {
		f := disktest.NewMedium().File("j")
		_, err := journal.Create(f, "test", id, []byte("plan"), 0)
		require.NoError(t, err)
		b := f.Bytes()
		binary.LittleEndian.PutUint32(b[8:], c.version)
		binary.LittleEndian.PutUint64(b[48:], uint64(c.plan))
		binary.LittleEndian.PutUint64(b[88:], uint64(c.area))
		binary.LittleEndian.PutUint64(b[96:], uint64(c.length))
		binary.LittleEndian.PutUint32(b[sumAt:], crc32.Checksum(b[:sumAt], crc32.MakeTable(crc32.Castagnoli)))
		_, err = journal.Open(f)
		require.ErrorContains(t, err, c.says, c.name)
	}
}

// slot returns the first record with the right checksum, and one saved range unless its length is 0.
func slot(off, length int64) []byte {
	b := binary.LittleEndian.AppendUint64(nil, 1)
	b = binary.LittleEndian.AppendUint32(b, 4)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	if length != 0 {
		b[12] = 1
		b = binary.LittleEndian.AppendUint64(b, uint64(off))
		b = binary.LittleEndian.AppendUint64(b, uint64(length))
		b = append(b, 0, 0, 0, 0)
	}
	b = append(b, "text"...)
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(crc32.Update(crc32.Checksum(id[:], table), table, b[:16]), table, b[20:])
	binary.LittleEndian.PutUint32(b[16:], sum)
	return b
}

// TestForgedRecords has records with the right checksum that no run writes.
func TestForgedRecords(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		even, odd []byte
		says      string
	}{
		"sound":                       {nil, slot(0, 0), ""},
		"in the slot of the others":   {slot(0, 0), nil, "number of the record"},
		"both torn":                   {[]byte("torn"), []byte("torn"), "none whole"},
		"saved bytes behind the area": {nil, slot(4000, 97), "saved bytes"},
		"saved bytes in front of it":  {nil, slot(-1, 1), "saved bytes"},
		"-1 byte saved":               {nil, slot(0, -1), "saved bytes"},
	} {
		f := disktest.NewMedium().File("j")
		_, err := journal.Create(f, "test", id, nil, 4096)
		require.NoError(t, err)
		copy(f.Bytes()[slotAt:], c.even)
		copy(f.Bytes()[slotAt+32<<10:], c.odd)
		_, err = f.WriteAt(make([]byte, 4096), planAt)
		require.NoError(t, err)
		j, err := journal.Open(f)
		if c.says == "" {
			require.NoError(t, err, name)
			require.Equal(t, "text", string(j.Record()))
			continue
		}
		require.ErrorContains(t, err, c.says, name)
	}
}

// TestOtherFiles opens files that are not journals.
func TestOtherFiles(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 512} {
		_, err := journal.Read(bytes.NewReader(make([]byte, size)), journal.MaxPlan)
		require.ErrorIs(t, err, journal.ErrBlank, size)
	}
	_, err := journal.Read(bytes.NewReader(bytes.Repeat([]byte("text"), 200)), journal.MaxPlan)
	require.ErrorContains(t, err, "magic")
}

// TestLimits has plans, areas and records that are larger than is allowed.
func TestLimits(t *testing.T) {
	t.Parallel()
	f := disktest.NewMedium().File("j")
	for _, c := range []struct {
		plan int64
		area int64
	}{{journal.MaxPlan + 1, 0}, {0, -1}, {0, journal.MaxArea + 1}} {
		_, err := journal.Create(f, "test", id, make([]byte, c.plan), c.area)
		require.ErrorIs(t, err, ondisk.ErrLimit, fmt.Sprint(c))
	}
	_, err := journal.Create(f, "a kind of more than 16", id, nil, 0)
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.Zero(t, f.Size())
	j, err := journal.Create(f, "test", id, nil, 4096)
	for n := 0; err == nil; n++ {
		if err = j.WriteAt([]byte{1}, int64(n)); err != nil {
			require.Equal(t, 64, n)
		}
	}
	require.ErrorIs(t, err, ondisk.ErrLimit)
	require.ErrorContains(t, j.ReadAt(make([]byte, 4097), 0), "saved bytes")
	require.Error(t, j.ReadAt(make([]byte, 1), -1))

	j, err = journal.Create(f, "test", id, nil, 100)
	require.NoError(t, err)
	require.ErrorIs(t, j.Put(make([]byte, journal.MaxRecord+1)), ondisk.ErrLimit)
	require.NoError(t, j.Put(make([]byte, journal.MaxRecord)))
	require.Error(t, j.WriteAt(make([]byte, 2), 99))
}
