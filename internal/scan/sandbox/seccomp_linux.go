package sandbox

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// Refused system calls, by purpose. No architecture has all of them.
var (
	network = []string{ // and other processes through sockets
		"socket", "socketpair", "socketcall", "bind", "listen", "accept", "accept4", "connect", "getsockname",
		"getpeername",
		"sendto", "sendmsg", "sendmmsg", "recvfrom", "recvmsg", "recvmmsg", "setsockopt", "getsockopt", "shutdown",
	}
	programs = []string{ // and processes; threads are made by clone
		"execve", "execveat", "fork", "vfork", "uselib", "pidfd_open", "pidfd_send_signal", "setpgid", "setsid",
		"tkill", // used by the C library that restricts all threads to reach its own threads
	}
	spying = []string{ // inspecting and ending processes; kill and tgkill are allowed for the process itself
		"ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "kcmp", "pidfd_getfd",
		"rt_sigqueueinfo", "rt_tgsigqueueinfo", "perf_event_open",
	}
	places = []string{ // mounts, roots and namespaces
		"mount", "umount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig",
		"fsmount", "fspick", "mount_setattr", "unshare", "setns", "name_to_handle_at", "open_by_handle_at",
	}
	holes = []string{ // parts of the kernel with a long record of vulnerabilities
		"bpf", "userfaultfd", "add_key", "request_key", "keyctl", "io_setup", "io_submit", "io_destroy", "io_cancel",
		"io_getevents", "io_pgetevents", "fanotify_init", "fanotify_mark", "memfd_create", "memfd_secret",
		"lookup_dcookie",
		"quotactl", "quotactl_fd", "vmsplice", "modify_ldt", "vm86", "vm86old", "personality", "remap_file_pages",
		"move_pages", "migrate_pages",
	}
	messages = []string{ // and memory shared with other processes
		"shmget", "shmat", "shmctl", "shmdt", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv",
		"msgctl", "ipc", "mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr",
	}
	machine = []string{ // and the identity of the process
		"kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "create_module",
		"query_module",
		"reboot", "swapon", "swapoff", "acct", "syslog", "settimeofday", "stime", "clock_settime", "clock_adjtime",
		"adjtimex", "sethostname", "setdomainname", "iopl", "ioperm", "vhangup", "nfsservctl", "setuid", "setgid",
		"setreuid", "setregid", "setresuid", "setresgid", "setgroups", "setfsuid", "setfsgid", "capset",
	}
	// writing holds the calls that write to files and folders. Landlock does not cover modes, owners, times and
	// attributes; early versions do not cover truncate either.
	writing = []string{
		"creat", "truncate", "truncate64", "ftruncate", "ftruncate64", "fallocate", "copy_file_range", "link", "linkat",
		"symlink", "symlinkat", "unlink", "unlinkat", "rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir",
		"mknod", "mknodat", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat",
		"utime",
		"utimes", "utimensat", "futimesat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr",
		"lremovexattr", "fremovexattr", "removexattrat",
	}
)

// absent holds calls that are refused with ENOSYS, as if the kernel lacked them: callers then use an older call, whose
// arguments are visible to a filter.
var absent = []string{"clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register"}

// Flags of open that create or change files, and flags of clone that create namespaces.
const (
	openToWrite     = unix.O_WRONLY | unix.O_RDWR | unix.O_CREAT | unix.O_TRUNC | unix.O_TMPFILE&^unix.O_DIRECTORY
	cloneNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER |
		unix.CLONE_NEWPID | unix.CLONE_NEWNET
)

// test compares the loaded word with a value. It is a jump of classic BPF, or its negation. Spec: linux/bpf_common.h.
type test struct {
	jump uint16
	not  bool
}

// Tests.
var (
	equal    = test{jump: unix.BPF_JEQ}
	notEqual = test{jump: unix.BPF_JEQ, not: true}
	below    = test{jump: unix.BPF_JGE, not: true}
	bits     = test{jump: unix.BPF_JSET} // any bit of the value is set
	noBits   = test{jump: unix.BPF_JSET, not: true}
)

// skip returns the instruction that skips the next instructions if the loaded word passes the test with a value.
func (t test) skip(value uint32, instructions int) unix.SockFilter {
	i := unix.SockFilter{Code: unix.BPF_JMP | t.jump | unix.BPF_K, K: value}
	if n := uint8(instructions); t.not { //nolint:gosec // a handful
		i.Jf = n
	} else {
		i.Jt = n
	}
	return i
}

// check describes a call that is refused unless the low half of one of its arguments passes a test with one of the
// values.
type check struct {
	call     string
	argument uint32
	test     test
	values   []uint32
}

// policy lists the calls refused by a filter.
type policy struct {
	refused []string
	checks  []check // calls with some arguments refused; a call with two checks must pass both
}

// worker returns the policy of a process that may only read and answer.
func worker(pid uint32) policy {
	reading := []uint32{openToWrite}
	return policy{
		refused: slices.Concat(network, programs, spying, places, holes, messages, machine, writing),
		checks: slices.Concat(alone(pid), []check{
			{"open", 1, noBits, reading},
			{"openat", 2, noBits, reading},
			// A shared mapping of a file that is open for writing can change the file without a write; mprotect can
			// make a readable mapping writable.
			{"mmap", 3, noBits, shared},
			{"mmap2", 3, noBits, shared},
			// Allow the size and the sectors of a disk.
			{"ioctl", 1, equal, []uint32{unix.BLKGETSIZE64, unix.BLKSSZGET, unix.BLKPBSZGET}},
		}),
	}
}

// command returns the policy of a process that writes files and starts nothing.
func command(pid uint32) policy {
	return policy{
		refused: slices.Concat(network, programs, spying, places, holes, messages, machine),
		checks:  append(alone(pid), typing...),
	}
}

// accepting holds the calls of package net on a listener and its connections.
var accepting = []string{"accept", "accept4", "getsockname", "getpeername", "setsockopt", "shutdown"}

// server returns the policy of a command that accepts clients on a socket that is already open.
func server(pid uint32) policy {
	p := command(pid)
	p.refused = slices.DeleteFunc(p.refused, func(call string) bool { return slices.Contains(accepting, call) })
	p.checks = append(p.checks, check{
		"setsockopt", 1, equal, []uint32{unix.SOL_SOCKET, unix.SOL_TCP},
	}) // only for delays and keep-alive
	return p
}

// parentOfWorkers returns the policy of a process that starts workers, which inherit the policy: it must not refer to a
// process ID.
func parentOfWorkers() policy {
	return policy{refused: slices.Concat(network, spying, places, holes, messages, machine), checks: append([]check{
		{"clone", 0, noBits, []uint32{cloneNamespaces}},
	}, typing...)}
}

// Argument checks shared by several policies.
var (
	data   = []uint32{unix.PROT_EXEC}
	shared = []uint32{unix.MAP_SHARED} // MAP_SHARED_VALIDATE has this bit, MAP_PRIVATE has not
	typing = []check{                  // simulated input in the terminal, for the shell to read
		{"ioctl", 1, notEqual, []uint32{unix.TIOCSTI}},
		{"ioctl", 1, notEqual, []uint32{unix.TIOCLINUX}},
	}
)

// alone returns checks that prevent access to other processes and the execution of generated code.
func alone(pid uint32) []check {
	return []check{
		{"clone", 0, bits, []uint32{unix.CLONE_THREAD}},
		{"clone", 0, noBits, []uint32{cloneNamespaces}},
		{"kill", 0, equal, []uint32{pid}},
		{"tgkill", 0, equal, []uint32{pid}},
		{"prlimit64", 0, equal, []uint32{0}},
		{"mmap", 2, noBits, data},
		{"mmap2", 2, noBits, data},
		{"mprotect", 2, noBits, data},
		{"pkey_mprotect", 2, noBits, data},
	}
}

// Offsets in struct seccomp_data (linux/seccomp.h), and the first number of x32 calls, which share the architecture of
// amd64 but have different numbers (__X32_SYSCALL_BIT of asm/unistd.h).
const (
	dataNumber    = 0
	dataArch      = 4
	dataArguments = 16 // 8 bytes each, low half first on all architectures of package arch
	x32Calls      = 0x40000000
)

// Final instructions of the filter.
var (
	allow   = end(unix.SECCOMP_RET_ALLOW)
	refuse  = end(unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM))
	unknown = end(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS))
)

func end(result uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: result}
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// filter returns the program of a policy. The library's own assembler is unusable: after a check of an argument, it
// compares the argument instead of the number of the call.
func filter(a *arch.Info, p policy) []unix.SockFilter {
	all := []unix.SockFilter{
		load(dataArch), equal.skip(uint32(a.ID), 1), refuse,
		load(dataNumber), below.skip(x32Calls, 1), unknown,
	}
	for _, number := range numbers(a, absent) {
		all = append(all, notEqual.skip(number, 1), unknown)
	}
	for _, number := range numbers(a, p.refused) {
		all = append(all, notEqual.skip(number, 1), refuse)
	}
	for _, c := range p.checks {
		for _, number := range numbers(a, []string{c.call}) {
			all = append(all, c.assemble(number)...)
		}
	}
	return append(all, allow)
}

func (c check) assemble(number uint32) []unix.SockFilter {
	all := []unix.SockFilter{
		load(dataNumber), notEqual.skip(number, len(c.values)+2), load(dataArguments + 8*c.argument),
	}
	for i, value := range c.values {
		all = append(all, c.test.skip(value, len(c.values)-i))
	}
	return append(all, refuse)
}

// numbers returns the numbers of the named calls that exist on an architecture.
func numbers(a *arch.Info, names []string) []uint32 {
	var all []uint32
	for _, name := range names {
		if number, ok := a.SyscallNames[name]; ok {
			all = append(all, uint32(number)) //nolint:gosec // of a table
		}
	}
	return all
}

// restrictCalls applies the filter to all threads, which already have no-new-privileges.
func restrictCalls(p policy) error {
	a, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	if err := install(filter(a, p)); err != nil {
		return err
	}
	return probeCalls()
}

// probeCalls tries a harmless call that every filter refuses: it queries the personality of the process.
func probeCalls() error {
	const ask = 0xffffffff
	if _, _, errno := unix.Syscall(unix.SYS_PERSONALITY, ask, 0, 0); errno == 0 {
		return errors.New("is in force, and personality can be called all the same")
	}
	return nil
}

// ownPid returns the ID of this process, in the type of a filter.
func ownPid() uint32 { return uint32(os.Getpid()) } //nolint:gosec // positive

// install loads a program into the kernel.
func install(code []unix.SockFilter) error {
	program := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]} //nolint:gosec // the kernel accepts 4096
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	switch {
	case errno == unix.ENOSYS, errno == unix.EINVAL:
		return errors.New("the kernel has none, or none for all threads at once")
	case errno != 0:
		return errno
	case thread != 0:
		return fmt.Errorf("thread %d has another filter", thread)
	}
	return nil
}
