package diskcopy_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
)

// pieces gives parts of a disk as a stream would: in order, with gaps where it is zero, in odd sizes.
func pieces(data []byte, stored []disk.Range, end error) func() (int64, []byte, error) {
	scratch := make([]byte, len(data))
	return func() (int64, []byte, error) {
		if len(stored) == 0 {
			return 0, nil, end
		}
		r := stored[0]
		stored = stored[1:]
		clear(scratch) // what was given before is gone
		return r.Off, scratch[:copy(scratch, data[r.Off:r.End()])], nil
	}
}

// stretches cuts a disk into pieces and clears what lies between them.
func stretches(rnd *rand.Rand, data []byte) []disk.Range {
	var out []disk.Range
	for off := 0; off < len(data); {
		n := min(1+rnd.IntN(700*kib), len(data)-off)
		if rnd.IntN(3) == 0 {
			clear(data[off : off+n])
		} else {
			out = append(out, disk.Range{Off: int64(off), Len: int64(n)})
		}
		off += n
	}
	return out
}

func TestPipeWritesWhatComes(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		data := make([]byte, 5*mib+rnd.IntN(2*mib))
		_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(data) // always full
		stored := stretches(rnd, data)
		d := disktest.Memory(data)
		want, err := diskcopy.Digest(t.Context(), d, diskcopy.Options{Jobs: 2})
		require.NoError(t, err)
		for _, jobs := range []int{1, 4} {
			target := disktest.NewRecorder(int64(len(data)), 64*kib)
			var told atomic.Int64
			sum, n, err := diskcopy.Pipe(t.Context(), pieces(data, stored, io.EOF), int64(len(data)), target,
				diskcopy.Options{Jobs: jobs, Progress: func(n int64) { told.Add(n) }})
			require.NoError(t, err)
			require.Equal(t, want, sum, "the digest is that of the disk")
			require.Equal(t, int64(len(data)), told.Load())
			require.Positive(t, n)
			require.LessOrEqual(t, n, int64(len(data)))
			disktest.EqualBytes(t, data, target.Bytes())
			require.Empty(t, target.Faults())
		}
	}
}

func TestPipeEndsWithTheErrorOfItsSource(t *testing.T) {
	bad := errors.New("marker")
	data := bytes.Repeat([]byte{1}, 3*mib)
	_, _, err := diskcopy.Pipe(t.Context(), pieces(data, []disk.Range{{Len: 2 * mib}}, bad), 3*mib,
		disktest.NewRecorder(3*mib, 64*kib), diskcopy.Options{Jobs: 3})
	require.ErrorIs(t, err, bad)

	// An error that is given once is not forgotten: in front of a chunk, and within one.
	for _, stored := range [][]disk.Range{nil, {{Len: 2 * mib}}, {{Len: mib / 2}}} {
		next, given := pieces(data, stored, bad), false
		once := func() (int64, []byte, error) {
			if given {
				return 0, nil, io.EOF
			}
			off, p, err := next()
			given = err != nil
			return off, p, err
		}
		_, _, err := diskcopy.Pipe(t.Context(), once, 3*mib, disktest.NewRecorder(3*mib, 64*kib),
			diskcopy.Options{Jobs: 1})
		require.ErrorIs(t, err, bad, "%v", stored)
	}
}

// What cannot be read has no digest, and what cannot be packed is not copied.
func TestDigestAndPackFail(t *testing.T) {
	bad := errors.New("marker")
	s := source{size: mib, data: []disk.Range{{Len: mib}}, fail: func(int64) error { return bad }}
	_, err := diskcopy.Digest(t.Context(), s.disk(), diskcopy.Options{})
	require.ErrorIs(t, err, bad)
	broken := disk.New(mib, 512, func(int64) (disk.Run, error) { return disk.Run{}, bad })
	_, err = diskcopy.Digest(t.Context(), broken, diskcopy.Options{})
	require.ErrorIs(t, err, bad)
	_, err = diskcopy.Size(t.Context(), 0, broken)
	require.ErrorIs(t, err, bad)
	_, err = diskcopy.Run(t.Context(), disktest.Memory([]byte("data")), disktest.NewRecorder(mib, 64*kib),
		diskcopy.Options{Pack: func([]byte, int64) ([]byte, error) { return nil, bad }})
	require.ErrorIs(t, err, bad)
}

// A digest tells disks apart by every byte, by their size and by the place of their data, and not by their holes.
func TestDigest(t *testing.T) {
	digest := func(b []byte) diskcopy.Sum {
		s, err := diskcopy.Digest(t.Context(), disktest.Memory(b), diskcopy.Options{})
		require.NoError(t, err)
		return s
	}
	base := make([]byte, 4*mib)
	base[mib+5], base[3*mib] = 1, 2
	want := digest(base)
	require.Equal(t, want, digest(bytes.Clone(base)))
	for name, change := range map[string]func([]byte) []byte{
		"a byte":  func(b []byte) []byte { b[4*mib-1] = 1; return b },
		"size":    func(b []byte) []byte { return b[:4*mib-512] },
		"a place": func(b []byte) []byte { b[2*mib+5], b[mib+5] = 1, 0; return b },
	} {
		require.NotEqual(t, want, digest(change(bytes.Clone(base))), name)
	}
}
