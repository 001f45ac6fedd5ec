// Package ova reads and writes packages of virtual machines: an OVF with its files, as an archive or in a folder.
package ova

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/diskcopy"
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
	Members  []*Member     // in archive order; in a folder the OVF, manifest, certificate, and the files in the OVF

	files   *image.FileSet // the archive, or the files of the folder
	entries []entry        // of an archive

	names map[string]*Member
	disks []Disk
	// unnamed lists images without a disk in the envelope.
	unnamed []Disk
	bad     map[string]error         // errors of files that cannot be opened, by href
	lines   map[*Member][]ovf.Digest // manifest lines
}

// ErrNoOVF is the error of a tar archive that is no package.
var ErrNoOVF = fmt.Errorf("tar archive: %w, it has no .ovf inside and is not an OVA; extract it and name the disk",
	ondisk.ErrUnsupported)

// maxDisks limits the disks of a package: a VMware machine has at most 256.
const maxDisks = 256

// Role is the purpose of a member.
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
	Name string      `json:"name"` // in the package
	Role Role        `json:"role"`
	Size int64       `json:"size_bytes"`
	file driver.File // nil for a folder, a link, or a special file
	head int64       // offset of its headers in an archive
	data int64       // offset of its data
	end  int64       // offset of the next member
}

// Disk is a file of a package with the data of a disk.
type Disk struct {
	Member  string     // member name
	Disks   []ovf.Disk // disks of the envelope in this file: several if machines share it, none for an unnamed image
	file    *ovf.File  // nil for a file outside of the envelope
	openErr error      // the reason why the file cannot be opened
}

// Open opens a package, read-only. It returns ErrNoMatch for any other file. meter counts the bytes read; it may be
// nil.
func Open(name string, meter *gate.Meter) (*Package, error) {
	files, err := image.OpenFiles(name, meter)
	if err != nil {
		return nil, ondisk.ErrNoMatch // image.Open returns a better error
	}
	return newPackage(name, files)
}

// OpenIn is Open for a file in an open folder. The package owns the folder.
func OpenIn(d *gate.Folder, base string) (*Package, error) {
	files, err := image.NewFileSet(d, base)
	if err != nil {
		return nil, err
	}
	return newPackage(base, files)
}

// newPackage opens a package from the first of its files, the archive or the OVF. It owns files.
func newPackage(path string, files *image.FileSet) (*Package, error) {
	p := &Package{Path: path, files: files, names: map[string]*Member{}, bad: map[string]error{}}
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

// openArchive reads the members of an OVA.
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
			return fmt.Errorf("member %.256q of the archive is a second %s: %w", m.Name, m.Role,
				ondisk.ErrReference)
		}
		p.Members = append(p.Members, m)
		p.names[m.Name] = m
	}
	return p.readTexts()
}

// roleOf returns the role of a member by its name. macOS archives have a companion in front of each file: ._vm.ovf.
func roleOf(name string) Role {
	if _, disk := image.CompanionOf(path.Base(name)); disk != "" {
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

// openFolder opens the files of an OVF: the manifest, the certificate, and the files in its references.
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

// member returns a member by its name, or nil.
func (p *Package) member(name string) *Member { return p.names[name] }

// Disks returns the disk files of the machine, in the order of the envelope. It omits disks without a file, which are
// created empty on deployment.
func (p *Package) Disks() []Disk { return p.disks }

// Images returns Disks, and in an archive also the images without a disk in the envelope. Beside an OVF, such an image
// is a file of its own, which a scan lists by its name.
func (p *Package) Images() []Disk {
	if p.Kind == "ovf" {
		return p.disks
	}
	return slices.Concat(p.disks, p.unnamed)
}

// Machine returns a label for the virtual system of a disk. A disk without a system gets a label of its own.
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

// Unchanged returns an error if a file has changed since it was opened.
func (p *Package) Unchanged() error { return p.files.Unchanged() }

// Uses reports whether a path leads to a file of the package, and returns its name.
func (p *Package) Uses(path string) (name string, ok bool) { return p.files.Uses(path) }

// relate links disks and manifest lines to the members.
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
	d.Member, d.openErr = p.localName(f.Href)
	switch {
	case d.openErr != nil:
		d.Member, d.openErr = f.Href, fmt.Errorf("%w; %s", d.openErr, elsewhere)
	case p.bad[f.Href] != nil:
		d.openErr = p.bad[f.Href]
	case slices.ContainsFunc(p.disks, func(o Disk) bool { return o.Member == d.Member }):
		d.openErr = ondisk.In(ondisk.ErrReference,
			"the OVF names the file %.256q twice, also as %.256q; keep one File element for it", d.Member, f.Href)
		d.Member = f.Href
	case p.inChunks(f, d.Member):
		d.openErr = fmt.Errorf("file %.256q is in chunks of %d bytes, %.256q and following (ovf:chunkSize): %w; "+
			"extract the package, join them with cat, and remove the attribute", d.Member, f.ChunkSize,
			ovf.FirstChunk(d.Member), ondisk.ErrUnsupported)
	case p.member(d.Member) == nil:
		d.openErr = ondisk.In(ondisk.ErrReference, "the OVF names the file %.256q, but the package has no such file",
			d.Member)
	}
	return d
}

// inChunks reports whether a file of the envelope is absent and its first chunk exists.
func (p *Package) inChunks(f *ovf.File, name string) bool {
	return p.member(name) == nil && f.ChunkSize > 0 && p.has(ovf.FirstChunk(name))
}

// disk returns the disk in a member.
func (p *Package) disk(member string) Disk {
	return p.disks[slices.IndexFunc(p.disks, func(d Disk) bool { return d.Member == member })]
}

// localName returns the member name for an href, a relative URI inside the package. Some writers escape blanks, as URIs
// require, others do not.
func (p *Package) localName(href string) (string, error) {
	name, err := p.checkMember(href)
	if err != nil || !strings.Contains(href, "%") || p.has(name) {
		return name, err
	}
	plain, err := url.PathUnescape(href)
	if err != nil {
		return name, nil //nolint:nilerr // the percent sign is literal
	}
	return p.checkMember(plain)
}

// refers reports whether the references of the envelope contain a member.
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

// has reports whether the package has a file of this name.
func (p *Package) has(name string) bool {
	if p.Kind == "ovf" {
		return p.files.Has(name)
	}
	return p.member(name) != nil
}

// Text is an OVF or a manifest, with its bytes before and after a change of the file names in it.
type Text struct {
	Name         string
	Was, Renamed []byte
}

// Renamed returns the texts of an OVF with new file names, the envelope first. It keeps names of missing files.
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
		if strings.TrimPrefix(f.Href, "./") != name { // it was escaped like a URI
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

// plain returns an error for a file that refers to other files of the package, such as a VMDK descriptor, since these
// get new names. A sparse VMDK also contains its own name, perhaps an outdated one.
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

// Certificate returns the name of the file that signs the manifest, or an empty string without one.
func (p *Package) Certificate() string {
	if m := p.role(roleCertificate); m != nil {
		return m.Name
	}
	return ""
}

// Opened returns the open files: the archive, or the files of the folder with the OVF first.
func (p *Package) Opened() *gate.Opened { return &p.files.Opened }

// OpenImage opens an image, also inside a package: library.ova!disk1.vmdk, or library.ova for its only disk.
func OpenImage(name string, o image.Options) (*image.Image, error) {
	at, member := SplitPath(name)
	p, err := Open(at, nil)
	switch {
	case errors.Is(err, ondisk.ErrNoMatch) && member != "":
		return nil, ondisk.In(ondisk.ErrUsage, "%.256q is not a package, and there is no file %.256q", at, name)
	case errors.Is(err, ondisk.ErrNoMatch):
		return image.Open(name, o)
	case err != nil:
		return nil, err
	}
	defer p.Close() // only read
	img, err := p.choose(member, o)
	if err == nil {
		img.Path = name
	}
	return img, err
}

// Identify is image.Identify with the disks of an OVF as extents. An unreadable OVF has no extents. A scan lists its
// disks on their own, like an image that the OVF references as a file only.
func Identify(path string, meter *gate.Meter) (image.Identity, error) {
	id, err := image.Identify(path, meter)
	if id.Format != "ovf" {
		return id, err
	}
	p, err := Open(path, meter)
	if err != nil {
		return id, nil //nolint:nilerr // opening the package returns the error
	}
	for _, d := range p.Images() {
		plain := !strings.Contains(d.Member, "/") && gate.CheckPath(d.Member) == nil
		if plain && !slices.Contains(id.Extents, d.Member) {
			id.Extents = append(id.Extents, d.Member)
		}
	}
	return id, p.Close()
}

// Roots returns the paths that must be readable to open an image or a package. These are the folder of the file behind
// all links, or the device, and the folder of a link. For a broken path it returns the folder of the path.
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

// SplitPath splits a path into package and member. An existing file with the whole name takes precedence.
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

// choose opens the named disk, or the only one.
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
		paths = append(paths, "'"+p.Path+"!"+d.Member+"'") // quoted, since a shell expands the !
	}
	switch {
	case len(p.Disks()) == 0 && member == "":
		return nil, fmt.Errorf("the package has no disk with a file: %w",
			ondisk.ErrUnsupported)
	case len(disks) == 0:
		return nil, ondisk.In(ondisk.ErrUsage, "the package has no disk %.256q; it has no disks at all", member)
	case member != "":
		return nil, ondisk.In(ondisk.ErrUsage, "the package has no disk %.256q; its disks are %.1024s", member,
			strings.Join(paths, ", "))
	}
	return nil, ondisk.In(ondisk.ErrUsage, "the package has %d disks, name one of them: %.1024s", len(disks),
		strings.Join(paths, ", "))
}

// Open opens a disk of the package through new handles.
func (p *Package) Open(d Disk, o image.Options) (*image.Image, error) {
	if err := d.readable(); err != nil {
		return nil, err
	}
	o.Digest = func(ctx context.Context, name string, f driver.File) error {
		if m := p.member(name); m != nil {
			return compare(ctx, name, f, p.digests(m), diskcopy.Unwatched{})
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

// find returns the range of a file in the archive.
func (p *Package) find(name string) (at disk.Range, err error) {
	i := slices.IndexFunc(p.entries, func(e entry) bool { return e.name == name })
	if i < 0 {
		return at, fs.ErrNotExist
	}
	e := p.entries[i]
	if !e.regular() {
		kind := tarKinds[e.kind]
		if kind == "" {
			kind = fmt.Sprintf("of type %q", e.kind)
		}
		return at, fmt.Errorf("member %.256q of the archive is %s, not a regular file: %w", name, kind,
			ondisk.ErrReference)
	}
	return e.bytes(), nil
}

// readable returns an error if the file of the disk could not be opened, or uses features of OVF that no tool writes.
func (d Disk) readable() error {
	switch {
	case d.openErr != nil:
		return d.openErr
	case d.file == nil:
		return nil
	case d.file.Compression != "" && d.file.Compression != "identity":
		return fmt.Errorf("file %.256q with ovf:compression %.64q: %w; decompress it and remove the "+
			"attribute", d.Member,
			d.file.Compression, ondisk.ErrUnsupported)
	}
	if i := slices.IndexFunc(d.Disks, func(x ovf.Disk) bool { return x.ParentRef != "" }); i >= 0 {
		return fmt.Errorf("disk %.256q holds only the differences from disk %.256q (ovf:parentRef): %w; export the "+
			"machine without snapshots", d.Disks[i].ID, d.Disks[i].ParentRef, ondisk.ErrUnsupported)
	}
	return nil
}
