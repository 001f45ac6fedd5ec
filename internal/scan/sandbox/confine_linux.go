package sandbox

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/landlock-lsm/go-landlock/landlock"
	llsys "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

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
