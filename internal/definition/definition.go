// Package definition reads what a hypervisor stores of a machine's disks: the domains and volumes of libvirt, and the
// VMX of VMware. It finds the entry of one disk, and what has to change there after the disk was aligned. It edits
// nothing, and opens no files.
package definition

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/ondisk"
)

// MaxText bounds a definition, in bytes. Real ones have some KiB.
const MaxText = 1 << 20

// Definition holds the disks that a file names.
type Definition struct {
	kind  kind
	name  string // of the machine or the volume
	disks []entry
	// tracked is the line by which a VMX has changed blocks tracked, 0 for none.
	tracked int
}

type kind int

const (
	domain kind = iota
	volume
	vmx
)

// entry is one disk. Lines count from 1; 0: the file has none.
type entry struct {
	line   int
	device string // what messages call it: vda, scsi0:0
	path   string // as it stands there
	pool   string // of a volume that a domain names by its pool; path is its name then

	format     string // of libvirt; empty: not given, which means raw
	formatLine int
	geometry   int // the line that sets heads and cylinders

	capacity     int64 // of a volume, in bytes
	capacityLine int

	sliced bool
	below  []layer
}

// layer is a further file of a disk.
type layer struct {
	line int
	path string
	role string
}

// Case is a disk that was aligned, or is about to be.
type Case struct {
	File string // what messages call the definition
	Disk string // and the disk
	Base string // the name of its file
	// Same reports whether a path of the definition leads to the disk.
	Same     func(path string) bool
	Dest     string // the path of the copy; empty: it has the path of the disk
	Block    bool   // the copy is a device
	Format   string // of the result
	Old, New int64  // sizes of the disk, bytes
}

// Check finds the disk and returns what has to change. An error means that the machine does not use the disk, or uses
// it below another.
func (d *Definition) Check(c Case) ([]ondisk.Issue, error) {
	for _, e := range d.disks {
		for _, l := range e.below {
			if c.Same(l.path) {
				return nil, refuse(fmt.Sprintf("%s, line %d: %s %q runs from %q, and the disk is its %s", c.File,
					l.line,
					e.device, d.name, e.path, l.role), "commit or consolidate that first, then give the new definition")
			}
		}
		if disk, ok := strings.CutSuffix(e.path, snapshotOf(e.path)); ok && disk != e.path && c.Same(disk+".vmdk") {
			return nil, refuse(fmt.Sprintf("%s, line %d: %s runs from %q, a snapshot of the disk", c.File, e.line,
				e.device, e.path), "consolidate the snapshots first")
		}
		if e.pool != "" && e.path == c.Base || e.pool == "" && c.Same(e.path) {
			if e.sliced {
				return nil, refuse(fmt.Sprintf("%s, line %d: %s is only a part of the file (<slices>)", c.File, e.line,
					e.device), "align that part on its own")
			}
			return d.changes(e, c), nil
		}
	}
	return nil, refuse(fmt.Sprintf("%s names no disk that leads to %s%s", c.File, c.Disk, d.named()),
		"give the definition of the machine that uses the disk")
}

func refuse(reason, remedy string) error {
	return &ondisk.Refusal{Code: "reference", Reason: reason, Remedy: remedy}
}

// maxNamed bounds the disks that a message names.
const maxNamed = 4

// named lists the disks that a definition has.
func (d *Definition) named() string {
	var out []string
	for n, e := range d.disks {
		if n == maxNamed {
			out = append(out, fmt.Sprintf("and %d more", len(d.disks)-n))
			break
		}
		out = append(out, fmt.Sprintf("%.256q", e.path))
	}
	if len(out) == 0 {
		return ", and no disk at all"
	}
	return "; it names " + strings.Join(out, ", ")
}

// formats are the names that libvirt has for formats. Source: docs/formatstorage.rst of libvirt, "format".
var formats = map[string]string{
	"raw": "raw", "qcow2": "qcow2", "vmdk": "vmdk", "vdi": "vdi", "vhd": "vpc", "vhdx": "vhdx",
}

// changes lists what has to change in an entry.
func (d *Definition) changes(e entry, c Case) (out []ondisk.Issue) {
	say := func(effect ondisk.Effect, what string, line int, remedy, format string, args ...any) {
		out = append(out, ondisk.Issue{
			Code: what, Effect: effect, Remedy: remedy,
			Text: fmt.Sprintf("%s, line %d: ", c.File, line) + fmt.Sprintf(format, args...),
		})
	}
	if c.Dest != "" {
		remedy := fmt.Sprintf("to use the copy, name %q there", c.Dest)
		if c.Block && d.kind == domain {
			remedy = fmt.Sprintf("to use the copy, write <disk type='block'> and <source dev=%q/> there", c.Dest)
		}
		say(ondisk.Warn, "definition-path", e.line, remedy, "%s leads to the disk as it was", e.device)
	}
	want, has := formats[c.Format], cmp.Or(e.format, "raw")
	switch {
	case d.kind == vmx && c.Format != "vmdk":
		say(ondisk.Warn, "definition-format", e.line, "write a VMDK: --to vmdk",
			"a VMX names VMDKs, and the disk is %s", c.Format)
	case d.kind != vmx && want != "" && has != want:
		say(ondisk.Warn, "definition-format", cmp.Or(e.formatLine, e.line), fmt.Sprintf("set type='%s' there", want),
			"the format is %s, and the disk is %s", has, want)
	}
	if d.kind == volume && e.capacity != c.New {
		say(ondisk.Warn, "definition-size", e.capacityLine, "virsh pool-refresh of its pool reads the new size",
			"the capacity is %d bytes, and the aligned disk has %d", e.capacity, c.New)
	}
	if e.geometry > 0 && c.Old != c.New {
		say(ondisk.Warn, "definition-geometry", e.geometry, "count the cylinders anew, or remove <geometry>",
			"<geometry> describes %d bytes, and the aligned disk has %d", c.Old, c.New)
	}
	if d.tracked > 0 {
		say(ondisk.Note, "definition-tracking", d.tracked, "the first backup of the aligned disk is a full one",
			"changed blocks are tracked (ctkEnabled), and what was tracked is about the old layout")
	}
	if len(out) == 0 {
		say(ondisk.Note, "definition", e.line, "", "%s is this one, and nothing has to change there", e.device)
	}
	return out
}
