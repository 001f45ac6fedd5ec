package image

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// Kinds of packages, as users write them: an archive, or an OVF with its files in one folder.
const (
	packageOVA = "OVA"
	packageOVF = "OVF"
)

// Package is an opened package of a virtual machine. Spec: DSP0243 6, "OVF Package".
type Package struct {
	Path     string // as the user wrote it
	Kind     string // "ova" or "ovf"
	Envelope *ovf.Envelope
	Manifest *ovf.Manifest // nil if absent
	Members  []*Member     // in their order; of a folder the OVF, its manifest and certificate, and the files it names

	dir     *folder
	within  map[string]*folder // folders inside of dir, by their paths
	base    string
	files   []*file // the archive, or the files of the folder
	entries []entry // of an archive

	names map[string]*Member
	disks []PackageDisk
	// unnamed are images that no disk of the envelope names.
	unnamed []PackageDisk
	bad     map[string]error         // why a file cannot be opened, by its href
	lines   map[*Member][]ovf.Digest // of the manifest
	// beside is what the images of the folder name, once that was asked for.
	beside map[string]driver.Names
}

// maxDisks is how many disks a package can have: a machine of VMware takes 256.
const maxDisks = 256

// Role is what a member is for.
type Role string

// Roles of members.
const (
	RoleOVF         Role = "ovf"
	RoleManifest    Role = "manifest"
	RoleCertificate Role = "certificate"
	RoleFile        Role = "file"
)

// Member is one file of a package.
type Member struct {
	Name string // in the package
	Role Role
	Size int64
	file driver.File // nil for a folder, a link or the like
	time int64       // of its last change, seconds since 1970
	head int64       // where its headers begin in an archive
	data int64       // where its bytes begin
	end  int64       // where the next member begins
}

// PackageDisk is a file of a package that holds a disk.
type PackageDisk struct {
	Member   string     // its name
	Disks    []ovf.Disk // what the envelope says about it; more than one when machines share it, none of an image that it does not name
	file     *ovf.File  // nil for a file that the envelope does not list
	notThere error      // why the file cannot be opened
}

// OpenPackage opens a package, read-only. Another file gives ErrNoMatch.
func OpenPackage(name string) (*Package, error) { return OpenPackageWith(name, nil) }

// OpenPackageWith is OpenPackage for who counts what is read; nil: it is not counted.
func OpenPackageWith(name string, meter *Meter) (*Package, error) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return nil, ondisk.ErrNoMatch
	}
	dir, err := openFolder(filepath.Dir(real))
	if err != nil {
		return nil, ondisk.ErrNoMatch
	}
	dir.count(meter)
	p, err := openPackageIn(dir, filepath.Base(real))
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	p.Path = name
	return p, nil
}

// openPackageIn opens a package through an open folder, which is the package's from then on.
func openPackageIn(dir *folder, base string) (*Package, error) {
	f, err := dir.openAny(base, ondisk.ErrNoMatch)
	if err != nil {
		return nil, ondisk.ErrNoMatch // image.Open says more about it
	}
	p := newPackage(dir, f)
	if err = p.open(f); err == nil {
		err = p.relate()
	}
	if err != nil {
		return nil, errors.Join(err, p.closeFiles())
	}
	return p, nil
}

// newPackage returns a package of which one file is open: the archive, or the OVF.
func newPackage(dir *folder, f *file) *Package {
	return &Package{
		dir: dir, base: f.name, files: []*file{f}, names: map[string]*Member{}, within: map[string]*folder{}, bad: map[string]error{},
	}
}

func (p *Package) open(f *file) error {
	_, names, _, err := recognise(f)
	switch {
	case err != nil:
		return err
	case slices.Equal(names, []string{packageOVA}):
		p.Kind = "ova"
		return p.openArchive(f)
	case slices.Equal(names, []string{packageOVF}):
		p.Kind = "ovf"
		return p.openFolder(f)
	}
	return ondisk.ErrNoMatch
}

// openArchive finds the parts of an OVA.
func (p *Package) openArchive(f *file) (err error) {
	if p.entries, err = tarIndex(f); err != nil {
		return err
	}
	for _, e := range p.entries {
		m := &Member{Name: e.name, Role: RoleFile, Size: e.size, head: e.head, data: e.off, end: min(e.end(), f.Size())}
		if e.regular() {
			m.file = &member{f: f, name: e.name, off: e.off, size: e.size}
			m.Role = roleOf(e.name)
		}
		if m.Role != RoleFile && slices.ContainsFunc(p.Members, func(o *Member) bool { return o.Role == m.Role }) {
			return fmt.Errorf("member %.256q of the archive is a second %s: %w, want one", m.Name, m.Role, ondisk.ErrReference)
		}
		p.Members = append(p.Members, m)
		p.names[m.Name] = m
	}
	return p.readTexts()
}

func roleOf(name string) Role {
	switch strings.ToLower(path.Ext(name)) {
	case ".ovf":
		return RoleOVF
	case ".mf":
		return RoleManifest
	case ".cert":
		return RoleCertificate
	}
	return RoleFile
}

// readTexts parses the envelope and the manifest.
func (p *Package) readTexts() (err error) {
	m := p.role(RoleOVF)
	if m == nil {
		return fmt.Errorf("tar archive: %w, it has no .ovf inside and is no OVA; unpack it and take the disk", ondisk.ErrUnsupported)
	}
	text, err := m.text(ovf.MaxText)
	if err != nil {
		return err
	}
	if p.Envelope, err = ovf.Parse(text); err != nil {
		return err
	}
	if m = p.role(RoleManifest); m == nil {
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
func (p *Package) openFolder(f *file) error {
	p.join(f, RoleOVF)
	stem := strings.TrimSuffix(p.base, filepath.Ext(p.base))
	for _, beside := range []struct {
		ext  string
		role Role
	}{{".mf", RoleManifest}, {".cert", RoleCertificate}} {
		if err := p.add(stem+beside.ext, beside.role); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := p.readTexts(); err != nil {
		return err
	}
	for _, r := range p.Envelope.Files {
		name, err := p.localName(r.Href)
		if err == nil && p.Member(name) == nil {
			err = p.add(name, RoleFile)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.bad[r.Href] = err
		}
	}
	return nil
}

func (p *Package) add(name string, role Role) error {
	dir, err := p.folderOf(name)
	if err != nil {
		return err
	}
	f, err := dir.open(path.Base(name))
	if err != nil {
		return err
	}
	f.name = name
	p.files = append(p.files, f)
	p.join(f, role)
	return nil
}

func (p *Package) join(f *file, role Role) {
	m := &Member{Name: f.name, Role: role, Size: f.Size(), file: f, time: time.Unix(0, f.stat.Modified).Unix()}
	p.Members = append(p.Members, m)
	p.names[m.Name] = m
}

// Member finds a member by its name, nil if absent.
func (p *Package) Member(name string) *Member { return p.names[name] }

// Disks returns the files that hold disks of the machine, in the order of the envelope. A disk without a file is made empty when
// the package is deployed, and is not among them.
func (p *Package) Disks() []PackageDisk { return p.disks }

// Images returns the files of Disks, and behind them the images in an archive that no disk names. Those beside an OVF are files like
// any other, which a scan judges by their own names.
func (p *Package) Images() []PackageDisk {
	if p.Kind == "ovf" {
		return p.disks
	}
	return slices.Concat(p.disks, p.unnamed)
}

// Machine names the machine that a disk of the package belongs to. A disk that no virtual system has is alone.
func (p *Package) Machine(d PackageDisk) string {
	for _, x := range d.Disks {
		if n, ok := p.Envelope.System(x.ID); ok {
			return fmt.Sprintf("system %d", n)
		}
	}
	return "disk " + d.Member
}

// Close closes all files.
func (p *Package) Close() error { return errors.Join(p.closeFiles(), p.dir.Close()) }

func (p *Package) closeFiles() error {
	var errs []error
	for _, f := range p.files {
		errs = append(errs, f.Close())
	}
	for _, d := range p.within {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// States lists the files of the package.
func (p *Package) States() []State { return (&Image{files: p.files}).States() }

// Unchanged checks that every file is as it was when it was opened.
func (p *Package) Unchanged() error {
	for _, f := range p.files {
		if err := f.unchanged(); err != nil {
			return err
		}
	}
	return nil
}

// Uses reports whether a path leads to a file of the package, and its name.
func (p *Package) Uses(path string) (name string, ok bool) {
	return (&Image{files: p.files}).Uses(path)
}
