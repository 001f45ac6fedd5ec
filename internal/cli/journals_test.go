package cli

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/sys"
)

// SHA-256 of the disk of testdata/journals before and after the move.
const (
	journalsOld = "5f1204e4cc82842e3091386516b859afb2f28eb56295f808d47ec5240019779b"
	journalsNew = "96fb0aa4f1c1d9018d590eb0938019a580b0d75fa72a25ced96bf8e334f176e8"
)

// refused is the outcome of a command that changes no byte and names another command.
const refused = "refused"

// TestJournalsOfEarlierVersions resumes, undoes and finishes work that commit df2a663f left on disk, killed at each of
// its states.
func TestJournalsOfEarlierVersions(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]struct{ resume, undo, finish string }{
		"exchange-begun":     {journalsNew, journalsOld, refused},
		"exchange-kept":      {refused, journalsOld, journalsNew},
		"exchange-undoing":   {refused, journalsOld, refused},
		"exchange-finishing": {refused, refused, journalsNew},
		"move-begun":         {journalsNew, journalsOld, refused},
		"move-moving":        {journalsNew, journalsOld, refused},
		"move-undoing":       {refused, journalsOld, refused},
		"move-committed":     {journalsNew, refused, refused},
		"move-written":       {journalsNew, refused, refused},
	} {
		for command, hash := range map[string]string{
			"resume": want.resume, "undo": want.undo, "finish": want.finish,
		} {
			t.Run(state+", "+command, func(t *testing.T) {
				t.Parallel()
				folder := unpackJournal(t, state)
				before := sums(t, folder)
				end := trueup(t, command, filepath.Join(folder, "d.raw"))
				after := sums(t, folder)
				if hash == refused {
					require.Equal(t, 4, end.code, end.stderr)
					require.Equal(t, before, after)
					require.Regexp(t, `\b(resume|undo|finish)\b`, end.stderr)
					return
				}
				require.Equal(t, 0, end.code, end.stderr)
				require.Equal(t, hash, after["d.raw"])
				require.NotContains(t, after, ".d.raw.partial")
				if left, ok := after["d.orig.raw"]; ok {
					require.Equal(t, journalsOld, left)
				}
			})
		}
	}
}

// TestMarkOfEarlierVersions inspects a disk that commit df2a663f began to write to a device.
func TestMarkOfEarlierVersions(t *testing.T) {
	t.Parallel()
	end := trueup(t, "inspect", filepath.Join(unpackJournal(t, "device-marked"), "d.raw"))
	require.Equal(t, 1, end.code)
	require.Contains(t, end.stderr, "unfinished copy")
}

// sums returns the SHA-256 of each file of a folder.
func sums(t *testing.T, folder string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, e := range entries {
		sum := sha256.Sum256(disktest.ReadFile(t, filepath.Join(folder, e.Name())))
		out[e.Name()] = hex.EncodeToString(sum[:])
	}
	return out
}

// unpackJournal unpacks the files of one state into a folder, and gives its journal their inode numbers.
func unpackJournal(t *testing.T, state string) string {
	t.Helper()
	folder := t.TempDir()
	f, err := os.Open(filepath.Join("testdata", "journals", state+".tar.gz"))
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	var inodes string
	files := tar.NewReader(z)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		path := filepath.Join(folder, h.Name)
		if h.Typeflag == tar.TypeLink {
			require.NoError(t, os.Link(filepath.Join(folder, h.Linkname), path))
			continue
		}
		b, err := io.ReadAll(files)
		require.NoError(t, err)
		if h.Name == "inodes" {
			inodes = string(b)
			continue
		}
		require.NoError(t, os.WriteFile(path, b, 0o600))
		require.NoError(t, os.Chtimes(path, h.ModTime, h.ModTime))
	}
	journal := filepath.Join(folder, "d.raw.trueup")
	if b, err := os.ReadFile(journal); err == nil {
		require.NoError(t, os.WriteFile(journal, withInodes(t, b, folder, inodes), 0o600))
	}
	return folder
}

// withInodes replaces the inode numbers in the plan of a journal. inodes has a line for each file: the number that it
// had, and its name. The comment of package journal has the places.
func withInodes(t *testing.T, b []byte, folder, inodes string) []byte {
	t.Helper()
	const (
		lengthAt, digestAt, sumAt = 48, 56, 508
		planAt, end               = 68 << 10, 72 << 10
	)
	var pairs []string
	for line := range strings.Lines(inodes) {
		var number, name string
		_, err := fmt.Sscan(line, &number, &name)
		require.NoError(t, err)
		info, err := sys.Stat(filepath.Join(folder, name))
		require.NoError(t, err)
		pairs = append(pairs, ":"+number, fmt.Sprint(":", info.Inode))
	}
	length := binary.LittleEndian.Uint64(b[lengthAt:])
	plan := strings.NewReplacer(pairs...).Replace(string(b[planAt : planAt+length]))
	require.LessOrEqual(t, planAt+len(plan), end)
	b = slices.Concat(b[:planAt], []byte(plan), make([]byte, end-planAt-len(plan)), b[min(len(b), end):])
	binary.LittleEndian.PutUint64(b[lengthAt:], uint64(len(plan)))
	digest := sha256.Sum256([]byte(plan))
	copy(b[digestAt:], digest[:])
	binary.LittleEndian.PutUint32(b[sumAt:], crc32.Checksum(b[:sumAt], crc32.MakeTable(crc32.Castagnoli)))
	return b
}
