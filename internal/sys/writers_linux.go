package sys

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a look at all processes: what a busy machine has, several times.
const (
	maxProcesses   = 1 << 17
	maxDescriptors = 1 << 21
)

// accessMode masks the access mode of open files; 0 is read only. Spec: O_ACCMODE of Linux, asm-generic/fcntl.h.
const accessMode = 3

// Writers passes what other processes have open for writing, until each returns false. proc is where the kernel shows
// them, /proc. An ordinary user sees no processes of others. Spec: proc(5), /proc/[pid]/fd and fdinfo.
func Writers(proc string, each func(w Writer) bool) {
	descriptors := 0
	for _, p := range list(proc, maxProcesses) {
		pid, err := strconv.Atoi(p)
		if err != nil || pid == os.Getpid() {
			continue
		}
		at := filepath.Join(proc, p)
		for _, fd := range list(filepath.Join(at, "fd"), maxDescriptors-descriptors) {
			descriptors++
			if !writes(filepath.Join(at, "fdinfo", fd)) {
				continue // before Stat, which a file system whose server hangs may not answer
			}
			st, err := Stat(filepath.Join(at, "fd", fd))
			if err != nil {
				continue
			}
			name, _ := os.ReadFile(filepath.Join(at, "comm")) //nolint:gosec // of the kernel
			if !each(Writer{PID: pid, Program: strings.TrimSuffix(string(name), "\n"), File: st}) {
				return
			}
		}
	}
}

// list returns the names in a folder, at most some; none of one that cannot be read.
func list(folder string, most int) []string {
	f, err := os.Open(folder) //nolint:gosec // of the kernel
	if err != nil || most <= 0 {
		return nil
	}
	defer f.Close()
	names, _ := f.Readdirnames(most)
	return names
}

// writes reports whether a descriptor is open for writing, by the text that the kernel has about it.
func writes(info string) bool {
	b, err := os.ReadFile(info) //nolint:gosec // of the kernel
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), "flags:")
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return false
	}
	flags, err := strconv.ParseUint(fields[0], 8, 64)
	return err == nil && flags&accessMode != 0
}

// leasing lists the file systems whose leases are those of the kernel itself. Others refuse a lease also where nobody
// has the file open: NFS without a delegation, SMB without an oplock. Spec: include/uapi/linux/magic.h of Linux; ZFS:
// ZFS_SUPER_MAGIC of OpenZFS.
var leasing = []int64{
	unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC,
	0x2fc12fc1,
}

// A lease that is refused is asked for again: a process that this one starts has its files open until its program runs.
const (
	leaseLooks = 10
	leasePause = 10 * time.Millisecond
)

// Written reports whether any process, or the kernel, has the file open for writing; this process counts, too. It asks
// for a lease of readers, which is given back at once. known is false where the system does not tell: to users who do
// not own the file, and on file systems of networks. Spec: fcntl(2), F_SETLEASE.
func (f *File) Written() (yes, known bool) { return f.refused(unix.F_RDLCK) }

// Shared is Written for a file that is open or mapped elsewhere, also to read. It asks for a lease of a writer: f must
// be the only open descriptor of this process, to read.
func (f *File) Shared() (yes, known bool) { return f.refused(unix.F_WRLCK) }

// refused reports whether the kernel refuses a lease because of others.
func (f *File) refused(kind int) (yes, known bool) {
	var st unix.Statfs_t
	if again(func() error { return unix.Fstatfs(f.fd, &st) }) != nil ||
		!slices.Contains(leasing, int64(uint32(st.Type))) { //nolint:gosec // it is signed on some processors
		return false, false
	}
	lease := func(kind int) error {
		return again(func() error {
			_, err := unix.FcntlInt(uintptr(f.fd), unix.F_SETLEASE, kind)
			return err
		})
	}
	for looks := 1; ; looks++ {
		err := lease(kind)
		switch {
		case err == nil:
			_ = lease(unix.F_UNLCK) // the next close does the same
			return false, true
		case !errors.Is(err, unix.EAGAIN):
			return false, false
		case looks == leaseLooks:
			return true, true
		}
		time.Sleep(leasePause)
	}
}
