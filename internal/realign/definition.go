package realign

import (
	"fmt"
	"path/filepath"

	"github.com/trueup/trueup/internal/definition"
	"github.com/trueup/trueup/internal/ondisk"
)

// Definition is a file in which a hypervisor keeps what it knows of a machine.
type Definition struct {
	File string // as the user named it
	Text []byte
	VMX  bool // else one of libvirt
}

// MaxDefinition bounds the text of a definition, in bytes.
const MaxDefinition = definition.MaxText

// Defined finds the disk in each definition, and returns what has to change there when DEST is written. An error means
// that the definition is of another machine, or that it runs from a snapshot. dest is empty where the copy gets the
// path of the disk, and block says that it is a device.
func (s *Source) Defined(
	ds []Definition, p *Plan, dest, format string, block bool,
) (out []ondisk.Issue, err error) {
	if len(ds) > 0 && s.Image.Packaged() {
		return nil, ondisk.In(ondisk.ErrUsage, "%s is a disk of a package, which no definition of libvirt or VMware "+
			"names; leave out --libvirt-xml and --vmx", s.Path())
	}
	if dest != "" {
		if dest, err = filepath.Abs(dest); err != nil {
			return nil, err
		}
	}
	for _, d := range ds {
		read, dir := definition.Libvirt, ""
		if d.VMX {
			read, dir = definition.VMX, filepath.Dir(d.File)
		}
		def, err := read(d.Text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.File, err)
		}
		same := func(path string) bool {
			if !filepath.IsAbs(path) {
				path = filepath.Join(dir, path)
			}
			name, ok := s.Image.Uses(path)
			return ok && name == s.Image.Base
		}
		issues, err := def.Check(definition.Case{
			File: d.File, Disk: s.Path(), Base: s.Image.Base, Same: same, Dest: dest, Block: block, Format: format,
			Old: p.OldSize, New: p.Size,
		})
		if err != nil {
			return nil, err
		}
		out = append(out, issues...)
	}
	return out, nil
}
