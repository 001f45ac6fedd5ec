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

// Claim is unfinished work that needs a file other than its disk. Work.Path is the name of its disk in the folder.
type Claim struct {
	Work
	File     string // the claimed file
	Original bool   // kept for an undo; otherwise a file of the disk
}

// Text describes the file and the unfinished work on the disk.
func (c *Claim) Text() string {
	switch {
	case c.Original && c.Phase == Kept:
		return fmt.Sprintf("it is the kept original of %q", c.Path)
	case c.Original:
		return fmt.Sprintf("it is the kept original of %q: %s", c.Path, c.Work.Text)
	}
	return fmt.Sprintf("it is a file of the disk %q: %s", c.Path, c.Work.Text)
}

// MayWrite refuses a file with unfinished work, and a file that the unfinished work of another disk in the folder
// needs. who begins the message; path is its path as the user wrote it.
func MayWrite(d *gate.Folder, base, path, who string) error { return OnlyOwn(d, "", base, path, who) }

// OnlyOwn is MayWrite, but leaves out the journal of the disk own in the folder, which is one of this run.
func OnlyOwn(d *gate.Folder, own, base, path, who string) error {
	w, err := Beside(d, base)
	if err != nil {
		return err
	}
	if base != own && w.Open() {
		w.Path = path
		r := &ondisk.Refusal{Code: "unfinished", Reason: who + ": " + w.Text, Remedy: w.advice()}
		if w.AtWork() {
			r.Code = "busy"
		}
		return r
	}
	c, err := claiming(d, own, base)
	if c == nil {
		return err
	}
	return c.Refusal(who, path)
}

// MayChange is MayWrite for the file at a path. The file need not exist.
func MayChange(path, who string) error {
	dir, base, err := folderOf(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	defer dir.Close()
	return MayWrite(dir, base, path, who)
}

// Refusal returns the error of a file that must not be written until the work ends. who names the file and the refused
// action; path is its path as the user wrote it.
func (c *Claim) Refusal(who, path string) error {
	return &ondisk.Refusal{Code: "unfinished", Reason: who + ": " + c.Text(), Remedy: c.Advice(path)}
}

// Advice returns the command lines that apply to the work. path is the path of the file as the user wrote it.
func (c *Claim) Advice(path string) string {
	w := c.Work
	w.Path = strings.TrimSuffix(path, filepath.Base(path)) + w.Path
	return w.advice()
}

// claims is the part of a plan that lists files. An exchange has Old and New, a move in place has Files.
type claims struct {
	Old, New []struct {
		Name, Other []byte
		Inode       uint64
		Size        int64
		Modified    int64
	}
	Files []struct{ Name string }
}

// Claiming returns the unfinished work of another disk in the folder that needs one of the named files, or nil. A file
// matches by name, or by inode if it was renamed and not written since. A journal that cannot be read claims nothing;
// it is an error of its own disk.
func Claiming(d *gate.Folder, names ...string) (*Claim, error) { return claiming(d, "", names...) }

func claiming(d *gate.Folder, own string, names ...string) (*Claim, error) {
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
		if disk == own {
			continue
		}
		if c := claimOf(d, disk, files); c != nil {
			return c, nil
		}
	}
	return nil, nil //nolint:nilnil // nothing needs them
}

// ClaimingAt is Claiming for the file at a path. The file need not exist.
func ClaimingAt(path string) (*Claim, error) {
	dir, base, err := folderOf(path)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return Claiming(dir, base)
}

// named is a requested file. Its info is zero if the file does not exist.
type named struct {
	name string
	info sys.Info
}

// claimOf returns the claim of the work on a disk to one of the files, or nil.
func claimOf(d *gate.Folder, disk string, files []named) *Claim {
	w, err := Beside(d, disk)
	if w == nil || err != nil {
		return nil
	}
	j, err := ReadBeside(d, disk, MaxPlan)
	var plan claims
	if err != nil || States()[j.Kind()] == nil || json.Unmarshal(j.Plan(), &plan) != nil {
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

// ReadBeside reads the journal of a disk in a folder. It returns ErrLimit for a plan of more than most bytes.
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

// keep reports whether a file belongs to the original that an exchange keeps.
func (p claims) keep(f named, disk string) bool {
	for _, o := range p.Old {
		renamed := o.Inode != 0 && f.info.Inode == o.Inode && f.info.Size == o.Size && f.info.Modified == o.Modified
		if string(o.Other) == f.name || renamed && f.name != disk {
			return true
		}
	}
	return false
}

// move reports whether f has a new name of the move of disk, or is one of its files. The file named disk is excluded:
// Beside covers it.
func (p claims) move(f named, disk string) bool {
	for _, n := range p.New {
		if f.name != disk && (string(n.Name) == f.name || string(n.Other) == f.name) {
			return true
		}
	}
	return f.name != disk && slices.Contains(p.Files, struct{ Name string }{f.name})
}
