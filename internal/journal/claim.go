package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Role describes what a file is to the open work of a disk that has another name.
type Role string

// Roles.
const (
	Original Role = "it is the original of %q, kept"
	OfCopy   Role = "it is a file of the disk %q"
	Moving   Role = "it is a file of the disk %q"
)

// Claim is open work that needs a file which is not its disk. The path of the work is the name of its disk in the
// folder.
type Claim struct {
	Work
	Role Role
	File string // that is claimed
}

// Text says what the file is, and what is open on the disk.
func (c *Claim) Text() string {
	text := fmt.Sprintf(string(c.Role), c.Path)
	if c.Role != Original || c.Phase != Kept {
		text += ": " + c.Work.Text
	}
	return text
}

// MayWrite refuses a file with open work, and one that the open work of another disk of the folder needs. who names the
// file in the message; path is its path as the user names it.
func MayWrite(d *gate.Folder, base, path, who string) error {
	w, err := Beside(d, base)
	if err != nil {
		return err
	}
	if w != nil && (w.Kind != "" || w.Blocks) {
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

// maxClaims bounds a journal of which the files are read, in bytes: thousands of files, and two descriptors.
const maxClaims = 64 << 20

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
	plan, kind := planOf(d, PathOf(disk))
	for _, f := range files {
		if role := plan.role(f, disk); role != "" {
			c := &Claim{Work: *w, Role: role, File: f.name}
			c.Kind = kind
			return c
		}
	}
	return nil
}

// planOf reads the part of a journal that names files, and its kind.
func planOf(d *gate.Folder, name string) (p claims, kind string) {
	f, err := d.OpenAny(name, ondisk.ErrReference)
	if err != nil {
		return p, ""
	}
	defer f.Close()
	if f.Size() > maxClaims {
		return p, ""
	}
	j, err := Read(f)
	if err != nil || j.Kind() != Exchange && j.Kind() != InPlace || json.Unmarshal(j.Plan(), &p) != nil {
		return claims{}, ""
	}
	return p, j.Kind()
}

// role returns what a file is to the work on a disk, empty for nothing.
func (p claims) role(f named, disk string) Role {
	for _, o := range p.Old {
		renamed := o.Inode != 0 && f.info.Inode == o.Inode && f.info.Size == o.Size && f.info.Modified == o.Modified
		if string(o.Other) == f.name || renamed && f.name != disk {
			return Original
		}
	}
	if f.name == disk {
		return "" // the work on it says so itself
	}
	for _, n := range p.New {
		if string(n.Name) == f.name || string(n.Other) == f.name {
			return OfCopy
		}
	}
	for _, x := range p.Files {
		if x.Name == f.name {
			return Moving
		}
	}
	return ""
}
