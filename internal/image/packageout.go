package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/units"
)

// PackageKind is the kind of package that a name stands for, empty when for none.
func PackageKind(name string) string {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".ova":
		return "ova"
	case ".ovf":
		return "ovf"
	}
	return ""
}

// Rewrite is a disk of a package that gets other bytes.
type Rewrite struct {
	Source *Image
	Size   int64 // of the new disk, bytes
}

// capacity is the new one of a disk that has become larger, or for which the envelope has too little; -1 for another.
func (r *Rewrite) capacity(x ovf.Disk) int64 {
	if r.Size > r.Source.Disk.Size() || (x.Capacity >= 0 && x.Capacity < r.Size) {
		return r.Size
	}
	return -1
}

// PackageOptions of CreatePackage.
type PackageOptions struct {
	Force   bool               // replace DEST, which is an OVA then
	Rewrite map[string]Rewrite // by the name of the member
}

// PackageOutput is a package under construction.
type PackageOutput struct {
	Kind    string
	Dropped []string // members of the source that the copy does not have, since they no longer fit

	out     *Output
	src     *Package
	env     *ovf.Envelope
	members []*outMember
	renamed bool  // the OVF has another name
	at      int64 // end of what has its place in an archive
}

// outMember is one member under construction.
type outMember struct {
	name    string
	from    *Member
	rewrite *Rewrite
	text    bool // is written last: the OVF and the manifest, where something changes
	part    *part
	old     *tar.Header // of a member that changes, in an archive
	head    []byte      // headers in an archive
	data    int64       // where its bytes begin in part
	most    int64       // no more bytes than these
	size    int64
	written []byte // the text
}

// CreatePackage starts a package at path. Nothing stands under that name before Publish.
func CreatePackage(path string, src *Package, o PackageOptions) (*PackageOutput, error) {
	p := &PackageOutput{Kind: PackageKind(path), src: src, env: src.Envelope.Fork(), out: &Output{path: path, base: filepath.Base(path), force: o.Force, notes: &notes{}}}
	if p.Kind == "" {
		return nil, ondisk.In(ErrUsage, "DEST %q of a package, want a name that ends in .ova or .ovf", path)
	}
	if _, err := (Place{Flag: "DEST", Path: path, Role: Copy}).Settle(); err != nil {
		return nil, err
	}
	if err := p.choose(o.Rewrite); err != nil {
		return nil, err
	}
	var err error
	if p.out.dir, err = openFolder(filepath.Dir(path)); err != nil {
		return nil, ondisk.In(ErrOutput, "folder of DEST, %s: %w", filepath.Dir(path), err)
	}
	if err := p.start(); err != nil {
		return nil, errors.Join(err, p.Discard())
	}
	return p, nil
}

// choose settles which members the copy has, and what they are called.
func (p *PackageOutput) choose(rewrite map[string]Rewrite) error {
	own := p.src.role(RoleOVF).Name
	p.renamed = p.Kind == "ovf" && own != p.out.base
	changes := len(rewrite) > 0 || p.renamed
	for _, m := range p.src.Members {
		o := &outMember{name: p.nameOf(m), from: m, most: m.Size, size: m.Size, text: changes && (m.Role == RoleOVF || m.Role == RoleManifest)}
		if r, ok := rewrite[m.Name]; ok {
			o.rewrite, o.most = &r, r.Size+r.Size/8+64*units.MiB
			if err := p.mayRewrite(m, r); err != nil {
				return err
			}
		}
		if err := p.mayDigest(o); err != nil {
			return err
		}
		switch {
		case changes && m.Role == RoleCertificate:
			p.Dropped = append(p.Dropped, m.Name)
			continue
		case p.Kind == "ovf" && m.file == nil:
			return fmt.Errorf("member %.256q of the archive is no file: %w in an OVF folder; write an .ova", m.Name, ondisk.ErrUnsupported)
		case p.Kind == "ovf" && strings.Contains(o.name, "/"):
			return fmt.Errorf("file %.256q lies in a subfolder: %w in an OVF folder; write an .ova", o.name, ondisk.ErrUnsupported)
		case p.Kind == "ovf":
			if err := checkName(o.name); err != nil {
				return err
			}
		}
		p.members = append(p.members, o)
	}
	return nil
}

// nameOf is the name of a member in the copy: in a folder the OVF has that of DEST, and those that belong to it by name too.
func (p *PackageOutput) nameOf(m *Member) string {
	if p.Kind == "ova" || m.Role == RoleFile {
		return m.Name
	}
	if m.Role == RoleOVF {
		return p.out.base
	}
	return strings.TrimSuffix(p.out.base, filepath.Ext(p.out.base)) + filepath.Ext(m.Name)
}

// mayRewrite refuses a disk that could not be written as it was.
func (p *PackageOutput) mayRewrite(m *Member, r Rewrite) error {
	_, sub, err := target(r.Source, CreateOptions{})
	if err == nil && sub != r.Source.Subformat {
		err = fmt.Errorf("a disk of the subformat %s inside of a package: %w for writing", r.Source.Subformat, ondisk.ErrUnsupported)
	}
	if err == nil && len(r.Source.Parts) > 0 {
		err = fmt.Errorf("a disk of several files inside of a package: %w for writing; convert it to one file", ondisk.ErrUnsupported)
	}
	if err == nil {
		err = describe(p.src.Envelope.Fork(), p.src.disk(m.Name), 0, &r, 0)
	}
	return err
}

// mayDigest refuses to change what has a digest of an algorithm that is not known.
func (p *PackageOutput) mayDigest(m *outMember) error {
	for _, d := range p.src.lines[m.from] {
		if d.New == nil && (m.text || m.rewrite != nil) {
			return fmt.Errorf("the digest %.64q of %.256q in the manifest: %w, it could not be computed again; remove the manifest, or make one with SHA256", d.Algorithm, m.name, ondisk.ErrUnsupported)
		}
	}
	return nil
}

func (p *PackageOutput) start() error {
	src := &Image{files: p.src.files}
	p.out.mode = p.src.files[0].stat.Mode.Perm()
	if p.Kind == "ovf" && p.out.dir.exists(p.out.base) && p.out.dir.sourceFile(p.out.base, src) == "" {
		return ondisk.In(ErrOutput, "%s exists; an OVF is several files, which are not replaced: choose another folder", p.out.path)
	}
	if err := p.out.checkDest(src); err != nil {
		return err
	}
	if p.Kind == "ova" {
		_, err := p.out.newPart(p.out.base)
		return err
	}
	p.out.stale = p.out.dir.exists(partialName(p.out.base))
	ovfPart, err := p.out.newPart(p.out.base)
	if err != nil {
		return err
	}
	for _, m := range p.members {
		m.part = ovfPart
		if m.from.Role == RoleOVF {
			continue
		}
		if m.part, err = p.newFile(m.name); err != nil {
			return err
		}
	}
	return nil
}

// newFile creates a further file of an OVF. One of a run that was killed while it published has its partial name as a second
// link, and goes.
func (p *PackageOutput) newFile(name string) (*part, error) {
	o := p.out
	if o.dir.exists(name) && o.stale && o.dir.sameFile(name, partialName(name)) {
		if err := o.removeUnused(name); err != nil {
			return nil, err
		}
	}
	if o.dir.exists(name) {
		return nil, ondisk.In(ErrOutput, "%s exists; choose another folder", o.shown(name))
	}
	return o.newPart(name)
}

// Write gives each member its place and bytes, in their order. disk is called for each one to rewrite; it fills the output
// that create starts.
func (p *PackageOutput) Write(ctx context.Context, progress Progress, disk func(member string, create CreateDisk) error) error {
	for _, m := range p.members {
		if err := p.place(m); err != nil {
			return err
		}
		var err error
		switch {
		case m.rewrite != nil:
			err = p.fill(m, disk)
		case !m.text:
			err = p.copy(ctx, m, progress)
		}
		if err != nil {
			return err
		}
		p.at = units.AlignUp(m.data+m.size, tarBlock)
	}
	return p.finish(ctx, progress)
}

// place settles where the headers and the bytes of a member go.
func (p *PackageOutput) place(m *outMember) (err error) {
	if m.text && m.from.Role == RoleOVF {
		if err := p.mostText(m); err != nil {
			return err
		}
	}
	if p.Kind == "ovf" {
		return nil
	}
	m.part = p.out.parts[0]
	if m.head, err = p.header(m); err != nil {
		return err
	}
	m.data = p.at + int64(len(m.head))
	return nil
}

// mostText bounds the text of the OVF, which is written when the sizes of all disks are known. A manifest in an archive keeps
// its size: a digest is as long as another.
func (p *PackageOutput) mostText(m *outMember) error {
	e := p.src.Envelope.Fork()
	for _, x := range p.members {
		if x.rewrite == nil {
			continue
		}
		if err := describe(e, p.src.disk(x.from.Name), x.most, x.rewrite, x.rewrite.Size); err != nil {
			return err
		}
	}
	m.most = int64(len(e.Bytes()))
	m.size = m.most
	return nil
}

// header gives the headers of the source, with a size that is not final where the member changes. They are as long as the final ones.
func (p *PackageOutput) header(m *outMember) (_ []byte, err error) {
	switch {
	case p.src.Kind == "ovf":
		m.old, err = newTarHeader(m.name, m.from.time)
	case m.rewrite != nil || m.text:
		_, m.old, err = tarEntry(p.src.files[0], m.from.head)
	default:
		return ondisk.Bytes(p.src.files[0], m.from.head, m.from.data-m.from.head)
	}
	if err != nil {
		return nil, err
	}
	return tarHeaders(m.old, m.most, m.most)
}

// Files are the names of the files that are written, the one named DEST first.
func (p *PackageOutput) Files() []string { return p.out.Files() }

// Notes are what the file system of DEST lacked.
func (p *PackageOutput) Notes() []ondisk.Issue { return p.out.Notes() }

// Publish gives the files their names, the OVF the last.
func (p *PackageOutput) Publish() error { return p.out.Publish() }

// Discard removes what was written. It is harmless after Publish.
func (p *PackageOutput) Discard() error { return p.out.Discard() }
