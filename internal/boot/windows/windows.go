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
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
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

// loadsWindows returns the Windows file that a boot sector loads, BOOTMGR or NTLDR, or an empty string for any other
// loader.
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
// a broken boot sector, which its prober reports. If the root is unreadable, no file can be read.
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

// ifThere returns found and err, but nil without an error for an absent file, key or value.
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

// search finds the folders that hold a Windows installation.
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

// lasting returns nil if Windows keeps rewritten references. Otherwise the error wraps ErrUnsupported: chkdsk runs
// first, or the replay of $LogFile may overwrite them. The log of NTFS holds only metadata. But it can give a file
// other clusters, and it restores MFT records, in which small files lie.
func (r *fileRefs) lasting() error {
	if r.p.Volume.Kind != volume.NTFS {
		return r.mirrored()
	}
	for _, i := range r.p.Volume.Issues {
		if i.Code == "ntfs-dirty" {
			return ondisk.In(ondisk.ErrUnsupported, "NTFS is marked dirty: Windows was not shut down cleanly")
		}
	}
	if log, err := logOf(r.g, r.p); err == nil && log == nil {
		return ondisk.In(ondisk.ErrUnsupported,
			"NTFS has no $LogFile, so it is unknown whether Windows was shut down cleanly")
	}
	return r.replayed()
}

// mirrored returns nil if a check of a FAT leaves the file in place. A FAT has no log, and a check moves no clusters:
// but if the two FATs differ, it can choose the other one.
func (r *fileRefs) mirrored() error {
	dirty := func(i ondisk.Issue) bool { return i.Code == "fat-dirty" }
	if !slices.ContainsFunc(r.p.Volume.Issues, dirty) {
		return nil
	}
	v := opened[fat.Volume](r.g, r.p)
	for _, path := range append([]string{r.file.Path}, r.beside...) {
		if err := v.Mirrored(path); err != nil && !ondisk.Understood(err) {
			return ondisk.Shift(err, r.p.Off)
		} else if err != nil {
			return ondisk.In(ondisk.ErrUnsupported, "FAT is marked dirty, and a check may change the file: %v",
				ondisk.Shift(err, r.p.Off))
		}
	}
	return nil
}

// logOf reads the log of an NTFS once. It returns nil if the volume has no log.
func logOf(g *boot.Guest, p boot.Partition) (*ntfs.Log, error) {
	logs := memoryOf(g).logs
	known, ok := logs[p.Number]
	if !ok {
		known.Log, known.err = readLog(g, p)
		logs[p.Number] = known
	}
	return known.Log, known.err
}

// Logs finds the shutdown state in the log of each NTFS.
var Logs = boot.Finder{Name: "logs of NTFS", Find: boot.Everywhere(findLogs)}

func findLogs(g *boot.Guest, p boot.Partition, f *boot.Found) error {
	if p.Volume.Kind != volume.NTFS || p.Kind == table.Extended {
		return nil
	}
	known, ok := memoryOf(g).logs[p.Number]
	state, err := ntfs.State(0), known.err
	switch {
	case ok && err == nil && known.Log == nil:
		err = fs.ErrNotExist
	case ok && err == nil:
		state = known.State
	case !ok:
		state, err = look(g, p)
	}
	name := "the log of the NTFS" + p.Suffix()
	switch {
	case errors.Is(err, fs.ErrNotExist) || err != nil && ondisk.Understood(err):
		f.Sign(boot.NotKnown, p, boot.OnMoveRepair, "%s is missing or cannot be read", name)
	case err != nil:
		return err
	case state == ntfs.OpenLog:
		const move = "a position in a file is rewritten if the log does not touch that file; otherwise the move is " +
			"refused"
		f.Sign(boot.Running, p, move, "%s is open", name)
	default:
		f.Sign(boot.ShutDown, p, "", "%s is %s", name, state)
	}
	return nil
}

// look reads the state of a log that no other finder has read.
func look(g *boot.Guest, p boot.Partition) (ntfs.State, error) {
	file, err := windowsFile(g, p, "$LogFile")
	if err != nil {
		return ntfs.Empty, err
	}
	return ntfs.ReadState(file)
}

// ntfsLog is the log of a volume, or the error of reading it.
type ntfsLog struct {
	*ntfs.Log
	err error
}

func readLog(g *boot.Guest, p boot.Partition) (*ntfs.Log, error) {
	file, err := ifThere(windowsFile(g, p, "$LogFile"))
	if file == nil {
		return nil, err
	}
	log, err := opened[ntfs.Volume](g, p).Log(file)
	if err != nil && ondisk.Understood(err) {
		err = ondisk.In(ondisk.ErrUnsupported,
			"$LogFile of NTFS cannot be read, so it is unknown whether Windows was shut down cleanly: %v", err)
	}
	return log, err
}

// opened returns the file system of a partition. The caller has opened a file of it before, so it exists.
func opened[V any](g *boot.Guest, p boot.Partition) V {
	files, _ := windowsFiles(g, p)
	return files.(V)
}

// replayed returns nil if the replay of an open log leaves the file, its logs and the references unchanged.
func (r *fileRefs) replayed() error {
	if r.p.Volume.Kind != volume.NTFS {
		return nil
	}
	log, err := logOf(r.g, r.p)
	if log == nil || len(log.Writes) == 0 {
		return err
	}
	patched, err := r.patched()
	if err != nil {
		return err
	}
	if c := log.Conflict(patched); c != nil {
		return ondisk.In(ondisk.ErrUnsupported, "$LogFile of NTFS is open: %v: Windows was not shut down cleanly", c)
	}
	return nil
}

// noteOpen reports that an open log is harmless.
func (r *fileRefs) noteOpen(f *boot.Found) {
	log := memoryOf(r.g).logs[r.p.Number].Log
	if log != nil && log.State == ntfs.OpenLog {
		f.Issues = append(f.Issues, ondisk.Issue{
			Code: "ntfs-open", Effect: ondisk.Note, OnMove: true,
			Text: fmt.Sprintf("the NTFS of partition %d was in use when it was copied: its log (writes: %d) does "+
				"not touch %s", r.p.Number, len(log.Writes), shown(r.file.Path)),
		})
	}
}

// patched returns the parts of the volume that a replay must not write.
func (r *fileRefs) patched() (ntfs.Patched, error) {
	var out ntfs.Patched
	v := opened[ntfs.Volume](r.g, r.p)
	places := func(at []disk.Range) {
		for _, x := range at {
			out.Bytes = append(out.Bytes, disk.Range{Off: x.Off - r.p.Off, Len: x.Len})
		}
	}
	for i := range r.refs {
		places(r.refs[i].At)
		for _, s := range r.refs[i].Seals {
			places(s.At)
		}
	}
	for _, path := range append([]string{r.file.Path}, r.beside...) {
		t, err := v.Trace(path)
		if err != nil {
			return out, err
		}
		out.Records, out.Folders, out.MFT = append(out.Records, t.File...), append(out.Folders, t.Folders...), t.MFT
		if len(r.beside) > 0 {
			out.Parents = append(out.Parents, t.Parent...)
		}
	}
	return out, nil
}

// Hibernation finds a hibernated Windows. Its resumed kernel has the old places of the volumes, and parts of their file
// systems, in memory.
var Hibernation = boot.Finder{Name: "hibernation", Find: findHibernation}

const hibernationFile = "hiberfil.sys"

// Signatures of the file, in capitals since Windows 8. Zeros reserve its space. Spec: libhibr, "Windows Hibernation
// File format"; ntfs-3g, libntfs-3g/volume.c, ntfs_volume_check_hiberfile.
var (
	// asleep lists the signatures of a system that resumes. With fast startup, it is the kernel of a system that was
	// shut down.
	asleep = []string{"HIBR", "RSTR", "HORM"} // written, resuming, and kept for every start
	awake  = []string{"WAKE", "\x00\x00\x00\x00", ""}
)

// link begins a file that only names the partition of the real file.
const link = "LINK"

const shutDownFully = "start the guest, run \"powercfg /h off\" and then \"shutdown /s /t 0\" in it, and copy it again"

func findHibernation(g *boot.Guest) (boot.Found, error) {
	var linked, real []boot.Partition
	f, err := boot.Everywhere(func(g *boot.Guest, p boot.Partition, f *boot.Found) error {
		state, err := hibernation(g, p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			const unknown = "it is unknown whether Windows is hibernated on the disk"
			if ondisk.Understood(err) {
				f.Sign(boot.NotKnown, p, boot.NoMove, "%s%s cannot be read", shown(hibernationFile), p.Suffix())
			}
			return f.Unread("hibernated", 0, unknown, err, shutDownFully)
		case upper(state) == link:
			linked = append(linked, p)
			return nil
		}
		real = append(real, p)
		judgeHibernation(f, p, state)
		return nil
	})(g)
	if err == nil && len(real) == 0 {
		for _, p := range linked {
			elsewhere(&f, p)
		}
	}
	return f, err
}

// hibernation returns the signature of the file in a partition.
func hibernation(g *boot.Guest, p boot.Partition) (string, error) {
	file, err := windowsFile(g, p, hibernationFile)
	if err != nil {
		return "", err
	}
	head, err := ondisk.Bytes(file, 0, min(file.Size(), int64(len(link))))
	return string(head), err
}

func judgeHibernation(f *boot.Found, p boot.Partition, state string) {
	name := shown(hibernationFile) + p.Suffix()
	switch {
	case slices.Contains(awake, upper(state)):
		f.Sign(boot.ShutDown, p, "", "%s holds no hibernated system", name)
	case slices.Contains(asleep, upper(state)):
		f.Sign(boot.Hibernated, p, boot.NoMove, "%s holds a hibernated system (%s), perhaps of a fast startup", name,
			upper(state))
		f.Issues = append(f.Issues, ondisk.Issue{
			Code: "hibernated", Effect: ondisk.Refuse, OnMove: true,
			Text: fmt.Sprintf("Windows%s is hibernated, or was shut down with fast startup: it would resume with "+
				"the old positions of all partitions", p.Suffix()),
			Remedy: shutDownFully,
		})
	default:
		f.Sign(boot.NotKnown, p, boot.NoMove, "%s begins with % x, an unknown state", name, state)
		f.Unbootable("hibernated", 0,
			fmt.Sprintf("%s begins with % x, so it is unknown whether it holds a hibernated Windows", name, state),
			shutDownFully)
	}
}

// elsewhere reports a link to a file on no partition of this disk.
func elsewhere(f *boot.Found, p boot.Partition) {
	text := fmt.Sprintf("%s%s names another disk, so it is unknown whether its Windows is hibernated",
		shown(hibernationFile), p.Suffix())
	f.Sign(boot.NotKnown, p, boot.NoMove, "%s", text)
	f.Unbootable("hibernated", 0, text, shutDownFully)
}

// upper converts ASCII letters, and only these, to upper case.
func upper(s string) string {
	out := []byte(s)
	for i, c := range out {
		if c >= 'a' && c <= 'z' {
			out[i] = c - 'a' + 'A'
		}
	}
	return string(out)
}
