package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// verify checks the worker from outside: no-new-privileges and seccomp are in force in each thread, and no file is open
// that Landlock does not cover. A layer that fails is taken off. Landlock shows no sign; the worker tries what it
// forbids.
func verify(pid int, iso *Isolation) {
	own, err := os.ReadFile("/proc/self/status")
	var threads [][]byte
	if err == nil {
		threads, err = threadStatus(pid)
	}
	if err != nil {
		iso.takeOff(layerPrivilege, err)
		iso.takeOff(layerSeccomp, err)
	}
	for _, status := range threads {
		if n, _ := statusNumber(status, "NoNewPrivs"); n != 1 {
			iso.takeOff(layerPrivilege, errors.New("a thread of the worker has it not"))
		}
		if !filtered(status, own) {
			iso.takeOff(layerSeccomp, errors.New("a thread of the worker has no filter"))
		}
	}
	if err := foreign(pid); err != nil {
		iso.takeOff(layerLandlock, err)
	}
	iso.settle()
}

// takeOff removes a layer that is not in force.
func (i *Isolation) takeOff(layer string, why error) {
	if i.has(layer) {
		i.Layers = slices.DeleteFunc(i.Layers, func(l string) bool { return named(l, layer) })
		i.lacks(layer, why)
	}
}

// filtered reports whether a thread has a seccomp filter that its parent has not. A parent in a container has filters
// itself; kernels before 5.9 do not count them, and then it cannot be known.
func filtered(thread, own []byte) bool {
	theirs, counted := statusNumber(thread, "Seccomp_filters")
	ours, _ := statusNumber(own, "Seccomp_filters")
	mode, _ := statusNumber(thread, "Seccomp")
	return mode == unix.SECCOMP_MODE_FILTER && (!counted || theirs > ours)
}

// threadStatus reads the state of each thread of a process. One that ends meanwhile is left out.
func threadStatus(pid int) ([][]byte, error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for _, name := range names {
		if status, err := os.ReadFile(name); err == nil {
			all = append(all, status)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("worker %d: /proc shows no threads of it", pid)
	}
	return all, nil
}

// doing returns what a process does: one that computes wants more time than it was given, one that waits for a read has
// slow storage. "" is not known. Spec: proc(5), /proc/PID/status, State.
func doing(pid int) string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	_, state, _ := strings.Cut(string(status), "\nState:\t")
	for letter, words := range map[string]string{
		"R": "computed or waited for a processor", "D": "waited for a read",
		"S": "slept", "T": "was stopped",
	} {
		if strings.HasPrefix(state, letter) {
			return words
		}
	}
	return ""
}

// statusNumber finds a number in a /proc/PID/status.
func statusNumber(status []byte, name string) (int64, bool) {
	for l := range bytes.Lines(status) {
		value, found := strings.CutPrefix(string(l), name+":")
		if !found {
			continue
		}
		fields := strings.Fields(value)
		if len(fields) == 0 {
			return 0, false
		}
		n, err := strconv.ParseInt(fields[0], 10, 64)
		return n, err == nil
	}
	return 0, false
}

// stdio is the number of descriptors that a worker gets: its pipes.
const stdio = 3

// keepDescriptors keeps all open files of this process from programs that it starts, those too that it was started
// with.
func keepDescriptors() {
	if unix.CloseRange(stdio, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) != nil {
		keepEach() // before Linux 5.11
	}
}

// keepEach is keepDescriptors with a call for each descriptor. One that cannot be listed is found by the parent's look
// at the worker.
func keepEach() {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= stdio {
			unix.CloseOnExec(fd)
		}
	}
}

// runtimeFiles are the files that Go's runtime and its poller hold open in any process, by the end of their names in
// /proc. The limits of the processor are read again and again.
var runtimeFiles = []string{
	"anon_inode:[eventpoll]", "anon_inode:[eventfd]", "cpu.max", "cpu.cfs_quota_us",
	"cpu.cfs_period_us",
}

// foreign returns the error of a worker that holds an open file other than its pipes and those of its runtime.
func foreign(pid int) error {
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd < stdio {
			continue
		}
		target, err := os.Readlink(filepath.Join(folder, e.Name()))
		if err == nil && !slices.Contains(runtimeFiles, filepath.Base(target)) {
			return fmt.Errorf("the worker holds descriptor %d (%s) from outside", fd, line(target))
		}
	}
	return nil
}
