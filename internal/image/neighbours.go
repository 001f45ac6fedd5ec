package image

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/sys"
)

// maxNeighbours bounds how many names of a folder are kept: those that can say something about an image. A folder with more
// is refused, since what was not looked at could be the lock.
const maxNeighbours = 1 << 16

// Busy looks beside the image, and at the locks on it, for a program that has it in use. A copy of a disk that is being
// written is worth nothing.
func (img *Image) Busy() ([]ondisk.Issue, error) {
	var out []ondisk.Issue
	for _, f := range img.files {
		if err := f.qemuLock(); err != nil {
			out = append(out, busy(err.Error(), "shut the virtual machine down"))
		}
		if f.claimed() {
			out = append(out, busy(fmt.Sprintf("%q is a device that is mounted, or part of another one", f.name), "unmount it, or copy a snapshot of it"))
		}
	}
	names, err := img.locks()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if why := img.lockedBy(name); why != "" {
			out = append(out, busy(fmt.Sprintf("%q %s", name, why), unlock(name)))
		}
	}
	return out, nil
}

// locks lists the files of the folder that say that the image is in use.
func (img *Image) locks() ([]string, error) {
	if img.known != nil {
		return img.known.Locks, nil
	}
	return img.dir.names(func(n string) bool { return img.lockedBy(n) != "" })
}

// unlock is what to do about a file that says that the image is in use.
func unlock(name string) string {
	if ext := path.Ext(name); ext == ".vmss" || ext == ".vmem" {
		return "resume the virtual machine and shut it down; the suspended state is lost otherwise"
	}
	return "shut the virtual machine down; if none runs and no program has the file open (fuser), the lock is stale: remove it"
}

func busy(text, remedy string) ondisk.Issue {
	return ondisk.Issue{Code: "busy", Effect: ondisk.Refuse, Text: text, Remedy: remedy, Err: ondisk.ErrBusy}
}

// lockedBy tells what a file of the folder says about the image, empty when nothing. Spec: the lock files of VMware
// Workstation (name.lck folders), ESXi on NFS (.lck-*), and the memory files of a running or suspended machine.
func (img *Image) lockedBy(name string) string {
	stem := strings.TrimSuffix(img.base, path.Ext(img.base))
	for _, f := range img.files {
		if name == f.name+".lck" {
			return "is the lock of a program that has the disk open"
		}
	}
	switch {
	case strings.HasSuffix(name, ".vmx.lck"):
		return "is the lock of a running virtual machine in this folder"
	case strings.HasPrefix(name, ".lck-"):
		return "is the lock of an ESXi host on a file of this folder"
	case path.Ext(name) == ".vmem" && (strings.HasPrefix(name, stem+".") || strings.HasPrefix(name, stem+"-")):
		return "is the memory of a running or suspended virtual machine"
	case path.Ext(name) == ".vmss":
		return "is the state of a suspended virtual machine, which remembers the disk as it is"
	}
	return ""
}

// Children finds snapshots that name this disk as their parent: a new layout under them would corrupt them.
func (img *Image) Children() ([]ondisk.Issue, error) {
	if img.members != nil {
		return nil, nil // no snapshot has a parent inside of an archive
	}
	neighbours, err := img.neighbours()
	if err != nil {
		return nil, err
	}
	var children []string
	for _, name := range slices.Sorted(maps.Keys(neighbours)) {
		if name != img.base && slices.ContainsFunc(neighbours[name].Parents, func(parent string) bool { return img.owns(lastName(parent)) }) {
			children = append(children, name)
		}
	}
	return snapshots(children), nil
}

// neighbours are what the images of the folder name.
func (img *Image) neighbours() (_ map[string]driver.Names, err error) {
	switch s := img.siblings; {
	case img.known != nil:
		return img.known.parents(), nil
	case s == nil:
		return img.dir.namesIn(img.base)
	case s.names == nil:
		s.names, err = img.dir.namesIn("")
		return s.names, err
	default:
		return s.names, nil
	}
}

func snapshots(children []string) (out []ondisk.Issue) {
	for _, name := range children {
		out = append(out, ondisk.Issue{
			Code: "snapshot-parent", Effect: ondisk.Refuse,
			Text:   fmt.Sprintf("%q in the same folder is a snapshot of this disk: the disk alone is not the machine's present state", name),
			Remedy: "consolidate or remove the snapshots first",
		})
	}
	return out
}

// flatExtent is what VMware calls the flat extents of a disk, one or several.
var flatExtent = regexp.MustCompile(`^(.*)-(flat|f[0-9]{3,4})\.vmdk$`)

// Owner finds the descriptor of a flat extent that was opened by itself: the copy would have no descriptor.
func (img *Image) Owner() ([]ondisk.Issue, error) {
	m := flatExtent.FindStringSubmatch(img.base)
	if img.Format != raw.Format.Name || m == nil || !img.dir.exists(m[1]+".vmdk") {
		return nil, nil
	}
	name := m[1] + ".vmdk"
	return []ondisk.Issue{{
		Code: "flat-extent", Effect: ondisk.Warn,
		Text:   fmt.Sprintf("this is the flat extent of a VMDK whose descriptor is %q: a copy of it is a raw disk without descriptor", name),
		Remedy: "name the descriptor instead",
	}}, nil
}

// owns reports whether a name is that of one of the image's own files; those of its parents are others'. Other systems find a file
// by its name in another case, which counts unless a file has just that name.
func (img *Image) owns(name string) bool {
	same := func(f *file) bool { return f.level == 0 && f.name == name }
	alike := func(f *file) bool { return f.level == 0 && strings.EqualFold(f.name, name) }
	return slices.ContainsFunc(img.files, same) || slices.ContainsFunc(img.files, alike) && !img.dir.exists(name)
}

// names lists the files of the folder that keep wants, sorted: the order of a folder is chance, messages are not.
func (d *folder) names(keep func(name string) bool) ([]string, error) {
	f, err := d.at.List()
	if err != nil {
		return nil, fmt.Errorf("list folder: %w", err)
	}
	defer f.Close()
	var out []string
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			if keep(n) {
				out = append(out, n)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			slices.Sort(out)
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("list folder: %w", err)
		case len(out) > maxNeighbours:
			return nil, fmt.Errorf("folder of the image: %w of %d locks and VMDK files; move the image to a folder of its own", ondisk.ErrLimit, maxNeighbours)
		}
	}
}

// lastName is the last component of a path of any system.
func lastName(p string) string { return path.Base(strings.ReplaceAll(p, `\`, "/")) }

// byExtension reports whether files of a format can name others, and whether the name of a file is one of such.
func byExtension(f driver.Format, name string) bool {
	return f.Names != nil && slices.Contains(f.Extensions, strings.ToLower(path.Ext(name)))
}

// namers are the formats whose files can name others: those of images, and OVF.
func namers() []driver.Format {
	return append(slices.Clone(Formats), driver.Format{
		Name: packageOVF, Detect: func(head, _ []byte) bool { return ovf.Looks(head) }, Names: ovfNames,
		Extensions: []string{".ovf"}, AnyExtension: true,
	})
}

// naming reports whether a file can name others: by its extension, or by its content where the format has any extension.
func (d *folder) naming(name string) bool {
	if slices.ContainsFunc(namers(), func(f driver.Format) bool { return byExtension(f, name) }) {
		return true
	}
	f, err := d.openAny(name, ondisk.ErrReference)
	if err != nil {
		return false // no regular file, or no image
	}
	defer f.Close()
	head := make([]byte, min(f.Size(), textBlock))
	if ondisk.ReadFull(f, head, 0) != nil {
		return true // it could, and reading its names fails and says why
	}
	return slices.ContainsFunc(namers(), func(f driver.Format) bool { return f.AnyExtension && f.Detect(head, nil) })
}

// namesIn reads what the images of the folder name, each file once however many names it has.
func (d *folder) namesIn(except string) (map[string]driver.Names, error) {
	list, err := d.names(func(name string) bool { return name != except && d.naming(name) })
	if err != nil {
		return nil, err
	}
	out, seen := map[string]driver.Names{}, map[string]bool{}
	for _, name := range list {
		f, err := d.openAny(name, ondisk.ErrReference)
		if sys.Denied(err) {
			out[name] = driver.Names{Broken: true} // another user's
		}
		if err != nil {
			continue // a link, a folder, or gone meanwhile: no program follows it from here
		}
		if !seen[f.ID()] {
			seen[f.ID()] = true
			out[name], err = readNames(f)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return out, nil
}

func readNames(f driver.File) (driver.Names, error) {
	var all driver.Names
	for _, format := range namers() {
		if !format.AnyExtension && !byExtension(format, f.Name()) {
			continue
		}
		n, err := format.Names(f)
		if err != nil {
			return all, err
		}
		all.Parents = append(all.Parents, n.Parents...)
		all.Extents = append(all.Extents, n.Extents...)
		all.Members = append(all.Members, n.Members...)
		all.Broken = all.Broken || n.Broken
	}
	return all, nil
}

// claimed reports whether a block device has a file system mounted on it, or something else that the kernel keeps for itself.
func (f *file) claimed() bool { return f.device && f.dir.at.Claimed(f.real) }

// qemuLock reports whether QEMU has the file open for writing: it holds a lock on the byte of the "write" permission, 100 + 1.
// Spec: QEMU block/file-posix.c, RAW_LOCK_PERM_BASE.
func (f *file) qemuLock() error {
	var locked bool
	err := f.with(func(open *sys.File) (err error) {
		locked, err = open.LockedByte(qemuWrite)
		return err
	})
	if err != nil || !locked {
		return nil //nolint:nilerr // the file system knows no such locks
	}
	return fmt.Errorf("%q is open for writing in QEMU (lock on byte %d)", f.name, qemuWrite)
}
