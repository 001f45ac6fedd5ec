package image

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/shell"
	"github.com/trueup/trueup/internal/sys"
)

// Children finds snapshots that name this disk as their parent: a new layout under them would corrupt them. It finds
// views of the disk, too, whose guests have perhaps written to it.
func (img *Image) Children() ([]ondisk.Issue, error) {
	if img.members != nil {
		return nil, nil // no snapshot has a parent inside of an archive
	}
	siblings, err := img.siblingNames()
	if err != nil {
		return nil, err
	}
	var children, views []string
	var missed unseen
	for _, name := range slices.Sorted(maps.Keys(siblings)) {
		n := siblings[name]
		ours := slices.ContainsFunc(n.Parents, img.owns) || n.Lineage != "" && n.Lineage == img.ContentID
		if name != img.Base && ours {
			children = append(children, name)
		}
		if name != img.Base && slices.ContainsFunc(n.Views, img.owns) {
			views = append(views, name)
		}
		missed.add(n.Unseen)
	}
	linked, err := img.childrenBesideLink()
	return slices.Concat(snapshots(children), viewsOf(views), missed.issues(), linked), err
}

// CodeUnseen is the code of the warning of files and folders in which overlays were not looked for.
const CodeUnseen = "overlays-unseen"

// unseen are the files and folders that a search for snapshots could not look at.
type unseen struct {
	first error
	n     int
}

// add adds the error of a file or a folder; nil: it was looked at.
func (u *unseen) add(err error) {
	if err != nil {
		u.first = cmp.Or(u.first, err)
		u.n++
	}
}

// issues returns a warning if there are any.
func (u *unseen) issues() []ondisk.Issue {
	if u.n == 0 {
		return nil
	}
	more := ""
	if u.n > 1 {
		more = fmt.Sprintf(" (and %d more)", u.n-1)
	}
	return []ondisk.Issue{{
		Code: CodeUnseen, Effect: ondisk.Warn,
		Text: fmt.Sprintf("overlays of it (snapshots, linked clones): not seen: %v%s; one of this disk would mix the "+
			"old layout with the new one", u.first, more),
		Remedy: "run trueup as a user who may read it, or make sure that it is no overlay of this disk",
	}}
}

// siblingNames returns what the images of the folder name.
func (img *Image) siblingNames() (_ map[string]driver.Names, err error) {
	switch s := img.siblings; {
	case img.known != nil:
		return img.known.parents(), nil
	case s == nil:
		return readSiblings(img.Dir, img.Base)
	case s.names == nil:
		s.names, err = readSiblings(img.Dir, "")
		return s.names, err
	default:
		return s.names, nil
	}
}

func snapshots(children []string) (out []ondisk.Issue) {
	for _, name := range children {
		out = append(out, ondisk.Issue{
			Code: "snapshot-parent", Effect: ondisk.Refuse,
			Text: fmt.Sprintf("%q in the same folder is a snapshot of this disk: the disk alone is not the machine's "+
				"present state", name),
			Remedy: "consolidate or remove the snapshots first",
		})
	}
	return out
}

func viewsOf(views []string) (out []ondisk.Issue) {
	for _, name := range views {
		out = append(out, ondisk.Issue{
			Code: "view-source", Effect: ondisk.Refuse,
			Text: fmt.Sprintf("%q in the same folder is a view that needs this disk: a guest that has written to the "+
				"view has changed a part of this disk only", name),
			Remedy: fmt.Sprintf("make a complete disk of the view (trueup convert %s DEST); or remove the view and "+
				"its head file, if nothing was ever written to it", shell.Quote(name)),
		})
	}
	return out
}

// flatExtent is what VMware calls the flat extents of a disk, one or several.
var flatExtent = regexp.MustCompile(`^(.*)-(flat|head|f[0-9]{3,4})\.vmdk$`)

// Owner finds the descriptor of a flat extent that was opened by itself: the copy would have no descriptor.
func (img *Image) Owner() ([]ondisk.Issue, error) {
	m := flatExtent.FindStringSubmatch(img.Base)
	if img.Format != raw.Format.Name || m == nil || !img.Dir.Exists(m[1]+".vmdk") {
		return nil, nil
	}
	name := m[1] + ".vmdk"
	return []ondisk.Issue{{
		Code: "flat-extent", Effect: ondisk.Warn,
		Text: fmt.Sprintf("this is the flat extent of a VMDK whose descriptor is %q: a copy of it is a raw disk "+
			"without descriptor", name),
		Remedy: "name the descriptor instead",
	}}, nil
}

// owns reports whether a stored name leads to one of the image's own files; those of its parents are others'. Other
// systems find a file by its name in another case, which counts unless a file has just that name.
func (img *Image) owns(stored string) bool {
	name := lastName(stored)
	own := func(is func(f *gate.File) bool) bool {
		return slices.ContainsFunc(img.Handles, func(f *gate.File) bool { return f.Level == 0 && is(f) })
	}
	return own(func(f *gate.File) bool { return f.Name() == name }) ||
		own(func(f *gate.File) bool { return strings.EqualFold(f.Name(), name) }) && !img.Dir.Exists(name) ||
		leadsTo(img.Dir, stored, func(st sys.Info) bool { return own(func(f *gate.File) bool { return f.Is(st) }) })
}

// leadsTo reports whether a stored name leads to a file through links: as a path, or by its last component.
func leadsTo(d *gate.Folder, stored string, is func(st sys.Info) bool) bool {
	return slices.ContainsFunc([]string{stored, lastName(stored)}, func(at string) bool {
		st, err := d.At.Stat(at)
		return err == nil && is(st)
	})
}

// lastName returns the last component of a path of any system.
func lastName(p string) string { return path.Base(strings.ReplaceAll(p, `\`, "/")) }

// Moving ends the name that a descriptor has during a move in place: no hypervisor finds the disk.
const Moving = ".moving"

// byExtension reports whether files of a format can name others, and whether the name of a file is one of such.
func byExtension(f driver.Format, name string) bool {
	name = strings.TrimSuffix(name, Moving)
	return f.Names != nil && slices.Contains(f.Extensions, strings.ToLower(path.Ext(name)))
}

// namers returns the formats whose files can name others: formats of images, QED, and OVF.
func namers() []driver.Format {
	return append(slices.Clone(Formats), qed, driver.Format{
		Name: packageOVF, Detect: func(head, _ []byte) bool { return ovf.Looks(head) }, Names: ovfNames,
		Extensions: []string{".ovf"}, AnyExtension: true,
	})
}

// namedAsImage reports whether the name of a file is one of a format that can name others.
func namedAsImage(name string) bool {
	return slices.ContainsFunc(namers(), func(f driver.Format) bool { return byExtension(f, name) })
}

// naming reports whether a file can name others: by its extension, or by its content where the format has any
// extension.
func naming(d *gate.Folder, name string) bool {
	if namedAsImage(name) {
		return true
	}
	f, err := d.OpenAny(name, ondisk.ErrReference)
	if err != nil {
		return !passed(err) // it could, and opening it again says why not
	}
	defer f.Close()
	head := make([]byte, min(f.Size(), textBlock))
	if ondisk.ReadFull(f, head, 0) != nil {
		return true // it could, and reading its names fails and says why
	}
	return slices.ContainsFunc(namers(), func(f driver.Format) bool { return f.AnyExtension && f.Detect(head, nil) })
}

// passed reports whether an error says that a name leads to no file that a program follows from here: a link, a folder,
// or a file that is gone meanwhile.
func passed(err error) bool {
	return errors.Is(err, ondisk.ErrReference) || errors.Is(err, ondisk.ErrChanged) || errors.Is(err, fs.ErrNotExist)
}

// readSiblings reads what the images of the folder name, each file once however many names it has.
func readSiblings(d *gate.Folder, except string) (map[string]driver.Names, error) {
	list, err := d.Names(func(name string) bool { return name != except && naming(d, name) })
	if err != nil {
		return nil, err
	}
	out, seen := map[string]driver.Names{}, map[string]bool{}
	for _, name := range list {
		f, err := d.OpenAny(name, ondisk.ErrReference)
		switch {
		case sys.Denied(err):
			out[name] = driver.Names{Broken: namedAsImage(name), Unseen: err} // another user's
			continue
		case passed(err):
			continue
		case err != nil:
			return nil, err
		}
		if !seen[f.ID()] {
			seen[f.ID()] = true
			out[name], err = readNames(f)
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return out, nil
}

func readNames(f driver.File) (driver.Names, error) {
	var all driver.Names
	for _, format := range namers() {
		if !format.AnyExtension && !byExtension(format, f.Name()) {
			continue
		}
		n, err := format.Names(f)
		if err != nil {
			return all, err
		}
		all.Parents = append(all.Parents, n.Parents...)
		all.Lineage = cmp.Or(all.Lineage, n.Lineage)
		all.Extents = append(all.Extents, n.Extents...)
		all.Views = append(all.Views, n.Views...)
		all.Members = append(all.Members, n.Members...)
		all.Broken = all.Broken || n.Broken
	}
	return all, nil
}

// ExtentOf returns the first other image or package of the folder that a file belongs to, empty if absent. A file with
// a complete format of its own is the data of no image, whatever a descriptor calls it, and can be a disk of a package.
// The file mine does not count.
func ExtentOf(d *gate.Folder, base, mine string) (string, error) {
	gives := func(n driver.Names) []string { return slices.Concat(n.Extents, n.Members) }
	f, err := d.OpenAny(base, ondisk.ErrReference)
	switch {
	case err == nil:
		id, err := IdentifyFile(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return "", err
		}
		if id.Kind == Disk || id.Kind == Pack {
			gives = func(n driver.Names) []string { return n.Members }
		}
	case !passed(err) && !sys.Denied(err):
		return "", err
	}
	siblings, err := readSiblings(d, base)
	if err != nil {
		return "", err
	}
	delete(siblings, mine)
	return needer(d, siblings, base, gives)
}

// used lists the files that an image or a package cannot do without.
func used(n driver.Names) []string { return slices.Concat(n.Extents, n.Parents, n.Members) }

// UserOf returns the first image or package of the folder that names a file as its extent, parent or member, empty when
// none does.
func UserOf(d *gate.Folder, base string) (string, error) {
	siblings, err := readSiblings(d, base)
	if err != nil {
		return "", err
	}
	return needer(d, siblings, base, used)
}

// OtherUser returns the first image or package of the folder that names one of some files, beside those that mine
// reports; empty when none does. It refuses where a file with the name of an image cannot be read.
func OtherUser(d *gate.Folder, files []string, mine func(name string) bool) (string, error) {
	siblings, err := readSiblings(d, "")
	if err != nil {
		return "", err
	}
	maps.DeleteFunc(siblings, func(name string, _ driver.Names) bool { return mine(name) })
	gives := func(n driver.Names) []string { return append(used(n), n.Views...) }
	for _, base := range files {
		if user, err := needer(d, siblings, base, gives); err != nil || user != "" {
			return user, err
		}
	}
	return "", hidden(siblings)
}

// hidden refuses where a file with the name of an image cannot be read: what it names is not known.
func hidden(siblings map[string]driver.Names) error {
	for _, name := range slices.Sorted(maps.Keys(siblings)) {
		if n := siblings[name]; n.Broken && n.Unseen != nil {
			return &ondisk.Refusal{
				Code: "reference", Reason: fmt.Sprintf("an overlay of this disk is not ruled out: %v", n.Unseen),
				Remedy: "run trueup as a user who may read it",
			}
		}
	}
	return nil
}

// needer returns the first of some files that gives another one of its names, or else the first OVF that cannot be read
// and has the name of that one in its text.
func needer(
	d *gate.Folder, siblings map[string]driver.Names, base string, gives func(driver.Names) []string,
) (string, error) {
	if user := userAmong(d, siblings, base, gives); user != "" {
		return user, nil
	}
	for _, name := range slices.Sorted(maps.Keys(siblings)) {
		if !siblings[name].Broken {
			continue
		}
		if found, err := mentions(d, name, base); err != nil || found {
			return name, err
		}
	}
	return "", nil
}

// userAmong returns the first of some files that gives another one of its names.
func userAmong(
	d *gate.Folder, siblings map[string]driver.Names, base string, gives func(driver.Names) []string,
) string {
	here, err := d.At.Lstat(base)
	same := func(st sys.Info) bool { return err == nil && here.Same(st) }
	leads := func(n string) bool { return calls(n, base) || leadsTo(d, n, same) }
	for _, user := range slices.Sorted(maps.Keys(siblings)) {
		if slices.ContainsFunc(gives(siblings[user]), leads) {
			return user
		}
	}
	return ""
}

// IsNamed reports whether any image or package of the folder uses a file.
func IsNamed(d *gate.Folder, name string) (bool, error) {
	siblings, err := readSiblings(d, name)
	// Other programs follow paths, and some of them names in another case.
	uses := func(file string) bool { return calls(file, name) }
	for _, n := range siblings {
		if n.Broken || slices.ContainsFunc(used(n), uses) {
			return true, err
		}
	}
	return false, err
}

// OtherUser is OtherUser for the files of the image.
func (img *Image) OtherUser() (string, error) {
	var files []string
	for _, f := range img.Handles {
		files = append(files, f.Name())
	}
	return OtherUser(img.Dir, files, func(name string) bool { return name == img.Base })
}

// FileNames are names of files. They are bytes, and JSON would change those that are not UTF-8: there they are base64.
type FileNames []string

// MarshalJSON keeps every byte.
func (n FileNames) MarshalJSON() ([]byte, error) {
	raw := make([][]byte, len(n))
	for i, name := range n {
		raw[i] = []byte(name)
	}
	return json.Marshal(raw)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (n *FileNames) UnmarshalJSON(b []byte) error {
	var raw [][]byte
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*n = make(FileNames, len(raw))
	for i, name := range raw {
		(*n)[i] = string(name)
	}
	return nil
}

// Beside lists what a folder holds beside an image. The image looks at each: not all of them need to concern it.
type Beside struct {
	Locks    FileNames `json:"locks,omitempty"` // files by which a program marks the image as in use
	Children []Child   `json:"children,omitempty"`
}

// Child is an image that may be a snapshot of another, or a view: its name, the last components of those that it gives
// its parent, or the ContentID of that, and the files that it is a view of.
type Child struct {
	Name    []byte    `json:"name"`
	Parents FileNames `json:"parents"`
	Views   FileNames `json:"views,omitempty"`
	Lineage string    `json:"lineage,omitempty"`
}

// parents returns the children as names of siblings.
func (b *Beside) parents() map[string]driver.Names {
	out := map[string]driver.Names{}
	for _, c := range b.Children {
		out[string(c.Name)] = driver.Names{Parents: c.Parents, Views: c.Views, Lineage: c.Lineage}
	}
	return out
}

// Folder collects what a folder holds that concerns its images, for a caller that lists it once and opens many of them.
// The zero value is an empty one.
type Folder struct {
	general []string        // locks that concern every image, sorted
	locks   map[string]bool // of one disk each: its name and ".lck"
	memory  []string        // files with the memory of a machine; sorted by Done
}

// maxLocks is how many locks are kept that concern one image, or every image: one says as much as thousands. Those that
// come first by name are kept, since the order of a folder is chance.
const maxLocks = 8

// Add notes a name of the folder.
func (f *Folder) Add(name string) {
	ext := path.Ext(name)
	switch {
	case strings.HasSuffix(name, ".vmx.lck"), strings.HasPrefix(name, ".lck-"), ext == ".vmss",
		ext == ".sav" && vboxState().MatchString(name):
		at, _ := slices.BinarySearch(f.general, name)
		if f.general = slices.Insert(f.general, at, name); len(f.general) > maxLocks {
			f.general = f.general[:maxLocks]
		}
	case ext == ".vmem":
		f.memory = append(f.memory, name)
	case ext == ".lck":
		if f.locks == nil {
			f.locks = map[string]bool{}
		}
		f.locks[name] = true
	}
}

// Done ends the list: all names were added.
func (f *Folder) Done() { slices.Sort(f.memory) }

// Locks lists the names that may show that an image is in use, sorted. files are its own and those of its parents.
// After Done it is safe for concurrent use.
func (f *Folder) Locks(files []string) FileNames {
	out := slices.Clone(f.general)
	for _, name := range files {
		if f.locks[name+".lck"] {
			out = append(out, name+".lck")
		}
		stem := strings.TrimSuffix(name, path.Ext(name))
		out = append(append(out, f.startingWith(stem+".")...), f.startingWith(stem+"-")...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// startingWith finds the first memory files whose name begins so.
func (f *Folder) startingWith(prefix string) []string {
	from, _ := slices.BinarySearch(f.memory, prefix)
	to := min(from+maxLocks, len(f.memory))
	n, _ := slices.BinarySearchFunc(f.memory[from:to], prefix, func(name, prefix string) int {
		if strings.HasPrefix(name, prefix) {
			return -1
		}
		return cmp.Compare(name, prefix)
	})
	return f.memory[from : from+n]
}

// looksLikeOVF reports whether a file has the name of an OVF or begins like one; not, with an error. Where it has the
// name, a comment of any length may stand in front of the envelope, and the text may be in UTF-16.
func looksLikeOVF(name string, f driver.File) (bool, error) {
	if strings.EqualFold(path.Ext(name), ".ovf") {
		return true, nil
	}
	head := make([]byte, min(f.Size(), textBlock))
	err := ondisk.ReadFull(f, head, 0)
	return err == nil && ovf.Looks(head), err
}

// ovfNames lists the files of an OVF's own folder that belong to its package; none for a file that is no OVF.
func ovfNames(f driver.File) (driver.Names, error) {
	if looks, err := looksLikeOVF(f.Name(), f); !looks {
		return driver.Names{}, err
	}
	if f.Size() > ovf.MaxText {
		return driver.Names{Broken: true}, nil
	}
	text, err := ondisk.Bytes(f, 0, f.Size())
	if err != nil {
		return driver.Names{}, err
	}
	e, err := ovf.Parse(text)
	if err != nil {
		return driver.Names{Broken: true}, nil //nolint:nilerr // what it names is not known
	}
	var n driver.Names
	for _, r := range e.Files {
		name := strings.TrimPrefix(r.Href, "./")
		n.Members = append(n.Members, name)
		if plain, err := url.PathUnescape(name); err == nil && plain != name {
			n.Members = append(n.Members, plain)
		}
	}
	n.Members = slices.DeleteFunc(n.Members, func(name string) bool { return strings.Contains(name, "/") })
	return n, nil
}

// calls reports whether a name that stands in an image or an OVF is that of a file, or of the file that it is a chunk
// of. Other systems find a file by its name in another case.
func calls(name, base string) bool {
	name = lastName(name)
	whole, ok := ovf.Whole(base)
	return strings.EqualFold(name, base) || ok && strings.EqualFold(name, whole)
}

// mentions reports whether a file is an OVF in whose text the name of another stands, in UTF-8 or UTF-16 and any
// case. It is for an OVF that cannot be parsed: other programs may read it.
func mentions(d *gate.Folder, name, base string) (found bool, err error) {
	f, err := d.OpenAny(name, ondisk.ErrReference)
	if err != nil {
		if passed(err) || sys.Denied(err) {
			err = nil
		}
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if looks, err := looksLikeOVF(name, f); !looks {
		return false, err
	}
	text, err := ondisk.Bytes(f, 0, min(f.Size(), ovf.MaxText))
	if err != nil {
		return false, err
	}
	return hasName(text, base), nil
}

// hasName reports whether a name stands in a text, as XML has it or as URIs do.
func hasName(text []byte, name string) bool {
	names := []string{name, url.PathEscape(name)}
	if whole, ok := ovf.Whole(name); ok {
		names = append(names, whole, url.PathEscape(whole))
	}
	text = lower(text)
	for _, n := range names {
		n = strings.ReplaceAll(n, "&", "&amp;")
		units := utf16.Encode([]rune(n))
		little, big := make([]byte, 0, 2*len(units)), make([]byte, 0, 2*len(units))
		for _, u := range units {
			little, big = binary.LittleEndian.AppendUint16(little, u), binary.BigEndian.AppendUint16(big, u)
		}
		for _, b := range [][]byte{[]byte(n), little, big} {
			if bytes.Contains(text, lower(b)) {
				return true
			}
		}
	}
	return false
}

// lower makes the capital letters of ASCII small, in a text of any encoding.
func lower(text []byte) []byte {
	out := bytes.Clone(text)
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] += 'a' - 'A'
		}
	}
	return out
}
