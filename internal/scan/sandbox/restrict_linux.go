package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// restrict puts all layers onto this process. It leaves out, with a note, those that the kernel lacks.
func restrict(s setup) Isolation {
	iso := Isolation{Wanted: s.Level}
	used, known := dataUsed() // while /proc can be read
	if s.Level == Sandbox {
		iso.forbid(readOnly(s.Roots), worker(ownPid()))
	}
	iso.limitResources(s.Limits, used, known)
	iso.settle()
	return iso
}

// forbid puts on the layers that limit the files and system calls of the process. nil restricts no files.
func (i *Isolation) forbid(rules rulesFor, calls policy) {
	if _, err := os.ReadDir("/proc/self/task"); err != nil {
		i.lacks("threads", err) // the library that restricts all of them in a build with cgo would end the process
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

// put notes one layer.
func (i *Isolation) put(layer string, err error) {
	if err != nil {
		i.lacks(layer, err)
		return
	}
	i.Layers = append(i.Layers, layer)
}

// presets restrict all that each version of Landlock's interface can.
var presets = []landlock.Config{
	{},
	landlock.V1, landlock.V2, landlock.V3, landlock.V4, landlock.V5, landlock.V6, landlock.V7, landlock.V8, landlock.V9,
	landlock.V10,
	landlock.V11,
}

// Errata of Landlock, as bits of what landlock_create_ruleset(LANDLOCK_CREATE_RULESET_ERRATA) gives.
const erratumSignals = 1 << 1 // signals between threads of one process were refused

// landlockVersion returns the version of the kernel's interface that can be used. Kernels that have scoped signals, but
// not the correction that threads of one process may still send them to each other, count as version 5.
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

// rulesFor returns the rights that stay allowed, of those that can be restricted.
type rulesFor func(handled landlock.AccessFSSet) []landlock.Rule

// restrictFiles forbids everything that Landlock knows, except by rules.
func restrictFiles(rules rulesFor) (int, error) {
	abi, err := landlockVersion()
	if err != nil {
		return 0, err
	}
	// A path that turned from a folder into a file meanwhile is an error, before anything is in force.
	for range 3 {
		if err = presets[abi].Restrict(rules(presets[abi].HandledAccessFS)...); err == nil {
			return abi, probeLandlock()
		}
	}
	return 0, err
}

// readOnly are the rights of a worker.
func readOnly(roots [][]byte) rulesFor {
	return func(landlock.AccessFSSet) []landlock.Rule {
		paths := make([]string, 0, len(roots))
		for _, root := range roots {
			paths = append(paths, string(root))
		}
		return toRead(paths)
	}
}

// toRead are the rights to read roots. The right is to the file that a path leads to now; renaming files later does not
// move it. A root that is not there, or cannot be reached, is left out.
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

// right returns the rights to a root of that kind.
func right(path string, mode fs.FileMode) landlock.FSRule {
	switch {
	case mode.IsDir():
		return landlock.PathAccess(llsys.AccessFSReadFile|llsys.AccessFSReadDir, path)
	case mode&fs.ModeDevice != 0:
		return landlock.ROFiles(path).WithIoctlDev() // a disk is asked for its size and sectors
	}
	return landlock.PathAccess(llsys.AccessFSReadFile, path)
}

// probeLandlock tries to open what no rule allows and every machine has.
func probeLandlock() error {
	file, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err == nil {
		return errors.Join(errors.New("is in force, and "+os.DevNull+" can be written all the same"), file.Close())
	}
	return nil
}

// Confine restricts this process, in all threads and for good: to the files of a, and without network,
// other programs or processes. Layers that the kernel lacks are left out with a note; the achieved level
// is Sandbox or None.
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
	if err := probeCalls(); err != nil {
		iso.takeOff(layerSeccomp, err)
	}
	iso.Achieved = None
	if (a.Workers || iso.has(layerLandlock)) && iso.has(layerSeccomp) {
		iso.Achieved = Sandbox
	}
	return iso
}

// changing are the rights to a folder of files that are written.
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

// probeCalls tries a call that every filter refuses, and that changes nothing: it asks for the personality of the
// process.
func probeCalls() error {
	const ask = 0xffffffff
	if _, _, errno := unix.Syscall(unix.SYS_PERSONALITY, ask, 0, 0); errno == 0 {
		return errors.New("is in force, and personality can be called all the same")
	}
	return nil
}
