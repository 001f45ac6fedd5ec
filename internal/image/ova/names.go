package ova

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image"
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
		d.Member, d.notThere = f.Href, fmt.Errorf("%w; %s", d.notThere, elsewhere)
	case p.bad[f.Href] != nil:
		d.notThere = p.bad[f.Href]
	case slices.ContainsFunc(p.disks, func(o Disk) bool { return o.Member == d.Member }):
		d.notThere = ondisk.In(ondisk.ErrReference,
			"the OVF names the file %.256q twice, as %.256q too; want one File for it", d.Member, f.Href)
		d.Member = f.Href
	case p.inChunks(f, d.Member):
		d.notThere = fmt.Errorf("file %.256q is in chunks of %d bytes, %.256q and following (ovf:chunkSize): %w; "+
			"unpack the package, join them with cat, and drop the attribute", d.Member, f.ChunkSize,
			ovf.FirstChunk(d.Member), ondisk.ErrUnsupported)
	case p.member(d.Member) == nil:
		d.notThere = ondisk.In(ondisk.ErrReference, "the OVF names the file %.256q, and the package has "+
			"none of that name",
			d.Member)
	}
	return d
}

// inChunks reports whether a file of the envelope is absent, and its first chunk is not.
func (p *Package) inChunks(f *ovf.File, name string) bool {
	return p.member(name) == nil && f.ChunkSize > 0 && p.has(ovf.FirstChunk(name))
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
	name, err := MemberName(href)
	return path.Join(path.Dir(p.role(roleOVF).Name), name), err
}

// has reports whether there is a file of this name.
func (p *Package) has(name string) bool {
	if p.Kind == "ovf" {
		return p.files.Has(name)
	}
	return p.member(name) != nil
}

// Text is a file of a package that names its others, and its bytes when these have other names.
type Text struct {
	Name         string
	Was, Renamed []byte
}

// Renamed returns the texts of an OVF for other names of its files, the envelope first. A name that leads to no file of
// the package stays.
func (p *Package) Renamed(to func(name string) string) ([]Text, error) {
	e := p.Envelope.Fork()
	for _, f := range p.Envelope.Files {
		name, err := p.localName(f.Href)
		if err = errors.Join(err, p.bad[f.Href]); err != nil {
			return nil, err
		}
		if p.member(name) == nil {
			continue
		}
		if err := p.plain(name); err != nil {
			return nil, err
		}
		href := to(name)
		if strings.TrimPrefix(f.Href, "./") != name { // it was escaped as URIs demand
			href = url.PathEscape(href)
		}
		e.SetHref(f.ID, href)
	}
	main := p.role(roleOVF)
	was, err := main.text(ovf.MaxText)
	if err != nil {
		return nil, err
	}
	out := []Text{{main.Name, was, e.Bytes()}}
	if _, err := ovf.Parse(out[0].Renamed); err != nil {
		return nil, fmt.Errorf("with other names of its files: %w", err)
	}
	m := p.role(roleManifest)
	if m == nil {
		return out, nil
	}
	if was, err = m.text(ovf.MaxManifest); err != nil {
		return nil, err
	}
	sum := func(d ovf.Digest) []byte {
		if p.named(d.Name) != main || d.New == nil {
			return nil
		}
		h := d.New()
		h.Write(out[0].Renamed)
		return h.Sum(nil)
	}
	name := func(n string) string {
		if m := p.named(n); m != nil {
			return to(m.Name)
		}
		return n
	}
	return append(out, Text{m.Name, was, p.Manifest.Rewrite(sum, name)}), nil
}

// plain refuses a file that names others of the package, such as the descriptor of a VMDK: it would not find them under
// other names. A sparse VMDK also names itself, perhaps as it was called once.
func (p *Package) plain(name string) error {
	id, err := image.IdentifyFile(p.member(name).file)
	if err != nil {
		return err
	}
	for _, x := range slices.Concat(id.Extents, id.Parents) {
		if slices.ContainsFunc(p.Members, func(m *Member) bool {
			return m.Name != name && strings.EqualFold(m.Name, x)
		}) {
			return fmt.Errorf("file %.256q names the file %.256q: %w under another name; write an .ova", name, x,
				ondisk.ErrUnsupported)
		}
	}
	return nil
}

// Certificate returns the name of the file that signs the manifest, empty if there is none.
func (p *Package) Certificate() string {
	if m := p.role(roleCertificate); m != nil {
		return m.Name
	}
	return ""
}

// Opened returns the open files: the archive, or those of the folder, the OVF first.
func (p *Package) Opened() *gate.Opened { return &p.files.Opened }
