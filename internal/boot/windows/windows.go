// Package windows finds the boot files of DOS and Windows, and the positions that Windows stores in its files.
package windows

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Folders finds the folders of each Windows. Other finders read its files; this one reports partitions with unreadable
// files.
var Folders = boot.Finder{Name: "windows", Find: boot.Everywhere(findWindows)}

// windowsFolders are the default folders of the Windows setup; NT and 2000 used WINNT. A second Windows in a partition,
// or a choice of the owner, has another folder.
var windowsFolders = []string{"WINDOWS", "WINNT"}

// maxRootFolders limits the other folders of a partition searched for a Windows.
const maxRootFolders = 256

// systemHive is the path, in the Windows folder, of the hive that a boot reads first.
const systemHive = "System32/config/SYSTEM"

// Remedies.
const (
	shutDown  = "shut Windows down cleanly, without fast startup, and copy again"
	repairBCD = "use --allow-unbootable and repair the copy with bootrec /rebuildbcd, or leave the partitions " +
		"where they are"
	repairDisk = "let chkdsk repair it in the guest and shut it down cleanly, or leave the partitions where they are"
)

func findWindows(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	_, err := windowsFiles(g, p)
	if errors.Is(err, ondisk.ErrNoMatch) {
		return nil
	}
	if err != nil {
		loads, lerr := loadsWindows(g, p)
		if lerr != nil {
			return lerr
		}
		return unreadable(f, p, loads, err)
	}
	folders, err := foldersOf(g, p)
	if memoryOf(g).roots[p.Number].more {
		f.NotSeen(p.Number, "Windows in an unusual folder", fmt.Sprintf("the root of partition %d has more than %d "+
			"folders", p.Number, maxRootFolders))
	}
	for _, folder := range folders {
		f.Windows = true
		f.Link(p.Number, "partition %d holds Windows in \\%s", p.Number, folder)
	}
	return err
}

// loadsWindows returns the Windows file that a boot sector loads, or an empty string for any other loader.
func loadsWindows(g *boot.Guest, p boot.Partition) (string, error) {
	b, err := ondisk.Bytes(g.Disk, p.Off, 512)
	if err != nil {
		return "", err
	}
	for _, file := range []string{"BOOTMGR", "NTLDR"} {
		if bytes.Contains(b, []byte(file)) {
			return file, nil
		}
	}
	return "", nil
}

// unreadable reports unreadable files of a partition. Most such volumes hold data, and a Windows in one would not start
// before the move either: only a partition that the BIOS boots from counts as a system.
func unreadable(f *boot.Found, p boot.Partition, loads string, err error) error {
	if !ondisk.Understood(err) {
		return err
	}
	f.Sign(boot.NotKnown, p, "", "the files of partition %d cannot be read", p.Number)
	f.NotSeen(p.Number, "positions that Windows or DOS stores", err.Error())
	switch {
	case p.Active && p.InMBR() && loads == "BOOTMGR":
		// Its store can name any partition with a Windows.
		f.Unbootable("bcd", 0,
			fmt.Sprintf("Windows Vista or later boots from partition %d, and the partitions in its \\Boot\\BCD are "+
				"unknown: %v", p.Number, err), repairBCD)
	case p.Active && p.InMBR() && loads == "NTLDR":
		// If Windows gives its own partition another letter, no user can log in.
		f.Unbootable("mounted-devices", 0,
			fmt.Sprintf("Windows NT 4, 2000, XP or 2003 boots from partition %d, and its registry, with the drive "+
				"letters by the positions of partitions, cannot be read: %v", p.Number, err), checkLetters)
	case loads == "NTLDR":
		f.Warn("mounted-devices", p.Number,
			fmt.Sprintf("Windows NT 4, 2000, XP or 2003 stores drive letters by the byte offset of a partition, "+
				"and its registry cannot be read: %v", err),
			"check the drive letters after the first boot of the copy")
	default:
		f.Warn("files-unread", p.Number,
			fmt.Sprintf("the files of the partition cannot be read, so positions in them stay unchanged: %v", err), "")
	}
	return nil
}

// windowsFiles opens a file system from which Windows can start. It returns ErrNoMatch for any other partition, and for
// a broken boot sector, which its prober reports. If the root is unreadable, all files are.
func windowsFiles(g *boot.Guest, p boot.Partition) (guestfile.FS, error) {
	if !identify.Traits(p.Volume.Kind).Windows || p.Volume.Size == 0 {
		return nil, ondisk.ErrNoMatch
	}
	files, err := g.Files(p)
	if err != nil {
		return nil, err
	}
	m := memoryOf(g)
	root, known := m.roots[p.Number]
	if !known {
		root = readRoot(files, p)
		m.roots[p.Number] = root
	}
	// A root with too many names is still searchable.
	if err := root.err; err == nil || errors.Is(err, ondisk.ErrLimit) || errors.Is(err, fs.ErrNotExist) {
		return files, nil
	}
	return nil, root.err
}

// memory is the state shared by the finders of this package for one disk.
type memory struct {
	roots  map[int]rootFolder // by partition number
	hives  *hive.Budget
	logs   map[int]ntfsLog // of NTFS, by partition number
	others int             // positions on other disks
}

func memoryOf(g *boot.Guest) *memory {
	m, ok := g.Windows.(*memory)
	if !ok {
		m = &memory{roots: map[int]rootFolder{}, hives: hive.NewBudget(), logs: map[int]ntfsLog{}}
		g.Windows = m
	}
	return m
}

// rootFolder is the root of a file system from which Windows can start.
type rootFolder struct {
	folders []string // folders in the root, except windowsFolders
	more    bool     // some folders are not searched
	err     error

	searched bool
	windows  []string // folders with a Windows
}

func readRoot(files guestfile.FS, p boot.Partition) (r rootFolder) {
	entries, err := files.List("")
	r.err = ondisk.Shift(err, p.Off)
	for _, e := range entries {
		known := slices.ContainsFunc(windowsFolders, func(name string) bool { return strings.EqualFold(name, e.Name) })
		switch {
		case !e.Dir || known:
		case len(r.folders) == maxRootFolders:
			r.more = true
		default:
			r.folders = append(r.folders, e.Name)
		}
	}
	return r
}

// ifThere returns found. It returns nil without an error for an absent file, key or value, and nil with any other
// error.
func ifThere[T any](found *T, err error) (*T, error) {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // as the comment promises
	case err != nil:
		return nil, err
	}
	return found, nil
}

// windowsFile opens a file of a partition. It returns fs.ErrNotExist if the file is absent, or if no file of the
// partition is readable, which findWindows reports.
func windowsFile(g *boot.Guest, p boot.Partition, path string) (*guestfile.File, error) {
	files, err := windowsFiles(g, p)
	switch {
	case err == nil:
		file, err := files.Open(path)
		return file, ondisk.Shift(err, p.Off)
	case ondisk.Understood(err) || errors.Is(err, ondisk.ErrNoMatch):
		return nil, fs.ErrNotExist
	}
	return nil, err
}

// foldersOf returns the Windows folders of a partition: the folders with a SYSTEM hive, readable or not. Outside the
// usual folders it must be readable, since many other folders are links.
func foldersOf(g *boot.Guest, p boot.Partition) ([]string, error) {
	root := memoryOf(g).roots[p.Number]
	if root.searched {
		return root.windows, nil
	}
	if err := root.search(g, p); err != nil {
		return nil, err
	}
	memoryOf(g).roots[p.Number] = root
	return root.windows, nil
}

// search finds the folders with a Windows.
func (r *rootFolder) search(g *boot.Guest, p boot.Partition) error {
	for i, folder := range slices.Concat(windowsFolders, r.folders) {
		file, err := windowsFile(g, p, folder+"/"+systemHive)
		switch {
		case err == nil:
			folder, _, _ = strings.Cut(file.Path, "/") // in its stored spelling
		case errors.Is(err, fs.ErrNotExist), ondisk.Understood(err) && i >= len(windowsFolders):
			continue
		case !ondisk.Understood(err):
			return err
		}
		r.windows = append(r.windows, folder)
	}
	r.searched = true
	return nil
}

// shown returns a path in Windows notation.
func shown(path string) string { return `\` + strings.ReplaceAll(path, "/", `\`) }

// BitLocker judges BitLocker volumes without metadata about a system by the rest of the disk. All positions inside a
// volume count from its start. r holds the results of the finders.
func BitLocker(g *boot.Guest, r *boot.Result) {
	for _, p := range g.Partitions {
		judged := func(i ondisk.Issue) bool { return i.Code == volume.CodeBitLocker }
		if p.Volume.Kind != volume.BitLocker || slices.ContainsFunc(p.Volume.Issues, judged) {
			continue
		}
		i := ondisk.Issue{Code: volume.CodeBitLocker, Effect: ondisk.Note, OnMove: true, Partition: p.Number}
		switch why := g.BootsBy(); {
		case why != "" && (!r.Windows || r.Boots(p.Number)):
			i.Effect = ondisk.Unbootable
			i.Text, i.Remedy = volume.SystemOfBitLocker("it may hold the system of this disk ("+why+")", false)
		default:
			i.Text = "BitLocker: a data volume, in which all positions count from its start. Its encrypted boot " +
				"sector keeps the old position, which Windows uses only in a boot volume"
			i.Remedy = "if Windows starts from it with boot files on another disk, do not use the copy"
		}
		r.Issues = append(r.Issues, i)
	}
}
