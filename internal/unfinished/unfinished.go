// Package unfinished finds the journal beside a disk, and knows what it means for the disk: which work a run has left
// open there, and which of the commands undo, resume and finish go on from it. The package of each kind does that work.
package unfinished

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
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
)

// Suffix ends the name of a journal: behind the whole name of its disk.
const Suffix = ".trueup"

// JournalOf returns the name of the journal of a disk.
func JournalOf(disk string) string { return disk + Suffix }

// Ends of the names that files have for a while: a dot, the name, and one of these.
const (
	Partial  = ".partial"  // it is being written
	Replaced = ".replaced" // another file has got its name
	Renamed  = ".exchange" // it is about to get its name by an exchange
)

// Temporary reports whether a name is one that a file has only while a run is at work, or after one was killed.
func Temporary(name string) bool {
	switch end := filepath.Ext(name); end {
	case Partial, Replaced, Renamed:
		return name[0] == '.' && len(name) > len(".")+len(end)
	default:
		return false
	}
}

// Work is what a run has left open.
type Work struct {
	Path  string // of the disk, as the user names it
	Kind  string // empty: the run had not begun
	Phase Phase
	State
}

// At returns what is open on the disk at a path, nil when nothing is. The disk does not need to be there.
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

// folderOf opens the folder of a disk, through all links of its path.
func folderOf(path string) (*gate.Folder, string, error) {
	_, failed := sys.Lstat(path)
	if errors.Is(failed, fs.ErrNotExist) {
		dir, err := gate.OpenFolder(filepath.Dir(path))
		return dir, filepath.Base(path), err
	}
	dir, base, err := gate.Follow(path, nil)
	if failed != nil && errors.Is(err, fs.ErrNotExist) {
		err = failed // the disk need not be there, and a journal can be
	}
	return dir, base, err
}

// Beside is At for a disk in an open folder.
func Beside(d *gate.Folder, base string) (*Work, error) {
	name := JournalOf(base)
	if !d.Exists(name) {
		return nil, nil //nolint:nilnil // nothing is open
	}
	f, err := d.OpenAny(name, ondisk.ErrUnsupported)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // it is gone meanwhile
	}
	if err != nil {
		return nil, odd(name, err)
	}
	defer f.Close()
	w := &Work{Path: base}
	if f.AtWork() {
		w.State = atWork
		return w, nil
	}
	kind, record, err := journal.Peek(f)
	switch {
	case errors.Is(err, journal.ErrNotBegun):
		w.State = notBegun
	case errors.Is(err, ondisk.ErrUnsupported):
		w.Kind, w.State = kind, unknown
	case err != nil:
		return nil, odd(name, err)
	default:
		w.Kind = kind
		w.Phase, w.State = stateOf(kind, record)
	}
	return w, nil
}

// odd returns the error of a file that has the name of a journal and cannot be read as one.
func odd(name string, err error) error {
	return &ondisk.Refusal{
		Code:   "unfinished",
		Reason: fmt.Sprintf("%q should be a journal of trueup, and cannot be read as one: %v", name, err),
		Remedy: "rename it if it is not; otherwise the disk may be in the middle of a move: restore the journal from a " +
			"backup",
	}
}

// Commands lists the commands that apply, in the order of advice.
func (w *Work) Commands() (out []string) {
	for _, c := range []struct{ name, not string }{{"resume", w.Resume}, {"undo", w.Undo}, {"finish", w.Finish}} {
		if c.not == "" {
			out = append(out, c.name)
		}
	}
	return out
}

// advice returns which commands go on from here.
func (w *Work) advice() string {
	what := map[string]string{
		"resume": "goes on", "undo": w.undoes(), "finish": "removes the original",
	}
	var out []string
	for _, c := range w.Commands() {
		out = append(out, fmt.Sprintf("trueup %s %s %s", c, shell.Quote(w.Path), what[c]))
	}
	if len(out) == 0 {
		return w.Undo
	}
	return strings.Join(out, ", ")
}

// Refusal returns the error of a disk that may not be used now, nil for one that may.
func (w *Work) Refusal() error {
	if w == nil || !w.Blocks {
		return nil
	}
	return &ondisk.Refusal{Code: "unfinished", Reason: w.Text, Remedy: w.advice()}
}

// Refused returns the error of work that cannot go on as it was begun.
func (w *Work) Refused(reason, remedy string) error {
	return &ondisk.Refusal{
		Code: "unfinished", Reason: w.Text + ", and " + reason,
		Remedy: fmt.Sprintf("%s; or give it up: trueup undo %s %s", remedy, shell.Quote(w.Path), w.undoes()),
	}
}

// undoes returns what undo does.
func (w *Work) undoes() string { return cmp.Or(w.Undoes, "brings the original back") }

// Issue returns what a reader of the disk should know of the work.
func (w *Work) Issue() ondisk.Issue {
	return ondisk.Issue{Code: "unfinished", Effect: ondisk.Note, Text: w.Text, Remedy: w.advice()}
}

// Done is what a command has done.
type Done struct {
	Text    string   // one sentence
	Files   []string // of the disk at PATH
	Removed []string
	Notes   []ondisk.Issue
	Kept    int64 // bytes of the files that stood there already
	Written int64 // bytes of the files that were not
}

// Options of the commands.
type Options struct {
	Force bool // go on although what was written since is lost
}

// Held is open work that this run has locked.
type Held struct {
	*journal.Journal
	Work Work
	Dir  *gate.Folder
	Base string // of the disk
	file *os.File
}

// Hold locks the journal of a disk and reads it. Without a journal, the error wraps fs.ErrNotExist. Work that was not
// begun has no Journal.
func Hold(path string) (*Held, error) {
	dir, base, err := folderOf(path)
	if err != nil {
		return nil, err
	}
	h := &Held{Work: Work{Path: path}, Dir: dir, Base: base}
	if err := h.hold(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

func (h *Held) hold() error {
	name := JournalOf(h.Base)
	st, err := h.Dir.At.Lstat(name)
	if err == nil && !st.Mode.IsRegular() {
		return odd(name, ondisk.ErrReference)
	}
	f, err := h.Dir.At.OpenToWrite(name)
	if err != nil {
		return fmt.Errorf("journal %q: %w", name, err)
	}
	h.file = f.Handed(name)
	if err := h.lock(name); err != nil {
		return err
	}
	h.Journal, err = journal.Open(h.file)
	switch {
	case errors.Is(err, journal.ErrNotBegun):
		h.Journal, h.Work.State = nil, notBegun
		return nil
	case err != nil:
		return odd(name, err)
	}
	h.Work.Kind = h.Kind()
	h.Work.Phase, h.Work.State = stateOf(h.Kind(), h.Record())
	return nil
}

// lock takes the lock of the journal, and makes sure that it is the journal still.
func (h *Held) lock(name string) error {
	f := sys.Of(h.file)
	err := f.Lock(sys.Exclusive)
	switch {
	case sys.Locked(err) || err == nil && !h.Dir.LeadsTo(name, f):
		return fmt.Errorf("%s: %w by another run of trueup", h.Work.Path, ondisk.ErrBusy)
	case err != nil && !sys.NoLocks(err):
		return ondisk.In(ondisk.ErrOutput, "lock %s: %w", name, err)
	}
	return nil
}

// Begin writes the journal of a disk, durably with its name, and holds it. The folder stays that of the caller.
func Begin(d *gate.Folder, base, path, kind string, plan []byte, area int64) (*Held, error) {
	name := JournalOf(base)
	w, err := Beside(d, base)
	switch {
	case err != nil:
		return nil, err
	case w != nil && (w.Kind != "" || w.Blocks): // a journal stays also where the disk may be read
		w.Path = path
		return nil, &ondisk.Refusal{Code: "unfinished", Reason: w.Text, Remedy: w.advice()}
	case w != nil:
		if err := d.At.Remove(name); err != nil {
			return nil, ondisk.In(ondisk.ErrOutput, "remove %s, of a run that had not begun: %w", name, err)
		}
	}
	f, err := d.At.Create(name, 0o600)
	if err != nil {
		return nil, ondisk.In(ondisk.ErrOutput, "create %s: %w", name, err)
	}
	h := &Held{Work: Work{Path: path, Kind: kind}, Base: base, file: f}
	h.Dir, err = d.Again()
	if err == nil {
		err = h.lock(name)
	}
	if err == nil {
		var id journal.ID
		_, _ = rand.Read(id[:]) // it never fails
		h.Journal, err = journal.Create(f, kind, id, plan, area)
	}
	if err == nil {
		err = h.SyncFolder()
	}
	if err != nil {
		return nil, errors.Join(ondisk.In(ondisk.ErrOutput, "%s: %w", name, err), d.At.Remove(name), h.Close())
	}
	_, h.Work.State = stateOf(kind, nil)
	return h, nil
}

// Enter makes a phase the last one, durably.
func (h *Held) Enter(p Phase) error {
	if err := h.Put([]byte{byte(p)}); err != nil {
		return ondisk.In(ondisk.ErrOutput, "%s: %w", JournalOf(h.Base), err)
	}
	h.Work.Phase, h.Work.State = stateOf(h.Work.Kind, []byte{byte(p)})
	return nil
}

// SyncFolder makes the names of the folder durable, where its file system can.
func (h *Held) SyncFolder() error {
	if err := h.Dir.At.Sync(); err != nil && !sys.Unsupported(err) {
		return ondisk.In(ondisk.ErrOutput, "sync folder: %w", err)
	}
	return nil
}

// Remove removes the journal: nothing is open any more.
func (h *Held) Remove() error {
	if err := h.Dir.At.Remove(JournalOf(h.Base)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ondisk.In(ondisk.ErrOutput, "remove %s: %w", JournalOf(h.Base), err)
	}
	return h.SyncFolder()
}

// Close releases the journal, which stays.
func (h *Held) Close() error {
	var errs []error
	if h.file != nil {
		// A program that was just started can hold the file for a moment, and with it the lock.
		_ = sys.Of(h.file).Lock(sys.Unlocked) // it ends with the file, too
		if err := h.file.Close(); !sys.Interrupted(err) {
			errs = append(errs, err)
		}
		h.file = nil
	}
	if h.Dir != nil {
		errs = append(errs, h.Dir.Close())
		h.Dir = nil
	}
	return errors.Join(errs...)
}
