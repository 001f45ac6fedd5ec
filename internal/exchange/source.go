package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/ova"
	"github.com/trueup/trueup/internal/journal"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Source is a disk whose names a copy will get.
type Source struct {
	path  string // as the user wrote it
	dir   *gate.Folder
	plan  plan
	notes []ondisk.Issue
	kind  string // format and subformat
}

// Output is a complete copy beside its source without its final names.
type Output interface {
	// EachFile calls each for the files with their final and current names. The file named by the user comes first.
	EachFile(each func(final, partial string, f *sys.File) error) error
	// Release closes the files and keeps their current names.
	Release() error
}

// New checks, before anything is written, that the files of an image can be exchanged.
func New(img *image.Image) (*Source, error) {
	s := &Source{path: img.Path, dir: img.Dir, kind: kindOf(img)}
	err := s.checkPath(s.path)
	if err == nil && img.Packaged() {
		err = s.refuse("unsupported", "it is a disk of a package", "exchange the package as a whole")
	}
	if err == nil && (img.Child || len(img.Chain) > 0) {
		err = s.refuse("unsupported", "it is a snapshot, and the disk below it would stay misaligned", "consolidate "+
			"the snapshots first, or make a complete copy: trueup align --flatten SOURCE DEST")
	}
	if err == nil && img.MapsDevice {
		err = s.refuse("unsupported", "it maps a device, so reads of its file may come from that device",
			"write a copy: trueup align SOURCE DEST")
	}
	for _, f := range img.Handles {
		switch {
		case err != nil:
		case !img.Dir.Holds(f):
			err = s.refuse("unsupported", fmt.Sprintf("%q is not in the folder of the disk, and names are "+
				"exchanged within one folder only", f.Name()), "write a copy: trueup align SOURCE DEST")
		default:
			err = s.add(img.Base, f)
		}
	}
	if err == nil {
		var named []string
		main := &s.plan.Old[0]
		main.Was, main.Kept, err = img.Renamed(func(n string) string {
			named = append(named, n)
			return OriginalOf(img.Base, n)
		})
		for _, n := range named {
			err = errors.Join(err, s.addTracked(img.Base, n))
		}
	}
	if err == nil && s.plan.several() {
		s.plan.Old[0].Inode = 0
	}
	if err == nil && slices.ContainsFunc(img.Issues, func(i ondisk.Issue) bool { return i.Code == driver.CodeView }) {
		err = s.refuse(driver.CodeView, "it is a view, and its original would take the file of another disk with it",
			"make a copy with trueup align")
	}
	if err == nil {
		err = s.checkUsers()
	}
	if err == nil {
		var is shape
		is, err = shapeOf(img)
		s.plan.Old[0].Disks = []shape{is}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	return s, nil
}

// kindOf returns the format and the subformat of an image for messages.
func kindOf(img *image.Image) string { return strings.TrimSpace(img.Format + " " + img.Subformat) }

func (s *Source) refuse(code, reason, remedy string) error {
	return &ondisk.Refusal{Code: code, Reason: "replace: " + reason, Remedy: remedy}
}

// checkPath returns an error for a path that is a link or not a regular file, and for a disk with unfinished work.
func (s *Source) checkPath(path string) error {
	st, err := sys.Lstat(path)
	switch {
	case err != nil:
		return err
	case st.Mode&fs.ModeSymlink != 0:
		real, _ := filepath.EvalSymlinks(path)
		return s.refuse("reference", fmt.Sprintf("it is a link to %q", real), "give the path of that file")
	case !st.Mode.IsRegular():
		return s.refuse("unsupported", "it is not a regular file", "write a copy: trueup align SOURCE DEST")
	}
	w, err := journal.At(path)
	if !w.Open() {
		return err
	}
	i := w.Issue()
	return s.refuse(i.Code, i.Text, i.Remedy)
}

// checkFile refuses a file that cannot be renamed.
func (s *Source) checkFile(f *gate.File) error {
	const other = "write a copy: trueup align SOURCE DEST"
	home, err := s.dir.At.Lstat(".")
	if err != nil {
		return err
	}
	fixed, err := s.immovable(f.Name())
	switch {
	case err != nil:
		return err
	case fixed != "":
		return s.refuse("output", fmt.Sprintf("%q is immutable or append-only, and cannot be renamed", fixed),
			"remove the attribute: chattr -i -a")
	case f.Info.Links > 1:
		return s.refuse("reference", fmt.Sprintf("%q has %d hard links, and the others would keep the old disk",
			f.Name(), f.Info.Links), "remove the others, or write a copy and rename it by hand")
	case f.Info.Device != home.Device:
		return s.refuse("unsupported", fmt.Sprintf("%q is on another file system than its folder, and cannot be "+
			"renamed", f.Name()), other)
	case f.Info.Inode == 0:
		return s.refuse("unsupported", "this file system has no inode numbers, so its files cannot be recognized "+
			"after a rename", other)
	}
	return nil
}

// add adds a file of the source to the plan.
func (s *Source) add(disk string, f *gate.File) error {
	if err := s.checkFile(f); err != nil {
		return err
	}
	if n := TooLong(disk, f.Name()); n != "" {
		return s.refuse("limit", fmt.Sprintf("%.64q… would have %d bytes, at most %d are allowed", n, len(n),
			journal.MaxName), "rename the disk")
	}
	o := fileOf(f.Name(), OriginalOf(disk, f.Name()), f.Info)
	s.plan.Old = append(s.plan.Old, o)
	return s.mayTake(o.Other)
}

// immovable returns the file, or ".", if an attribute prevents a rename, otherwise an empty string.
func (s *Source) immovable(base string) (string, error) {
	for _, n := range []string{base, "."} {
		f, err := s.dir.At.Open(n)
		if err != nil {
			return "", err
		}
		fixed := f.Immovable()
		f.Close()
		if fixed {
			return n, nil
		}
	}
	return "", nil
}

// mayTake returns an error if a file already has the name n, which the original would get.
func (s *Source) mayTake(n name) error {
	if !s.dir.Exists(string(n)) {
		return nil
	}
	return s.refuse("output", fmt.Sprintf("%v exists, and the original would get this name", n), "move that file away")
}

// addTracked adds the changed-block tracking file that a descriptor names. It is no part of the disk, and tracks blocks
// of the old layout, so the copy has none.
func (s *Source) addTracked(disk, tracked string) error {
	if slices.Contains(names(s.plan.Old), tracked) || !s.dir.Exists(tracked) {
		return nil
	}
	f, err := s.dir.Open(tracked)
	if err != nil {
		return err
	}
	defer f.Close()
	s.notes = append(s.notes, ondisk.Issue{
		Code: "replaced-tracking", Effect: ondisk.Note,
		Text:   fmt.Sprintf("%q tracks the changed blocks of the original, and stays with it", tracked),
		Remedy: "the first backup of the exchanged disk will be a full one",
	})
	return s.add(disk, f)
}

// checkUsers returns an error if another image in the folder references a file of the disk, or the unfinished work of
// another disk needs one.
func (s *Source) checkUsers() error {
	user, err := s.user(s.path, names(s.plan.Old))
	if user != "" {
		err = s.refuse("reference", fmt.Sprintf("%q also refers to its files, and would find other files under "+
			"their names", user), "exchange that one, or remove it if it is no longer used")
	}
	return err
}

// user returns an image or package in the folder that references files of the disk at path. It refuses files that the
// unfinished work of another disk needs.
func (s *Source) user(path string, files []string) (string, error) {
	c, err := journal.Claiming(s.dir, files...)
	if c != nil {
		err = c.Refusal("replace: its file "+fmt.Sprintf("%.256q", c.File)+" cannot be exchanged", path)
	}
	if err != nil {
		return "", err
	}
	return otherUser(s.dir, files, files[0])
}

// otherUser returns an image or a package that references one of the files. It ignores the files, the disks, and
// partial files that killed runs left of them.
func otherUser(d *gate.Folder, files []string, disks ...string) (string, error) {
	var own []string
	for _, n := range slices.Concat(files, disks) {
		own = append(own, n, "."+n+journal.Partial, string(unfinishedName(name(n))))
	}
	return image.OtherUser(d, files, func(n string) bool { return slices.Contains(own, n) })
}

// Prepare copies owner and attributes from the source to the files of a copy, while they are empty.
func (s *Source) Prepare(o Output) error {
	var lost []string
	err := o.EachFile(func(final, _ string, f *sys.File) error {
		from, err := s.dir.At.Open(s.model(final))
		if err != nil {
			return err
		}
		defer from.Close()
		l, err := f.Adopt(from)
		if err != nil {
			return ondisk.In(ondisk.ErrOutput, "owner and attributes of %q: %w; run trueup as its owner, who must be "+
				"in its group, or as root", final, err)
		}
		lost = append(lost, l...)
		st, err := f.Stat()
		if err != nil {
			return err
		}
		return f.Chmod(st.Mode | 0o600) // until it has its final name
	})
	if len(lost) > 0 {
		s.notes = append(s.notes, ondisk.Issue{
			Code: "replaced-attributes", Effect: ondisk.Note, Remedy: "set them by hand if needed",
			Text: "the file system does not store these attributes of the original: " + strings.Join(lost, ", "),
		})
	}
	return err
}

// model returns the source file whose attributes a file of the copy gets.
func (s *Source) model(final string) string {
	if s.file(final) != nil {
		return final
	}
	return string(s.plan.Old[0].Name)
}

// Result describes a complete exchange.
type Result struct {
	Original string   // path of the usable original
	Files    []string // of the original
	Journal  string
	Notes    []ondisk.Issue
}

// Publish gives a copy the names of the source. After an error all names are as before, or the error contains the
// commands that continue the exchange.
func (s *Source) Publish(o Output) (*Result, error) {
	d := &folder{Folder: s.dir}
	err := o.EachFile(func(final, partial string, f *sys.File) error {
		was, err := s.dir.At.Lstat(s.model(final))
		if err == nil {
			err = f.Chmod(was.Mode)
		}
		if err != nil && !sys.Unsupported(err) {
			return ondisk.In(ondisk.ErrOutput, "permissions of %q: %w", final, err)
		}
		st, err := f.Stat()
		n, o := fileOf(final, partial, st), s.file(final)
		if o == nil && s.dir.Exists(final) {
			return ondisk.In(ondisk.ErrOutput, "%q exists, and is not a file of the original: move it away", final)
		}
		n.Seal = o != nil && o.Seal
		s.plan.New = append(s.plan.New, n)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := s.idle(d); err != nil {
		return nil, err
	}
	written := s.plan.copySide(d)
	written.disks = s.plan.Old[0].Disks // opened like the source
	at, err := written.open(s.dir)
	if err == nil {
		s.plan.New[0].Disks, err = at.shapes()
		err = errors.Join(err, at.close())
	}
	if err != nil {
		return nil, fmt.Errorf("read the copy: %w", err)
	}
	h, err := s.plan.start(d, s.path)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	x := &run{plan: &s.plan, Held: h, d: &folder{Folder: h.Dir}}
	_ = errors.Join(o.Release(), s.dir.Rest()) // all bytes were synced and read again before
	if err := x.forward(); err != nil {
		return nil, unfinishedError(s.path, err)
	}
	if x.d.bare {
		s.notes = append(s.notes, ondisk.Issue{
			Code: "replaced-no-links", Effect: ondisk.Note,
			Text:   "the file system has no hard links, so the disk was briefly incomplete under its name",
			Remedy: "if a guest started at that moment did not find its disk, start it again",
		})
	}
	return s.result(), nil
}

// idle refuses a source that a program has open for writing, because the program would continue with a renamed file.
func (s *Source) idle(d *folder) error {
	for _, f := range s.plan.Old {
		open, err := d.writable(f.Name)
		if err == nil && open {
			err = &ondisk.Refusal{
				Code: "busy", Remedy: "end that program (as root, fuser or losetup -j can name it), then run again",
				Reason: fmt.Sprintf("%v is open for writing in another program, or in the kernel", f.Name),
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Source) result() *Result {
	r := &Result{Notes: s.notes, Journal: journal.PathOf(s.path)}
	for _, f := range s.plan.Old {
		r.Files = append(r.Files, string(f.Other))
	}
	r.Original = strings.TrimSuffix(s.path, filepath.Base(s.path)) + r.Files[0]
	return r
}

// NewPackage is New for a package. An archive is exchanged like a disk in one file, an OVF like a disk whose first file
// names others.
func NewPackage(p *ova.Package) (*Source, error) {
	files := p.Opened()
	s := &Source{path: p.Path, dir: files.Dir}
	err := s.checkPath(s.path)
	for _, f := range files.Handles {
		if err == nil {
			err = s.add(files.Base, f)
		}
	}
	if err == nil && p.Kind == "ovf" {
		err = s.addTexts(p)
	}
	if err == nil {
		err = s.checkUsers()
	}
	if err == nil {
		s.plan.Old[0].Disks, err = packageShapes(p)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path, err)
	}
	return s, nil
}

// maxTexts bounds the texts of a package, in bytes. The journal holds them twice.
const maxTexts = 1 << 20

// addTexts adds the texts of an OVF with the second names to the plan. A certificate signs the old texts, so it stays
// unchanged under a name that no longer marks it as a certificate.
func (s *Source) addTexts(p *ova.Package) error {
	texts, err := p.Renamed(func(n string) string { return OriginalOf(string(s.plan.Old[0].Name), n) })
	if err != nil {
		return err
	}
	total := 0
	for _, t := range texts {
		f := s.file(t.Name)
		f.Was, f.Kept = append([]byte{}, t.Was...), append([]byte{}, t.Renamed...)
		f.Inode, f.Seal = 0, f != &s.plan.Old[0]
		total += len(t.Was)
	}
	if total > maxTexts {
		return s.refuse("limit", fmt.Sprintf("the OVF and its manifest have %d bytes, at most %d are kept in a journal",
			total,
			maxTexts), "write a copy: trueup align SOURCE DEST.ova")
	}
	if f := s.file(p.Certificate()); f != nil {
		f.Seal, f.Other = true, append(f.Other, unsigned...)
		return s.mayTake(f.Other)
	}
	return nil
}

// unsigned is the suffix of a certificate that does not match the package beside it.
const unsigned = ".kept"

// file returns the source file of a name, or nil.
func (s *Source) file(base string) *file {
	if i := slices.Index(names(s.plan.Old), base); i >= 0 {
		return &s.plan.Old[i]
	}
	return nil
}

// packageShapes returns the shapes of the disks of a package.
func packageShapes(p *ova.Package) ([]shape, error) {
	disks, err := openDisks(p)
	out, bad := disks.shapes()
	disks.pkg = nil // the caller keeps the package open
	return out, errors.Join(err, bad, disks.close())
}

// free returns an error if a program has the disk or a disk of the package open, or if another file in the folder needs
// it. force is the effect of --force on an overlay below the folder of the disk or in o.Search. If it is empty,
// overlays are not searched.
func (x *run) free(base name, files []string, o Options, force string) error {
	// The disk's own files reference it under its other names, too: a VMDK names itself.
	own := []string{string(x.Old[0].Name), string(x.Old[0].Other)}
	for _, f := range slices.Concat(x.Old, x.New) {
		if x.d.is(f.Other, f) {
			own = append(own, string(f.Other))
		}
	}
	user, err := otherUser(x.Dir, files, own...)
	if err != nil {
		return err
	}
	if user != "" {
		return needed(user, base, "remove it, or consolidate it first")
	}
	disks, err := x.openToAsk(base)
	if err != nil {
		return err
	}
	for _, img := range disks.images {
		bad := img.Idle(x.Writers)
		if bad == nil && force != "" {
			bad = x.overlays(img, base, o, force)
		}
		err = cmp.Or(err, bad)
	}
	return errors.Join(err, disks.close())
}

func needed(user string, base name, remedy string) error {
	return &ondisk.Refusal{
		Code: "reference", Reason: fmt.Sprintf("%.1024q needs the disk %v", user, base), Remedy: remedy,
	}
}

// openToAsk opens the image or package of a name. If that fails, it returns only the file, because the error is
// reported later.
func (x *run) openToAsk(base name) (*opened, error) {
	disks, err := openAt(x.Dir, string(base), nil, image.Options{})
	if disks != nil {
		return disks, nil
	}
	dir, errDir := x.Dir.Again()
	if errDir != nil {
		return nil, errors.Join(err, errDir)
	}
	img, err := image.Unread(dir, string(base), ondisk.ErrReference)
	if err != nil {
		return &opened{}, dir.Close() // there is no file
	}
	return &opened{images: []*image.Image{img}}, nil
}

// overlays refuses to remove the base of an overlay below the folder of the disk or in o.Search. It adds notes about
// unreadable folders and files.
func (x *run) overlays(img *image.Image, base name, o Options, force string) error {
	missed, err := img.Children()
	missed = slices.DeleteFunc(missed, func(i ondisk.Issue) bool {
		return i.Effect == ondisk.Refuse // free has refused images that reference the disk
	})
	found, below, bad := img.OverlaysNear(x.home(), o.Search)
	for _, i := range slices.Concat(missed, below) {
		if !slices.ContainsFunc(x.notes, func(n ondisk.Issue) bool { return n.Text == i.Text }) {
			x.notes = append(x.notes, i)
		}
	}
	err = errors.Join(err, bad)
	if err == nil && len(found) > 0 && !o.Force {
		err = needed(found[0], base, "consolidate or remove it first, or "+force)
	}
	return err
}

// home returns the path of the folder of the disk.
func (x *run) home() string {
	if real, err := filepath.EvalSymlinks(x.Work.Path); err == nil {
		return filepath.Dir(real)
	}
	return filepath.Dir(x.Work.Path)
}

// elsewhere adds a warning about overlays in other folders: a disk has no list of its overlays.
func (x *run) elsewhere(o Options, harm string) {
	seen := "its folder and the folders below"
	if len(o.Search) > 0 {
		seen += ", and those of --allow-folder,"
	}
	x.notes = append(x.notes, ondisk.Issue{
		Code: "overlays-elsewhere", Effect: ondisk.Warn,
		Text:   fmt.Sprintf("overlays (linked clones, snapshots) were searched in %s only: %s", seen, harm),
		Remedy: "to search DIR and the folders below too, add --allow-folder DIR",
	})
}
