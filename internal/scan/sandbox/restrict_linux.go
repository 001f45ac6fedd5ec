package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// restrict applies all layers to this process. It omits layers that the kernel lacks, with a note.
func restrict(s setup) Isolation {
	iso := Isolation{Wanted: s.Level}
	used, known := dataUsed() // while /proc can be read
	if s.Level == Sandbox {
		iso.forbid(readOnly(s.Roots), worker(ownPid()))
	}
	iso.limitResources(s.Limits, used, known)
	iso.setLevel()
	return iso
}

// forbid applies the layers that limit the files and system calls of the process. It does not restrict files if rules
// is nil.
func (i *Isolation) forbid(rules rulesFor, calls policy) {
	if _, err := os.ReadDir("/proc/self/task"); err != nil {
		i.lacks("threads", err) // in a build with cgo, the library that restricts all threads would end the process
		return
	}
	i.put(layerPrivilege, llsys.AllThreadsPrctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
	if rules != nil {
		abi, err := restrictFiles(rules)
		i.put(layerLandlock, err)
		if err == nil {
			i.Layers[len(i.Layers)-1] += "-" + strconv.Itoa(abi)
		}
	}
	i.put(layerSeccomp, restrictCalls(calls))
}

// put records a layer, or the reason why it is missing.
func (i *Isolation) put(layer string, err error) {
	if err != nil {
		i.lacks(layer, err)
		return
	}
	i.Layers = append(i.Layers, layer)
}

// presets holds the full restriction of each version of Landlock's interface.
var presets = []landlock.Config{
	{},
	landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6, landlock.V7, landlock.V8, landlock.V9,
	landlock.V10,
	landlock.V11,
}

// Errata of Landlock, as bits of the result of landlock_create_ruleset(LANDLOCK_CREATE_RULESET_ERRATA).
const erratumSignals = 1 << 1 // signals between threads of one process were refused

// landlockVersion returns the usable version of the kernel's interface. Kernels with scoped signals, but without the
// fix that allows signals between threads of one process, count as version 5.
func landlockVersion() (int, error) {
	abi, err := llsys.LandlockGetABIVersion()
	switch {
	case errors.Is(err, unix.ENOSYS):
		return 0, errors.New("the kernel has none")
	case errors.Is(err, unix.EOPNOTSUPP):
		return 0, errors.New("the kernel has it switched off; boot it with landlock in lsm=")
	case err != nil:
		return 0, err
	case abi < 6:
		return abi, nil
	}
	if errata, err := llsys.LandlockGetErrata(); err != nil || errata&erratumSignals == 0 {
		return 5, nil //nolint:nilerr // a kernel that does not report it has not corrected it
	}
	return min(abi, len(presets)-1), nil
}

// rulesFor returns the access rights that a process keeps, among the handled ones.
type rulesFor func(handled landlock.AccessFSSet) []landlock.Rule

// restrictFiles forbids everything that Landlock can restrict, except for the rules. It returns the version of
// Landlock.
func restrictFiles(rules rulesFor) (int, error) {
	abi, err := landlockVersion()
	if err != nil {
		return 0, err
	}
	// A path that changed from a folder to a file meanwhile causes an error, before any restriction is in force.
	for range 3 {
		if err = presets[abi].Restrict(rules(presets[abi].HandledAccessFS)...); err == nil {
			return abi, probeLandlock()
		}
	}
	return 0, err
}

// readOnly returns the rights of a worker.
func readOnly(roots [][]byte) rulesFor {
	return func(landlock.AccessFSSet) []landlock.Rule {
		paths := make([]string, 0, len(roots))
		for _, root := range roots {
			paths = append(paths, string(root))
		}
		return toRead(paths)
	}
}

// toRead returns the rights to read roots. A right belongs to the file that a path leads to now; renaming files later
// does not move it. Missing and unreachable roots are ignored.
func toRead(roots []string) []landlock.Rule {
	all := make([]landlock.Rule, 0, len(roots))
	folders := map[string]bool{} // of single files
	for _, path := range roots {
		info, err := os.Stat(path)
		if err != nil {
			continue
		}
		if !info.IsDir() {
			folders[filepath.Dir(path)] = true
		}
		all = append(all, right(path, info.Mode()).IgnoreIfMissing())
	}
	for path := range folders {
		all = append(all, landlock.PathAccess(llsys.AccessFSReadDir, path).IgnoreIfMissing())
	}
	return all
}

// right returns the rights to a root, by its mode.
func right(path string, mode fs.FileMode) landlock.FSRule {
	switch {
	case mode.IsDir():
		return landlock.PathAccess(llsys.AccessFSReadFile|llsys.AccessFSReadDir, path)
	case mode&fs.ModeDevice != 0:
		return landlock.ROFiles(path).WithIoctlDev() // to get the size and the sectors of a disk
	}
	return landlock.PathAccess(llsys.AccessFSReadFile, path)
}

// probeLandlock tries to open a file that every machine has and no rule allows.
func probeLandlock() error {
	file, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err == nil {
		return errors.Join(errors.New("is in force, and "+os.DevNull+" can be written all the same"), file.Close())
	}
	return nil
}

// Confine restricts all threads of this process permanently: to the files of a, and without network, other programs or
// processes. It omits layers that the kernel lacks, with a note. The achieved level is Sandbox or None.
func Confine(a Access) Isolation {
	iso := Isolation{Wanted: Sandbox, Layers: []string{}}
	switch {
	case a.Workers:
		iso.forbid(nil, parentOfWorkers())
	case a.Serves:
		iso.forbid(a.rules, server(ownPid()))
	default:
		iso.forbid(a.rules, command(ownPid()))
	}
	iso.Achieved = None
	if (a.Workers || iso.has(layerLandlock)) && iso.has(layerSeccomp) {
		iso.Achieved = Sandbox
	}
	return iso
}

// changing holds the rights to a folder in which files are written.
const changing = llsys.AccessFSReadFile | llsys.AccessFSReadDir | llsys.AccessFSWriteFile | llsys.AccessFSTruncate |
	llsys.AccessFSMakeReg | llsys.AccessFSMakeSym | llsys.AccessFSMakeDir | llsys.AccessFSRemoveFile |
	llsys.AccessFSRemoveDir

func (a Access) rules(handled landlock.AccessFSSet) []landlock.Rule {
	all := toRead(a.Read)
	for _, path := range a.Write {
		if st, err := os.Stat(path); err == nil && st.IsDir() {
			all = append(all, landlock.PathAccess(changing&handled, path).IgnoreIfMissing())
		}
	}
	for _, path := range a.Remove {
		removing := landlock.AccessFSSet(llsys.AccessFSRemoveFile)
		if st, err := os.Lstat(path); err == nil && st.IsDir() {
			removing = llsys.AccessFSRemoveDir
		}
		all = append(all, landlock.PathAccess(removing&handled, filepath.Dir(path)).IgnoreIfMissing())
	}
	return all
}

// limitResources sets the limits of the process. It notes each limit that cannot be set.
func (i *Isolation) limitResources(l Limits, used int64, known error) {
	memory := known
	if memory == nil {
		memory = limitMemory(l.Data, used)
	}
	lacking := false
	for _, limit := range []struct {
		what string
		err  error
	}{
		{"open files", lower(unix.RLIMIT_NOFILE, int64(l.Files))},
		{"size of files", lower(unix.RLIMIT_FSIZE, 0)},
		{"core", lower(unix.RLIMIT_CORE, 0)},
		{"computing", renewCPU(l.CPU)},
		{"memory", memory},
	} {
		if limit.err != nil {
			i.lacks(layerLimits+", "+limit.what, limit.err)
			lacking = true
		}
	}
	if !lacking {
		i.Layers = append(i.Layers, layerLimits)
	}
}

// lower sets a limit permanently. It keeps a limit that is already lower.
func lower(resource int, most int64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(resource, &limit); err != nil {
		return err
	}
	limit.Max = min(limit.Max, uint64(most)) //nolint:gosec // limits are positive
	limit.Cur = min(limit.Cur, limit.Max)
	return unix.Setrlimit(resource, &limit)
}

// soft is Go's soft memory limit, in bytes. With the program and its stacks it amounts to less than 64 MiB.
const soft = 44 << 20

// limitMemory bounds the writable memory of the process. If a build uses more than half of the limit before its first
// request, such as for the shadow memory of the race detector, the limit applies to additional memory. Go's own limit
// is far below, to collect garbage often before the kernel refuses memory.
func limitMemory(most, used int64) error {
	debug.SetMemoryLimit(min(most/2, soft))
	if used > most/2 {
		most += used
	}
	return lower(unix.RLIMIT_DATA, most)
}

// dataUsed returns the bytes that count towards RLIMIT_DATA.
func dataUsed() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for l := range bytes.Lines(status) {
		var kib int64
		if n, _ := fmt.Sscanf(string(l), "VmData: %d", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/self/status has no VmData")
}

// renewCPU limits the CPU time of the process from now on to most, rounded up to whole seconds, the unit of the kernel.
// It keeps the hard limit, since an ordinary user could not raise it for the next request.
func renewCPU(most time.Duration) error {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return fmt.Errorf("computing time used: %w", err)
	}
	until := time.Duration(used.Utime.Nano()+used.Stime.Nano()) + most
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CPU, &limit); err != nil {
		return fmt.Errorf("limit of computing time: %w", err)
	}
	limit.Cur = min(limit.Max, uint64((until+time.Second-1)/time.Second)) //nolint:gosec // not negative
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &limit); err != nil {
		return fmt.Errorf("limit of computing time: %w", err)
	}
	return nil
}

// killed reports whether SIGKILL ended a process.
func killed(state *os.ProcessState) bool {
	return state.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// peak returns the peak memory of a process, in bytes.
func peak(state *os.ProcessState) int64 {
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return int64(usage.Maxrss) << 10 //nolint:unconvert // int32 on other architectures
}

// polled returns a pipe of this process for reads that keep no thread waiting.
func polled(pipe *os.File) *os.File {
	fd := pipe.Fd()
	if unix.SetNonblock(int(fd), true) != nil {
		return pipe
	}
	return os.NewFile(fd, pipe.Name())
}

// watchCPU ends the worker on SIGXCPU, since Go's runtime would ignore the signal.
func watchCPU() {
	over := make(chan os.Signal, 1)
	signal.Notify(over, unix.SIGXCPU)
	go func() {
		<-over
		os.Exit(exitCPU)
	}()
}

// stdio is the number of descriptors of a worker: its pipes.
const stdio = 3

// keepDescriptors makes all open files of this process close-on-exec, including inherited ones.
func keepDescriptors() error {
	entries, err := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= stdio {
			unix.CloseOnExec(fd)
		}
	}
	return err
}
