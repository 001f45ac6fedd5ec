package boot

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/volume"
)

// Result is what a disk boots with.
type Result struct {
	Code   *Code
	Refs   []Ref
	Issues []ondisk.Issue
	Chain  []Link // in the order of a boot

	// Windows reports whether a partition holds one.
	Windows bool
	// Unlisted counts the positions on other disks that Refs leaves out: there are too many, or they cannot be rewritten.
	Unlisted int

	unseen map[int]bool // partitions whose files could not be looked into
	boots  bool         // something on the disk looks like the start of a boot
}

// Read names the boot code and finds all references.
func Read(g *Guest) (*Result, error) {
	g.Code, g.codes = Identify(g.Sector0), Codes
	r, all := &Result{Code: g.Code}, Found{}
	for _, f := range finders {
		found, err := f.Find(g)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		all.add(found)
	}
	r.Issues, r.Chain = all.Issues, all.Chain
	r.unseen, r.boots = g.unseen, r.bootable(g.Partitions)
	r.Windows, r.Unlisted = g.windows, g.unlisted
	var clash *ondisk.Issue
	if r.Refs, clash = distinct(all.Refs); clash != nil {
		r.Issues = append(r.Issues, *clash)
	}
	return r, nil
}

// Boots reports whether a partition takes part in the boot.
func (r *Result) Boots(partition int) bool {
	return slices.ContainsFunc(r.Chain, func(l Link) bool { return l.Partition == partition })
}

// Remedies.
const (
	installAgain = "go on with --allow-unbootable, and install the boot loader again from a rescue system on the copy"
	whenUnknown  = "go on with --allow-unbootable if nothing boots from the disk, or if you will install the boot loader again on the copy"
)

// sector0 says what a move would break in the code of sector 0.
var sector0 = Finder{Name: "boot code", Find: checkMBR}

func checkMBR(g *Guest) (r Found, err error) {
	name, err := g.encryptedBesides()
	if g.Code == Unknown && name == "" && err == nil {
		r.unbootable("boot-code", 0, "the boot code in sector 0 is not known, nor whether it finds its partition after a move",
			whenUnknown)
	}
	return r, err
}

// bootArea is how much of a partition may hold boot code in front of the file system: ext keeps two sectors free.
const bootArea = 1024

// area names the loader in the boot area of a partition, Unknown for any other content; ok is false when it holds nothing but zeros, as
// in front of most file systems, or is not on the disk as a whole. All are read once: a table can have thousands of partitions, and each finder asks for all of them.
func (g *Guest) area(p Partition) (c *Code, ok bool, err error) {
	if g.areas == nil {
		areas, buf := map[int]*Code{}, make([]byte, bootArea)
		for _, p := range g.Partitions {
			if p.Len < bootArea || p.End() > g.Disk.Size() {
				continue
			}
			if err := ondisk.ReadFull(g.Disk, buf, p.Off); err != nil {
				return c, false, err
			}
			if !ondisk.IsZero(buf) {
				areas[p.Number] = g.loader(buf[:codeLen])
			}
		}
		g.areas = areas
	}
	c, ok = g.areas[p.Number]
	return c, ok, nil
}

// loaderIn gives the first sector of a partition when it is that of a loader; ok is false for any other.
func (g *Guest) loaderIn(p Partition, c *Code) (sector []byte, ok bool, err error) {
	held, ok, err := g.area(p)
	if err != nil || !ok || held != c {
		return nil, false, err
	}
	sector, err = ondisk.Bytes(g.Disk, p.Off, 512)
	return sector, err == nil, err
}

// loaders finds what the boot loaders in sector 0 and in boot sectors store.
var loaders = Finder{Name: "boot loaders", Find: findLoaders}

func findLoaders(g *Guest) (f Found, err error) {
	for _, c := range g.codes {
		if c.Find == nil {
			continue
		}
		found, err := c.Find(g, c)
		if err != nil {
			return f, fmt.Errorf("%s: %w", c.Name, err)
		}
		f.add(found)
	}
	return f, nil
}

// bootSectors says what a move would break in the boot sectors of partitions.
var bootSectors = Finder{Name: "boot sectors", Find: everywhere(checkVolume)}

func checkVolume(g *Guest, p Partition, r *Found) error {
	if _, ok, err := g.area(p); !ok || err != nil {
		return err
	}
	b, err := ondisk.Bytes(g.Disk, p.Off, bootArea)
	if err != nil {
		return err
	}
	switch {
	case p.Kind == table.Extended:
		// Its first record has room for code: LILO and GRUB can be installed there.
		if p.Active && Identify(b[:codeLen]) == Unknown {
			text := fmt.Sprintf("the boot sector of the active partition %d holds code that is not known", p.Number)
			r.unbootable("boot-code", 0, text, whenUnknown)
		}
	case g.loader(b[:codeLen]) != Unknown:
		// Its Find tells.
	case p.Volume.Boot != nil:
		// Its code finds the volume by the BIOS parameter block; what a Windows stores besides is left to other finders.
	case p.Volume.Kind == volume.Disklabel:
		// boot1 of a BSD, which the label belongs to: package layout refuses those that keep places, by type and label.
	case p.Volume.Kind == volume.ExFAT && noExFATCode(b):
	case p.Volume.Boot == nil && p.Active && !ondisk.IsZero(b) && b[510] == 0x55 && b[511] == 0xaa:
		r.unknownSector(g, p)
	}
	return nil
}

// noExFATCode tells that the boot sector of an exFAT has no code: the specification wants halts then, and formatters write zeros. Spec: 3.1.15.
func noExFATCode(b []byte) bool { return len(bytes.Trim(b[120:510], "\x00\xf4")) == 0 }

// unknownSector judges a boot sector that nothing here knows. Where code in sector 0 reads it, it may find its volume by a place that stands
// in it, as that of OS/2 does. Where there is no such code, nothing boots by it unless it is a loader in front of a file system that has no
// code of its own.
func (r *Found) unknownSector(g *Guest, p Partition) {
	if p.Volume.Kind == volume.Unknown && g.Code == Empty {
		r.warn("boot-code", p.Number, "the active partition has a boot sector of an unknown kind: it moves as it is", "")
		return
	}
	r.unbootable("boot-code", p.Number, "the boot sector of the active partition holds code that is not known", whenUnknown)
}
