package align_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
)

// patchy returns a disk with stored data and zeros, in stretches of any length, and its content.
func patchy(seed uint64, size int) (disk.Disk, []byte) {
	rnd := rand.New(rand.NewPCG(seed, 9))
	want := make([]byte, size)
	src := bytes.NewReader(want)
	var runs []disk.Run
	for off := 0; off < size; {
		n := min(1+rnd.IntN(30_000), size-off)
		run := disk.Run{Len: int64(n), Src: src, Off: int64(off)}
		switch rnd.IntN(3) {
		case 0:
			run.Src = nil
		case 1:
			want[off+rnd.IntN(n)] = 1
		}
		runs = append(runs, run)
		off += n
	}
	return mapped(runs...), want
}

func TestNonZeroCountsBlocks(t *testing.T) {
	for seed := range uint64(5) {
		d, data := patchy(seed, 3<<20+int(seed)*512)
		var want int64
		for off := 0; off < len(data); off += 4096 {
			if block := data[off:min(off+4096, len(data))]; bytes.Count(block, []byte{0}) < len(block) {
				want += int64(len(block))
			}
		}
		for _, jobs := range []int{1, 4} {
			var told atomic.Int64
			got, err := align.NonZero(t.Context(), d, jobs, func(n int64) { told.Add(n) })
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.Positive(t, told.Load())
		}
	}
}

// counted counts the bytes that are read.
type counted struct{ n *atomic.Int64 }

func (c counted) ReadAt(p []byte, _ int64) (int, error) {
	c.n.Add(int64(len(p)))
	clear(p) // it had a value before
	p[0] = 1
	return len(p), nil
}

// A sector in each of a million chunks must not cost the time of a chunk each.
func TestOnlyDataIsRead(t *testing.T) {
	var n atomic.Int64
	d := disk.New(1000*mib, 512, func(off int64) (disk.Run, error) {
		if into := off % mib; into < 8192 {
			return disk.Run{Len: 8192 - into, Src: counted{&n}}, nil
		}
		return disk.Run{Len: mib - off%mib}, nil
	})
	got, err := align.NonZero(t.Context(), d, 2, func(int64) {})
	require.NoError(t, err)
	require.Equal(t, int64(1000*8192), n.Load())
	require.Equal(t, int64(1000*4096), got)
}

func TestNonZeroEndsWithAnError(t *testing.T) {
	bad := errors.New("input/output error")
	d := mapped(disk.Run{Len: 8 * mib}, disk.Run{Len: mib, Src: failing{bad}})
	_, err := align.NonZero(t.Context(), d, 2, func(int64) {})
	require.ErrorIs(t, err, bad)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = align.NonZero(ctx, mapped(disk.Run{Len: mib, Src: failing{io.EOF}}), 2, func(int64) {})
	require.ErrorIs(t, err, context.Canceled)
}

type failing struct{ err error }

func (f failing) ReadAt([]byte, int64) (int, error) { return 0, f.err }

// unreadable is a file of an image that must not be read.
type unreadable struct{ driver.File }

// spoiled is compressed data that is damaged at one byte.
type spoiled struct {
	bad int64
	err error
}

func (p spoiled) ReadAt(b []byte, off int64) (int, error) {
	clear(b)
	if off <= p.bad && p.bad < off+int64(len(b)) {
		return 0, p.err
	}
	return len(b), nil
}

// counts is a progress.
type counts struct {
	total int64
	done  atomic.Int64
}

func (c *counts) Begin(_ string, total int64) { c.total = total }
func (c *counts) Add(n int64)                 { c.done.Add(n) }

// TestDecodeReadsCompressedData finds damage beyond the amount that an inspection reads, and reads no uncompressed
// data.
func TestDecodeReadsCompressedData(t *testing.T) {
	t.Parallel()
	const size = 256 * mib
	damage := errors.New("wrong checksum")
	for bad, want := range map[int64]error{0: damage, size/2 - 1: damage, size - 4096: damage, size: nil} {
		data := spoiled{bad, damage}
		d := mapped(
			disk.Run{Len: size / 2, Src: data}, disk.Run{Len: mib, Src: unreadable{}}, disk.Run{Len: 1 << 40},
			disk.Run{Len: size / 2, Src: data, Off: size / 2},
		)
		var p counts
		require.ErrorIs(t, align.Decode(t.Context(), d, 2, &p), want, bad)
		require.Equal(t, size, p.total)
		if want == nil {
			require.Equal(t, p.total, p.done.Load())
		}
	}
}
