package ova

import (
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// relate assigns what the envelope and the manifest hold to the members.
func (p *Package) relate() error {
	held := map[string][]ovf.Disk{}
	for _, d := range p.Envelope.Disks {
		if f := p.Envelope.File(d.FileRef); f != nil {
			held[f.ID] = append(held[f.ID], d)
		}
	}
	for i := range p.Envelope.Files {
		if f := &p.Envelope.Files[i]; len(held[f.ID]) > 0 {
			p.disks = append(p.disks, p.newDisk(f, held[f.ID]))
		}
	}
	p.findUnnamed()
	if len(p.disks)+len(p.unnamed) > maxDisks {
		return fmt.Errorf("package: %w of %d disks", ondisk.ErrLimit, maxDisks)
	}
	p.lines = map[*Member][]ovf.Digest{}
	if p.Manifest != nil {
		for _, d := range p.Manifest.Digests {
			p.lines[p.named(d.Name)] = append(p.lines[p.named(d.Name)], d)
		}
	}
	return nil
}

func (p *Package) newDisk(f *ovf.File, disks []ovf.Disk) Disk {
	d := Disk{Disks: disks, file: f}
	d.Member, d.notThere = p.localName(f.Href)
	switch {
	case d.notThere != nil:
		d.Member = f.Href
	case p.bad[f.Href] != nil:
		d.notThere = p.bad[f.Href]
	case slices.ContainsFunc(p.disks, func(o Disk) bool { return o.Member == d.Member }):
		d.notThere = ondisk.In(ondisk.ErrReference,
			"the OVF names the file %.256q twice, as %.256q too; want one File for it", d.Member, f.Href)
		d.Member = f.Href
	case p.member(d.Member) == nil && f.ChunkSize > 0 && p.member(ovf.FirstChunk(d.Member)) != nil:
		d.notThere = fmt.Errorf("file %.256q is in chunks of %d bytes, %.256q and following (ovf:chunkSize): %w; "+
			"unpack the package, join them with cat, and drop the attribute", d.Member, f.ChunkSize, ovf.FirstChunk(d.Member),
			ondisk.ErrUnsupported)
	case p.member(d.Member) == nil:
		d.notThere = ondisk.In(ondisk.ErrReference, "the OVF names the file %.256q, and the package has none of that name",
			d.Member)
	}
	return d
}

// disk finds what the envelope says about a member that holds a disk.
func (p *Package) disk(member string) Disk {
	return p.disks[slices.IndexFunc(p.disks, func(d Disk) bool { return d.Member == member })]
}

// localName returns the name in the package that an href leads to: a relative URI, and nothing that leaves the package.
// Some writers escape blanks as URIs demand, some do not.
func (p *Package) localName(href string) (string, error) {
	name, err := p.checkMember(href)
	if err != nil || !strings.Contains(href, "%") || p.has(name) {
		return name, err
	}
	plain, err := url.PathUnescape(href)
	if err != nil {
		return name, nil //nolint:nilerr // the sign stands for itself
	}
	return p.checkMember(plain)
}

// refers reports whether the envelope names a member among its files.
func (p *Package) refers(name string) bool {
	return slices.ContainsFunc(p.Envelope.Files, func(f ovf.File) bool {
		local, err := p.localName(f.Href)
		return err == nil && local == name
	})
}

func (p *Package) checkMember(href string) (string, error) {
	if p.Kind == "ovf" {
		name := strings.TrimPrefix(href, "./")
		return name, gate.CheckPath(name)
	}
	name, err := memberName(href)
	return path.Join(path.Dir(p.role(roleOVF).Name), name), err
}

// has reports whether there is a file of this name.
func (p *Package) has(name string) bool {
	if p.Kind == "ovf" {
		return p.files.Has(name)
	}
	return p.member(name) != nil
}
