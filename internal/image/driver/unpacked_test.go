package driver

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnpackedReadsUnits(t *testing.T) {
	var calls atomic.Int64
	u := NewUnpacked(4*1000, 1000, func(dst []byte, key int64) error {
		calls.Add(1)
		for i := range dst {
			dst[i] = byte(int64(i) * key)
		}
		return nil
	})
	want := func(key int64) []byte {
		b := make([]byte, 1000)
		for i := range b {
			b[i] = byte(int64(i) * key)
		}
		return b
	}
	var wg sync.WaitGroup
	var wrong atomic.Int64
	for w := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for range 500 {
				key, off := rnd.Int64N(7), rnd.Int64N(1000)
				b := make([]byte, 1+rnd.Int64N(1000-off))
				if n, err := u.Unit(key).ReadAt(b, off); err != nil || n != len(b) ||
					!bytes.Equal(b, want(key)[off:off+int64(n)]) {
					wrong.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, wrong.Load())
	require.Len(t, u.units, 4, "the bound holds")

	calls.Store(0)
	for off := int64(0); off < 1000; off += 10 {
		_, err := u.Unit(99).ReadAt(make([]byte, 10), off)
		require.NoError(t, err)
	}
	require.Equal(t, int64(1), calls.Load(), "a unit that is read in pieces is unpacked once")
	_, err := u.Unit(99).ReadAt(make([]byte, 20), 990)
	require.ErrorIs(t, err, io.EOF)
}

func TestUnpackedReportsErrors(t *testing.T) {
	bad := errors.New("bad stream")
	u := NewUnpacked(1, 1000, func([]byte, int64) error { return bad })
	for range 2 {
		for _, n := range []int{10, 1000} {
			got, err := u.Unit(1).ReadAt(make([]byte, n), 0)
			require.ErrorIs(t, err, bad)
			require.Zero(t, got, "a disk takes as many bytes as it asked for without a look at the error")
		}
	}
}
