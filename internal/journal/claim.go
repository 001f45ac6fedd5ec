package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Claim is open work that needs a file which is not its disk. The path of the work is the name of its disk in the
// folder.
type Claim struct {
	Work
	File     string // that is claimed
	Original bool   // it is kept for an undo, else a file of the disk
}

// Text says what the file is, and what is open on the disk.
func (c *Claim) Text() string {
	switch {
	case c.Original && c.Phase == Kept:
		return fmt.Sprintf("it is the original of %q, kept", c.Path)
	case c.Original:
		return fmt.Sprintf("it is the original of %q, kept: %s", c.Path, c.Work.Text)
	}
	return fmt.Sprintf("it is a file of the disk %q: %s", c.Path, c.Work.Text)
}

// MayWrite refuses a file with open work, and one that the open work of another disk of the folder needs. who names the
// file in the message; path is its path as the user names it.
func MayWrite(d *gate.Folder, base, path, who string) error {
	w, err := Beside(d, base)
	if err != nil {
		return err
	}
	if w.Open() {
		w.Path = path
		r := &ondisk.Refusal{Code: "unfinished", Reason: who + " cannot be written: " + w.Text, Remedy: w.advice()}
		if w.AtWork() {
			r.Code = "busy"
		}
		return r
	}
	c, err := Claiming(d, base)
	if c == nil {
		return err
	}
	return c.Refusal(who+" cannot be written", path)
}

// Refusal returns the error of a file that may not be written while the work is open. who names the file and what was
// to become of it; path is the path of the file as the user names it.
func (c *Claim) Refusal(who, path string) error {
	return &ondisk.Refusal{Code: "unfinished", Reason: who + ": " + c.Text(), Remedy: c.Advice(path)}
}

// Advice returns which commands go on from here. path is the path of the file as the user names it.
func (c *Claim) Advice(path string) string {
	w := c.Work
	w.Path = strings.TrimSuffix(path, filepath.Base(path)) + w.Path
	return w.advice()
}

// claims is the part of a plan that names files. An exchange has Old and New, a move in place has Files.
type claims struct {
	Old, New []struct {
		Name, Other []byte
		Inode       uint64
		Size        int64
		Modified    int64
	}
	Files []struct{ Name string }
}

// Claiming returns the open work of another disk of the folder that needs one of some files, by name, or by the inode
// where the file was renamed and not written since; nil: none does. A journal that cannot be read claims nothing: it is
// an error of its own disk.
func Claiming(d *gate.Folder, names ...string) (*Claim, error) {
	journals, err := d.Names(func(n string) bool { return strings.HasSuffix(n, Suffix) && n != Suffix })
	if err != nil {
		return nil, err
	}
	var files []named
	for _, n := range names {
		f := named{name: n}
		if f.info, err = d.At.Lstat(n); err != nil && !errors.Is(err, fs.ErrNotExist) && !sys.TooLong(err) {
			return nil, err
		}
		files = append(files, f)
	}
	for _, j := range journals {
		disk := strings.TrimSuffix(j, Suffix)
		if c := claimOf(d, disk, files); c != nil {
			return c, nil
		}
	}
	return nil, nil //nolint:nilnil // nothing needs them
}

// ClaimingAt is Claiming for the file at a path, which does not need to be there.
func ClaimingAt(path string) (*Claim, error) {
	dir, base, err := folderOf(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return Claiming(dir, base)
}

// named is a file that is asked for. Its info is zero where it is not there.
type named struct {
	name string
	info sys.Info
}

// claimOf returns the claim of the work on a disk to one of some files, nil for none.
func claimOf(d *gate.Folder, disk string, files []named) *Claim {
	w, err := Beside(d, disk)
	if w == nil || err != nil {
		return nil
	}
	j, err := ReadBeside(d, disk, MaxPlan)
	var plan claims
	if err != nil || States[j.Kind()] == nil || json.Unmarshal(j.Plan(), &plan) != nil {
		return nil
	}
	for _, f := range files {
		if original := plan.keep(f, disk); original || plan.move(f, disk) {
			c := &Claim{Work: *w, File: f.name, Original: original}
			c.Kind = j.Kind()
			return c
		}
	}
	return nil
}

// ReadBeside reads the journal of a disk in a folder, with a plan of at most so many bytes.
func ReadBeside(d *gate.Folder, disk string, most int64) (*Journal, error) {
	f, err := d.OpenAny(PathOf(disk), ondisk.ErrReference)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	j, err := Read(f, most)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", PathOf(disk), err)
	}
	return j, nil
}

// keep reports whether a file is one of the original that an exchange keeps.
func (p claims) keep(f named, disk string) bool {
	for _, o := range p.Old {
		renamed := o.Inode != 0 && f.info.Inode == o.Inode && f.info.Size == o.Size && f.info.Modified == o.Modified
		if string(o.Other) == f.name || renamed && f.name != disk {
			return true
		}
	}
	return false
}

// move reports whether a file gets a name of the disk, or is moved inside. The work on the disk itself says so by its
// own name.
func (p claims) move(f named, disk string) bool {
	for _, n := range p.New {
		if f.name != disk && (string(n.Name) == f.name || string(n.Other) == f.name) {
			return true
		}
	}
	return f.name != disk && slices.Contains(p.Files, struct{ Name string }{f.name})
}
