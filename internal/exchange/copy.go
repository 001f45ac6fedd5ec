package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Copy is a finished copy with names of its own in the folder of its source. It implements Output.
type Copy struct {
	img  *image.Image
	dir  *folder
	head name     // temporary name of the descriptor with the final names; empty for a copy in one file
	text []byte   // content of that descriptor
	open *os.File // the descriptor, locked until the exchange has begun
	owns bool     // this run has written the descriptor, and the exchange has not begun

	finals []string // final names of the files, in the order of img.Handles
}

// Take checks that a finished copy can get the names of the source. With fresh it also requires that the source was not
// written after the copy. The caller closes img after the exchange.
func (s *Source) Take(img *image.Image, fresh bool, by image.Writers, search []string) (*Copy, error) {
	c := &Copy{img: img, dir: &folder{Folder: s.dir}}
	err := s.checkCopy(img, fresh)
	if err == nil {
		err = s.checkNeeded(img, by, search)
	}
	if err == nil {
		err = c.rename(string(s.plan.Old[0].Name))
	}
	if err == nil {
		err = s.checkNames(c)
	}
	if c.head != nil {
		s.plan.Left = append(s.plan.Left, fileOf(img.Handles[0].Name(), "", img.Handles[0].Info))
	}
	if err != nil {
		return nil, fmt.Errorf("COPY %s: %w", img.Path, err)
	}
	return c, nil
}

// checkCopy refuses a copy of another format than the source, and files that cannot be renamed.
func (s *Source) checkCopy(img *image.Image, fresh bool) error {
	const anew = "write it beside the disk: trueup align DISK COPY"
	here, errHere := s.dir.At.Stat(".")
	there, errThere := img.Dir.At.Stat(".")
	err := cmp.Or(errHere, errThere, s.checkPath(img.Path))
	switch {
	case err != nil:
		return err
	case !here.Same(there):
		return s.refuse("unsupported", "it is not in the folder of the disk, and names are exchanged within one "+
			"folder only", anew)
	case img.Packaged() || img.MapsDevice || img.Child || len(img.Chain) > 0:
		return s.refuse("unsupported", "it is a snapshot, a view or a disk of a package", anew)
	case kindOf(img) != s.kind:
		return s.refuse("unsupported", fmt.Sprintf("it is %s, but the disk is %s", kindOf(img), s.kind), anew)
	}
	newest := int64(0)
	for _, f := range img.Handles {
		newest = max(newest, f.Info.Modified)
		if err := s.checkFile(f); err != nil {
			return err
		}
		if !img.Dir.Holds(f) {
			return s.refuse("unsupported", fmt.Sprintf("%q is in another folder", f.Name()), anew)
		}
	}
	for _, o := range s.plan.Old {
		is := func(f *gate.File) bool { return f.Name() == string(o.Name) || o.Inode != 0 && f.Info.Inode == o.Inode }
		if slices.ContainsFunc(img.Handles, is) {
			return s.refuse("reference", fmt.Sprintf("it uses %v, a file of the disk", o.Name), anew)
		}
		if fresh && o.Modified > newest {
			return s.refuse("changed", fmt.Sprintf("%v was written after it, and it lacks these changes", o.Name),
				anew+"; or add --verify full to compare all bytes")
		}
	}
	return nil
}

// checkNames refuses final names of a copy that other files have or will get.
func (s *Source) checkNames(c *Copy) error {
	taken := map[string]bool{journal.PathOf(c.finals[0]): true, string(c.head): true}
	for _, o := range s.plan.Old {
		taken[string(o.Other)] = true
	}
	for i, n := range c.finals {
		own := slices.Contains(names(s.plan.Old), n)
		if taken[n] || !own && s.dir.Exists(n) || len(n) > journal.MaxName {
			return s.refuse("output", fmt.Sprintf("its file %q would get the name %q, which belongs to another file",
				c.img.Handles[i].Name(), n), "write it beside the disk: trueup align DISK COPY")
		}
		taken[n] = true
	}
	return nil
}

// checkNeeded refuses a copy in use: open in a program, named by a journal, or referenced by an image.
func (s *Source) checkNeeded(img *image.Image, by image.Writers, search []string) error {
	var own []string
	for _, f := range img.Handles {
		own = append(own, f.Name())
	}
	user, err := s.user(img.Path, own)
	if err != nil {
		return err
	}
	if err := img.Idle(by); err != nil {
		return err
	}
	home, _ := filepath.EvalSymlinks(filepath.Dir(img.Path)) // a missing folder is reported elsewhere
	below, missed, err := img.OverlaysNear(cmp.Or(home, "."), search)
	s.notes = append(s.notes, missed...)
	if user = cmp.Or(user, strings.Join(below[:min(len(below), 1)], "")); user != "" && err == nil {
		err = s.refuse("reference", fmt.Sprintf("%.1024q needs it", user), "consolidate or remove that image first")
	}
	return err
}

// rename determines the final names of the files. Each file must have the name of the copy in its own name, like the
// files of trueup align.
func (c *Copy) rename(disk string) error {
	base := c.img.Handles[0].Name()
	stem, to := strings.TrimSuffix(base, filepath.Ext(base)), strings.TrimSuffix(disk, filepath.Ext(disk))
	for i, f := range c.img.Handles {
		rest, ok := strings.CutPrefix(f.Name(), stem)
		switch {
		case i == 0:
			c.finals = append(c.finals, disk)
		case !ok || stem == "":
			return &ondisk.Refusal{
				Code:   "unsupported",
				Reason: fmt.Sprintf("replace: its file %q is not named after it, so it has no new name", f.Name()),
				Remedy: "write it beside the disk: trueup align DISK COPY",
			}
		default:
			c.finals = append(c.finals, to+rest)
		}
	}
	was, text, err := c.img.Renamed(func(n string) string {
		if i := slices.IndexFunc(c.img.Handles, func(f *gate.File) bool { return f.Name() == n }); i >= 0 {
			return c.finals[i]
		}
		return n // not a file of the disk, such as its changed-block tracking file
	})
	if was != nil {
		c.text, c.head = text, name("."+disk+journal.Partial)
	}
	return err
}

// EachFile calls each for all files. It refuses a copy that was written since it was opened, or that a program has open
// for writing.
func (c *Copy) EachFile(each func(final, partial string, f *sys.File) error) error {
	for i, f := range c.img.Handles {
		st, err := c.dir.At.Lstat(f.Name())
		switch {
		case err != nil:
			return err
		case st.ID != f.Info.ID || st.Size != f.Info.Size || st.Modified != f.Info.Modified:
			return ondisk.In(ondisk.ErrChanged, "COPY: %q was written while the exchange was prepared", f.Name())
		case f.Written():
			return &ondisk.Refusal{
				Code: "busy", Reason: fmt.Sprintf("COPY: %q is open for writing in another program", f.Name()),
				Remedy: "end that program, then run again",
			}
		}
		if i == 0 && c.open != nil {
			err = errors.Join(each(c.finals[i], string(c.head), sys.FromOS(c.open)), c.open.Sync())
		} else {
			err = c.pass(name(f.Name()), c.finals[i], each)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pass calls each for the file of a name, and syncs it, because another program may have written the copy.
func (c *Copy) pass(at name, final string, each func(final, partial string, f *sys.File) error) error {
	opened, err := c.dir.At.OpenToWrite(string(at))
	if err != nil {
		return failed("open", at, err)
	}
	f := opened.OSFile(string(at))
	defer f.Close()
	if err := each(final, string(at), sys.FromOS(f)); err != nil {
		return err
	}
	return failed("sync", at, f.Sync())
}

// Begin writes the descriptor of a copy in several files with their final names.
func (c *Copy) Begin() error {
	if c.head == nil {
		return nil
	}
	if err := c.dropStale(); err != nil {
		return err
	}
	f, err := c.dir.At.Create(string(c.head), 0o600)
	if errors.Is(err, fs.ErrExist) {
		return c.atWork()
	}
	if err != nil {
		return failed("create", c.head, err)
	}
	c.open = f
	if sys.Locked(sys.FromOS(f).Lock(sys.Exclusive)) {
		return c.atWork()
	}
	c.owns = true
	_, err = f.WriteAt(c.text, 0)
	return failed("write", c.head, errors.Join(err, f.Sync()))
}

// dropStale removes the descriptor of a killed run. After the exchange has begun, the descriptor has no lock, but there
// is a journal.
func (c *Copy) dropStale() error {
	f, err := c.dir.At.OpenToWrite(string(c.head))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return failed("open", c.head, err)
	}
	defer f.Close()
	if sys.Locked(f.Lock(sys.Exclusive)) {
		return c.atWork()
	}
	if w, err := journal.Beside(c.dir.Folder, c.finals[0]); w != nil || err != nil {
		return errors.Join(err, c.atWork())
	}
	return c.dir.remove(c.head)
}

func (c *Copy) atWork() error {
	return ondisk.In(ondisk.ErrBusy, "another run of trueup is writing %v; wait for it", c.head)
}

// Release leaves the files to the exchange. Calling Discard afterwards has no effect.
func (c *Copy) Release() error {
	c.owns = false
	return c.close()
}

func (c *Copy) close() error {
	if c.open == nil {
		return nil
	}
	f := c.open
	c.open = nil
	return sys.Release(f)
}

// Discard removes the descriptor that Begin wrote, unless the exchange has begun. The copy keeps its names and bytes.
func (c *Copy) Discard() (err error) {
	if c.owns {
		err = c.dir.remove(c.head)
	}
	closed := c.close()
	if err != nil { // Windows does not remove open files
		err = c.dir.remove(c.head)
	}
	return errors.Join(err, closed)
}

// Files returns the final names of the copy, the first file of the disk first.
func (c *Copy) Files() []string { return c.finals }
