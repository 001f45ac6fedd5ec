package diskcopy_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/disktest"
)

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
