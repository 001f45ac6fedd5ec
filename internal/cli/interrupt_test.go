package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/realign"
	"github.com/trueup/trueup/internal/report"
	"github.com/trueup/trueup/internal/scan/results"
	"github.com/trueup/trueup/internal/sys"
)

// Ctrl-C at the start of a run produces a report that says so.
func TestScanInterruptedAtOnce(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "disk.raw"), make([]byte, 1<<20), 0o644))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := Run(ctx, "test", []string{"scan", "-o", "json", "--isolation", "none", dir}, &out, &errs)
	require.Equal(t, 128+int(syscall.SIGINT), code)
	var sum results.Summary
	require.NoError(t, json.Unmarshal(out.Bytes(), &sum), out.String())
	require.False(t, sum.Complete)
	require.Zero(t, sum.Images)
	require.Equal(t, 128+int(syscall.SIGINT), sum.ExitCode)
	require.Contains(t, errs.String(), "interrupted")
}

// TestInterruptBeforeMove interrupts a move in place before its first write: both messages say that the disk stays.
func TestInterruptBeforeMove(t *testing.T) {
	t.Chdir(t.TempDir())
	disk := tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	put(t, "disk.img", disk)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := &Base{}
	root := newRoot("test", c)
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs([]string{"move", "--allow-unbootable", "disk.img"})
	cmd, err := root.ExecuteContextC(ctx)
	require.Equal(t, 128+int(syscall.SIGINT), Finish(err, c, cmd.Name(), &out, &errs))
	require.Equal(t, "trueup: interrupted; nothing was moved, and the disk is unchanged\n", errs.String())
	require.True(t, c.Ending.Interrupted(&errs))
	require.Contains(t, errs.String(), "leaving the disk unchanged")
	now := disktest.ReadFile(t, "disk.img")
	require.Equal(t, []byte(disk), now)
	require.NoFileExists(t, "disk.img.trueup")
}

// moving returns a context that is cancelled as soon as a file exists.
type moving struct {
	context.Context
	file string
}

func (m moving) Err() error {
	if _, err := os.Stat(m.file); err == nil {
		return context.Canceled
	}
	return nil
}

// TestInterruptInMove interrupts a move, then its resume. Both messages name the commands that continue, without Go's
// error text. Until undo restores the disk, every other command refuses it, also under a name without a journal.
func TestInterruptInMove(t *testing.T) {
	t.Chdir(t.TempDir())
	disk := tableforge.NewMBR(2560, tableforge.Slot{Type: 0x83, Start: 63, Sectors: 512})
	put(t, "disk.img", disk)
	run := func(ctx context.Context, args ...string) (int, string) {
		var out, errs bytes.Buffer
		return Run(ctx, "test", args, &out, &errs), errs.String()
	}
	stopped := moving{t.Context(), "disk.img.trueup"}
	for _, args := range [][]string{{"move", "--allow-unbootable", "disk.img"}, {"resume", "disk.img"}} {
		code, says := run(stopped, args...)
		require.Equal(t, 128+int(syscall.SIGINT), code, says)
		require.Equal(t, "trueup: interrupted: disk.img: the disk is in the middle of the move: trueup resume "+
			"disk.img completes it, trueup undo disk.img reverses it\n", says)
	}
	put(t, "sound.img", disk)
	was := "disk.img"
	for _, line := range []string{
		"inspect disk.img", "plan disk.img", "align disk.img dest.img", "convert disk.img dest.img",
		"verify disk.img sound.img", "verify sound.img disk.img", "replace disk.img", "serve disk.img",
		"align --with disk.img sound.img dest.img", "scan --isolation none disk.img",
	} {
		for name, want := range map[string]string{
			"disk.img": `inside the disk was interrupted; trueup resume \S+ completes it, trueup undo \S+ ` +
				"reverses the move",
			"other.img": "a move of its partitions is not complete; its journal is named like the disk",
		} {
			require.NoError(t, os.Rename(was, name))
			was = name
			r := trueup(t, strings.Fields(strings.ReplaceAll(line, "disk.img", name))...)
			require.Regexp(t, want, strings.Join(strings.Fields(r.stdout+r.stderr), " "), line)
			code := 4
			if strings.HasPrefix(line, "scan") {
				code = 1
			}
			require.Equal(t, code, r.code, line)
		}
	}
	require.NoFileExists(t, "dest.img")
	require.NoError(t, os.Rename(was, "disk.img"))
	code, says := run(t.Context(), "undo", "disk.img")
	require.Zero(t, code, says)
	now := disktest.ReadFile(t, "disk.img")
	require.Equal(t, []byte(disk), now)
}

// A waiting run prints its action.
func TestInterruptIsAnswered(t *testing.T) {
	const line = "trueup: interrupted: doing this; interrupt again to end at once\n"
	var e ending
	var errs bytes.Buffer
	e.Hold("doing this")
	require.True(t, e.Interrupted(&errs))
	require.Equal(t, line, errs.String())
	e.Hold("")
	require.True(t, e.Interrupted(&errs))
	require.Equal(t, line, errs.String(), "a copy that is done is not removed")
}

// Only a copy has a source that stays unchanged.
func TestInterruptedResults(t *testing.T) {
	for command, want := range map[string]string{
		"align":   "no copy was made, and the source is unchanged",
		"convert": "no copy was made, and the source is unchanged",
		"bench":   "no result, and the scratch file is removed", "inspect": "no result",
		"plan": "no result",
	} {
		require.Equal(t, "interrupted; "+want, interruptedText(command))
	}
}

// Before a run has begun anything, a signal ends it, and nothing else is printed.
func TestInterruptBeforeAnything(t *testing.T) {
	var e ending
	var out, errs bytes.Buffer
	require.False(t, e.Interrupted(&errs))
	require.Empty(t, errs.String())
	require.False(t, e.mu.TryLock(), "a report that comes now waits")
	for s, code := range map[syscall.Signal]int{syscall.SIGHUP: 129, syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		out.Reset()
		require.Equal(t, code, Finish(InterruptError{s, interruptedText("inspect")}, &Base{Asked: true}, "inspect",
			&out, &errs))
		var f report.Failure
		require.NoError(t, json.Unmarshal(out.Bytes(), &f))
		require.Equal(t, "interrupted", f.Error.Code)
		require.Equal(t, code, f.ExitCode)
	}
}

// A text of a report on the terminal appears once.
func TestNothingIsSaidTwice(t *testing.T) {
	bad := AfterReport(errors.New("x.ova!a.vmdk: no disk image"), true)
	for seen, want := range map[bool]string{true: "", false: "trueup: x.ova!a.vmdk: no disk image\n"} {
		var out, errs bytes.Buffer
		require.Equal(t, 1, Finish(bad, &Base{seen: seen}, "inspect", &out, &errs))
		require.Equal(t, want, errs.String())
		require.Empty(t, out.String())
	}
	var out, errs bytes.Buffer
	require.Equal(t, 1, Finish(AfterReport(realign.ErrUnknown, false), &Base{seen: true}, "inspect", &out, &errs))
	require.NotEmpty(t, errs.String(), "a remedy that the report lacks")
}

// SHA-256 of the disk of testdata/journals before and after the move.
const (
	journalsOld = "5f1204e4cc82842e3091386516b859afb2f28eb56295f808d47ec5240019779b"
	journalsNew = "96fb0aa4f1c1d9018d590eb0938019a580b0d75fa72a25ced96bf8e334f176e8"
)

// refused is the outcome of a command that changes no byte and names another command.
const refused = "refused"

// TestJournalsOfEarlierVersions resumes, undoes and finishes work of commit df2a663f, killed in each of its states.
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

// TestMarkOfEarlierVersions inspects a device that commit df2a663f began to write.
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

// unpackJournal unpacks the files of one state into a folder, and writes their inode numbers into its journal.
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

// withInodes replaces the inode numbers in the plan of a journal. inodes has a line for each file: its old number and
// its name. The offsets are in the comment of package journal.
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
