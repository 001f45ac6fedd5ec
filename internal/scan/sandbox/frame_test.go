package sandbox

import (
	"bytes"
	"io"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFrames(t *testing.T) {
	random := rand.NewChaCha8([32]byte{})
	for _, size := range []int{0, 1, 64<<10 - 1, 64 << 10, 64<<10 + 1, 300_000} {
		payload := make([]byte, size)
		_, _ = random.Read(payload)
		var pipe bytes.Buffer
		require.NoError(t, writeFrame(&pipe, 7, payload))
		require.Equal(t, size+12, pipe.Len())
		got, err := readFrame(&pipe, 7, int64(size))
		require.NoError(t, err)
		require.True(t, bytes.Equal(payload, got), "%d bytes", size)
	}
}

func TestWhatIsNoFrame(t *testing.T) {
	header := "\x1etu\n\x00\x00\x00\x07\x00\x00\x00\x04"
	for name, c := range map[string]struct {
		pipe string
		want error
	}{
		"nothing":                  {"", io.EOF},
		"half a header":            {header[:6], io.ErrUnexpectedEOF},
		"half a payload":           {header + "ab", io.ErrUnexpectedEOF},
		"text":                     {"panic: something", errFrame},
		"of another request":       {"\x1etu\n\x00\x00\x00\x08\x00\x00\x00\x04abcd", errFrame},
		"one byte more than asked": {"\x1etu\n\x00\x00\x00\x07\x00\x00\x00\x05abcde", errFrame},
		"four GiB":                 {"\x1etu\n\x00\x00\x00\x07\xff\xff\xff\xff", errFrame},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := readFrame(bytes.NewReader([]byte(c.pipe)), 7, 4)
			require.ErrorIs(t, err, c.want)
		})
	}
}

// What is announced and does not come costs no memory.
func TestAnnouncedFrameTakesNoMemory(t *testing.T) {
	pipe := []byte("\x1etu\n\x00\x00\x00\x07\x3f\xff\xff\xff" + "begin")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := readFrame(bytes.NewReader(pipe), 7, 1<<30)
	runtime.ReadMemStats(&after)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// FuzzReadFrame: what a worker that was taken over could send is refused or has the length that was allowed.
func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x1etu\n\x00\x00\x00\x07\x00\x00\x00\x04abcd"), int64(4))
	f.Add([]byte("\x1etu\n\x00\x00\x00\x07\xff\xff\xff\xffabcd"), int64(1<<40))
	f.Fuzz(func(t *testing.T, pipe []byte, most int64) {
		payload, err := readFrame(bytes.NewReader(pipe), 7, most)
		if err == nil {
			require.LessOrEqual(t, int64(len(payload)), most)
			require.True(t, bytes.HasSuffix(pipe[:frameHeader+len(payload)], payload), "not what came")
		}
	})
}
