package gate

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/sys"
)

// ErrOutside marks a path that leads out of the folder of an image, and into none that is allowed.
var ErrOutside = errors.New("leaves the image's folder")

// Allow returns the paths under which images may name files of further folders: each folder without links, and all of
// them also as the user wrote them.
func Allow(folders []string) (real, all []string, err error) {
	for _, folder := range folders {
		at, err := RealPath(folder)
		if err != nil {
			return nil, nil, ondisk.In(ondisk.ErrUsage, "--allow-folder %s: %w", folder, PlainError(err))
		}
		st, err := sys.Stat(at)
		if err != nil || !st.Mode.IsDir() {
			return nil, nil, ondisk.In(ondisk.ErrUsage, "--allow-folder %s is no folder; name the folder that the "+
				"file lies in", folder)
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
		real, err = filepath.EvalSymlinks(real) // the folder that the user is in can be one by a link
	}
	return real, err
}

// Reach opens the file that another one names by a path: in the folder of that one, or in or below an allowed folder.
// Below these no link is followed.
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
	return nil, fmt.Errorf("file name %.256q %w: %w, want a plain name in the same folder, or a path into a folder "+
		"that is allowed by --allow-folder %s", name, ErrOutside, ondisk.ErrReference, shellFolder(path.Dir(full)))
}

// absolute returns the path that a name means in a folder. Behind a folder of the name .. is refused: if that is a
// link, the kernel goes elsewhere than the words.
func absolute(here, name string) (string, error) {
	parts := strings.Split(name, "/")
	down := path.IsAbs(name)
	for i, part := range parts {
		switch {
		case part == ".." && !down && i < len(parts)-1, part == "." && i < len(parts)-1, part == "" && i < len(parts)-1:
			continue
		case part == ".." && i < len(parts)-1:
			return "", fmt.Errorf("file name %.256q has .. behind a folder: %w, want a plain name or a path without it",
				name, ondisk.ErrReference)
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

// further opens a folder below an allowed one, each once.
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
		if err = errors.Join(err, d.Close()); err != nil {
			return nil, err
		}
		d = sub
	}
	d.handles, d.meter, d.pages = like.handles, like.meter, like.pages
	d.path, d.elsewhere = at, true
	o.Further = append(o.Further, d)
	return d, nil
}

// Holds reports whether a file lies in d.
func (d *Folder) Holds(f *File) bool { return f.dir == d }

// Beside opens a further file in the folder of f.
func (f *File) Beside(name string) (*File, error) { return f.dir.OpenAs(name, f.dir.shown(name)) }

// Base returns the name in the folder, whatever messages show.
func (f *File) Base() string { return filepath.Base(f.name) }

// shown returns how messages name a file of the folder.
func (d *Folder) shown(name string) string {
	if d.elsewhere {
		return filepath.Join(d.path, name)
	}
	return name
}

// shellFolder returns a folder as a word of a shell, and a placeholder for one that cannot be shown as such.
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
