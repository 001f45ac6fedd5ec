package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"unicode/utf16"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// relate finds what the envelope and the manifest say of the members.
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

func (p *Package) newDisk(f *ovf.File, disks []ovf.Disk) PackageDisk {
	d := PackageDisk{Disks: disks, file: f}
	d.Member, d.notThere = p.localName(f.Href)
	switch {
	case d.notThere != nil:
		d.Member = f.Href
	case p.bad[f.Href] != nil:
		d.notThere = p.bad[f.Href]
	case slices.ContainsFunc(p.disks, func(o PackageDisk) bool { return o.Member == d.Member }):
		d.notThere = ondisk.In(ondisk.ErrReference, "the OVF names the file %.256q twice, as %.256q too; want one File for it", d.Member, f.Href)
		d.Member = f.Href
	case p.Member(d.Member) == nil && f.ChunkSize > 0 && p.Member(chunkName(d.Member)) != nil:
		d.notThere = fmt.Errorf("file %.256q is in chunks of %d bytes, %.256q and following (ovf:chunkSize): %w; "+
			"unpack the package, join them with cat, and drop the attribute", d.Member, f.ChunkSize, chunkName(d.Member), ondisk.ErrUnsupported)
	case p.Member(d.Member) == nil:
		d.notThere = ondisk.In(ondisk.ErrReference, "the OVF names the file %.256q, and the package has none of that name", d.Member)
	}
	return d
}

// chunkName is the name of the first chunk of a file. Spec: DSP0243 7.1.
func chunkName(name string) string { return name + ".000000000" }

// disk finds what the envelope says about a member that holds a disk.
func (p *Package) disk(member string) PackageDisk {
	return p.disks[slices.IndexFunc(p.disks, func(d PackageDisk) bool { return d.Member == member })]
}

// localName is the name in the package that an href leads to: a relative URI, and nothing that leaves the package. Some
// writers escape blanks as URIs demand, some do not.
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

func (p *Package) checkMember(href string) (string, error) {
	if p.Kind == "ovf" {
		name := strings.TrimPrefix(href, "./")
		return name, checkPath(name)
	}
	name, err := memberName(href)
	return path.Join(path.Dir(p.role(RoleOVF).Name), name), err
}

// has reports whether there is a file of this name.
func (p *Package) has(name string) bool {
	if p.Kind == "ovf" {
		_, underWay := p.dir.alias[name]
		return underWay || p.dir.exists(name)
	}
	return p.Member(name) != nil
}

// looksLikeOVF reports whether a file has the name of an OVF or begins like one. Where it has the name, a comment of any length may stand in
// front of the envelope, and the text may be in UTF-16.
func looksLikeOVF(name string, f driver.File) (bool, error) {
	if PackageKind(name) == "ovf" {
		return true, nil
	}
	head := make([]byte, min(f.Size(), textBlock))
	err := ondisk.ReadFull(f, head, 0)
	return err == nil && ovf.Looks(head), err
}

// ovfNames lists the files of an OVF's own folder that belong to its package; none for a file that is no OVF.
func ovfNames(f driver.File) (driver.Names, error) {
	if looks, err := looksLikeOVF(f.Name(), f); err != nil || !looks {
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

// calls reports whether a name that stands in an image or an OVF is that of a file, or of the file that it is a chunk of. Other systems find
// a file by its name in another case.
func calls(name, base string) bool {
	name = lastName(name)
	m := chunk.FindStringSubmatch(base)
	return strings.EqualFold(name, base) || m != nil && strings.EqualFold(name, m[1])
}

// mentions reports whether a file is an OVF in whose text the name of another stands, in UTF-8 or UTF-16 and any case. It is for an OVF that
// cannot be parsed: other programs may read it.
func (d *folder) mentions(name, base string) (found bool, err error) {
	f, err := d.openAny(name, ondisk.ErrReference)
	if err != nil {
		return false, nil // another user's, a link, or gone meanwhile
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if looks, err := looksLikeOVF(name, f); err != nil || !looks {
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
	if m := chunk.FindStringSubmatch(name); m != nil {
		names = append(names, m[1], url.PathEscape(m[1]))
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
