package vmdk

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
)

// noParent is the parentCID of a complete disk.
const noParent = 0xffffffff

// parentRef names the disk that this one completes, nil for a complete disk. Two fields name a parent, and both must
// agree: programs differ in which they believe.
func (d *descriptor) parentRef() (*driver.ParentRef, error) {
	parent, err := d.cid("parentcid", noParent)
	if err != nil {
		return nil, err
	}
	hint, hintLine := d.get("parentfilenamehint")
	_, parentLine := d.get("parentcid")
	const remedy = "consolidate the snapshots or clone the disk to one complete image first"
	switch {
	case parent == noParent && hintLine == 0:
		return nil, nil //nolint:nilnil // a complete disk
	case parent == noParent:
		return nil, &ondisk.Refusal{Code: "reference", Remedy: remedy, Reason: fmt.Sprintf(
			"%s line %d names the parent %.256q, but parentCID says that it is absent", what, hintLine, hint)}
	case hintLine == 0:
		return nil, &ondisk.Refusal{Code: "reference", Remedy: remedy, Reason: fmt.Sprintf(
			"%s line %d: parentCID %08x of a snapshot child, but no parentFileNameHint names the parent", what,
			parentLine, parent)}
	}
	return &driver.ParentRef{Names: ondisk.StoredNames(d.charset, hint), Format: name, ID: contentID(parent)}, nil
}

// contentID returns how a child writes the CID of its parent.
func contentID(cid uint32) string { return fmt.Sprintf("%08x", cid) }

// openParent opens the disk that this one completes, nil when it is complete.
func (d *descriptor) openParent(s *driver.Source) (*driver.Image, error) {
	ref, err := d.parentRef()
	if ref == nil || err != nil {
		return nil, err
	}
	return s.Parent(*ref)
}

// refuseParent is for disks whose extents hold every byte.
func (d *descriptor) refuseParent(kind string) error {
	ref, err := d.parentRef()
	if ref == nil || err != nil {
		return err
	}
	_, no := d.get("parentfilenamehint")
	return textErr(no, ondisk.ErrFormat,
		"the parent %.256q of a disk of the createType %s, want none: flat extents hold every byte of a disk and not "+
			"what changed since a snapshot",
		ref.Names[0], kind)
}

// over returns what shows through the holes of an extent that begins at byte at of the disk.
func over(parent *driver.Image, at int64) func(off, n int64) disk.Run {
	if parent == nil {
		return nil
	}
	return func(off, n int64) disk.Run { return driver.Below(parent, at+off, n) }
}

// inherited are the lines of the disk data base that ESXi does not repeat in a child, and without which a flattened
// copy would have no adapter and no geometry.
var inherited = []string{
	"ddb.adaptertype", "ddb.geometry.cylinders", "ddb.geometry.heads", "ddb.geometry.sectors", "ddb.virtualhwversion",
	"ddb.geometry.bioscylinders", "ddb.geometry.biosheads", "ddb.geometry.biossectors", "ddb.toolsversion",
	"ddb.toolsinstalltype", "ddb.uuid",
}

// inherit takes what the descriptor of a child lacks from its parent's.
func (d *descriptor) inherit(parent *driver.Image) *descriptor {
	if parent == nil {
		return d
	}
	from, _ := sourceOf(parent.Template, driver.Geometry{})
	out := *d
	out.lines = slices.Clone(d.lines)
	for _, key := range inherited {
		if _, no := d.get(key); no > 0 {
			continue
		}
		for _, l := range from.lines {
			if l.key == key {
				out.lines = append(out.lines, l)
				break
			}
		}
	}
	return &out
}
