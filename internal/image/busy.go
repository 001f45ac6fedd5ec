package image

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Busy looks for signs of a program that uses the image: lock files and saved states beside it, and locks or mounts of
// its open files. A copy of a disk that is being written is worthless.
func (img *Image) Busy() ([]ondisk.Issue, error) {
	out := img.claimed()
	if d, ok := img.Remote.(*gate.Drive); ok {
		out = append(out, driveBusy(d)...)
	}
	names, err := img.locks()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if why := img.lockedBy(img.Dir, name); why != "" {
			out = append(out, busy(fmt.Sprintf("%q %s", name, why), unlock(name)))
		}
	}
	for _, d := range img.Further {
		names, err := d.Names(func(n string) bool { return img.lockedBy(d, n) != "" })
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			out = append(out, busy(fmt.Sprintf("%q, in another folder of the image, %s", name, img.lockedBy(d, name)),
				unlock(name)))
		}
	}
	if img.Dir == nil { // an image on a server
		return out, nil
	}
	for _, s := range savedStates {
		if err := savedIn(img.Dir, s.folder, s.folder, s.names, &out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// claimed returns the issues of locks and mounts of the open files.
func (img *Image) claimed() (out []ondisk.Issue) {
	for _, f := range img.Handles {
		if err := f.QEMULock(); err != nil {
			out = append(out, busy(err.Error(), "shut the virtual machine down"))
		}
		if f.Claimed() {
			out = append(out, busy(fmt.Sprintf("the device %q is mounted, or part of another device", f.Name()),
				"unmount it, or copy a snapshot of it"))
		}
	}
	return out
}

const guid = `[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}`

// vboxState matches the name of a saved state: the time, or the UUID of the machine in older versions. Spec:
// VirtualBox, src/VBox/Main/src-server/MachineImpl.cpp, composeSavedStateFilename.
var vboxState = ondisk.LazyPattern(
	`^(?:[0-9]{4}(?:-[0-9]{2}){2}T[0-9]{2}(?:-[0-9]{2}){2}-[0-9]{9}Z|\{` + guid + `\})\.sav$`)

// savedStates are the saved states in a folder beside the disk: patterns for nested folders and, last, for the file.
// Spec: VirtualBox manual, "The Machine Folder"; Microsoft, "Hyper-V virtual machine files" (.bin and .vsv exist while
// a machine runs or is saved). The .vmrs of later versions also exists while a machine is off.
var savedStates = []struct {
	folder string
	names  []func() *regexp.Regexp
}{
	{"Snapshots", []func() *regexp.Regexp{vboxState}},
	{"Virtual Machines", []func() *regexp.Regexp{
		ondisk.LazyPattern(`^` + guid + `$`), ondisk.LazyPattern(`^` + guid + `\.(?i:vsv|bin)$`),
	}},
}

// savedIn adds the issues of saved states in the folder name. at is its path relative to the image's folder.
func savedIn(above *gate.Folder, name, at string, names []func() *regexp.Regexp, out *[]ondisk.Issue) (err error) {
	d, err := above.Enter(name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ondisk.ErrReference): // a link, or no folder
		return nil
	case err != nil:
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	found, err := d.Names(func(n string) bool { return names[0]().MatchString(n) })
	if err != nil {
		return err
	}
	slices.Sort(found)
	for _, n := range found[:min(len(found), maxLocks)] {
		below := path.Join(at, n)
		if len(names) == 1 {
			*out = append(*out, busy(fmt.Sprintf("%q %s", below, savedMachine), unlock(n)))
		} else if err := savedIn(d, n, below, names[1:], out); err != nil {
			return err
		}
	}
	return nil
}

const savedMachine = "is the saved state of a suspended virtual machine, which depends on the present disk content"

// driveBusy returns the issue of a disk in use by Windows, since reads at different times can be inconsistent. Windows
// cannot take a removable disk offline, so that such a disk gets a warning only.
func driveBusy(d interface {
	Name() string
	Used() (used, fixed bool)
},
) []ondisk.Issue {
	used, fixed := d.Used()
	if !used {
		return nil
	}
	text := d.Name() + " is in use by Windows, which can write to its volumes during the read"
	if !fixed {
		return []ondisk.Issue{{
			Code: "busy", Effect: ondisk.Warn, Text: text, Remedy: "close all programs with open files on it",
		}}
	}
	return []ondisk.Issue{busy(text, "take it offline (in PowerShell: Set-Disk -Number "+
		strings.TrimPrefix(d.Name(), "PhysicalDrive")+" -IsOffline $true), or copy a snapshot of it")}
}

// InUse is Busy that also detects writers without a lock. It blocks other programs from opening the image for a moment,
// and is meant for images that are about to change or be copied.
func (img *Image) InUse() ([]ondisk.Issue, error) { return img.UsedBy(nil) }

// UsedBy is like InUse, and also names the programs that had files open for writing at the start of the run.
func (img *Image) UsedBy(by Writers) ([]ondisk.Issue, error) {
	out, err := img.Busy()
	if alone := img.Alone(); errors.Is(alone, ondisk.ErrBusy) {
		out = append(out, busy(alone.Error(), ""))
	}
	return append(out, img.Written(by)...), err
}

// Idle refuses an image that a program uses.
func (img *Image) Idle(by Writers) error {
	busy, err := img.UsedBy(by)
	if err == nil && len(busy) > 0 {
		err = &ondisk.Refusal{Code: "busy", Reason: busy[0].Text, Remedy: busy[0].Remedy}
	}
	return err
}

// Unread returns a stand-in for an image that cannot be opened, such as a snapshot without its parent. It can still be
// in use. class is the class of the error of a file that is no regular one.
func Unread(dir *gate.Folder, base string, class error) (*Image, error) {
	f, err := dir.OpenAny(base, class)
	if err != nil {
		return nil, err
	}
	return &Image{Image: &driver.Image{}, Opened: gate.Opened{Dir: dir, Base: base, Handles: []*gate.File{f}}}, nil
}

// Writers maps files to the programs that had them open for writing at the start of the run.
type Writers map[sys.ID]sys.Writer

// maxWriters limits the files in Writers. Programs with further files are reported without a name.
const maxWriters = 1 << 16

// FindWriters finds the programs with regular files open for writing. It must run before the process confines itself.
func FindWriters() Writers {
	out := Writers{}
	sys.Writers("/proc", func(w sys.Writer) bool {
		if w.File.Mode.IsRegular() {
			out[w.File.ID] = w
		}
		return len(out) < maxWriters
	})
	return out
}

// Written finds programs with a file of the image open for writing. After an exchange, they would write to an unlinked
// file. by supplies their names; the kernel alone only reports that there is one.
func (img *Image) Written(by Writers) (out []ondisk.Issue) {
	for _, f := range img.Handles {
		w, found := by[f.Info.ID]
		switch {
		case f.Level > 0: // a parent is open while its snapshots are
		case found && w.PID == 0: // a loop device: copying is fine; a caller that changes the file refuses it
		case found:
			out = append(out, busy(fmt.Sprintf("%q is open for writing in process %d (%q)", f.Name(), w.PID, w.Program),
				"shut the virtual machine down, or end that program"))
		case f.Written():
			out = append(out, busy(fmt.Sprintf("%q is open for writing in another program, or in the kernel (a loop "+
				"device, a target of iSCSI)", f.Name()), "close it there (fuser or losetup -j, as root, shows where)"))
		}
	}
	return out
}

// locks returns the names of files in the folder that show that the image is in use.
func (img *Image) locks() ([]string, error) {
	if img.known != nil {
		return img.known.Locks, nil
	}
	return img.Dir.Names(func(n string) bool { return img.lockedBy(img.Dir, n) != "" })
}

// unlock returns the remedy for a lock file.
func unlock(name string) string {
	switch strings.ToLower(path.Ext(name)) {
	case ".vmss", ".vmem", ".sav", ".vsv", ".bin":
		return "resume the virtual machine and shut it down; the suspended state is lost otherwise"
	}
	return "shut the virtual machine down; if none runs and no program has the file open (fuser), the lock is stale: " +
		"remove it"
}

func busy(text, remedy string) ondisk.Issue {
	return ondisk.Issue{Code: "busy", Effect: ondisk.Refuse, Text: text, Remedy: remedy, Err: ondisk.ErrBusy}
}

// lockedBy returns how a file of the folder shows that the image is in use, or an empty string. Spec: the lock files of
// VMware Workstation (name.lck folders), ESXi on NFS (.lck-*), and the memory files of a running or suspended machine,
// of VirtualBox too.
func (img *Image) lockedBy(d *gate.Folder, name string) string {
	ext := path.Ext(name)
	if !strings.HasPrefix(name, ".lck-") && ext != ".lck" && ext != ".vmem" && ext != ".vmss" && ext != ".sav" {
		return "" // skip the comparison for thousands of extents
	}
	inFolder := slices.DeleteFunc(slices.Clone(img.Handles), func(f *gate.File) bool { return !d.Holds(f) })
	switch {
	case slices.ContainsFunc(inFolder, func(f *gate.File) bool { return name == f.Base()+".lck" }):
		return "is the lock of a program that has the disk open"
	case strings.HasSuffix(name, ".vmx.lck"):
		return "is the lock of a running virtual machine in this folder"
	case strings.HasPrefix(name, ".lck-"):
		return "is the lock of an ESXi host on a file of this folder"
	case ext == ".vmem" && slices.ContainsFunc(inFolder, func(f *gate.File) bool {
		stem := strings.TrimSuffix(f.Base(), path.Ext(f.Base()))
		return (d != img.Dir || f.Base() == img.Base) &&
			(strings.HasPrefix(name, stem+".") || strings.HasPrefix(name, stem+"-"))
	}):
		return "is the memory of a running or suspended virtual machine"
	case ext == ".vmss", vboxState().MatchString(name):
		return savedMachine
	}
	return ""
}
