package ova

import (
	"path"
	"slices"

	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/ovf"
)

// findUnnamed finds the images of the package that no disk names. Extents, parents and chunks belong to others.
func (p *Package) findUnnamed() {
	parts, listed := map[string]bool{}, map[string]*ovf.File{}
	for i := range p.Envelope.Files {
		if name, err := p.localName(p.Envelope.Files[i].Href); err == nil {
			listed[name] = &p.Envelope.Files[i]
		}
	}
	var found []Disk
	for _, m := range p.Members {
		if m.Role != roleFile || m.file == nil {
			continue
		}
		id, err := image.IdentifyFile(m.file)
		for _, x := range slices.Concat(id.Extents, id.Parents) {
			parts[path.Join(path.Dir(m.Name), x)] = true
		}
		odd := err != nil || slices.Contains([]image.Kind{image.Bare, image.Unsupported, image.Packed}, id.Kind)
		if id.Kind == image.Disk || odd && image.Named(m.Name, m.Size) {
			found = append(found, Disk{Member: m.Name, file: listed[m.Name], notThere: err})
		}
	}
	for _, d := range p.disks {
		parts[d.Member] = true
	}
	for _, d := range found {
		whole, chunk := ovf.Whole(d.Member)
		if !parts[d.Member] && !image.IsFlatName(d.Member) && (!chunk || listed[whole] == nil) {
			p.unnamed = append(p.unnamed, d)
		}
	}
}
