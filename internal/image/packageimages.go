package image

import (
	"path"
	"regexp"
	"slices"

	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/ovf"
)

// chunk is the name of any chunk.
var chunk = regexp.MustCompile(`^(.+)\.[0-9]{9}$`)

// findUnnamed finds the images of the package that no disk names. Extents, parents and chunks belong to others.
func (p *Package) findUnnamed() {
	parts, listed := map[string]bool{}, map[string]*ovf.File{}
	for i := range p.Envelope.Files {
		if name, err := p.localName(p.Envelope.Files[i].Href); err == nil {
			listed[name] = &p.Envelope.Files[i]
		}
	}
	var found []PackageDisk
	for _, m := range p.Members {
		if m.Role != RoleFile || m.file == nil {
			continue
		}
		id, err := identifyMember(m)
		for _, x := range slices.Concat(id.Extents, id.Parents) {
			parts[path.Join(path.Dir(m.Name), x)] = true
		}
		if id.Kind == Disk || (err != nil || id.Kind == Bare || id.Kind == Unsupported) && Named(m.Name, m.Size) {
			found = append(found, PackageDisk{Member: m.Name, file: listed[m.Name], notThere: err})
		}
	}
	for _, d := range p.disks {
		parts[d.Member] = true
	}
	for _, d := range found {
		whole := chunk.FindStringSubmatch(d.Member)
		if !parts[d.Member] && !IsFlatName(d.Member) && (whole == nil || listed[whole[1]] == nil) {
			p.unnamed = append(p.unnamed, d)
		}
	}
}

// identifyMember reads what a file of a package is.
func identifyMember(m *Member) (Identity, error) {
	found, names, _, err := recognise(m.file)
	switch {
	case err != nil || len(names) == 0:
		return Identity{Kind: Bare}, err
	case len(names) > 1:
		return Identity{Kind: Disk}, nil // opening it says what is wrong
	case names[0] == isoName || names[0] == packageOVA || names[0] == packageOVF:
		return Identity{Kind: Medium}, nil
	case found.Name == raw.Format.Name:
		return Identity{Kind: Unsupported}, nil
	}
	n, err := glance(found, m.file)
	if n.Part {
		return Identity{Kind: Extent}, err
	}
	return Identity{Kind: Disk, Extents: plainNames(n.Extents), Parents: parentNames(n.Parents)}, err
}
