package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

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
