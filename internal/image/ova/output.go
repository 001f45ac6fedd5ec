package ova

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/diskcopy"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
	"github.com/trueup/trueup/internal/units"
)

// KindOf returns the kind of package that a name stands for, "ova" or "ovf", and empty for none.
func KindOf(name string) string {
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
	Source *image.Image
	Size   int64 // of the new disk, bytes
}

// capacity returns the new one of a disk that has become larger, or for which the envelope has too little; -1 for
// another.
func (r *Rewrite) capacity(x ovf.Disk) int64 {
	if r.Size > r.Source.Disk.Size() || (x.Capacity >= 0 && x.Capacity < r.Size) {
		return r.Size
	}
	return -1
}

// CreateOptions of Create.
type CreateOptions struct {
	Force   bool               // replace DEST, which is an OVA then
	Swap    bool               // DEST is the source, whose names the files get by other means than Publish
	Rewrite map[string]Rewrite // by the name of the member
}

// Output is a package under construction.
type Output struct {
	Kind    string
	Dropped []string // members of the source that the copy does not have, since they no longer fit

	*store.Parts
	path    string // as typed
	base    string
	src     *Package
	env     *ovf.Envelope
	parts   []driver.WriteFile // one for an archive
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
	part    driver.WriteFile
	old     *tar.Header // of a member that changes, in an archive
	head    []byte      // headers in an archive
	data    int64       // where its bytes begin in part
	most    int64       // no more bytes than these
	size    int64
	written []byte // the text
}

// Create starts a package at path. Nothing stands under that name before Publish.
func Create(path string, src *Package, o CreateOptions) (*Output, error) {
	p := &Output{Kind: KindOf(path), src: src, env: src.Envelope.Fork(), path: path, base: filepath.Base(path)}
	if p.Kind == "" {
		return nil, ondisk.In(ondisk.ErrUsage, "DEST %q of a package, want a name that ends in .ova or .ovf", path)
	}
	if _, err := (store.Place{Flag: "DEST", Path: path, Role: store.Copy}).Settle(); err != nil {
		return nil, err
	}
	if err := p.choose(o.Rewrite); err != nil {
		return nil, err
	}
	if err := p.start(o); err != nil {
		return nil, err
	}
	return p, nil
}

// choose decides which members the copy has, and what they are called.
func (p *Output) choose(rewrite map[string]Rewrite) error {
	own := p.src.role(roleOVF).Name
	p.renamed = p.Kind == "ovf" && own != p.base
	changes := len(rewrite) > 0 || p.renamed
	for _, m := range p.src.Members {
		text := changes && (m.Role == roleOVF || m.Role == roleManifest)
		o := &outMember{name: p.nameOf(m), from: m, most: m.Size, size: m.Size, text: text}
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
		case changes && m.Role == roleCertificate:
			p.Dropped = append(p.Dropped, m.Name)
			continue
		case p.Kind == "ovf" && m.file == nil:
			return fmt.Errorf("member %.256q of the archive is no file: %w in an OVF folder; write an .ova", m.Name,
				ondisk.ErrUnsupported)
		case p.Kind == "ovf" && strings.Contains(o.name, "/"):
			return fmt.Errorf("file %.256q lies in a subfolder: %w in an OVF folder; write an .ova", o.name,
				ondisk.ErrUnsupported)
		case p.Kind == "ovf" && m.Role == roleFile && !p.src.refers(m.Name):
			return fmt.Errorf("the OVF does not name the file %.256q of the archive: %w in an OVF folder, "+
				"which has no others; write an .ova", o.name, ondisk.ErrUnsupported)
		case p.Kind == "ovf":
			if err := gate.CheckPath(o.name); err != nil {
				return err
			}
		}
		p.members = append(p.members, o)
	}
	return nil
}

// nameOf returns the name of a member in the copy: in a folder the OVF has that of DEST, and those that belong to it by
// name too.
func (p *Output) nameOf(m *Member) string {
	if p.Kind == "ova" || m.Role == roleFile {
		return m.Name
	}
	if m.Role == roleOVF {
		return p.base
	}
	return strings.TrimSuffix(p.base, filepath.Ext(p.base)) + filepath.Ext(m.Name)
}

// mayRewrite refuses a disk that could not be written as it was.
func (p *Output) mayRewrite(m *Member, r Rewrite) error {
	err := store.Rewritable(r.Source)
	if err == nil {
		err = describe(p.src.Envelope.Fork(), p.src.disk(m.Name), 0, &r, 0)
	}
	return err
}

// mayDigest refuses to change what has a digest of an algorithm that is not known.
func (p *Output) mayDigest(m *outMember) error {
	for _, d := range p.src.lines[m.from] {
		if d.New == nil && (m.text || m.rewrite != nil) {
			return fmt.Errorf("the digest %.64q of %.256q in the manifest: %w, it could not be computed again; remove "+
				"the manifest, or make one with SHA256", d.Algorithm, m.name, ondisk.ErrUnsupported)
		}
	}
	return nil
}

// start creates the files.
func (p *Output) start(o CreateOptions) error {
	if _, ours := p.src.Uses(p.path); p.Kind == "ovf" && !ours {
		if _, err := os.Lstat(p.path); err == nil {
			return ondisk.In(ondisk.ErrOutput, "%s exists; an OVF is several files, which are not replaced: choose "+
				"another folder", p.path)
		}
	}
	var first driver.WriteFile
	var err error
	if p.Parts, first, err = store.CreateFiles(p.path, p.src.files, o.Force, o.Swap); err != nil {
		return err
	}
	p.parts = append(p.parts, first)
	for _, m := range p.members {
		m.part = first
		if p.Kind == "ova" || m.from.Role == roleOVF {
			continue
		}
		if m.part, err = p.AddFile(m.name); err != nil {
			return errors.Join(err, p.Discard())
		}
		p.parts = append(p.parts, m.part)
	}
	if o.Swap && p.Kind == "ovf" {
		for _, name := range p.Dropped {
			p.Without(name)
		}
	}
	return nil
}

// Write gives each member its place and bytes, in their order. disk is called for each one to rewrite; it fills the
// output that create starts.
func (p *Output) Write(
	ctx context.Context, progress diskcopy.Progress, disk func(member string, create CreateDisk) error,
) error {
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

// place decides where the headers and the bytes of a member go.
func (p *Output) place(m *outMember) (err error) {
	if m.text && m.from.Role == roleOVF {
		if err := p.mostText(m); err != nil {
			return err
		}
	}
	if p.Kind == "ovf" {
		return nil
	}
	if m.head, err = p.header(m); err != nil {
		return err
	}
	m.data = p.at + int64(len(m.head))
	return nil
}

// mostText bounds the text of the OVF, which is written when the sizes of all disks are known. A manifest in an
// archive keeps its size: a digest is as long as another.
func (p *Output) mostText(m *outMember) error {
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

// header returns the headers of the source, with a size that is not final where the member changes. They are as long as
// the final ones.
func (p *Output) header(m *outMember) (_ []byte, err error) {
	switch {
	case p.src.Kind == "ovf":
		m.old, err = newTarHeader(m.name, p.src.modified(m.from))
	case m.rewrite != nil || m.text:
		_, m.old, err = tarEntry(p.src.files.First(), m.from.head)
	default:
		return ondisk.Bytes(p.src.files.First(), m.from.head, m.from.data-m.from.head)
	}
	if err != nil {
		return nil, err
	}
	return tarHeaders(m.old, m.most, m.most)
}

// modified returns when a file of an OVF was last changed, in seconds since 1970.
func (p *Package) modified(m *Member) int64 {
	for _, s := range p.States() {
		if s.Name == m.Name {
			return s.Modified / int64(time.Second)
		}
	}
	return 0
}
