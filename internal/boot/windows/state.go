package windows

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/fs/fat"
	"github.com/trueup/trueup/internal/fs/ntfs"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

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
