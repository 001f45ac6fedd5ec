package disktest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disk"
)

func TestRecorderKeepsWhatItIsTold(t *testing.T) {
	r := NewRecorder(10000, 4096)
	require.NoError(t, r.Reserve(0, 4096))
	require.NoError(t, r.Reserve(8192, 1808))
	last, first := bytes.Repeat([]byte{2}, 1808), bytes.Repeat([]byte{1}, 4096)
	_, err := r.WriteAt(last, 8192)
	require.NoError(t, err)
	_, err = r.WriteAt(first, 0)
	require.NoError(t, err)
	clear(first) // the caller's buffer is used again

	require.Empty(t, r.Faults())
	require.Equal(t, []disk.Range{{Off: 0, Len: 4096}, {Off: 8192, Len: 1808}}, r.Reserved())
	require.Equal(t, []disk.Range{{Off: 0, Len: 4096}, {Off: 8192, Len: 1808}}, r.Written())
	want := make([]byte, 10000)
	copy(want, bytes.Repeat([]byte{1}, 4096))
	copy(want[8192:], last)
	EqualBytes(t, want, r.Bytes())
}

func TestRecorderFindsBrokenRules(t *testing.T) {
	for _, tc := range []struct {
		name, want string
		breaks     func(r *Recorder) error
	}{
		{"descending reservations", "not in ascending order", func(r *Recorder) error {
			return errors.Join(r.Reserve(8192, 4096), r.Reserve(0, 4096))
		}},
		{"half a unit", "in units of 4096", func(r *Recorder) error { return r.Reserve(0, 2048) }},
		{"an odd place", "in units of 4096", func(r *Recorder) error { return r.Reserve(512, 4096) }},
		{"past the end", "on a disk of 16384 bytes", func(r *Recorder) error { return r.Reserve(12288, 8192) }},
		{"a write that was not reserved", "not reserved", func(r *Recorder) error {
			_, err := r.WriteAt(make([]byte, 4096), 0)
			return err
		}},
		{"a part of what was reserved", "not reserved", func(r *Recorder) error {
			err := r.Reserve(0, 8192)
			_, werr := r.WriteAt(make([]byte, 4096), 0)
			return errors.Join(err, werr)
		}},
		{"a second write", "over", func(r *Recorder) error {
			err := r.Reserve(0, 4096)
			_, err1 := r.WriteAt(make([]byte, 4096), 0)
			_, err2 := r.WriteAt(make([]byte, 4096), 0)
			return errors.Join(err, err1, err2)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewRecorder(16384, 4096)
			require.NoError(t, tc.breaks(r))
			require.Len(t, r.Faults(), 1)
			require.Contains(t, r.Faults()[0], tc.want)
		})
	}
}
