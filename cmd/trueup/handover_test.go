package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/trueup/trueup/internal/disktest"
	"github.com/trueup/trueup/internal/disktest/oddfs"
	"github.com/trueup/trueup/internal/trial"
)

// handover is a run of trueup handover with a source and the disk for a guest.
type handover struct {
	source, dest   string
	env            []string
	front          []string // a program that starts trueup
	cmd            *exec.Cmd
	stdout, stderr lockedBuffer
	done           chan struct{}
}

// handingOver starts a handover of the sample disk, and waits until a guest can start.
func handingOver(t *testing.T, args ...string) *handover {
	t.Helper()
	return handingOverTo(t, "new.qcow2", args...)
}

func handingOverTo(t *testing.T, dest string, args ...string) *handover {
	t.Helper()
	h := &handover{source: sampleDisk(t), dest: filepath.Join(t.TempDir(), dest)}
	h.start(t, append([]string{h.source, h.dest}, args...)...)
	h.says(t, "is ready")
	return h
}

func (h *handover) start(t *testing.T, args ...string) {
	t.Helper()
	h.stdout, h.stderr, h.done = lockedBuffer{}, lockedBuffer{}, make(chan struct{})
	args = slices.Concat(h.front, []string{builtPath, "handover", "--json"}, args)
	h.cmd = exec.Command(args[0], args[1:]...)
	h.cmd.Stdout, h.cmd.Stderr, h.cmd.Env = &h.stdout, &h.stderr, append(os.Environ(), h.env...)
	require.NoError(t, h.cmd.Start())
	done := h.done
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait()
		close(done)
	}(h.cmd)
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill()
		<-done
	})
}

// says waits for words on standard error.
func (h *handover) says(t *testing.T, words string) {
	t.Helper()
	disktest.WaitFor(t, words, func() bool {
		if isClosed(h.done) {
			require.Contains(t, h.stderr.String(), words)
		}
		return strings.Contains(h.stderr.String(), words)
	})
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// ends waits for the end and returns the result.
func (h *handover) ends(t *testing.T, code int) (r handoverResult) {
	t.Helper()
	disktest.WaitClosed(t, "the end of the handover", h.done)
	require.Equal(t, code, h.cmd.ProcessState.ExitCode(), h.stderr.String())
	validateOutput(t, []string{"handover", "--json"}, h.stdout.String())
	require.NoError(t, json.Unmarshal([]byte(h.stdout.String()), &r))
	return r
}

type handoverResult struct {
	Proof string
	Moved int
	Guest struct {
		Consistent bool
		Written    int64 `json:"written_bytes"`
		Differing  int64 `json:"differing_bytes"`
	}
	Downtime    float64 `json:"downtime_seconds"`
	Differences []struct {
		Off int64 `json:"offset_bytes"`
	}
	Error struct{ Code, Message string }
}

// machine is a QEMU with a disk whose processor stands still: writes come by its monitor.
type machine struct {
	t   *testing.T
	q   *trial.QMP
	cmd *exec.Cmd
}

// startMachine starts a machine with a monitor at a socket. A program in front of it may limit it.
func startMachine(t *testing.T, dest, socket string, front ...string) *machine {
	t.Helper()
	args := slices.Concat(front, []string{
		disktest.Tool(t, "qemu-system-x86_64"), "-S", "-display", "none", "-nodefaults",
		"-drive", "file=" + dest + ",format=qcow2,if=none,id=disk,rerror=stop,werror=stop",
		"-qmp", "unix:" + socket + ",server=on,wait=off", "-qmp", "unix:" + socket + ".test,server=on,wait=off",
	})
	m := &machine{t: t, cmd: exec.Command(args[0], args[1:]...)}
	m.cmd.Stderr = os.Stderr
	require.NoError(t, m.cmd.Start())
	t.Cleanup(m.kill)
	var c net.Conn
	disktest.WaitFor(t, "the monitor of QEMU", func() (there bool) {
		var err error
		c, err = net.Dial("unix", socket+".test")
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close() })
	m.q = trial.NewQMP(t.Context(), c, c)
	m.q.Limit = disktest.Patience
	require.NoError(t, m.q.Greet(t.Context()))
	return m
}

// io runs a command of qemu-io on the disk.
func (m *machine) io(line string) {
	m.t.Helper()
	var said string
	require.NoError(m.t, m.q.Call(m.t.Context(), "human-monitor-command",
		map[string]string{"command-line": `qemu-io disk "` + line + `"`}, &said))
	require.NotContains(m.t, strings.ToLower(said), "error")
}

func (m *machine) quit() {
	m.t.Helper()
	require.NoError(m.t, m.q.Call(m.t.Context(), "quit", nil, nil))
	_ = m.cmd.Wait()
}

func (m *machine) kill() {
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
}

// guestWrites is a write of the guest, as qemu-io does it.
const guestWrites = "write -P 7 3M 96k"

// requireGuestDisk requires that DEST stands alone and is the aligned disk with the writes of the guest.
func (h *handover) requireGuestDisk(t *testing.T) {
	t.Helper()
	require.NotContains(t, disktest.Run(t, "qemu-img", "info", "--output=json", h.dest), "backing")
	want := filepath.Join(t.TempDir(), "want.raw")
	require.Zero(t, trueup(t, "align", "--to", "raw", h.source, want).code)
	disktest.Run(t, "qemu-io", "-f", "raw", "-c", guestWrites, want)
	disktest.Run(t, "qemu-img", "compare", want, h.dest)
	require.FileExists(t, h.dest+".trueup", "finish needs it")
	left, err := filepath.Glob(filepath.Join(filepath.Dir(h.dest), "*.socket"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// A guest works on the disk from the first second, and keeps all that it wrote.
func TestHandover(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "qmp")
	h := handingOver(t, "--qmp", socket)
	before := disktest.ReadFile(t, h.source)
	m := startMachine(t, h.dest, socket)
	m.io(guestWrites)
	h.says(t, "has all bytes")
	m.quit()
	r := h.ends(t, 0)
	require.Equal(t, "full", r.Proof)
	require.Equal(t, 1, r.Moved)
	require.True(t, r.Guest.Consistent)
	require.Equal(t, int64(128<<10), r.Guest.Written, "two clusters of 64 KiB")
	require.Equal(t, int64(96<<10), r.Guest.Differing)
	h.requireGuestDisk(t)
	require.Equal(t, before, disktest.ReadFile(t, h.source))
}

// A raw disk has its data in place from the start. Where the guest discarded them, zeros are written at the end.
func TestHandoverToRaw(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "qmp")
	h := handingOverTo(t, "new.raw", "--qmp", socket)
	m := startMachine(t, h.dest+".qcow2", socket)
	m.io("write -P 9 5M 128k")
	m.io("write -z 5M 64k")
	m.io("write -P 0 5184k 64k")
	m.io(guestWrites)
	h.says(t, "has all bytes")
	m.quit()
	require.Equal(t, "full", h.ends(t, 0).Proof)
	require.NoFileExists(t, h.dest+".qcow2")
	h.requireGuestDisk(t)
	require.Zero(t, trueup(t, "finish", h.dest).code)
	require.NoFileExists(t, h.source)
	require.NoFileExists(t, h.dest+".trueup")
}

// --run starts QEMU, and waits for its end.
func TestHandoverRuns(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "qmp")
	h := handingOver(t, "--run", "--", disktest.Tool(t, "qemu-system-x86_64"), "-S", "-display", "none", "-nodefaults",
		"-drive", "file={},format=qcow2,if=none", "-qmp", "unix:"+socket+",server=on,wait=off")
	h.says(t, "has all bytes")
	c, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer c.Close()
	q := trial.NewQMP(t.Context(), c, c)
	require.NoError(t, q.Greet(t.Context()))
	require.NoError(t, q.Call(t.Context(), "quit", nil, nil))
	require.Equal(t, "full", h.ends(t, 0).Proof)
}

// slowImager is a qemu-img that makes no overlay before the file "go" is there.
const slowImager = `#!/bin/sh
PATH=${PATH#*:}
if [ "$1" = create ]; then
	: >"$0.begun"
	until [ -e "$0.go" ]; do sleep 0.01; done
fi
exec qemu-img "$@"
`

// After a kill at any step, the handover goes on with all writes of the guest. The downtime is that of the first run,
// from its begin until the overlay was there.
func TestHandoverGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket, imager := filepath.Join(dir, "qmp"), filepath.Join(dir, "qemu-img")
	require.NoError(t, os.WriteFile(imager, []byte(slowImager), 0o755))
	h := &handover{source: sampleDisk(t), dest: filepath.Join(t.TempDir(), "new.qcow2")}
	h.env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
	began := time.Now()
	h.start(t, h.source, h.dest)
	disktest.WaitFor(t, "qemu-img create", func() bool {
		_, err := os.Stat(imager + ".begun")
		return err == nil
	})
	least := time.Now().Add(200 * time.Millisecond)
	disktest.WaitFor(t, "a step of the clock", func() bool { return time.Now().After(least) })
	require.NoError(t, os.WriteFile(imager+".go", nil, 0o600))
	h.says(t, "is ready")
	most := time.Since(began).Seconds()
	m := startMachine(t, h.dest, socket)
	m.io(guestWrites)
	kill := func() {
		require.NoError(t, h.cmd.Process.Kill())
		disktest.WaitClosed(t, "the end of the handover", h.done)
	}
	kill()
	for _, command := range []string{"resume", "undo", "finish"} {
		r := trueup(t, command, h.dest)
		require.Equal(t, 4, r.code, r.stderr)
		require.Contains(t, r.stderr, "trueup handover --resume ")
	}
	r := trueup(t, "handover", "--undo", h.dest)
	require.Equal(t, 4, r.code, r.stderr)
	require.Contains(t, r.stderr, "a program has it open")

	h.start(t, "--resume", h.dest, "--qmp", socket)
	m.io("read 0 8M") // from the server that was started again
	h.says(t, "has all bytes")
	kill()
	m.quit()
	require.Zero(t, trueup(t, "inspect", h.dest).code, "it is a disk of its own")
	var r2 handoverResult
	require.NoError(t, json.Unmarshal([]byte(trueup(t, "handover", "--json", "--resume", h.dest).stdout), &r2))
	require.Equal(t, "full", r2.Proof)
	require.Greater(t, r2.Downtime, 0.19)
	require.Less(t, r2.Downtime, most+0.01, "rounded")
	h.requireGuestDisk(t)
}

// watchedStream is the bar in the middle of a stream.
var watchedStream = regexp.MustCompile(`stream [0-9.]+ of [0-9.]+ MiB \[=*>-+\] [0-9.]+ [KM]iB/s [0-9:]+ left`)

// The limit is QEMU's speed, and on a terminal a bar has bytes, rate and time left.
func TestHandoverIsWatched(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "qmp")
	h := &handover{source: sampleDisk(t), dest: filepath.Join(t.TempDir(), "new.qcow2")}
	disktest.Tool(t, "script")
	h.front = []string{
		"sh", "-c", `exec 3>&1; TERM=xterm exec script -qefc "stty cols 120; exec $* >&3" /dev/null >&2`, "sh",
	}
	h.start(t, h.source, h.dest, "--qmp", socket, "--limit", "64K")
	h.says(t, "is ready")
	m := startMachine(t, h.dest, socket)
	m.io(guestWrites)
	disktest.WaitFor(t, "the bar", func() bool { return watchedStream.MatchString(h.stderr.String()) })
	var jobs []struct {
		Device string
		Speed  int64
	}
	require.NoError(t, m.q.Call(t.Context(), "query-block-jobs", nil, &jobs))
	require.Len(t, jobs, 1)
	require.Equal(t, int64(64<<10), jobs[0].Speed)
	unlimited := map[string]any{"device": jobs[0].Device, "speed": 0}
	require.NoError(t, m.q.Call(t.Context(), "block-job-set-speed", unlimited, nil))
	h.says(t, "has all bytes")
	m.quit()
	require.Equal(t, "full", h.ends(t, 0).Proof)
	require.True(t, strings.HasSuffix(h.stderr.String(), "\r\x1b[J"), "no bar is left")
	h.requireGuestDisk(t)
}

// requireProgress requires that lines of JSON among others fit their schema and count up to the end of a stream.
func requireProgress(t *testing.T, lines string) {
	t.Helper()
	var before, now struct {
		Done  int64 `json:"done_bytes"`
		Total int64 `json:"total_bytes"`
		Rate  int64 `json:"bytes_per_second"`
	}
	for line := range strings.Lines(lines) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		validate(t, line)
		before = now
		require.NoError(t, json.Unmarshal([]byte(line), &now))
		require.Contains(t, line, `"command":"handover","phase":"stream"`)
		require.GreaterOrEqual(t, now.Done, before.Done)
	}
	require.Positive(t, now.Rate)
	require.Positive(t, now.Done)
	require.Equal(t, now.Total, now.Done)
}

// Writes of a QEMU that was killed are not known: the proof is partial and says so, and SOURCE stays until --force.
func TestHandoverOfAKilledGuest(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "qmp")
	h := handingOver(t, "--progress", "json", "--qmp", socket)
	m := startMachine(t, h.dest, socket)
	m.io(guestWrites)
	m.io("flush")
	h.says(t, "has all bytes")
	m.kill()
	r := h.ends(t, 0)
	require.Equal(t, "partial", r.Proof)
	require.False(t, r.Guest.Consistent)
	require.Equal(t, int64(96<<10), r.Guest.Differing)
	requireProgress(t, h.stderr.String())
	h.requireGuestDisk(t)
	require.Equal(t, 4, trueup(t, "finish", h.dest).code)
	require.FileExists(t, h.source)
	require.Equal(t, 0, trueup(t, "finish", "--force", h.dest).code)
	require.NoFileExists(t, h.source)
}

// Without room for DEST the stream waits, and QEMU can be asked for its nodes at any time.
func TestHandoverWithoutRoom(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "qmp")
	h := handingOver(t, "--qmp", socket)
	m := startMachine(t, h.dest, socket, disktest.Tool(t, "prlimit"), "--fsize=1048576:unlimited", "env",
		"--ignore-signal=XFSZ")
	m.io(guestWrites)
	h.says(t, "the stream stopped at an I/O error (failed) and goes on")
	disktest.Run(t, "prlimit", "--fsize=unlimited", "--pid", fmt.Sprint(m.cmd.Process.Pid))
	h.says(t, "has all bytes")
	require.NoError(t, m.q.Call(t.Context(), "query-named-block-nodes", nil, nil))
	m.quit()
	require.Equal(t, "full", h.ends(t, 0).Proof)
	h.requireGuestDisk(t)
}

// A byte that changes behind the back of QEMU is found.
func TestHandoverFindsAByte(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "qmp")
	h := handingOver(t, "--qmp", socket)
	m := startMachine(t, h.dest, socket)
	m.io(guestWrites)
	h.says(t, "has all bytes")
	require.NoError(t, h.cmd.Process.Signal(syscall.SIGINT))
	require.Contains(t, h.ends(t, 130).Error.Message, "handover --resume")
	m.quit()
	var extents []struct{ Start, Offset int64 }
	require.NoError(t, json.Unmarshal([]byte(disktest.Run(t, "qemu-img", "map", "--output=json", h.dest)), &extents))
	disktest.WriteAt(t, h.dest, extents[0].Offset+100, []byte("other"))

	resumed := trueup(t, "handover", "--json", "--resume", h.dest)
	require.Equal(t, 5, resumed.code)
	var r handoverResult
	require.NoError(t, json.Unmarshal([]byte(resumed.stdout), &r))
	require.Equal(t, "differs", r.Proof)
	require.Equal(t, extents[0].Start, r.Differences[0].Off)
	require.Contains(t, trueup(t, "finish", "--force", h.dest).stderr, "bytes that it did not write differ")
}

// An interrupt removes a disk that no guest has used, and no other one.
func TestInterruptedHandover(t *testing.T) {
	t.Parallel()
	var h *handover
	for _, dest := range []string{"new.raw", "new.qcow2"} {
		h = handingOverTo(t, dest)
		require.NoError(t, h.cmd.Process.Signal(syscall.SIGINT))
		require.Contains(t, h.ends(t, 130).Error.Message, "no file is left")
		require.Empty(t, disktest.Names(t, filepath.Dir(h.dest)))
	}

	h.start(t, h.source, h.dest)
	h.says(t, "is ready")
	m := startMachine(t, h.dest, filepath.Join(t.TempDir(), "qmp"))
	require.NoError(t, h.cmd.Process.Signal(syscall.SIGINT))
	require.Contains(t, h.ends(t, 130).Error.Message, "a program has it open")
	require.FileExists(t, h.dest)
	m.io("write -z 0 64k")
	m.quit()
	r := trueup(t, "handover", "--undo", h.dest)
	require.Equal(t, 4, r.code, r.stderr)
	require.Contains(t, r.stderr, "--undo --discard-writes")
	require.Zero(t, trueup(t, "handover", "--json", "--undo", "--discard-writes", h.dest).code)
	require.Empty(t, disktest.Names(t, filepath.Dir(h.dest)))
}

// A source that changes is not mixed into the disk.
func TestHandoverOfAChangedSource(t *testing.T) {
	t.Parallel()
	h := handingOver(t)
	require.NoError(t, h.cmd.Process.Kill())
	disktest.WaitClosed(t, "the end of the handover", h.done)
	disktest.WriteAt(t, h.source, 600, []byte("other"))
	r := trueup(t, "handover", "--resume", h.dest)
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stderr, "cannot be completed without the SOURCE as it was")
	require.Zero(t, trueup(t, "handover", "--undo", h.dest).code)
}

// copyingGuest stands for a QEMU that copies the rest and ends. writingGuest flushes a write before, and waits for the
// file "go".
const (
	copyingGuest = `qemu-io -C -f qcow2 -c "read 0 8M" "$1" && qemu-img rebase -q -u -f qcow2 -b '' "$1"`
	writingGuest = `
qemu-io -f qcow2 -c "` + guestWrites + `" -c flush "$1" && : >"$2/flushed"
until [ -e "$2/go" ]; do sleep 0.01; done
` + copyingGuest
)

// TestHandoverAndPower tries the states of the files that a power cut of the host can leave, from the first write of
// trueup to the end of finish: SOURCE is untouched, or the handover goes on with all that the guest flushed.
func TestHandoverAndPower(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"new.qcow2", "new.raw"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, behind, p := t.TempDir(), t.TempDir(), &oddfs.Power{Suffix: ".trueup"}
			disk := disktest.ReadFile(t, sampleDisk(t))
			for _, folder := range []string{"old", "new"} {
				require.NoError(t, os.Mkdir(filepath.Join(behind, folder), 0o755))
			}
			require.NoError(t, os.WriteFile(filepath.Join(behind, "old/xp.vmdk"), disk, 0o600))
			before, err := os.Stat(filepath.Join(behind, "old/xp.vmdk"))
			require.NoError(t, err)
			var mounted string
			h := &handover{}
			t.Run("run", func(t *testing.T) {
				mounted = oddfs.Mount(t, behind, oddfs.Manners{Power: p})
				h.source, h.dest = filepath.Join(mounted, "old/xp.vmdk"), filepath.Join(mounted, "new", name)
				h.start(t, h.source, h.dest, "--socket", filepath.Join(dir, "nbd"), "--run", "--", "sh",
					hostFile(t, writingGuest), "{}", dir)
				disktest.WaitFor(t, "writes of the guest", func() bool {
					_, err := os.Stat(filepath.Join(dir, "flushed"))
					return err == nil
				})
				p.Mark()
				require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
				require.Equal(t, "full", h.ends(t, 0).Proof)
				require.Zero(t, trueup(t, "finish", h.dest).code)
			})
			aligned, written := filepath.Join(dir, "aligned.raw"), filepath.Join(dir, "written.raw")
			require.Zero(t, trueup(t, "align", "--to", "raw", sampleDisk(t), aligned).code)
			disktest.Run(t, "cp", aligned, written)
			disktest.Run(t, "qemu-io", "-f", "raw", "-c", guestWrites, written)
			guest := hostFile(t, copyingGuest)
			cuts := p.Cuts()
			t.Log(len(cuts), "states")
			for i, c := range cuts {
				if !disktest.Share(name + strconv.Itoa(i)) {
					continue
				}
				t.Run(strconv.Itoa(i), func(t *testing.T) {
					require.NoError(t, os.RemoveAll(mounted))
					t.Cleanup(func() { _ = os.RemoveAll(mounted) })
					for path, b := range c.Files {
						path = filepath.Join(mounted, path)
						require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
						require.NoError(t, os.WriteFile(path, b, 0o600))
						require.NoError(t, os.Chtimes(path, before.ModTime(), before.ModTime()))
					}
					require.NoError(t, os.MkdirAll(filepath.Dir(h.dest), 0o755))
					h.recover(t, guest)
					if c.Marks == 0 && exec.Command("qemu-img", "compare", aligned, h.dest).Run() == nil {
						return
					}
					if _, err := os.Stat(h.source); err == nil && filepath.Ext(name) == ".raw" {
						// QEMU flushes the overlay before the data: copied bytes can be lost, and the proof shows it.
						require.Equal(t, disk, disktest.ReadFile(t, h.source))
						read := strings.Replace(guestWrites, "write", "read", 1)
						disktest.Run(t, "qemu-io", "-f", "raw", "-c", read, h.dest)
						return
					}
					disktest.Run(t, "qemu-img", "compare", written, h.dest)
				})
			}
		})
	}
}

// recover goes on with a handover after a power cut. If no guest could start, it undoes the handover and begins it
// again. It finishes a handover with a full proof; after another one SOURCE must be kept.
func (h *handover) recover(t *testing.T, guest string) {
	t.Helper()
	run := []string{"--run", "--", "sh", guest, "{}"}
	resumed := trueup(t, append([]string{"handover", "--resume", h.dest}, run...)...)
	finished := trueup(t, "finish", h.dest)
	_, gone := os.Stat(h.source)
	switch {
	case strings.Contains(finished.stderr, "may be removed in part"):
		finished = trueup(t, "finish", "--force", h.dest)
	case strings.Contains(finished.stderr, "not every byte is proved"), resumed.code == 5:
		return // SOURCE stays
	case resumed.code != 0 && finished.code != 0 && gone == nil:
		undone := trueup(t, "handover", "--undo", h.dest)
		_ = trueup(t, "undo", h.dest) // a journal that was not complete
		again := trueup(t, append([]string{"handover", h.source, h.dest}, run...)...)
		require.Zero(t, again.code, "%s%s%s", resumed.stderr, undone.stderr, again.stderr)
		finished = trueup(t, "finish", h.dest)
	case gone != nil:
		finished.code = 0 // it was finished
	}
	require.Zero(t, finished.code, resumed.stderr+finished.stderr)
	require.NoFileExists(t, h.source)
	left, err := filepath.Glob(filepath.Join(filepath.Dir(h.dest), "../*/*.trueup"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// writtenDisk is the disk as its guest may find it: per sector the bytes of the last flush, and writes since then.
type writtenDisk struct {
	flushed []byte
	since   map[int64][][]byte // by sector: contents of later writes, any of which may be on the disk after a kill
}

func (d *writtenDisk) write(off, n int64, with byte) {
	for at := off; at < off+n; at += 512 {
		d.since[at] = append(d.since[at], bytes.Repeat([]byte{with}, 512))
	}
}

// flush makes the last writes certain.
func (d *writtenDisk) flush() {
	for at, all := range d.since {
		copy(d.flushed[at:], all[len(all)-1])
	}
	clear(d.since)
}

// settle takes the disk after a kill as the new state. A sector has one of its possible contents, or the test fails.
func (d *writtenDisk) settle(t *testing.T, is []byte) {
	t.Helper()
	for at := int64(0); at < int64(len(is)); at += 512 {
		sector := is[at : at+512]
		may := append([][]byte{d.flushed[at : at+512]}, d.since[at]...)
		require.True(t, slices.ContainsFunc(may, func(b []byte) bool { return bytes.Equal(b, sector) }),
			"byte %d: %x, and the guest flushed %x", at, sector[:16], may[0][:16])
		copy(d.flushed[at:], sector)
	}
	clear(d.since)
}

// content returns the disk as raw bytes. It may have a backing file.
func (h *handover) content(t *testing.T) []byte {
	t.Helper()
	to := filepath.Join(t.TempDir(), "is.raw")
	disktest.Run(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", h.dest, to)
	return disktest.ReadFile(t, to)
}

// defaultKilledHandovers is the number of kills in TestHandoverTorture; TRUEUP_KILLS replaces it.
const defaultKilledHandovers = 6

// At random points trueup, its server or QEMU are killed. Nothing that the guest flushed is lost.
func TestHandoverTorture(t *testing.T) {
	t.Parallel()
	disktest.Tool(t, "qemu-system-x86_64")
	kills := defaultKilledHandovers
	if text := os.Getenv("TRUEUP_KILLS"); text != "" {
		var err error
		kills, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	source := sampleDisk(t)
	aligned := filepath.Join(t.TempDir(), "aligned.raw")
	require.Zero(t, trueup(t, "align", "--to", "raw", source, aligned).code)
	early := 0
	for seed := range kills {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(uint64(seed), 39))
			if !tortureHandover(t, sampleDisk(t), disktest.ReadFile(t, aligned), random) {
				early++
			}
		})
	}
	t.Logf("%d of %d kills were before the end of the copy", early, kills)
	require.Greater(t, early, kills/4)
}

func tortureHandover(t *testing.T, source string, aligned []byte, random *rand.Rand) (late bool) {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, "qmp")
	h := &handover{source: source, dest: filepath.Join(dir, "new.qcow2")}
	h.start(t, source, h.dest, "--qmp", socket, "--limit", strconv.Itoa(1<<(20+random.IntN(6))))
	h.says(t, "is ready")
	disk := writtenDisk{aligned, map[int64][][]byte{}}
	m := startMachine(t, h.dest, socket)
	works := func(n int) {
		for range n {
			off, n := random.Int64N(int64(len(aligned)-64<<10)/4096)*4096, (1+random.Int64N(16))*4096
			with := byte(random.Int())
			disk.write(off, n, with)
			m.io(fmt.Sprintf("write -P %d %d %d", with, off, n))
			if random.IntN(3) == 0 {
				m.io("flush")
				disk.flush()
			}
		}
	}
	works(random.IntN(24))
	time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
	late = strings.Contains(h.stderr.String(), "has all bytes")
	qemu, ours := random.IntN(3), random.IntN(3) // 0: it is killed
	switch {
	case ours == 0:
		require.NoError(t, h.cmd.Process.Kill())
	case ours == 1 && !late: // the server has not ended by itself
		for pid := range childrenOf(h.cmd.Process.Pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // verify and qemu-img end, too
		}
	}
	if qemu == 0 {
		m.kill()
	}
	if ours == 0 || ours == 1 && !late {
		disktest.WaitClosed(t, "the end of the handover", h.done)
	}
	time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
	if isClosed(h.done) && h.cmd.ProcessState.ExitCode() != 0 {
		h.start(t, "--resume", h.dest)
	}
	if qemu == 0 {
		disktest.WaitFor(t, "the server or the proof", func() bool {
			late = late || isClosed(h.done) || strings.Contains(h.stderr.String(), "has all bytes")
			return late || strings.Contains(h.stderr.String(), "is ready")
		})
		if late { // the copy is complete, and is proved at once
			require.NotEqual(t, "differs", h.ends(t, 0).Proof)
			disk.settle(t, h.content(t))
			return late
		}
		disk.settle(t, h.content(t))
		m = startMachine(t, h.dest, socket)
	}
	works(random.IntN(24))
	h.says(t, "has all bytes")
	m.quit()
	disk.flush()
	r := h.ends(t, 0)
	if qemu == 0 { // and full if nothing differs
		require.Contains(t, []string{"partial", "full"}, r.Proof)
	} else {
		require.Equal(t, "full", r.Proof)
	}
	disk.settle(t, h.content(t))
	return late
}
