package ova

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// OpenImage opens an image that can lie in a package: library.ova!disk1.vmdk, or library.ova when there is one disk
// in it.
func OpenImage(name string, o image.Options) (*image.Image, error) {
	at, member := SplitPath(name)
	p, err := Open(at, nil)
	switch {
	case errors.Is(err, ondisk.ErrNoMatch) && member != "":
		return nil, ondisk.In(ondisk.ErrUsage, "%.256q is no package, and there is no file %.256q", at, name)
	case errors.Is(err, ondisk.ErrNoMatch):
		return image.Open(name, o)
	case err != nil:
		return nil, err
	}
	img, err := p.choose(member, o)
	if img != nil {
		img.Path = name
	}
	return img, errors.Join(err, p.Close())
}

// Identify is image.Identify, and lists the disks of an OVF as extents. One that cannot be read names nothing: its
// disks are rows of their own then, and so is an image that it lists among its files and does not speak of as a disk.
func Identify(path string, meter *gate.Meter) (image.Identity, error) {
	id, err := image.Identify(path, meter)
	if id.Format != "ovf" {
		return id, err
	}
	p, err := Open(path, meter)
	if err != nil {
		return id, nil //nolint:nilerr // opening the package says why
	}
	for _, d := range p.Images() {
		plain := !strings.Contains(d.Member, "/") && gate.CheckPath(d.Member) == nil
		if plain && !slices.Contains(id.Extents, d.Member) {
			id.Extents = append(id.Extents, d.Member)
		}
	}
	return id, p.Close()
}

// Roots returns what has to be readable for an image or a package to be read: its folder with all links followed, or
// the device that it is, and the folder of a link. Those of a path that leads nowhere are the folder in which it should
// be.
func Roots(path string) []string {
	at, _ := SplitPath(path)
	real, err := filepath.EvalSymlinks(at)
	if err != nil {
		return []string{filepath.Dir(at)}
	}
	if st, err := os.Stat(real); err == nil && !st.Mode().IsRegular() {
		return []string{real}
	}
	roots := []string{filepath.Dir(real)}
	if st, err := os.Lstat(at); err == nil && st.Mode()&fs.ModeSymlink != 0 && filepath.Dir(at) != roots[0] {
		roots = append(roots, filepath.Dir(at))
	}
	return roots
}

// SplitPath takes the path of a member apart. A file that has such a name itself is meant.
func SplitPath(name string) (at, member string) {
	if _, err := os.Lstat(name); err == nil {
		return name, ""
	}
	for i, c := range name {
		if c != '!' {
			continue
		}
		if st, err := os.Stat(name[:i]); err == nil && st.Mode().IsRegular() {
			return name[:i], name[i+1:]
		}
	}
	return name, ""
}

// choose opens the disk that the user named, or the only one.
func (p *Package) choose(member string, o image.Options) (*image.Image, error) {
	if member == "" && len(p.disks) == 1 {
		return p.Open(p.disks[0], o)
	}
	disks := p.Images()
	var paths []string
	for _, d := range disks {
		if d.Member == member {
			return p.Open(d, o)
		}
		paths = append(paths, "'"+p.Path+"!"+d.Member+"'") // a shell would take the ! for its own
	}
	switch {
	case len(p.Disks()) == 0 && member == "":
		return nil, fmt.Errorf("the package has no disk with a file: %w, there is nothing to look at",
			ondisk.ErrUnsupported)
	case len(disks) == 0:
		return nil, ondisk.In(ondisk.ErrUsage, "the package has no disk %.256q, and no other disk either", member)
	case member != "":
		return nil, ondisk.In(ondisk.ErrUsage, "the package has no disk %.256q, want one of %.1024s", member,
			strings.Join(paths, ", "))
	}
	return nil, ondisk.In(ondisk.ErrUsage, "the package has %d disks, name one of them: %.1024s", len(disks),
		strings.Join(paths, ", "))
}

// Open opens a disk of the package, through handles of its own.
func (p *Package) Open(d Disk, o image.Options) (*image.Image, error) {
	if err := d.readable(); err != nil {
		return nil, err
	}
	o.Digest = func(ctx context.Context, name string, f driver.File) error {
		if m := p.member(name); m != nil {
			return compare(ctx, name, f, p.digests(m), unwatched{})
		}
		return nil
	}
	img, err := p.openDisk(d.Member, o)
	if err == nil {
		img.Path = p.Path + "!" + d.Member
		img.Package = image.InPackage{Path: p.Path, Base: p.files.Base}
	}
	return img, err
}

func (p *Package) openDisk(name string, o image.Options) (*image.Image, error) {
	if p.Kind == "ovf" {
		return p.files.OpenImage(name, o)
	}
	at, err := p.find(name)
	if err != nil {
		return nil, err
	}
	return p.files.OpenInside(name, at, p.find, o)
}

// find returns the place of a file in the archive.
func (p *Package) find(name string) (at disk.Range, err error) {
	i := slices.IndexFunc(p.entries, func(e entry) bool { return e.name == name })
	if i < 0 {
		return at, fs.ErrNotExist
	}
	e := p.entries[i]
	if !e.regular() {
		kind := tarKinds[e.kind]
		if kind == "" {
			kind = fmt.Sprintf("of the kind %q", e.kind)
		}
		return at, fmt.Errorf("member %.256q of the archive is %s: %w, want a regular file", name, kind,
			ondisk.ErrReference)
	}
	return e.bytes(), nil
}

// readable refuses what an OVF can say about a disk and no tool writes.
func (d Disk) readable() error {
	switch {
	case d.notThere != nil:
		return d.notThere
	case d.file == nil:
		return nil
	case d.file.Compression != "" && d.file.Compression != "identity":
		return fmt.Errorf("file %.256q with ovf:compression %.64q: %w; unpack it and drop the attribute", d.Member,
			d.file.Compression, ondisk.ErrUnsupported)
	}
	if i := slices.IndexFunc(d.Disks, func(x ovf.Disk) bool { return x.ParentRef != "" }); i >= 0 {
		return fmt.Errorf("disk %.256q is stored as the difference to the disk %.256q (ovf:parentRef): %w; export the "+
			"machine without snapshots",
			d.Disks[i].ID, d.Disks[i].ParentRef, ondisk.ErrUnsupported)
	}
	return nil
}
