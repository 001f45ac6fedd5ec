// This part of the package finds the journal beside a disk and reports its meaning: the unfinished work on the disk,
// and which of the commands undo, resume and finish apply. The package of each kind carries out the commands.

package journal

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
)

// Suffix is appended to the full file name of a disk to form the name of its journal.
const Suffix = ".trueup"

// MaxName bounds a file name, in bytes. Spec: NAME_MAX of Linux, include/uapi/linux/limits.h.
const MaxName = 255

// PathOf returns the path of the journal beside a disk.
func PathOf(disk string) string { return disk + Suffix }

// Suffixes of temporary names: a dot, the file name, and one of these.
const (
	Partial  = ".partial"  // being written
	Replaced = ".replaced" // replaced by another file with its name
	Renamed  = ".exchange" // about to get its name by an exchange
	Trial    = ".trial"    // an empty file for testing links and renames
	Moved    = ".moved"    // the second name of that file
)

// ofJob matches the temporary names of files and folders that a fleet job writes.
var ofJob = ondisk.LazyPattern(`^\.trueup-[0-9a-f]{32}-.+$`)

// OfJob reports whether name is a temporary name of a fleet job that is writing or has left files.
func OfJob(name string) bool { return ofJob().MatchString(name) }

// Temporary reports whether a file of this name and size is a temporary file of a run, possibly left by a killed one.
func Temporary(name string, size int64) bool {
	if OfJob(name) {
		return true
	}
	switch end := filepath.Ext(name); end {
	case Partial, Replaced, Renamed:
		return name[0] == '.' && len(name) > len(".")+len(end)
	case Trial, Moved:
		return name[0] == '.' && len(name) > len(".")+len(end) && size == 0
	default:
		return false
	}
}

// Incomplete returns a refusal if base is the name of a partial file, otherwise nil. path is its path as the user wrote
// it.
func Incomplete(d *gate.Folder, base, path string) error {
	final, partial := strings.CutSuffix(base, Partial)
	if final, _ = strings.CutPrefix(final, "."); !partial || "."+final+Partial != base || final == "" {
		return nil
	}
	r := &ondisk.Refusal{
		Code: "unfinished", Reason: fmt.Sprintf("it is an unfinished copy that trueup will rename to %.256q", final),
		Remedy: "repeat the command that wrote it, or remove it by hand; if trueup did not write it, rename it",
	}
	if w, err := Beside(d, final); w != nil && err == nil {
		w.Path = strings.TrimSuffix(path, base) + final
		r.Reason, r.Remedy = r.Reason+": "+w.Text, w.advice()
	}
	return r
}

// LeftAt lists the temporary files that killed runs left of the file at path. Files that a run is still using are not
// listed. The file itself need not exist.
func LeftAt(path string) (out []string) {
	d, base, err := folderOf(path)
	if err != nil {
		return nil
	}
	defer d.Close()
	for _, end := range []string{Partial, Replaced, Renamed, Trial, Moved} {
		name := "." + base + end
		f, err := d.OpenAny(name, ondisk.ErrReference)
		if err != nil {
			continue // it is missing, or no file of a run
		}
		if Temporary(name, f.Size()) && !f.AtWork() {
			out = append(out, name)
		}
		_ = f.Close() // only read
	}
	return out
}

// Work is unfinished work on a disk.
type Work struct {
	Path    string // of the disk, as the user wrote it
	Journal string // path as the user wrote it; by default beside the disk
	Kind    string // Exchange or InPlace; empty if the run had not begun, is at work, or left an unknown journal
	Phase   Phase
	Written bool // the original that an exchange keeps was written since
	State
}

// At returns the unfinished work on the disk at path, or nil without any. The disk need not exist.
func At(path string) (*Work, error) {
	dir, base, err := folderOf(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	w, err := Beside(dir, base)
	if w != nil {
		w.Path = path
	}
	return w, err
}

// folderOf opens the folder of a disk after following all links of its path.
func folderOf(path string) (*gate.Folder, string, error) {
	_, failed := sys.Lstat(path)
	if errors.Is(failed, fs.ErrNotExist) {
		dir, err := gate.OpenFolder(filepath.Dir(path))
		return dir, filepath.Base(path), err
	}
	dir, base, err := gate.Follow(path, nil)
	if failed != nil && errors.Is(err, fs.ErrNotExist) {
		err = failed // the disk may be missing while its journal exists
	}
	return dir, base, err
}

// Beside is At for a disk in an open folder.
func Beside(d *gate.Folder, base string) (*Work, error) {
	w, err := of(d, PathOf(base))
	if w != nil {
		w.Path = base
	}
	return w, err
}

// of returns the work of a journal, or nil if the file does not exist.
func of(d *gate.Folder, name string) (*Work, error) {
	f, err := d.OpenAny(name, ondisk.ErrUnsupported)
	switch {
	case errors.Is(err, fs.ErrNotExist) || sys.TooLong(err):
		return nil, nil //nolint:nilnil // nothing is open
	case sys.FromSystem(err):
		return nil, fmt.Errorf("whether a run left unfinished work on the disk is unknown: %w", err)
	case err != nil:
		return nil, notJournal(name, err)
	}
	defer f.Close()
	w := &Work{}
	if f.AtWork() {
		w.State = atWork
		return w, nil
	}
	kind, record, err := Peek(f)
	switch {
	case isNotBegun(name, err):
		w.State = notBegun
	case errors.Is(err, ondisk.ErrUnsupported):
		w.Kind, w.State = kind, unknown
	case sys.FromSystem(err):
		return nil, fmt.Errorf("whether a run left unfinished work on the disk is unknown: %w", err)
	case err != nil:
		return nil, notJournal(name, err)
	default:
		w.Kind = kind
		w.Phase, w.State = stateOf(kind, record)
	}
	return w, nil
}

// isNotBegun reports whether err means that the journal is from a run that had not begun. Files of other programs can
// be empty or begin with zeros too, so ErrBlank counts only if the file has the name of a journal beside a disk.
func isNotBegun(name string, err error) bool {
	return errors.Is(err, ErrNotBegun) && (!errors.Is(err, ErrBlank) || strings.HasSuffix(name, Suffix))
}

// notJournal returns the error of a file with the name of a journal that cannot be read as one.
func notJournal(name string, err error) error {
	if errors.Is(err, ErrBlank) {
		return &ondisk.Refusal{
			Code:   "unfinished",
			Reason: fmt.Sprintf("%q should be a journal of trueup, but is empty or begins with zeros", name),
			Remedy: "name another file, or remove this one if no other program needs it",
		}
	}
	return &ondisk.Refusal{
		Code:   "unfinished",
		Reason: fmt.Sprintf("%q should be a journal of trueup, but cannot be read as one: %v", name, err),
		Remedy: "if trueup did not write it, rename it; otherwise the disk may be in the middle of a move: restore " +
			"the journal from a backup",
	}
}

// Commands lists the commands that apply, in the order in which messages name them.
func (w *Work) Commands() (out []string) {
	for _, c := range []struct{ name, not string }{{"resume", w.Resume}, {"undo", w.Undo}, {"finish", w.Finish}} {
		if c.not == "" {
			out = append(out, c.name)
		}
	}
	return out
}

// Command returns the command line of undo, resume or finish for the work.
func (w *Work) Command(name string, flags ...string) string {
	if w.Through() && name != "finish" {
		name, flags = "handover", append([]string{"--" + name}, flags...)
	}
	line := shell.Command(name, flags, w.Path)
	if w.Journal != "" {
		line += " --journal " + shell.Quote(w.Journal)
	}
	return line
}

// Through reports whether the command handover continues the work, instead of resume and undo.
func (w *Work) Through() bool { return w.Kind == Handover }

// advice returns the command lines that apply to the work, each with its effect.
func (w *Work) advice() string {
	what := map[string]string{
		"resume": "completes it", "undo": cmp.Or(w.Undoes, "restores the original"), "finish": "removes the original",
	}
	var out []string
	for _, c := range w.Commands() {
		out = append(out, w.Command(c)+" "+what[c])
	}
	if len(out) == 0 {
		return w.Undo
	}
	return strings.Join(out, ", ")
}

// AtWork reports whether another run has the journal open. The condition ends with that run.
func (w *Work) AtWork() bool { return w.Text == atWork.Text }

// Refusal returns an error if the disk must not be used now, otherwise nil.
func (w *Work) Refusal() error {
	if w == nil || !w.Blocks {
		return nil
	}
	return w.refuse(w.Text)
}

// refuse returns a refusal whose remedy is to continue the work.
func (w *Work) refuse(reason string) error {
	return &ondisk.Refusal{Code: "unfinished", Reason: reason, Remedy: w.advice()}
}

// Open reports whether work is unfinished. A run that had not begun leaves none.
func (w *Work) Open() bool { return w != nil && (w.Kind != "" || w.Blocks) }

// Issue returns the note about the work for a report of the disk.
func (w *Work) Issue() ondisk.Issue {
	return ondisk.Issue{Code: "unfinished", Effect: ondisk.Note, Text: w.Text, Remedy: w.advice()}
}

// Done is the result of a command.
type Done struct {
	Text    string   // one sentence
	Files   []string // of the disk at PATH
	Removed []string
	Notes   []ondisk.Issue
}

// Held is unfinished work whose journal this run has locked.
type Held struct {
	*Journal
	Work Work
	Dir  *gate.Folder
	Base string // of the disk

	Writers map[sys.ID]sys.Writer // programs with files open for writing

	in   *gate.Folder
	name string // of the journal
	file *os.File
}

// Hold locks the journal of a disk and reads it. file is its path; an empty file means the journal beside the disk. If
// there is no journal, the error wraps fs.ErrNotExist. If the run had not begun, the Journal field is nil.
func Hold(path, file string) (*Held, error) {
	dir, base, err := folderOf(path)
	if err != nil {
		return nil, err
	}
	h := &Held{Work: Work{Path: path, Journal: file}, Dir: dir, Base: base}
	if err = h.find(); err == nil {
		err = h.hold()
	}
	if err == nil {
		err = h.mayEnd()
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// mayEnd returns an error if the journal cannot be removed from its folder, because the work could not be completed
// there.
func (h *Held) mayEnd() error {
	if err := h.in.At.MayCreate(); err != nil {
		return ondisk.In(ondisk.ErrOutput, "folder of %q: %w; nothing was changed; make the folder writable and "+
			"run again",
			h.name, err)
	}
	return nil
}

// find opens the folder of the journal.
func (h *Held) find() (err error) {
	if h.Work.Journal == "" {
		h.name = PathOf(h.Base)
		h.in, err = h.Dir.Again()
		return err
	}
	h.in, h.name, err = folderOf(h.Work.Journal)
	return err
}

func (h *Held) hold() error {
	name := h.name
	st, err := h.in.At.Lstat(name)
	if err == nil && !st.Mode.IsRegular() {
		return notJournal(name, ondisk.ErrReference)
	}
	f, err := h.in.At.OpenToWrite(name)
	switch {
	case sys.NotShared(err):
		return h.elsewhere()
	case err != nil:
		return fmt.Errorf("journal %q: %w", name, err)
	}
	h.file = f.OSFile(name)
	if err := h.lock(); err != nil {
		return err
	}
	h.Journal, err = Open(kept{h.file})
	switch {
	case isNotBegun(name, err):
		h.Journal, h.Work.State = nil, notBegun
		return nil
	case err != nil:
		return notJournal(name, err)
	}
	h.Work.Kind = h.Kind()
	h.Work.Phase, h.Work.State = stateOf(h.Kind(), h.Record())
	return nil
}

// lock locks the journal and verifies that its name still leads to it.
func (h *Held) lock() error {
	f := sys.FromOS(h.file)
	err := f.Lock(sys.Exclusive)
	switch {
	case sys.Locked(err) || err == nil && !h.in.LeadsTo(h.name, f):
		return h.elsewhere()
	case err != nil && !sys.NoLocks(err):
		return ondisk.In(ondisk.ErrOutput, "lock %s: %w", h.name, err)
	}
	return nil
}

// elsewhere returns the error of a journal that another run has locked.
func (h *Held) elsewhere() error {
	return fmt.Errorf("%s: %w by another run of trueup", h.Work.Path, ondisk.ErrBusy)
}

// Begin is BeginIn for a journal beside the disk.
func Begin(d *gate.Folder, base, path, kind string, plan []byte, area int64) (*Held, error) {
	return BeginIn("", d, base, path, kind, plan, area)
}

// BeginIn durably writes the journal of a disk and its name, and locks it. file is its path; an empty file means a
// journal beside the disk. The caller keeps ownership of d.
func BeginIn(file string, d *gate.Folder, base, path, kind string, plan []byte, area int64) (*Held, error) {
	h := &Held{Work: Work{Path: path, Journal: file, Kind: kind}, Base: base}
	var err error
	if h.Dir, err = d.Again(); err == nil {
		err = h.find()
	}
	if err == nil {
		err = h.free()
	}
	if err == nil {
		err = h.create(plan, area)
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	_, h.Work.State = stateOf(kind, nil)
	return h, nil
}

// free refuses a disk with unfinished work, and a name that another journal has. It removes a journal whose run had not
// begun.
func (h *Held) free() error {
	w, err := Beside(h.Dir, h.Base)
	if err == nil && w == nil && h.Work.Journal != "" {
		if w, err = of(h.in, h.name); w != nil {
			w.Journal = h.Work.Journal
		}
	}
	switch {
	case w == nil:
		return err
	case w.Open(): // a journal is never overwritten, even if the disk may be read
		w.Path = h.Work.Path
		return w.refuse(w.Text)
	}
	in, name := h.in, h.name
	if w.Journal == "" {
		in, name = h.Dir, PathOf(h.Base)
	}
	return ondisk.OutputError(in.At.Remove(name), "remove %s, which is left of a run that changed nothing", name)
}

// kept is the file of a journal. It starts write-back of saved bytes early, before they are flushed.
type kept struct{ *os.File }

func (f kept) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.File.WriteAt(b, off)
	if err == nil {
		sys.FromOS(f.File).WriteBack(off, int64(n))
	}
	return n, err
}

func (h *Held) create(plan []byte, area int64) (err error) {
	if h.file, err = h.in.At.Create(h.name, 0o600); err != nil {
		return ondisk.In(ondisk.ErrOutput, "create %s: %w", h.name, err)
	}
	if err = h.lock(); err == nil {
		var id ID
		_, _ = rand.Read(id[:]) // never fails
		h.Journal, err = Create(kept{h.file}, h.Work.Kind, id, plan, area)
	}
	if err == nil {
		err = syncFolder(h.in)
	}
	if err != nil {
		return errors.Join(ondisk.In(ondisk.ErrOutput, "%s: %w", h.name, err), h.in.At.Remove(h.name))
	}
	return nil
}

// Enter durably records a phase as the last one, with further bytes of the owner.
func (h *Held) Enter(p Phase, more ...byte) error {
	record := append([]byte{byte(p)}, more...)
	if err := h.Put(record); err != nil {
		return ondisk.In(ondisk.ErrOutput, "%s: %w", h.name, err)
	}
	h.Work.Phase, h.Work.State = stateOf(h.Work.Kind, record)
	return nil
}

// SyncFolder makes the names in the folder of the disk durable, if its file system supports that.
func (h *Held) SyncFolder() error { return syncFolder(h.Dir) }

func syncFolder(d *gate.Folder) error {
	if err := d.At.Sync(); !sys.Unsupported(err) {
		return ondisk.OutputError(err, "sync folder")
	}
	return nil
}

// Remove removes the journal after the work has ended.
func (h *Held) Remove() error {
	if err := h.in.Remove(h.name); err != nil {
		return ondisk.OutputError(err, "remove %s", h.name)
	}
	return syncFolder(h.in)
}

// Close releases the journal and keeps its file. It may be called again, and on nil.
func (h *Held) Close() error {
	if h == nil {
		return nil
	}
	var errs []error
	if h.file != nil {
		errs = append(errs, sys.Release(h.file))
		h.file = nil
	}
	for _, d := range []**gate.Folder{&h.Dir, &h.in} {
		if *d != nil {
			errs = append(errs, (*d).Close())
			*d = nil
		}
	}
	return errors.Join(errs...)
}
