// Package gate opens the files of images; no other package may. It opens them read-only and by plain names in one
// folder, never through a link, and detects changes to them. It is independent of image formats.
package gate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// Folder is an open directory: the only place where files of an image may lie. Names are looked up through its handle,
// so a rename or replacement of the folder cannot lead elsewhere.
type Folder struct {
	At      *sys.Folder       // for creating, linking, renaming and removing files
	Alias   map[string]string // final names mapped to current names, until files are published
	handles *handles
	path    string // path given to OpenFolder, or empty
	// elsewhere is set for folders other than the image's own: messages then show full paths.
	elsewhere bool
	meter     *Meter     // counts all reads, unless it is nil
	pages     *pageCache // nil unless reads are counted
}

// Follow resolves all links of a path, opens the folder of the file, and returns the name of the file. A meter counts
// all reads, unless it is nil.
func Follow(path string, meter *Meter) (dir *Folder, base string, err error) {
	if err := sys.CheckName(filepath.Base(path)); err != nil {
		return nil, "", fmt.Errorf("the name %w", err)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, "", PlainError(err)
	}
	if dir, err = OpenFolder(filepath.Dir(real)); err != nil {
		return nil, "", err
	}
	dir.Count(meter)
	return dir, filepath.Base(real), nil
}

// OpenFolder opens a folder and follows the links of its path.
func OpenFolder(path string) (*Folder, error) {
	at, err := sys.OpenFolder(path)
	if err != nil {
		return nil, err
	}
	d := NewFolder(at)
	d.path = path
	return d, nil
}

// NewFolder returns a Folder for an open handle.
func NewFolder(at *sys.Folder) *Folder { return &Folder{At: at, handles: &handles{}} }

// Count makes a meter count all bytes read through the folder.
func (d *Folder) Count(m *Meter) {
	if d.meter = m; m != nil {
		d.pages = &pageCache{pages: map[pageKey][]byte{}}
	}
}

// Close closes the folder. Its files stay open.
func (d *Folder) Close() error { return d.At.Close() }

// CheckName returns an error, before any look-up, unless name is a plain UTF-8 name of a file in the folder.
func CheckName(name string) error {
	if !utf8.ValidString(name) {
		return fmt.Errorf("file name %.256q is not UTF-8: %w; rename the file, or write a copy: trueup align "+
			"SOURCE DEST", name, ondisk.ErrReference)
	}
	return CheckStored(name)
}

// CheckStored is CheckName for a name stored in an image. It may be in any character set if the system's file names are
// bytes. After a byte above 0x7f a backslash is the second half of a letter, as in Shift_JIS, Big5 and GBK.
func CheckStored(name string) error {
	plain := name
	if !utf8.ValidString(name) {
		plain = letters(name)
	}
	switch {
	case !utf8.ValidString(name) && !sys.NamesAreBytes:
		return badName(name, "is not UTF-8")
	case name == "":
		return badName(name, "is empty")
	case len(name) > 255:
		return badName(name, fmt.Sprintf("has %d bytes, at most 255 are allowed", len(name)))
	case name == "." || name == "..":
		return badName(name, "is a folder")
	case strings.ContainsAny(plain, `/\`):
		return badName(name, "leaves the image's folder")
	case strings.Contains(name, ":"):
		return badName(name, "has a colon: a drive, a URL or a stream")
	case strings.ContainsFunc(name, func(r rune) bool { return r < 0x20 || r == 0x7f || r == '"' }):
		return badName(name, "has control characters or quotes")
	}
	return nil
}

// letters returns a name without backslashes that are second halves of letters.
func letters(name string) string {
	var out []byte
	for i := range len(name) {
		if name[i] != '\\' || i == 0 || name[i-1] < utf8.RuneSelf {
			out = append(out, name[i])
		}
	}
	return string(out)
}

// badName returns the error of a name that must not be opened.
func badName(name, bad string) error {
	return fmt.Errorf("file name %.256q %s: %w, must be a plain name in the same folder; put all files of the "+
		"image into one folder, or flatten it with qemu-img convert", name, bad, ondisk.ErrReference)
}

// Open opens a file by a name stored in an image.
func (d *Folder) Open(name string) (*File, error) { return d.OpenAs(name, name) }

// OpenAs is Open for a file that messages and lists show under another name.
func (d *Folder) OpenAs(name, shown string) (*File, error) {
	if err := CheckStored(name); err != nil {
		return nil, err
	}
	f, err := d.OpenAny(name, ondisk.ErrReference)
	if err == nil {
		f.name = shown
	}
	return f, err
}

// OpenAny opens a regular file that is not a link. It checks the type before it opens the file, because opening a
// device can have side effects. For other types the error wraps class.
func (d *Folder) OpenAny(name string, class error) (*File, error) {
	f := &File{name: name, real: name, dir: d}
	if a, ok := d.Alias[name]; ok {
		f.real = a
	}
	var err error
	if f.Info, err = d.At.Lstat(f.real); err != nil {
		return nil, fmt.Errorf("file %.256q: %w", name, err)
	}
	if err := wantRegular(name, f.Info.Mode, class); err != nil {
		return nil, err
	}
	if err := f.reopen(); err != nil {
		return nil, errors.Join(err, f.Close()) // otherwise it would keep its place among the open files
	}
	return f, nil
}

// OpenNamed opens the file named by the user, which may be a block device.
func (d *Folder) OpenNamed(name string) (*File, error) {
	f := &File{name: name, real: name, dir: d, device: true}
	var err error
	if f.Info, err = d.At.Lstat(name); err != nil || f.Info.Mode.Type() != fs.ModeDevice {
		return d.OpenAny(name, ondisk.ErrUnsupported)
	}
	if err := f.reopen(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if f.Info.Size, err = f.open.DeviceSize(); err != nil {
		return nil, errors.Join(fmt.Errorf("size of device %.256q: %w", name, err), f.Close())
	}
	f.shows, _ = f.open.LoopFile()
	if f.Info.Size == 0 {
		return nil, errors.Join(ondisk.In(ondisk.ErrFormat, "there is no medium in the device: it has 0 bytes"),
			f.Close())
	}
	if f.Sector, err = f.open.SectorSize(); err != nil {
		return nil, errors.Join(fmt.Errorf("sector size of device %.256q: %w", name, err), f.Close())
	}
	return f, nil
}

func wantRegular(name string, mode fs.FileMode, class error) error {
	kinds := map[fs.FileMode]string{
		fs.ModeSymlink: "a symbolic link", fs.ModeNamedPipe: "a FIFO", fs.ModeSocket: "a socket",
		fs.ModeDir:                        "a folder",
		fs.ModeDevice | fs.ModeCharDevice: "a character device", fs.ModeDevice: "a block device",
		fs.ModeIrregular: "a special file",
	}
	if kind, ok := kinds[mode.Type()]; ok {
		return fmt.Errorf("file %.256q is %s, not a regular file: %w", name, kind, class)
	}
	return nil
}

// Again opens the folder through a second handle.
func (d *Folder) Again() (*Folder, error) {
	at, err := d.At.Again()
	if err != nil {
		return nil, fmt.Errorf("open the folder again: %w", err)
	}
	out := NewFolder(at)
	out.Alias, out.meter, out.pages, out.path = d.Alias, d.meter, d.pages, d.path
	return out, nil
}

// Enter opens a folder below d by its path without following a link.
func (d *Folder) Enter(at string) (*Folder, error) {
	above := d.At
	for i, part := range strings.Split(at, "/") {
		next, err := above.Enter(part)
		if i > 0 {
			_ = above.Close() // only read
		}
		switch {
		case sys.NotFolder(err):
			return nil, fmt.Errorf("folder %.256q is a link, or not a folder: %w", at,
				ondisk.ErrReference)
		case err != nil:
			return nil, fmt.Errorf("folder %.256q: %w", at, err)
		}
		above = next
	}
	sub := NewFolder(above)
	sub.handles, sub.meter, sub.pages = d.handles, d.meter, d.pages
	return sub, nil
}

// maxFolders bounds the number of folders of a path in a package.
const maxFolders = 16

// CheckPath returns an error, before any look-up, unless name is the path of a file below the folder.
func CheckPath(name string) error {
	parts := strings.Split(name, "/")
	if len(parts) > maxFolders {
		return fmt.Errorf("file name %.256q: %w of %d folders", name, ondisk.ErrLimit, maxFolders)
	}
	for _, part := range parts {
		if part == ".." || (part == "" && len(parts) > 1) {
			return fmt.Errorf("file name %.256q leaves the package's folder: %w", name,
				ondisk.ErrReference)
		}
		if err := CheckName(part); err != nil {
			return err
		}
	}
	return nil
}

// Names lists the names in the folder that keep selects. They are sorted, because directory order is arbitrary.
func (d *Folder) Names(keep func(name string) bool) ([]string, error) { return d.names(keep, maxNames) }

func (d *Folder) names(keep func(name string) bool, most int) ([]string, error) {
	f, err := d.At.List()
	if err != nil {
		return nil, fmt.Errorf("list folder: %w", err)
	}
	defer f.Close()
	var out []string
	for {
		names, err := f.Readdirnames(1024)
		for _, n := range names {
			if keep(n) {
				out = append(out, n)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			slices.Sort(out)
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("list folder: %w", err)
		case len(out) > most:
			return nil, fmt.Errorf("folder of the image: %w of %d locks and VMDK files; move the image to a "+
				"folder of its own", ondisk.ErrLimit, most)
		}
	}
}

// maxNames bounds the number of names of a folder that concern an image. A folder with more is refused, because an
// unread name could be the lock.
const maxNames = 1 << 16

// SameFile reports whether two names exist and are links to one file.
func (d *Folder) SameFile(a, b string) bool {
	x, errA := d.At.Lstat(a)
	y, errB := d.At.Lstat(b)
	return errA == nil && errB == nil && x.Same(y)
}

// Exists reports whether a name exists in the folder, even as a dangling link.
func (d *Folder) Exists(name string) bool {
	_, err := d.At.Lstat(name)
	return err == nil
}

// Remove removes a name if it exists.
func (d *Folder) Remove(name string) error {
	if err := d.At.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// LeadsTo reports whether a name leads to an open file.
func (d *Folder) LeadsTo(name string, f *sys.File) bool {
	named, err := d.At.Lstat(name)
	open, openErr := f.Stat()
	return err == nil && openErr == nil && named.Same(open)
}

// PlainError removes the call and the path from an error of package os, because the message already has the path.
func PlainError(err error) error {
	var pe interface{ Unwrap() error }
	if errors.As(err, &pe) && pe.Unwrap() != nil {
		return pe.Unwrap()
	}
	return err
}

// ErrOutside marks a path that leads out of the image's folder and into no allowed folder.
var ErrOutside = errors.New("leaves the image's folder")

// Allow returns the paths under which images may reference files in further folders. real has each folder without
// links; all also has the paths as the user wrote them.
func Allow(folders []string) (real, all []string, err error) {
	for _, folder := range folders {
		at, err := RealPath(folder)
		if err != nil {
			return nil, nil, ondisk.In(ondisk.ErrUsage, "--allow-folder %s: %w", folder, PlainError(err))
		}
		st, err := sys.Stat(at)
		if err != nil || !st.Mode.IsDir() {
			return nil, nil, ondisk.In(ondisk.ErrUsage, "--allow-folder %s is not a folder; name the folder of the "+
				"file", folder)
		}
		if !slices.Contains(real, at) {
			real, all = append(real, at), append(all, at)
		}
		written, err := filepath.Abs(folder)
		if err != nil || slices.Contains(all, written) {
			continue
		}
		if again, err := sys.Stat(written); err == nil && again.Same(st) {
			all = append(all, written)
		}
	}
	return real, all, nil
}

// RealPath returns an absolute path without links.
func RealPath(p string) (string, error) {
	real, err := filepath.EvalSymlinks(p)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err == nil {
		real, err = filepath.EvalSymlinks(real) // the working directory can be reached by a link
	}
	return real, err
}

// Reach opens a file that another file references by a path, in the same folder, or in or below an allowed folder. No
// link is followed below an allowed folder.
func (o *Opened) Reach(from *File, name string, allowed []string) (*File, error) {
	if from.dir.path == "" {
		return from.Beside(name)
	}
	here, err := RealPath(from.dir.path)
	if err != nil {
		return nil, PlainError(err)
	}
	full, err := absolute(filepath.ToSlash(here), name)
	if err != nil {
		return nil, err
	}
	base := path.Base(full)
	if path.Dir(full) == filepath.ToSlash(here) {
		return from.Beside(base)
	}
	for _, folder := range allowed {
		rest, ok := strings.CutPrefix(full, strings.TrimSuffix(filepath.ToSlash(folder), "/")+"/")
		if !ok {
			continue
		}
		if err := CheckPath(rest); err != nil {
			return nil, err
		}
		d, err := o.further(from.dir, folder, path.Dir(rest))
		if err != nil {
			return nil, err
		}
		f, err := d.OpenAs(base, d.shown(base))
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("file name %.256q %w: %w", name, ondisk.ErrReference, err)
		}
		return f, err
	}
	return nil, fmt.Errorf("file name %.256q %w: %w, must be a plain name in the same folder; to allow "+
		"its folder, add --allow-folder %s", name, ErrOutside, ondisk.ErrReference, shellFolder(path.Dir(full)))
}

// absolute resolves a name relative to a folder. It returns an error for .. after a folder name: if that folder is a
// link, the kernel resolves the path differently.
func absolute(here, name string) (string, error) {
	parts := strings.Split(name, "/")
	down := path.IsAbs(name)
	for i, part := range parts {
		switch {
		case part == ".." && !down && i < len(parts)-1, part == "." && i < len(parts)-1, part == "" && i < len(parts)-1:
			continue
		case part == ".." && i < len(parts)-1:
			return "", fmt.Errorf("file name %.256q has .. after a folder name: %w, must be a plain name or "+
				"a path without it", name, ondisk.ErrReference)
		}
		if err := CheckStored(part); err != nil {
			return "", fmt.Errorf("file name %.256q: %w", name, err)
		}
		down = true
	}
	if path.IsAbs(name) {
		return path.Clean(name), nil
	}
	return path.Clean(here + "/" + name), nil
}

// further opens a folder below an allowed one, or returns it if it is open already.
func (o *Opened) further(like *Folder, allowed, below string) (*Folder, error) {
	real, err := RealPath(allowed)
	if err != nil {
		return nil, PlainError(err)
	}
	at := filepath.Join(real, filepath.FromSlash(below))
	for _, d := range append([]*Folder{o.Dir}, o.Further...) {
		if known, err := RealPath(d.path); err == nil && known == at {
			return d, nil
		}
	}
	d, err := OpenFolder(real)
	if err != nil {
		return nil, PlainError(err)
	}
	if below != "." {
		sub, err := d.Enter(below)
		_ = d.Close() // only read
		if err != nil {
			return nil, err
		}
		d = sub
	}
	d.handles, d.meter, d.pages = like.handles, like.meter, like.pages
	d.path, d.elsewhere = at, true
	o.Further = append(o.Further, d)
	return d, nil
}

// Holds reports whether a file was opened through d.
func (d *Folder) Holds(f *File) bool { return f.dir == d }

// Beside opens another file in the folder of f.
func (f *File) Beside(name string) (*File, error) { return f.dir.OpenAs(name, f.dir.shown(name)) }

// Base returns the name in the folder, even if messages show a path.
func (f *File) Base() string { return filepath.Base(f.name) }

// shown returns the name of a file of the folder for messages.
func (d *Folder) shown(name string) string {
	if d.elsewhere {
		return filepath.Join(d.path, name)
	}
	return name
}

// shellFolder quotes a folder for a shell, or returns a placeholder if it is too long or cannot be shown.
func shellFolder(folder string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == '\'' || r == unicode.ReplacementChar }
	bare := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._-+", r)
	}
	switch {
	case len(folder) > 256 || strings.ContainsFunc(folder, odd):
		return "DIR"
	case slices.ContainsFunc([]rune(folder), func(r rune) bool { return !bare(r) }):
		return "'" + folder + "'"
	}
	return folder
}
