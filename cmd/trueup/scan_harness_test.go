package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
	"github.com/trueup/trueup/internal/scan/results"
)

// scanResult is a run of scan with -o json.
type scanResult struct {
	result
	rows map[string]*results.Image // by path
	sum  results.Summary
}

// scan runs trueup scan with -o json until it ends, and adds the content of the --out file.
func scan(t testing.TB, args ...string) scanResult {
	t.Helper()
	r := trueup(t, append([]string{"scan", "-o", "json"}, args...)...)
	if at := slices.Index(args, "--out"); at >= 0 {
		text, err := os.ReadFile(args[at+1])
		if err != nil {
			require.ErrorIs(t, err, fs.ErrNotExist)
		}
		r.stdout += string(text)
	}
	return readScan(t, r)
}

// since returns flags for a scan that reads the last results and replaces them.
func since(path string) []string { return []string{"--since", path, "--out", path} }

// readScan parses the output of a scan, and requires the exit code that its summary has.
func readScan(t testing.TB, r result) scanResult {
	t.Helper()
	s := readRows(t, r.stdout)
	s.result = r
	require.Equal(t, s.sum.ExitCode, r.code, r.stderr)
	return s
}

// readRows reads the lines of a scan, which must fit their schema. The last one is the summary.
func readRows(t testing.TB, text string) scanResult {
	t.Helper()
	s := scanResult{rows: map[string]*results.Image{}}
	lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
	for n, line := range lines {
		validate(t, line)
		if n == len(lines)-1 {
			require.NoError(t, json.Unmarshal([]byte(line), &s.sum))
			require.Equal(t, "summary", s.sum.Event, text)
			break
		}
		i := &results.Image{}
		require.NoError(t, json.Unmarshal([]byte(line), i))
		require.NotContains(t, s.rows, i.ExactPath(), "two rows of one image")
		s.rows[i.ExactPath()] = i
	}
	return s
}

// same returns the part of a row that must be equal in two runs: all but the number of bytes read.
func (s scanResult) same(t testing.TB) map[string]string {
	t.Helper()
	out := map[string]string{}
	for path, i := range s.rows {
		row := *i
		row.Read, row.Change = 0, ""
		text, err := json.Marshal(row)
		require.NoError(t, err)
		out[path] = string(text)
	}
	return out
}

// words returns the state, verdict and errors of each image (see wordsOf), by its path below root.
func (s scanResult) words(root string) map[string]string {
	out := map[string]string{}
	for path, i := range s.rows {
		out[strings.TrimPrefix(path, root+"/")] = wordsOf(i)
	}
	return out
}

// wordsOf returns the state of a row, its verdict, its error code, and the reason why a copy is refused.
func wordsOf(i *results.Image) string {
	s := string(i.State)
	if i.Verdict != "" {
		s += " " + string(i.Verdict)
	}
	if i.Error != nil {
		s += " " + i.Error.Code
	}
	refused := ""
	for _, d := range i.Disks {
		if d.Fix != nil {
			for _, f := range d.Fix.Refusals {
				refused += " " + f.Code
			}
		}
	}
	if refused != "" {
		s += ", refused:" + refused
	}
	return s
}

// smallDisk writes a raw disk of 8 MiB with one partition at an LBA.
func smallDisk(t testing.TB, path string, start uint32) string {
	t.Helper()
	const sectors = 16384
	tableforge.NewMBR(sectors, tableforge.Slot{Type: 0x83, Start: start, Sectors: 8192}).Write(t, path)
	return path
}

// offDisk is a disk of 4 MiB with one partition, an NTFS at LBA 63.
func offDisk() forge.Bytes {
	disk := tableforge.NewMBR(8192, tableforge.Slot{Type: 7, Start: trackSectors, Sectors: 6000})
	fsforge.PutNTFS(disk, trackSectors, 6000)
	return disk
}

// manyDisks makes n raw disks of 1 MiB, almost empty and with a start at LBA 63, in folders of ten, and returns their
// folder.
func manyDisks(t testing.TB, n int) string {
	t.Helper()
	dir := t.TempDir()
	head := make([]byte, sectorSize)
	copy(head[mbrEntryAt:], []byte{0, 0, 0, 0, 0x83, 0, 0, 0, 63, 0, 0, 0, 0, 4, 0, 0}) // LBA 63, 1024 sectors
	copy(head[mbrSignatureAt:], []byte{0x55, 0xaa})
	for i := range n {
		folder := filepath.Join(dir, fmt.Sprintf("folder-%02d", i/10))
		require.NoError(t, os.MkdirAll(folder, 0o755))
		path := filepath.Join(folder, fmt.Sprintf("disk-%03d.raw", i))
		require.NoError(t, os.WriteFile(path, head, 0o644))
		require.NoError(t, os.Truncate(path, 1<<20))
	}
	return dir
}

// everyKind is a folder with images of all kinds, valid ones and ones that refer to files outside of the folder, and
// the expected result of each.
type everyKind struct {
	dir, outside string
	want         map[string]string
}

// kinds is made once for all tests that only read it; it is removed with the built program.
var kinds struct {
	sync.Mutex
	*everyKind
}

func newEveryKind(t testing.TB) *everyKind {
	t.Helper()
	kinds.Lock()
	defer kinds.Unlock()
	if kinds.everyKind == nil {
		beside := filepath.Dir(builtPath)
		k := &everyKind{
			dir: filepath.Join(beside, "kinds"), outside: filepath.Join(beside, "outside"), want: map[string]string{},
		}
		require.NoError(t, os.Mkdir(k.dir, 0o755))
		require.NoError(t, os.Mkdir(k.outside, 0o755))
		k.good(t)
		k.bad(t)
		kinds.everyKind = k
	}
	return kinds.everyKind
}

func (k *everyKind) path(name string) string { return filepath.Join(k.dir, filepath.FromSlash(name)) }

func (k *everyKind) put(t testing.TB, name, content, want string) {
	t.Helper()
	require.NoError(t, os.WriteFile(k.path(name), []byte(content), 0o644))
	if want != "" {
		k.want[name] = want
	}
}

func (k *everyKind) good(t testing.TB) {
	t.Helper()
	off := smallDisk(t, filepath.Join(k.outside, "off.raw"), trackSectors)
	below := smallDisk(t, filepath.Join(k.outside, "below.raw"), 8)
	aligned := smallDisk(t, filepath.Join(k.outside, "aligned.raw"), 2048)
	require.NoError(t, os.MkdirAll(k.path("deep/er"), 0o755))
	for name, c := range map[string]struct{ raw, format, options, want string }{
		"sparse.vmdk":       {off, "vmdk", "", "judged misaligned"},
		"stream.vmdk":       {aligned, "vmdk", "subformat=streamOptimized", "judged aligned"},
		"flat.vmdk":         {below, "vmdk", "subformat=monolithicFlat", "judged below_boundary"},
		"split.vmdk":        {off, "vmdk", "subformat=twoGbMaxExtentSparse", "judged misaligned"},
		"deep/dynamic.vhd":  {aligned, "vpc", "force_size=on", "judged aligned"},
		"deep/er/disk.vhdx": {below, "vhdx", "", "judged below_boundary"},
		"deep/er/q.qcow2":   {off, "qcow2", "", "judged misaligned"},
		"disk.raw":          {aligned, "raw", "", "judged aligned"},
	} {
		args := []string{"convert", "-f", "raw", "-O", c.format, c.raw, k.path(name)}
		if c.options != "" {
			args = append(args, "-o", c.options)
		}
		disktest.Run(t, "qemu-img", args...)
		k.want[name] = c.want
	}
	disktest.Run(t, "cp", twoDisks(t).ova(t), k.path("deep/two.ova"))
	k.want["deep/two.ova"] = "judged misaligned"
	k.put(t, "readme.txt", "no image\n", "")
}

// bad adds images that refer to foreign files, and files that only look like images.
func (k *everyKind) bad(t testing.TB) {
	t.Helper()
	descriptor := func(extent string) string {
		return "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\n" +
			extent + "\n"
	}
	k.put(t, "shadow.vmdk", descriptor(`RW 16384 FLAT "/etc/shadow" 0`), "failed reference")
	k.put(t, "up.vmdk", descriptor(`RW 16384 FLAT "../outside/off.raw" 0`), "failed reference")
	k.put(t, "pipe.vmdk", descriptor(`RW 16384 FLAT "pipe" 0`), "failed reference")
	k.put(t, "link.vmdk", descriptor(`RW 16384 FLAT "link.raw" 0`), "failed reference")
	k.put(t, "lost-flat.vmdk", strings.Repeat("x", 4096), "orphan")
	k.put(t, "cut.vmdk", "KDMV\x01\x00\x00\x00", "failed format")
	require.NoError(t, syscall.Mkfifo(k.path("pipe"), 0o644))
	require.NoError(t, syscall.Mkfifo(k.path("pipe.qcow2"), 0o644))
	require.NoError(t, os.Symlink(filepath.Join(k.outside, "off.raw"), k.path("link.raw")))
	require.NoError(t, os.Symlink(k.outside, k.path("folder")))
	require.NoError(t, os.Symlink("..", k.path("deep/round")))
	for name, backing := range map[string]string{
		"backed.qcow2": "/etc/shadow", "network.qcow2": "nbd://127.0.0.1:10809/x",
		"json.qcow2": `json:{"driver":"raw","file.filename":"/etc/shadow"}`,
	} {
		disktest.Run(t, "qemu-img", "create", "-q", "-u", "-f", "qcow2", "-F", "raw", "-b", backing, k.path(name), "8M")
		k.want[name] = "failed reference"
	}
}

// live is a scan that runs concurrently with the test.
type live struct {
	cmd     *exec.Cmd
	stderr  lockedBuffer
	mu      sync.Mutex
	more    *sync.Cond // signals that allowed has grown
	stdout  bytes.Buffer
	lines   int
	allowed int           // lines that may be read; the scan waits after them
	ended   chan struct{} // of the process
	drained chan struct{} // of its output
}

// startHeld starts trueup scan, whose output is read only up to middle, so that it cannot end.
func startHeld(t testing.TB, args ...string) *live {
	t.Helper()
	l := &live{
		cmd:   exec.Command(builtPath, append([]string{"scan"}, args...)...),
		ended: make(chan struct{}), drained: make(chan struct{}),
	}
	l.more = sync.NewCond(&l.mu)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	_, err = unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
	require.NoError(t, err)
	l.cmd.Stdout, l.cmd.Stderr = w, &l.stderr
	require.NoError(t, l.cmd.Start())
	require.NoError(t, w.Close())
	go l.read(r)
	go func() {
		_ = l.cmd.Wait() // end reads the state
		close(l.ended)
	}()
	t.Cleanup(func() {
		_ = l.cmd.Process.Kill() // it has ended, unless the test failed
		l.allow(math.MaxInt)
		<-l.ended
	})
	return l
}

// read reads standard output, up to the number of lines that allow permits.
func (l *live) read(r *os.File) {
	defer close(l.drained)
	defer r.Close()
	for in := bufio.NewReader(r); ; {
		l.mu.Lock()
		for l.lines >= l.allowed {
			l.more.Wait()
		}
		l.mu.Unlock()
		line, err := in.ReadString('\n')
		l.mu.Lock()
		l.stdout.WriteString(line)
		l.lines++
		l.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// allow lets the output be read up to this many lines.
func (l *live) allow(lines int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.allowed = lines
	l.more.Broadcast()
}

// middle waits until a scan with -o json has printed at least rows rows. A scan of startHeld stops there.
func (l *live) middle(t testing.TB, rows int) {
	t.Helper()
	l.allow(rows)
	disktest.WaitFor(t, fmt.Sprintf("%d rows", rows), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.lines >= rows
	})
}

// signal sends a signal to the scan alone.
func (l *live) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, l.cmd.Process.Signal(s))
}

// end lets the scan end, and returns its result.
func (l *live) end(t testing.TB) result {
	t.Helper()
	l.allow(math.MaxInt)
	disktest.WaitClosed(t, "the end of the scan", l.ended)
	disktest.WaitClosed(t, "the end of its output", l.drained)
	status := l.cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return result{l.stdout.String(), l.stderr.String(), code}
}

// workers returns the running processes that the scan has started.
func (l *live) workers() []int {
	return slices.Collect(maps.Keys(childrenOf(l.cmd.Process.Pid)))
}

// startStopped starts a scan with two workers, whose output goes to a file, and returns it, stopped among its images.
// On a busy machine a scan may end before: then again restores the files that it wrote, and another one starts.
func startStopped(t testing.TB, images int, again func(), args ...string) *live {
	t.Helper()
	for {
		l := startHeld(t, append([]string{"--jobs", "2"}, args...)...)
		l.allow(math.MaxInt)
		disktest.WaitFor(t, "some images", func() bool { return readCalls(t, l.workers()) > 50 || isClosed(l.ended) })
		// An image takes some 40 read calls: after 10 for each, the scan cannot be at its end.
		if workers, ok := l.stop(t); ok && len(workers) == 2 && readCalls(t, workers) < int64(10*images) {
			return l
		}
		l.end(t)
		again()
	}
}

// freeze stops a scan that cannot end, and all its workers. A SIGCONT continues the scan, but not the workers, which
// are returned.
func (l *live) freeze(t testing.TB) (frozen []int) {
	t.Helper()
	frozen, ok := l.stop(t)
	require.True(t, ok, "the scan has ended")
	require.NotEmpty(t, frozen)
	return frozen
}

// stop is freeze for a scan that may have ended, which it reports.
func (l *live) stop(t testing.TB) (frozen []int, ok bool) {
	t.Helper()
	_ = l.cmd.Process.Signal(syscall.SIGSTOP) // it may have ended
	disktest.WaitFor(t, "a scan that is stopped", func() bool {
		return isClosed(l.ended) || allThreads(l.cmd.Process.Pid, "T")
	})
	if isClosed(l.ended) {
		return nil, false
	}
	frozen = l.workers()
	for _, pid := range frozen {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	// When their parent dies, the kernel continues only children that have stopped by then.
	return slices.DeleteFunc(frozen, func(pid int) bool {
		alive := true
		disktest.WaitFor(t, "a worker that is stopped", func() bool {
			_, _, alive = statOf(pid)
			return !alive || allThreads(pid, "T")
		})
		return !alive
	}), true
}

// allThreads reports whether all threads of a process are in one state: S is waiting, T is stopped. A thread with work
// is in another state, even if other programs have the processors.
func allThreads(pid int, state string) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil || strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))[0] != state {
			return false
		}
	}
	return len(stats) > 0 // of a process that is there
}

// readCalls returns the number of read calls of processes. One that has ended has none.
func readCalls(t testing.TB, pids []int) (n int64) {
	t.Helper()
	for _, pid := range pids {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid)); err == nil && len(text) > 0 {
			n += ioCount(t, text, "syscr")
		}
	}
	return n
}

// waitIdle waits until all threads of a process are waiting. It looks several times, because threads wake each other.
func waitIdle(t testing.TB, pid int) {
	t.Helper()
	const looks = 5
	seen := 0
	disktest.WaitFor(t, "a process that waits", func() bool {
		if seen++; !allThreads(pid, "S") {
			seen = 0
		}
		return seen == looks
	})
}

// requireGone requires that processes end.
func requireGone(t testing.TB, pids []int) {
	t.Helper()
	require.NotEmpty(t, pids)
	disktest.WaitFor(t, fmt.Sprintf("the end of processes %d", pids), func() bool {
		for _, pid := range pids {
			if _, _, alive := statOf(pid); alive {
				return false
			}
		}
		return true
	})
}

// off reports whether a row belongs to a disk of manyDisks.
func off(i *results.Image) bool { return i.State == results.Judged && i.Verdict == align.Misaligned }
