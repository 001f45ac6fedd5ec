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

// Children finds snapshots with this disk as their parent, which a new layout would corrupt. It also finds views of the
// disk, since their guests may have written to it.
func (img *Image) Children() ([]ondisk.Issue, error) {
	if img.members != nil {
		return nil, nil // a snapshot cannot have a parent inside an archive
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
	return slices.Concat(snapshots(children, "%q in the same folder"), viewsOf(views), missed.issues(), linked), err
}

// CodeUnseen is the issue code of files and folders not searched for overlays.
const CodeUnseen = "overlays-unseen"

// unseen counts the files and folders that a search for snapshots could not read.
type unseen struct {
	first error
	n     int
}

// add adds the error of a file or a folder; it ignores nil.
func (u *unseen) add(err error) {
	if err != nil {
		u.first = cmp.Or(u.first, err)
		u.n++
	}
}

// issues returns a warning if the count is not 0.
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
		Text: fmt.Sprintf("not searched for overlays of this disk (snapshots, linked clones): %v%s; an overlay "+
			"would mix the old layout with the new one", u.first, more),
		Remedy: "run trueup as a user with read permission, or make sure that it is not an overlay of this disk",
	}}
}

// siblingNames returns the file names stored in the images of the folder.
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

// snapshots returns the issues for snapshots. format is that of their names.
func snapshots(children []string, format string) (out []ondisk.Issue) {
	for _, name := range children {
		out = append(out, ondisk.Issue{
			Code: "snapshot-parent", Effect: ondisk.Refuse,
			Text: fmt.Sprintf(format+" is a snapshot of this disk: the disk alone is not the machine's present state",
				name),
			Remedy: "consolidate or remove the snapshots first",
		})
	}
	return out
}

func viewsOf(views []string) (out []ondisk.Issue) {
	for _, name := range views {
		out = append(out, ondisk.Issue{
			Code: "view-source", Effect: ondisk.Refuse,
			Text: fmt.Sprintf("%q in the same folder is a view of this disk: writes of a guest to the view have "+
				"changed only a part of this disk", name),
			Remedy: fmt.Sprintf("convert the view to a complete disk (trueup convert %s DEST), or remove the view "+
				"and its head file, if nothing was ever written to it", shell.Quote(name)),
		})
	}
	return out
}

// flatExtent matches VMware's names for flat extents.
var flatExtent = ondisk.LazyPattern(`^(.*)-(flat|head|f[0-9]{3,4})\.vmdk$`)

// Owner finds the descriptor of a flat extent that was opened by itself. A copy would have no descriptor.
func (img *Image) Owner() ([]ondisk.Issue, error) {
	m := flatExtent().FindStringSubmatch(img.Base)
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

// owns reports whether a stored name leads to a file of the image itself, without its parents. Other systems ignore
// case in file names, so another case counts too unless a file has exactly the stored name.
func (img *Image) owns(stored string) bool {
	name := lastName(stored)
	own := func(is func(f *gate.File) bool) bool {
		return slices.ContainsFunc(img.Handles, func(f *gate.File) bool { return f.Level == 0 && is(f) })
	}
	return own(func(f *gate.File) bool { return f.Name() == name }) ||
		own(func(f *gate.File) bool { return strings.EqualFold(f.Name(), name) }) && !img.Dir.Exists(name) ||
		leadsTo(img.Dir, stored, func(st sys.Info) bool { return own(func(f *gate.File) bool { return f.Is(st) }) })
}

// leadsTo reports whether a stored name leads to a file through links, as a path or by its last component.
func leadsTo(d *gate.Folder, stored string, is func(st sys.Info) bool) bool {
	return slices.ContainsFunc([]string{stored, lastName(stored)}, func(at string) bool {
		st, err := d.At.Stat(at)
		return err == nil && is(st)
	})
}

// lastName returns the last component of a path, of any operating system.
func lastName(p string) string { return path.Base(strings.ReplaceAll(p, `\`, "/")) }

// Moving is the suffix of a descriptor during a move in place, so that no hypervisor finds the disk.
const Moving = ".moving"

// byExtension reports whether files of a format can name other files, and name has an extension of that format.
func byExtension(f driver.Format, name string) bool {
	name = strings.TrimSuffix(name, Moving)
	return f.Names != nil && slices.Contains(f.Extensions, strings.ToLower(path.Ext(name)))
}

// namers returns the formats whose files can name other files: image formats, QED, and OVF.
func namers() []driver.Format {
	return append(slices.Clone(Formats), qed, driver.Format{
		Name: packageOVF, Detect: func(head, _ []byte) bool { return ovf.Looks(head) }, Names: ovfNames,
		Extensions: []string{".ovf"}, AnyExtension: true,
	})
}

// namedAsImage reports whether a file has an extension of such a format.
func namedAsImage(name string) bool {
	return slices.ContainsFunc(namers(), func(f driver.Format) bool { return byExtension(f, name) })
}

// naming reports whether a file can name other files, by its extension, or by its content for formats with any
// extension.
func naming(d *gate.Folder, name string) bool {
	if namedAsImage(name) {
		return true
	}
	f, err := d.OpenAny(name, ondisk.ErrReference)
	if err != nil {
		return !passed(err) // possible, and the next open returns the error
	}
	defer f.Close()
	head := make([]byte, min(f.Size(), textBlock))
	if ondisk.ReadFull(f, head, 0) != nil {
		return true // possible, and the next read returns the error
	}
	return slices.ContainsFunc(namers(), func(f driver.Format) bool { return f.AnyExtension && f.Detect(head, nil) })
}

// passed reports whether an error marks a file to skip: a link, a folder, or a file that has disappeared.
func passed(err error) bool {
	return errors.Is(err, ondisk.ErrReference) || errors.Is(err, ondisk.ErrChanged) || errors.Is(err, fs.ErrNotExist)
}

// readSiblings reads the file names stored in the images of the folder, without the image except. It reads a file with
// several names once.
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
			out[name] = driver.Names{Broken: namedAsImage(name), Unseen: err} // another user's file
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

// ExtentOf returns the first image or package in the folder with base as its extent or package file, or an empty
// string. A file with a complete format is never an extent, but can be a disk of a package. The file mine is ignored.
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
	return findUser(d, siblings, base, gives)
}

// used lists the files that an image or a package needs.
func used(n driver.Names) []string { return slices.Concat(n.Extents, n.Parents, n.Members) }

// UserOf returns the first image or package in the folder that names base as its extent, parent or member, or an empty
// string.
func UserOf(d *gate.Folder, base string) (string, error) {
	siblings, err := readSiblings(d, base)
	if err != nil {
		return "", err
	}
	return findUser(d, siblings, base, used)
}

// OtherUser returns the first image or package in the folder that refers to one of files, or an empty string. It skips
// images for which mine returns true. It returns an error if a file with the name of an image is unreadable.
func OtherUser(d *gate.Folder, files []string, mine func(name string) bool) (string, error) {
	siblings, err := readSiblings(d, "")
	if err != nil {
		return "", err
	}
	maps.DeleteFunc(siblings, func(name string, _ driver.Names) bool { return mine(name) })
	gives := func(n driver.Names) []string { return append(used(n), n.Views...) }
	for _, base := range files {
		if user, err := findUser(d, siblings, base, gives); err != nil || user != "" {
			return user, err
		}
	}
	return "", refuseUnreadable(siblings)
}

// refuseUnreadable returns an error if a file with the name of an image is unreadable, since its references are
// unknown.
func refuseUnreadable(siblings map[string]driver.Names) error {
	for _, name := range slices.Sorted(maps.Keys(siblings)) {
		if n := siblings[name]; n.Broken && n.Unseen != nil {
			return &ondisk.Refusal{
				Code: "reference", Reason: fmt.Sprintf("cannot rule out an overlay of this disk: %v", n.Unseen),
				Remedy: "run trueup as a user with read permission",
			}
		}
	}
	return nil
}

// findUser returns the first sibling with base among its names, or else the first unreadable OVF with base in its text.
// gives selects the names.
func findUser(
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

// userAmong returns the first sibling with base among the names selected by gives, or an empty string.
func userAmong(
	d *gate.Folder, siblings map[string]driver.Names, base string, gives func(driver.Names) []string,
) string {
	here, err := d.At.Lstat(base)
	same := func(st sys.Info) bool { return err == nil && here.Same(st) }
	leads := func(n string) bool { return matchesName(n, base) || leadsTo(d, n, same) }
	for _, user := range slices.Sorted(maps.Keys(siblings)) {
		if slices.ContainsFunc(gives(siblings[user]), leads) {
			return user
		}
	}
	return ""
}

// IsNamed reports whether any image or package in the folder uses a file.
func IsNamed(d *gate.Folder, name string) (bool, error) {
	siblings, err := readSiblings(d, name)
	// Other programs follow paths, and some ignore case.
	uses := func(file string) bool { return matchesName(file, name) }
	for _, n := range siblings {
		if n.Broken || slices.ContainsFunc(used(n), uses) {
			return true, err
		}
	}
	return false, err
}

// OtherUser returns the first other image or package in the folder that refers to a file of the image, or an empty
// string.
func (img *Image) OtherUser() (string, error) {
	var files []string
	for _, f := range img.Handles {
		files = append(files, f.Name())
	}
	return OtherUser(img.Dir, files, func(name string) bool { return name == img.Base })
}

// FileNames are file names as bytes. JSON holds them in base64, since it would change invalid UTF-8.
type FileNames []string

// MarshalJSON keeps every byte.
func (n FileNames) MarshalJSON() ([]byte, error) {
	raw := make([][]byte, len(n))
	for i, name := range n {
		raw[i] = []byte(name)
	}
	return json.Marshal(raw)
}

// UnmarshalJSON decodes the output of MarshalJSON.
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

// Beside lists files beside an image. The image checks each of them, since not all need to concern it.
type Beside struct {
	Locks    FileNames `json:"locks,omitempty"` // lock files
	Children []Child   `json:"children,omitempty"`
}

// Child is a possible snapshot or view of an image. It holds its name, the last components of its parents' names or the
// ContentID of its parent, and the files of which it is a view.
type Child struct {
	Name    []byte    `json:"name"`
	Parents FileNames `json:"parents"`
	Views   FileNames `json:"views,omitempty"`
	Lineage string    `json:"lineage,omitempty"`
}

// parents returns the children in the form of siblingNames.
func (b *Beside) parents() map[string]driver.Names {
	out := map[string]driver.Names{}
	for _, c := range b.Children {
		out[string(c.Name)] = driver.Names{Parents: c.Parents, Views: c.Views, Lineage: c.Lineage}
	}
	return out
}

// Folder collects the locks in a folder, for a caller that lists it once and opens many of its images. The zero value
// is empty.
type Folder struct {
	general []string        // locks for every image, sorted
	locks   map[string]bool // locks of single disks, with ".lck"
	memory  []string        // memory files of machines, sorted by Done
}

// maxLocks limits the locks kept for each image and for all images: one is as good as thousands. The first by name are
// kept, since the order of a folder is random.
const maxLocks = 8

// Add adds a name of the folder.
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

// Done must be called after all names were added.
func (f *Folder) Done() { slices.Sort(f.memory) }

// Locks lists, sorted, the possible locks of an image. files are its own files and its parents'. After Done it is safe
// for concurrent use.
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

// startingWith returns the first memory files with a prefix.
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

// looksLikeOVF reports whether a file has the extension of an OVF or begins like one; it returns false with an error.
// With the extension, the envelope may follow a comment of any length, and the text may be UTF-16.
func looksLikeOVF(name string, f driver.File) (bool, error) {
	if strings.EqualFold(path.Ext(name), ".ovf") {
		return true, nil
	}
	head := make([]byte, min(f.Size(), textBlock))
	err := ondisk.ReadFull(f, head, 0)
	return err == nil && ovf.Looks(head), err
}

// ovfNames lists the package files in an OVF's own folder, and none for a file that is no OVF.
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
		return driver.Names{Broken: true}, nil //nolint:nilerr // its names are unknown
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

// matchesName reports whether a stored name matches the file base, or the file of which base is a chunk. It ignores
// case, as other systems do.
func matchesName(name, base string) bool {
	name = lastName(name)
	whole, ok := ovf.Whole(base)
	return strings.EqualFold(name, base) || ok && strings.EqualFold(name, whole)
}

// mentions reports whether an OVF contains a file name in its text, in UTF-8 or UTF-16 and any case. It serves for an
// OVF with a parse error, which other programs may accept.
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

// hasName reports whether a text contains a name, escaped for XML or for URIs.
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

// lower converts ASCII letters to lower case, in a text of any encoding.
func lower(text []byte) []byte {
	out := bytes.Clone(text)
	for i, c := range out {
		if 'A' <= c && c <= 'Z' {
			out[i] += 'a' - 'A'
		}
	}
	return out
}
