package cli

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/realign"
)

// jsonChanges is what JSON says that a copy changes.
type jsonChanges struct {
	NewSize  int64      `json:"new_size_bytes"`
	Moves    []jsonGone `json:"moves"`
	GapMoves []jsonGone `json:"gap_moves"`
	Patches  []struct {
		Off int64  `json:"offset_bytes"`
		Old string `json:"old"`
		New string `json:"new"`
	} `json:"patches"`
}

type jsonGone struct {
	From int64 `json:"from_bytes"`
	To   int64 `json:"to_bytes"`
	Size int64 `json:"size_bytes"`
}

// maxReasoned is the size of the disks that are compared in memory, in bytes.
const maxReasoned = 256 << 20

// requireReasons wants a copy to differ from its moved source in the listed fields only, which hold the old values that
// are listed; and one in which nothing moves, or is to be mended, not at all. What is refused, or cannot be read, is no
// copy. It returns how many copies were made.
func requireReasons(t *testing.T, path string) (copies int) {
	t.Helper()
	s, err := OpenSource(path, realign.Reading{})
	if err != nil {
		return 0
	}
	defer s.Close()
	size := s.Image.Disk.Size()
	if size > maxReasoned {
		return 0
	}
	was := make([]byte, size)
	_, err = s.Image.Disk.ReadAt(was, 0)
	if err != nil && err != io.EOF { //nolint:errorlint // as io.ReaderAt has it
		return 0
	}
	for _, flags := range [][]string{nil, {"--repair-table"}, {"--boundary", "4K", "--repair-table"}} {
		dest := filepath.Join(t.TempDir(), "reasons.raw")
		args := append([]string{"align", "--json", "--to", "raw", "--allow-unbootable"}, flags...)
		end := trueup(t, append(args, path, dest)...)
		if end.code != 0 {
			require.NoFileExists(t, dest)
			continue
		}
		copies++
		var r struct {
			Disks []jsonChanges `json:"disks"`
		}
		require.NoError(t, json.Unmarshal([]byte(end.stdout), &r), end.stdout)
		c := r.Disks[0]
		is, err := os.ReadFile(dest)
		require.NoError(t, err)
		if len(c.Moves) == 0 && flags == nil {
			require.Empty(t, c.Patches)
			require.True(t, bytes.Equal(was, is), "nothing moves, and the copy differs")
		}
		want := moved(was, c)
		for _, p := range c.Patches {
			before, err := hex.DecodeString(p.Old)
			require.NoError(t, err)
			after, err := hex.DecodeString(p.New)
			require.NoError(t, err)
			require.Equal(t, before, want[p.Off:p.Off+int64(len(before))], "%v: the old value at %#x", flags, p.Off)
			copy(want[p.Off:], after)
		}
		if !bytes.Equal(want, is) {
			at := 0
			for want[at] == is[at] {
				at++
			}
			require.Failf(t, "a byte has no reason", "%v: byte %#x is %#02x, want %#02x", flags, at, is[at], want[at])
		}
		require.NoError(t, os.Remove(dest))
	}
	return copies
}

// moved returns a disk with what moves in its new places; the places that it leaves are zero.
func moved(was []byte, c jsonChanges) []byte {
	out := make([]byte, c.NewSize)
	copy(out, was)
	all := append(append([]jsonGone{}, c.Moves...), c.GapMoves...)
	for _, m := range all {
		clear(out[m.From : m.From+m.Size])
	}
	for _, m := range all {
		copy(out[m.To:], was[m.From:m.From+m.Size])
	}
	return out
}
