package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
)

// deviceMove is a disk on a loop device that is moved in its place, again and again.
type deviceMove struct {
	made, device, file, journal string
	old, want                   string // sums of the disk, and of its copy
	flags                       []string
}

// newDeviceMove puts a raw disk on a loop device with these options.
func newDeviceMove(t testing.TB, raw string, options ...string) *deviceMove {
	t.Helper()
	dir := t.TempDir()
	m := &deviceMove{made: raw, file: filepath.Join(dir, "device"), journal: filepath.Join(dir, "journal")}
	disktest.Run(t, "cp", "--sparse=always", raw, m.file)
	m.device = disktest.LoopDevice(t, m.file, options...)
	m.old = sha256Of(t, m.file)
	dest := filepath.Join(t.TempDir(), "copy.raw")
	r := trueup(t, "align", "--to", "raw", m.device, dest)
	require.Equal(t, 0, r.code, r.stderr)
	m.want = sha256Of(t, dest)
	require.NotEqual(t, m.want, m.old)
	m.flags = []string{"move", "-q", m.device, "--journal", m.journal}
	return m
}

// reset makes the disk what it was before.
func (m *deviceMove) reset(t testing.TB) {
	t.Helper()
	_ = os.Remove(m.journal)
	disktest.Run(t, "dd", "if="+m.made, "of="+m.device, "bs=1M", "oflag=direct", "conv=fsync", "status=none")
	require.Equal(t, m.old, sha256Of(t, m.file))
}

// requireIs requires that the disk is one of both, and that the journal is gone.
func (m *deviceMove) requireIs(t testing.TB, want, at string) {
	t.Helper()
	require.Equal(t, want, sha256Of(t, m.file), at)
	require.NoFileExists(t, m.journal, at)
}

// roomyNTFS is the disk of a Windows with room behind the last partition.
func roomyNTFS(t testing.TB) string {
	t.Helper()
	raw := twoNTFS(t)
	require.NoError(t, os.Truncate(raw, 24<<20))
	return raw
}

// fourKnDisk is a GPT of a disk with sectors of 4096 bytes, whose partition begins off 64 KiB.
func fourKnDisk(t testing.TB) string {
	t.Helper()
	raw := disktest.Blank(t, "4kn.raw", 24<<20)
	device := disktest.LoopDevice(t, raw, "--sector-size", "4096")
	cmd := exec.Command(disktest.Tool(t, "sfdisk"), "-q", device)
	cmd.Stdin = strings.NewReader("label: gpt\nfirst-lba: 6\n" +
		"start=7, size=5000, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4\n")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	disktest.WriteAt(t, device, 7*4096, noise("4kn", 9<<20))
	disktest.Run(t, "sync", device)
	return raw
}

// TestInPlaceOnDevice moves disks on devices, of which one has sectors of 4 KiB. They end in the bytes of the copy.
func TestInPlaceOnDevice(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		build   func(t testing.TB) string
		options []string
	}{
		"two ntfs and a hive": {build: roomyNTFS},
		"gpt":                 {build: moveDisks["gpt"]},
		"4kn":                 {build: fourKnDisk, options: []string{"--sector-size", "4096"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newDeviceMove(t, x.build(t), x.options...)
			r := trueup(t, append(m.flags, "--json")...)
			require.Equal(t, 0, r.code, r.stderr)
			validate(t, r.stdout)
			m.requireIs(t, m.want, name)
			require.Equal(t, 0, trueup(t, "inspect", m.device).code)
		})
	}
}

// TestInPlaceOnDeviceIsRefused refuses devices that are in use, too small or not named as such, and journals that would
// not outlast a power cut. Nothing is written.
func TestInPlaceOnDeviceIsRefused(t *testing.T) {
	t.Parallel()
	m := newDeviceMove(t, roomyNTFS(t))
	refuse := func(code int, says string, flags ...string) {
		t.Helper()
		r := trueup(t, flags...)
		require.Equal(t, code, r.code, r.stderr)
		require.Contains(t, r.stderr, says)
		requireOneLine(t, r.stderr)
		m.requireIs(t, m.old, says)
	}
	refuse(64, "add --journal FILE, on another storage", "move", m.device)
	refuse(64, "unknown flag: --discard", append(m.flags, "--discard")...)
	refuse(64, "unknown flag: --with", append(m.flags, "--with", m.made)...)
	refuse(64, "nothing is open here", "resume", m.device)
	refuse(64, "there is no journal "+m.journal, "undo", m.device, "--journal", m.journal)

	f, err := os.OpenFile(m.device, os.O_RDWR, 0)
	require.NoError(t, err)
	refuse(4, fmt.Sprintf("DISK %s is in use: it is open for writing in process %d", m.device, os.Getpid()), m.flags...)
	require.NoError(t, f.Close())
	t.Run("loop device over it", func(t *testing.T) {
		refuse(4, "is shown by the loop device "+filepath.Base(disktest.LoopDevice(t, m.device)), m.flags...)
	})
	t.Run("loop device beside it", func(t *testing.T) {
		beside := disktest.LoopDevice(t, m.file, "--offset", "1048576")
		refuse(4, "the loop device "+filepath.Base(beside)+" shows bytes of it, too", m.flags...)
	})

	in := append(slices.Clone(m.flags[:len(m.flags)-1]), "/dev/trueup-test.journal")
	refuse(4, "would lie in memory", in...)
	require.NoError(t, os.WriteFile(m.journal, noise("x", 4096), 0o600))
	r := trueup(t, m.flags...)
	require.Equal(t, 4, r.code)
	require.Contains(t, r.stderr, "should be a journal of trueup")

	grows := newDeviceMove(t, moveDisks["grows"](t))
	st := disktest.Stat(t, grows.file)
	r = trueup(t, grows.flags...)
	require.Equal(t, 4, r.code, r.stderr)
	require.Regexp(t, fmt.Sprintf(`the moved disk needs \d+ bytes, and it has %d`, st.Size()), r.stderr)
	grows.requireIs(t, grows.old, "too small")
}

// printedCommand finds the command lines of a refusal.
var printedCommand = regexp.MustCompile(`trueup (resume|undo) (\S+) --journal (\S+)`)

// goesOn gives a command as inspect prints it, where the device is in the middle of a move; else as the user knows it.
func (m *deviceMove) goesOn(t testing.TB, command, at string) (marked bool) {
	t.Helper()
	args := []string{command, m.device, "--journal", m.journal}
	r := trueup(t, "inspect", m.device)
	if marked = strings.Contains(r.stderr, "in the middle of a move"); marked {
		require.Equal(t, 4, r.code, r.stderr)
		for _, x := range printedCommand.FindAllStringSubmatch(r.stderr, -1) {
			if x[1] == command {
				args = append([]string{command}, x[2], "--journal", x[3])
			}
		}
		require.Equal(t, 4, trueup(t, command, m.device).code, "without the journal, the same words")
	}
	r = trueup(t, args...)
	if r.code == 4 {
		args[0] = map[string]string{"undo": "resume", "resume": "undo"}[command]
		r = trueup(t, args...)
	}
	require.Equal(t, 0, r.code, "%s %s: %s%s", args[0], at, r.stdout, r.stderr)
	want := m.want
	if args[0] == "undo" || strings.Contains(strings.Join(strings.Fields(r.stdout), " "), "is as it was") {
		want = m.old
	}
	m.requireIs(t, want, at)
	return marked
}

// TestKilledMovesOnDevice kills a move on a device in front of system calls that change something: the command that
// inspect prints completes it, or takes it back.
func TestKilledMovesOnDevice(t *testing.T) {
	t.Parallel()
	m := newDeviceMove(t, roomyNTFS(t))
	strace, log := disktest.Tool(t, "strace"), filepath.Join(t.TempDir(), "all")
	traced := func(log string, more ...string) *exec.Cmd {
		args := append([]string{"-f", "-qq", "-o", log}, more...)
		return exec.Command(strace, append(append(args, builtPath), m.flags...)...)
	}
	text, err := traced(log, "-e", "trace=pwrite64,fsync,ioctl,unlinkat").CombinedOutput()
	require.NoError(t, err, "%s", text)
	data := disktest.ReadFile(t, log)
	seen, most := map[string]int{}, map[string]int{}
	for _, x := range tracedCall.FindAllStringSubmatch(string(data), -1) {
		seen[x[1]+x[2]]++
		most[x[2]] = max(most[x[2]], seen[x[1]+x[2]])
	}
	points := spread(most, 1<<20)
	if os.Getenv("TRUEUP_KILLS") == "" {
		points = slices.DeleteFunc(points, func(p callPoint) bool { return p.number%8 != 3 })
	}
	killed, marked := 0, 0
	for i, p := range points {
		m.reset(t)
		cmd := traced(os.DevNull, "-e", "trace="+p.call, "-e",
			fmt.Sprintf("inject=%s:signal=KILL:when=%d", p.call, p.number))
		_ = cmd.Run() // strace ends with the signal that ended what it traced
		if cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
			killed++
		}
		at := fmt.Sprintf("%+v", p)
		text, err := os.ReadFile(m.journal)
		if err == nil && len(bytes.Trim(text, "\x00")) == 0 { // a file of anybody's: it is removed by hand
			require.Equal(t, 4, trueup(t, m.flags...).code, at)
			require.NoError(t, os.Remove(m.journal))
			m.requireIs(t, m.old, at)
			continue
		}
		if err != nil {
			sum := sha256Of(t, m.file)
			require.True(t, sum == m.old || sum == m.want, at)
			continue
		}
		if m.goesOn(t, []string{"resume", "undo"}[i%2], at) {
			marked++
		}
	}
	t.Logf("%d points, %d runs killed, %d of them in the middle", len(points), killed, marked)
	require.Positive(t, marked)
}

// requireOthersStay gives the journal of an interrupted move with other disks: no file changes.
func requireOthersStay(t *testing.T, c *moveCase, journal string) {
	t.Helper()
	kept, record := c.sums(t), sha256Of(t, journal)
	beside, apart := filepath.Join(filepath.Dir(c.path), "b"+filepath.Ext(c.path)), t.TempDir()
	for _, other := range []string{beside, filepath.Join(apart, filepath.Base(c.path))} {
		require.NoError(t, os.WriteFile(other, []byte("another disk"), 0o600))
		before := sha256Of(t, other)
		for _, command := range [][]string{{"resume"}, {"undo"}, {"undo", "--force"}} {
			r := trueup(t, append(command, other, "--journal", journal)...)
			require.Contains(t, []int{4, 64}, r.code, r.stderr)
			require.Regexp(t, "is of (a|the) disk|is in the middle", r.stderr)
		}
		require.Equal(t, before, sha256Of(t, other))
	}
	require.NoError(t, os.Remove(beside))
	require.Equal(t, kept, c.sums(t))
	require.Equal(t, record, sha256Of(t, journal))
}

// TestJournalIsNoOtherFile gives other files as the journal: a file system, which begins with zeros, an empty file, and
// one of the disk. They stay.
func TestJournalIsNoOtherFile(t *testing.T) {
	t.Parallel()
	c, dir := newMove(t, formatFlat, noisyDisk(t, 4)), t.TempDir()
	for name, size := range map[string]int64{"ext2": 1 << 20, "zeros": 512, "empty": 0} {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, make([]byte, size), 0o600))
		if name == "ext2" {
			disktest.Run(t, "mke2fs", "-q", "-F", file)
		}
		kept := sha256Of(t, file)
		for _, command := range [][]string{{"move"}, {"resume"}, {"undo"}, {"undo", "--force"}} {
			r := trueup(t, append(command, "--journal", file, c.path)...)
			require.Equal(t, 4, r.code, r.stderr)
			require.Contains(t, r.stderr, "should be a journal of trueup, and is empty or begins with zeros")
			require.Equal(t, kept, sha256Of(t, file))
		}
	}
	r := trueup(t, "move", "--journal", flatName(c.path), c.path)
	require.Equal(t, 64, r.code, r.stderr)
	require.Contains(t, r.stderr, "is disk-flat.vmdk, a file of the disk")
	c.requireOld(t)
}

// TestInPlaceByOddNames moves disks whose names no image could name, and goes on after a kill. A name that the journal
// cannot hold is refused.
func TestInPlaceByOddNames(t *testing.T) {
	t.Parallel()
	c := newMove(t, formatRaw, noisyDisk(t, 4))
	for name, command := range map[string]string{`a\b.img`: "resume", "a:b.img": "undo", "a\nb.img": "resume"} {
		c.reset(t)
		path := filepath.Join(filepath.Dir(c.path), name)
		require.NoError(t, os.Rename(c.path, path))
		_ = underStrace(t, os.DevNull, []string{"-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=6"},
			[]string{"move", "-q", path}).Run()
		r := trueup(t, "inspect", path)
		require.Contains(t, r.stderr, "the partitions inside of the disk was interrupted; trueup resume", name)
		require.Equal(t, 0, trueup(t, command, path).code)
		require.NoError(t, os.Rename(path, c.path))
		if command == "undo" {
			c.requireOld(t)
		} else {
			c.requireMoved(t)
		}
	}
	c.reset(t)
	require.NoError(t, os.Rename(c.path, c.path+"\xff"))
	r := trueup(t, "move", c.path+"\xff")
	require.Equal(t, 4, r.code, r.stderr)
	require.Contains(t, r.stderr, "is not UTF-8")
	require.NoError(t, os.Rename(c.path+"\xff", c.path))
	c.requireOld(t)
}

// TestFilesOnLoopDevices refuses to move and to exchange what a loop device shows, to go on with either and to take it
// back, under any name and of any file of the disk. Detached, it goes on.
func TestFilesOnLoopDevices(t *testing.T) {
	t.Parallel()
	for _, f := range []diskFormat{formatRaw, formatFlat} {
		c := newMove(t, f, noisyDisk(t, 5))
		data := c.path
		if f == formatFlat {
			data = flatName(c.path)
		}
		refused := func(before map[string]string, args ...string) {
			t.Helper()
			link := filepath.Join(t.TempDir(), "link")
			require.NoError(t, os.Symlink(data, link))
			t.Run("attached", func(t *testing.T) {
				device := disktest.LoopDevice(t, link)
				r := trueup(t, append(args, c.path)...)
				require.Equal(t, 4, r.code, "%q: %s%s", args, r.stdout, r.stderr)
				require.Contains(t, r.stderr, "the loop device "+device+" shows it")
				requireOneLine(t, r.stderr)
			})
			require.Equal(t, before, c.sums(t))
		}
		refused(c.old, "move")
		refused(c.old, "replace")
		_ = c.traced(t, os.DevNull, "-e", "trace=fsync", "-e", "inject=fsync:signal=KILL:when=6").Run()
		now := c.sums(t)
		require.Contains(t, now, filepath.Base(c.path)+".trueup")
		refused(now, "resume")
		refused(now, "undo")
		require.Zero(t, trueup(t, "resume", c.path).code)
		c.requireMoved(t)

		c.reset(t)
		require.Zero(t, trueup(t, "replace", c.path).code)
		now = c.sums(t)
		refused(now, "undo")
		refused(now, "finish")
		require.Zero(t, trueup(t, "undo", c.path).code)
		c.requireOld(t)
	}
}
