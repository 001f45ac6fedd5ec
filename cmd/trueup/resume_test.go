package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// resumeCase is a copy that is ended on its way and goes on.
type resumeCase struct {
	format, source, dest string
	behind               string            // the folder of DEST, past a file system that shows it elsewhere
	want                 map[string]string // its files after a copy that nothing disturbed
}

// resumable are formats of all ways to place what is written.
var resumable = []string{
	"raw", "vmdk:monolithicFlat", "vmdk:monolithicSparse", "vmdk:streamOptimized", "qcow2", "vhdx", "vhd:dynamic",
	"vhd:fixed", "vmdk:twoGbMaxExtentSparse", "vmdk:twoGbMaxExtentFlat", "qcow2:compressed",
}

func newResumeCase(t *testing.T, format, source string) *resumeCase {
	t.Helper()
	kind, _, _ := strings.Cut(format, ":")
	c := &resumeCase{format: format, source: source, behind: t.TempDir()}
	c.dest = filepath.Join(c.behind, "aligned."+kind)
	r := trueup(t, slices.DeleteFunc(c.align(), func(arg string) bool { return arg == "--resumable" })...)
	require.Equal(t, 0, r.code, r.stderr)
	c.want = sumsOf(t, c.behind)
	c.clear(t)
	return c
}

func (c *resumeCase) align() []string {
	return []string{"align", "--resumable", "--no-progress", "--to", c.format, c.source, c.dest}
}

func (c *resumeCase) resume() []string { return []string{"resume", "--no-progress", "--json", c.dest} }

func (c *resumeCase) clear(t *testing.T) {
	t.Helper()
	for _, name := range folderNames(t, c.behind) {
		require.NoError(t, os.Remove(filepath.Join(c.behind, name)))
	}
}

// open reports whether work is open on DEST.
func (c *resumeCase) open() bool {
	_, err := os.Stat(filepath.Join(c.behind, filepath.Base(c.dest)+".trueup"))
	return err == nil
}

// partial returns the file that holds most of what is written.
func (c *resumeCase) partial(t *testing.T) string {
	t.Helper()
	var found string
	most := int64(-1)
	for _, name := range folderNames(t, c.behind) {
		st := disktest.Stat(t, filepath.Join(c.behind, name))
		if strings.HasSuffix(name, ".partial") && st.Size() > most {
			found, most = filepath.Join(c.behind, name), st.Size()
		}
	}
	require.NotEmpty(t, found)
	return found
}

// resumed is what resume prints.
type resumed struct {
	Text    string `json:"text"`
	Kept    int64  `json:"kept_bytes"`
	Written int64  `json:"written_bytes"`
}

// requireDone has the copy go on, to the bytes of one that nothing disturbed.
func (c *resumeCase) requireDone(t *testing.T) (got resumed) {
	t.Helper()
	got = trueupJSON[resumed](t, 0, c.resume()...)
	require.Equal(t, c.want, sumsOf(t, c.behind))
	return got
}

// sumsOf returns the digests of all files of a folder.
func sumsOf(t testing.TB, folder string) map[string]string {
	t.Helper()
	sums := map[string]string{}
	for _, name := range folderNames(t, folder) {
		sums[name] = sha256Of(t, filepath.Join(folder, name))
	}
	return sums
}

// killLate runs a copy that is killed when its data are written: at the call that gives DEST its name.
func (c *resumeCase) killLate(t *testing.T) {
	t.Helper()
	args := []string{
		"-f", "-o", os.DevNull, "-P", "." + filepath.Base(c.dest) + ".partial", "-e", "trace=renameat2",
		"-e", "inject=renameat2:signal=KILL", builtPath,
	}
	for range 20 { // strace misses a call of a thread that made one before which it had to let pass
		if r := run(t, disktest.Tool(t, "strace"), append(args, c.align()...)...); r.code == 128+int(syscall.SIGKILL) {
			break
		}
		c.clear(t)
	}
	require.True(t, c.open())
	require.NoFileExists(t, c.dest)
}

// What an ended run has written is not trusted. Whatever became of it, a copy that goes on ends in the right bytes, or
// is not published.
func TestResumeTrustsNothing(t *testing.T) {
	t.Parallel()
	source := killDisk(t)
	for _, format := range resumable {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			c := newResumeCase(t, format, source)
			for name, damage := range map[string]func(t *testing.T, f *os.File, size int64){
				"nothing lost": func(*testing.T, *os.File, int64) {},
				"a third of the sectors lost": func(t *testing.T, f *os.File, size int64) {
					t.Helper()
					lost := rand.New(rand.NewPCG(1, 1))
					for off := int64(0); off < size; off += sectorSize {
						if lost.IntN(3) == 0 {
							_, err := f.WriteAt(make([]byte, min(sectorSize, size-off)), off)
							require.NoError(t, err)
						}
					}
				},
				"a byte flipped": func(t *testing.T, f *os.File, size int64) {
					t.Helper()
					b := make([]byte, 1)
					for b[0] == 0 { // where something was written
						_, err := f.ReadAt(b, size/2)
						require.NoError(t, err)
						size++
					}
					_, err := f.WriteAt([]byte{b[0] ^ 1}, (size-1)/2)
					require.NoError(t, err)
				},
				"the end cut off": func(t *testing.T, f *os.File, size int64) {
					t.Helper()
					require.NoError(t, f.Truncate(size/2))
				},
				"more at the end": func(t *testing.T, f *os.File, size int64) {
					t.Helper()
					require.NoError(t, f.Truncate(size+4096))
				},
				"nothing left": func(t *testing.T, f *os.File, _ int64) {
					t.Helper()
					require.NoError(t, f.Truncate(0))
				},
			} {
				c.killLate(t)
				f, err := os.OpenFile(c.partial(t), os.O_RDWR, 0)
				require.NoError(t, err)
				st, err := f.Stat()
				require.NoError(t, err)
				damage(t, f, st.Size())
				require.NoError(t, f.Close())
				got := c.requireDone(t)
				switch name {
				case "nothing lost":
					require.Less(t, got.Written, int64(1<<20), name) // tables are written more than once
					require.Greater(t, got.Kept, int64(4<<20), name)
				case "a byte flipped":
					require.Positive(t, got.Written)
				}
				c.clear(t)
			}
		})
	}
}

// A byte where the copy writes nothing is found by the proof.
func TestResumeFindsBytesInHoles(t *testing.T) {
	t.Parallel()
	c := newResumeCase(t, "raw", killDisk(t))
	c.killLate(t)
	f, err := os.OpenFile(c.partial(t), os.O_RDWR, 0)
	require.NoError(t, err)
	st, err := f.Stat()
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{1}, st.Size()-4096)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	r := trueup(t, c.resume()...)
	require.Equal(t, 1, r.code, r.stderr)
	require.Equal(t, "verify", errorCode(t, r))
	require.Contains(t, r.stderr, "if the copy differs again, trueup undo")
	require.NoFileExists(t, c.dest)
	for _, end := range []string{".trial", ".moved"} { // of a run that was killed when it tried the file system
		require.NoError(t, os.WriteFile(filepath.Join(c.behind, "."+filepath.Base(c.dest)+end), nil, 0o600))
	}
	require.Equal(t, 0, trueup(t, "undo", c.dest).code)
	require.Empty(t, folderNames(t, c.behind))
}

// What a killed run has left names DEST as its data, which is no reason to keep that.
func TestUnfinishedFileIsNoUserOfDest(t *testing.T) {
	t.Parallel()
	dest := filepath.Join(t.TempDir(), "aligned.vmdk")
	args := []string{"align", "--force", "--no-progress", "--to", "vmdk:monolithicSparse", killDisk(t), dest}
	require.Equal(t, 0, trueup(t, args...).code)
	require.NoError(t, os.Rename(dest, filepath.Join(filepath.Dir(dest), ".aligned.vmdk.partial")))
	require.NoError(t, os.WriteFile(dest, []byte("no disk"), 0o600))
	r := trueup(t, args...)
	require.Equal(t, 0, r.code, r.stderr)
	require.Equal(t, []string{"aligned.vmdk"}, folderNames(t, filepath.Dir(dest)))
}

// A file that has a second name is not written: what stands under that one is not the copy's.
func TestResumeKeepsOtherNames(t *testing.T) {
	t.Parallel()
	c := newResumeCase(t, "raw", killDisk(t))
	c.killLate(t)
	partial, other := c.partial(t), filepath.Join(t.TempDir(), "other.raw")
	require.NoError(t, os.WriteFile(other, []byte("a disk"), 0o640))
	require.NoError(t, os.Remove(partial))
	require.NoError(t, os.Link(other, partial))
	r := trueup(t, c.resume()...)
	require.Equal(t, 1, r.code, r.stderr)
	require.Contains(t, r.stderr, "has a second name")
	b := disktest.ReadFile(t, other)
	require.Equal(t, "a disk", string(b))
	require.NoError(t, os.Remove(partial))
	c.requireDone(t)
}

// A loss of power costs at most 64 MiB of what was written: so much is flushed again and again.
func TestResumableCopyIsFlushed(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	disk := tableforge.NewMBR(size/sectorSize, tableforge.Slot{
		Type: 0x83, Start: trackSectors,
		Sectors: size/sectorSize - 2*trackSectors,
	})
	source := filepath.Join(t.TempDir(), "large.raw")
	disk.Write(t, source)
	block := noise("flushed", 1<<20)
	f, err := os.OpenFile(source, os.O_RDWR, 0)
	require.NoError(t, err)
	for off := int64(trackSectors * sectorSize); off < 99<<20; off += 1 << 20 {
		_, err = f.WriteAt(block, off)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	dest, log := filepath.Join(t.TempDir(), "aligned.raw"), filepath.Join(t.TempDir(), "strace")
	disktest.Run(t, disktest.Tool(t, "strace"), "-f", "-y", "--seccomp-bpf", "-o", log, "-e", "trace=pwrite64,fsync",
		builtPath, "align", "--allow-unbootable", "--resumable", "--no-progress", source, dest)
	text := disktest.ReadFile(t, log)
	calls := regexp.MustCompile(`(pwrite64|fsync)\(\d+<[^>]*\.partial>(?:.*= (\d+)$)?`)
	var unflushed, most, total int64
	flushes := 0
	for line := range strings.Lines(string(text)) {
		switch m := calls.FindStringSubmatch(strings.TrimSpace(line)); {
		case m == nil:
		case m[1] == "fsync":
			unflushed, flushes = 0, flushes+1
		default:
			n, err := strconv.ParseInt(m[2], 10, 64)
			if err != nil { // it was divided by another thread: a chunk at most
				n = 1 << 20
			}
			unflushed, total = unflushed+n, total+n
			most = max(most, unflushed)
		}
	}
	require.Greater(t, total, int64(90<<20))
	require.GreaterOrEqual(t, flushes, 3)
	require.LessOrEqual(t, most, int64(64<<20))
}

// What is left of a copy is refused to every run but the one that goes on with it, and a source that changed is refused
// to that one.
func TestResumeIsRefused(t *testing.T) {
	t.Parallel()
	source := filepath.Join(t.TempDir(), "source.raw")
	disktest.Run(t, "cp", killDisk(t), source)
	c := newResumeCase(t, "qcow2", source)
	c.killLate(t)
	left := sumsOf(t, c.behind)
	advice := fmt.Sprintf("trueup resume %s goes on, trueup undo %s removes what is written", c.dest, c.dest)
	for _, args := range [][]string{
		c.align(),
		{"align", "--json", "--to", "qcow2", source, c.dest},
		{"convert", "--force", "--to", "qcow2", source, c.dest},
		{"inspect", c.dest},
		{"finish", c.dest},
	} {
		r := trueup(t, args...)
		require.Equal(t, 4, r.code, "%q: %s%s", args, r.stdout, r.stderr)
		require.Contains(t, r.stderr, map[bool]string{true: "keeps no original", false: advice}[args[0] == "finish"])
		require.Equal(t, left, sumsOf(t, c.behind))
	}
	disktest.WriteAt(t, source, 7<<20, []byte{1})
	r := trueup(t, c.resume()...)
	require.Equal(t, 4, r.code, r.stderr)
	require.Equal(t, "unfinished", errorCode(t, r))
	require.Contains(t, r.stderr, "has changed since")
	require.Equal(t, left, sumsOf(t, c.behind))
	require.Equal(t, 0, trueup(t, "undo", c.dest).code)
	require.Empty(t, folderNames(t, c.behind))
	r = trueup(t, c.resume()...)
	require.Equal(t, 64, r.code)

	for flag, words := range map[string]string{
		"--view":                          "--view",
		"--checksums=" + c.dest + ".sums": "sha256sum",
	} {
		r := trueup(t, "align", "--resumable", flag, source, c.dest)
		require.Equal(t, 64, r.code, r.stderr)
		require.Contains(t, r.stderr, words)
	}
	require.Equal(t, 64, trueup(t, "convert", "--resumable", "-", c.dest).code)
	require.Equal(t, 64, trueup(t, "align", "--resumable", source, c.dest+".ova").code)
}

// A run that is interrupted says what can become of its copy.
func TestInterruptedCopyGoesOn(t *testing.T) {
	t.Parallel()
	source := noisyDisk(t, 64)
	c := newResumeCase(t, "raw", source)
	cmd := exec.Command(builtPath, append(c.align(), "--json", "--jobs=1")...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	disktest.WaitFor(t, "the copy", func() bool {
		names, err := filepath.Glob(filepath.Join(c.behind, ".*.partial"))
		if err != nil || len(names) == 0 {
			return false
		}
		st, err := os.Stat(names[0])
		return err == nil && st.Sys().(*syscall.Stat_t).Blocks > 2048
	})
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	if !c.open() {
		t.Skip("the copy was faster than the signal")
	}
	r := result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
	require.Equal(t, 143, r.code, r.stderr)
	require.Equal(t, "interrupted", errorCode(t, r))
	require.Contains(t, r.stderr, "keeping the unfinished copy")
	require.Contains(t, r.stderr, fmt.Sprintf("interrupted; what is written stays: trueup resume %s goes on", c.dest))
	c.requireDone(t)
}

// A copy for which the room ran out goes on when there is room again, with a move or without.
func TestResumeAfterFullStorage(t *testing.T) {
	t.Parallel()
	c := newResumeCase(t, "qcow2", killDisk(t))
	// The file may not grow above this: as ENOSPC, an error of a write.
	const limited = `trap "" XFSZ; ulimit -f 4096; exec "$0" "$@"`
	ended := func(command ...string) {
		t.Helper()
		r := run(t, "bash", append([]string{"-c", limited, builtPath}, append(command, "--json")...)...)
		require.Equal(t, 1, r.code, r.stderr)
		require.Equal(t, "output", errorCode(t, r))
		require.Contains(t, r.stderr, "trueup resume")
		require.True(t, c.open())
	}
	ended(c.align()...)
	require.Positive(t, c.requireDone(t).Kept)

	same := filepath.Join(t.TempDir(), "same.qcow2")
	require.Equal(t, 0, trueup(t, "convert", "--to", c.format, c.source, same).code)
	c.clear(t)
	ended("convert", "--resumable", "--to", c.format, c.source, c.dest)
	c.want = map[string]string{filepath.Base(c.dest): sha256Of(t, same)}
	require.Positive(t, c.requireDone(t).Kept)
}

// A copy that goes on needs no second room for what it has written.
func TestResumeCountsTheRoomOfItsFiles(t *testing.T) {
	t.Parallel()
	dest := filepath.Join(t.TempDir(), "copy.qcow2")
	const script = `(trap "" XFSZ; ulimit -f 5120
		"$0" convert --resumable --no-progress --to qcow2 "$1" "$2" 2>/dev/null)
		test -e "$2.trueup" && dd if=/dev/zero of="$2.fill" bs=1M count=4 status=none || exit 99
		"$0" resume "$2" && exit 98
		truncate -s 1M "$2.fill"; "$0" resume --json "$2" && rm "$2.fill"`
	r := privateMount(t, "size=12m", filepath.Dir(dest), "bash", "-c", script, builtPath, noisyDisk(t, 8), dest)
	require.Equal(t, 0, r.code, r.stdout+r.stderr)
	requireOneLine(t, r.stderr)
	require.Regexp(t, `needs 8\.\d+ MiB .* and 7\.\d+ MiB .* are free where DEST goes or held by `+
		`what is written of it; make room;`,
		r.stderr)
	require.Contains(t, r.stdout, "is complete")
	require.Regexp(t, `"kept_bytes": [2-5]\d{6}`, r.stdout)
}
