package image

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// openInside opens an image that lies in a package: library.ova!disk1.vmdk, or library.ova when there is one disk in it. Other
// paths give ErrNoMatch.
func openInside(name string, o Options) (*Image, error) {
	at, member := splitPath(name)
	p, err := OpenPackage(at)
	if errors.Is(err, ondisk.ErrNoMatch) && member != "" {
		return nil, ondisk.In(ErrUsage, "%.256q is no package, and there is no file %.256q", at, name)
	}
	if err != nil {
		return nil, err
	}
	img, err := p.choose(member, o)
	if img != nil {
		img.Path, img.siblings = name, nil // the package is closed below
	}
	return img, errors.Join(err, p.Close())
}

// splitPath takes the path of a member apart. A file that has such a name itself is meant.
func splitPath(name string) (at, member string) {
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
func (p *Package) choose(member string, o Options) (*Image, error) {
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
		return nil, fmt.Errorf("the package has no disk with a file: %w, there is nothing to look at", ondisk.ErrUnsupported)
	case member != "":
		return nil, ondisk.In(ErrUsage, "the package has no disk %.256q, want one of %.1024s", member, strings.Join(paths, ", "))
	}
	return nil, ondisk.In(ErrUsage, "the package has %d disks, name one of them: %.1024s", len(disks), strings.Join(paths, ", "))
}

// Open opens a disk of the package, through handles of its own.
func (p *Package) Open(d PackageDisk, o Options) (*Image, error) {
	if err := d.readable(); err != nil {
		return nil, err
	}
	from, under := p.dir, ""
	if in := path.Dir(d.Member); p.Kind == "ovf" && in != "." {
		from, under, o.Beside = p.within[in], in, nil
	}
	at, err := from.at.Again()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.base, err)
	}
	dir := newFolder(at)
	dir.alias, dir.meter, dir.recent = from.alias, from.meter, from.recent
	img, err := p.openThrough(dir, d.Member, o)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	img.Path = p.Path + "!" + d.Member
	if img.under = under; under == "" {
		img.siblings = p.siblings
	}
	img.digests = map[string][]ovf.Digest{}
	for _, m := range p.Members {
		img.digests[m.Name] = p.digests(m)
	}
	return img, nil
}

func (p *Package) openThrough(dir *folder, name string, o Options) (*Image, error) {
	if p.Kind == "ovf" {
		return openIn(dir, path.Base(name), o)
	}
	f, err := dir.openAny(p.base, ondisk.ErrReference)
	if err != nil {
		return nil, err
	}
	if f.ID() != p.files[0].ID() || p.files[0].unchanged() != nil {
		return nil, errors.Join(fmt.Errorf("file %.256q %w", p.base, ErrChanged), f.Close())
	}
	i := slices.IndexFunc(p.entries, func(e entry) bool { return e.name == name })
	m, err := newMember(f, p.entries[i])
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	img, err := inArchive(f, p.entries, m, o)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return img, nil
}

// siblings reads what the images of the folder name. Each disk of a package asks, and the folder may be large.
func (p *Package) siblings(string) (_ map[string]driver.Names, err error) {
	if p.beside == nil {
		p.beside, err = p.dir.namesIn("")
	}
	return p.beside, err
}

// readable refuses what an OVF can say about a disk and no tool writes.
func (d PackageDisk) readable() error {
	switch {
	case d.notThere != nil:
		return d.notThere
	case d.file == nil:
		return nil
	case d.file.Compression != "" && d.file.Compression != "identity":
		return fmt.Errorf("file %.256q with ovf:compression %.64q: %w; unpack it and drop the attribute", d.Member, d.file.Compression, ondisk.ErrUnsupported)
	}
	if i := slices.IndexFunc(d.Disks, func(x ovf.Disk) bool { return x.ParentRef != "" }); i >= 0 {
		return fmt.Errorf("disk %.256q is stored as the difference to the disk %.256q (ovf:parentRef): %w; export the machine without snapshots",
			d.Disks[i].ID, d.Disks[i].ParentRef, ondisk.ErrUnsupported)
	}
	return nil
}
