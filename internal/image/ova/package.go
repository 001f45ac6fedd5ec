// Package ova reads and writes packages of virtual machines: an OVF with its files, as an archive or in a folder.
package ova

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// Package is an opened package of a virtual machine. Spec: DSP0243 6, "OVF Package".
type Package struct {
	Path     string // as the user wrote it
	Kind     string // "ova" or "ovf"
	Envelope *ovf.Envelope
	Manifest *ovf.Manifest // nil if absent
	Members  []*Member     // in their order; of a folder the OVF, its manifest and certificate, and the files it names

	files   *image.FileSet // the archive, or the files of the folder
	entries []entry        // of an archive

	names map[string]*Member
	disks []Disk
	// unnamed are images that no disk of the envelope names.
	unnamed []Disk
	bad     map[string]error         // why a file cannot be opened, by its href
	lines   map[*Member][]ovf.Digest // of the manifest
}

// ErrNoOVF is the error of a tar archive that is no package.
var ErrNoOVF = fmt.Errorf("tar archive: %w, it has no .ovf inside and is no OVA; unpack it and take the disk",
	ondisk.ErrUnsupported)

// maxDisks is how many disks a package can have: a machine of VMware takes 256.
const maxDisks = 256

// Role is what a member is for.
type Role string

// Roles of members.
const (
	roleOVF         Role = "ovf"
	roleManifest    Role = "manifest"
	roleCertificate Role = "certificate"
	roleFile        Role = "file"
)

// Member is one file of a package.
type Member struct {
	Name string // in the package
	Role Role
	Size int64
	file driver.File // nil for a folder, a link or the like
	head int64       // where its headers begin in an archive
	data int64       // where its bytes begin
	end  int64       // where the next member begins
}

// Disk is a file of a package that holds a disk.
type Disk struct {
	Member   string     // its name
	Disks    []ovf.Disk // what the envelope has of it; several when machines share it, none if it does not name it
	file     *ovf.File  // nil for a file that the envelope does not list
	notThere error      // why the file cannot be opened
}

// Open opens a package, read-only. Another file gives ErrNoMatch. A meter counts what is read; nil: it is not counted.
func Open(name string, meter *gate.Meter) (*Package, error) {
	files, err := image.OpenFiles(name, meter)
	if err != nil {
		return nil, ondisk.ErrNoMatch // image.Open says more about it
	}
	p, err := newPackage(files)
	if err != nil {
		return nil, err
	}
	p.Path = name
	return p, nil
}

// OpenIn is Open for a file of an open folder, which is the package's from then on.
func OpenIn(d *gate.Folder, base string) (*Package, error) {
	files, err := image.NewFileSet(d, base)
	if err != nil {
		return nil, err
	}
	p, err := newPackage(files)
	if err != nil {
		return nil, err
	}
	p.Path = base
	return p, nil
}

// newPackage reads a package of which one file is open, the archive or the OVF. It takes over files.
func newPackage(files *image.FileSet) (*Package, error) {
	p := &Package{files: files, names: map[string]*Member{}, bad: map[string]error{}}
	err := p.open()
	if err == nil {
		err = p.relate()
	}
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	return p, nil
}

func (p *Package) open() error {
	id, err := image.IdentifyFile(p.files.First())
	switch {
	case id.Kind == image.Pack && id.Format == "ova":
		p.Kind = "ova"
		return p.openArchive()
	case id.Kind == image.Pack:
		p.Kind = "ovf"
		return p.openFolder()
	case err != nil && (id.Kind == image.Other || errors.Is(err, ondisk.ErrChanged)):
		return err
	}
	return ondisk.ErrNoMatch
}

// openArchive finds the parts of an OVA.
func (p *Package) openArchive() (err error) {
	f := p.files.First()
	if p.entries, err = tarIndex(f); err != nil {
		return err
	}
	for _, e := range p.entries {
		m := &Member{Name: e.name, Role: roleFile, Size: e.size, head: e.head, data: e.off, end: min(e.end(), f.Size())}
		if e.regular() {
			m.file = p.files.Section(e.name, e.bytes())
			m.Role = roleOf(e.name)
		}
		if m.Role != roleFile && slices.ContainsFunc(p.Members, func(o *Member) bool { return o.Role == m.Role }) {
			return fmt.Errorf("member %.256q of the archive is a second %s: %w, want one", m.Name, m.Role,
				ondisk.ErrReference)
		}
		p.Members = append(p.Members, m)
		p.names[m.Name] = m
	}
	return p.readTexts()
}

// roleOf returns the role that a name gives a member. The archives of macOS have a companion of each file in front of
// it: ._vm.ovf.
func roleOf(name string) Role {
	if image.DiskOf(path.Base(name)) != "" {
		return roleFile
	}
	switch strings.ToLower(path.Ext(name)) {
	case ".ovf":
		return roleOVF
	case ".mf":
		return roleManifest
	case ".cert":
		return roleCertificate
	}
	return roleFile
}

// readTexts parses the envelope and the manifest.
func (p *Package) readTexts() (err error) {
	m := p.role(roleOVF)
	if m == nil {
		return ErrNoOVF
	}
	text, err := m.text(ovf.MaxText)
	if err != nil {
		return err
	}
	if p.Envelope, err = ovf.Parse(text); err != nil {
		return err
	}
	if m = p.role(roleManifest); m == nil {
		return nil
	}
	if text, err = m.text(ovf.MaxManifest); err == nil {
		p.Manifest, err = ovf.ParseManifest(text)
	}
	return err
}

func (m *Member) text(limit int64) ([]byte, error) {
	if m.Size > limit {
		return nil, fmt.Errorf("%s %.256q of %d bytes: %w of %d bytes", m.Role, m.Name, m.Size, ondisk.ErrLimit, limit)
	}
	return ondisk.Bytes(m.file, 0, m.Size)
}

func (p *Package) role(r Role) *Member {
	if i := slices.IndexFunc(p.Members, func(m *Member) bool { return m.Role == r }); i >= 0 {
		return p.Members[i]
	}
	return nil
}

// openFolder finds the parts of an OVF: those that stand beside it by its own name, and those that it names.
func (p *Package) openFolder() error {
	base := p.files.First().Name()
	p.join(p.files.First(), base, roleOVF)
	stem := strings.TrimSuffix(base, path.Ext(base))
	for _, beside := range []struct {
		ext  string
		role Role
	}{{".mf", roleManifest}, {".cert", roleCertificate}} {
		if err := p.add(stem+beside.ext, beside.role); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := p.readTexts(); err != nil {
		return err
	}
	for _, r := range p.Envelope.Files {
		name, err := p.localName(r.Href)
		if err == nil && p.member(name) == nil {
			err = p.add(name, roleFile)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.bad[r.Href] = err
		}
	}
	return nil
}

func (p *Package) add(name string, role Role) error {
	f, err := p.files.Open(name)
	if err == nil {
		p.join(f, name, role)
	}
	return err
}

func (p *Package) join(f driver.File, name string, role Role) {
	m := &Member{Name: name, Role: role, Size: f.Size(), file: f}
	p.Members = append(p.Members, m)
	p.names[m.Name] = m
}

// member finds a member by its name, nil if absent.
func (p *Package) member(name string) *Member { return p.names[name] }

// Disks returns the files that hold disks of the machine, in the order of the envelope. A disk without a file is made
// empty when the package is deployed, and is not among them.
func (p *Package) Disks() []Disk { return p.disks }

// Images returns the files of Disks, and behind them the images in an archive that no disk names. Those beside an OVF
// are files like any other, which a scan judges by their own names.
func (p *Package) Images() []Disk {
	if p.Kind == "ovf" {
		return p.disks
	}
	return slices.Concat(p.disks, p.unnamed)
}

// Machine names the machine that a disk of the package belongs to. A disk that no virtual system has is alone.
func (p *Package) Machine(d Disk) string {
	for _, x := range d.Disks {
		if n, ok := p.Envelope.System(x.ID); ok {
			return fmt.Sprintf("system %d", n)
		}
	}
	return "disk " + d.Member
}

// Close closes all files.
func (p *Package) Close() error { return p.files.Close() }

// States lists the files of the package.
func (p *Package) States() []gate.State { return p.files.States() }

// Unchanged checks that every file is as it was when it was opened.
func (p *Package) Unchanged() error { return p.files.Unchanged() }

// Uses reports whether a path leads to a file of the package, and its name.
func (p *Package) Uses(path string) (name string, ok bool) { return p.files.Uses(path) }
