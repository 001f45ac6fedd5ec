// Package vmdk reads and writes VMware disks in one or several files, flat or sparse. It only reads the sparse extents
// of ESXi (snapshots), and device maps if a file replaces the device. It recognises and refuses other subformats.
//
// Specification: VMware Virtual Disks, "Virtual Disk Format 1.1" (2007). Comments mark where real files differ.
package vmdk

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Names of the supported subformats, equal to the createType of the descriptor. vmfsSparse and seSparse are read only.
const (
	monolithicSparse = "monolithicSparse"
	monolithicFlat   = "monolithicFlat"
	splitSparse      = "twoGbMaxExtentSparse"
	splitFlat        = "twoGbMaxExtentFlat"
	vmfs             = "vmfs"
	vmfsSparse       = "vmfsSparse"
	seSparse         = "seSparse"
	streamOptimized  = "streamOptimized"
)

const name = "vmdk"

// Format is VMDK.
var Format = driver.Format{
	Name:       name,
	Title:      "VMDK",
	Detect:     detect,
	Open:       open,
	Create:     create,
	Reports:    reports,
	Subformats: []string{monolithicSparse, monolithicFlat, splitSparse, splitFlat, vmfs, streamOptimized},
	Names:      names,
	Rename:     rename,
	Glance:     glance,
	Extensions: []string{".vmdk"},
	// Programs accept a descriptor of any name.
	AnyExtension: true,
}

// Magic numbers of the binary files, at byte 0.
const (
	magicSparse = "KDMV"
	magicCOWD   = "COWD"
)

// isSESparse reports whether head begins with the magic number of an seSparse extent, the 64-bit little-endian constant
// 0xcafebabe.
func isSESparse(head []byte) bool {
	return bytes.HasPrefix(head, []byte{0xbe, 0xba, 0xfe, 0xca, 0, 0, 0, 0})
}

func detect(head, _ []byte) bool {
	return bytes.HasPrefix(head, []byte(magicSparse)) || bytes.HasPrefix(head, []byte(magicCOWD)) ||
		isSESparse(head) || isDescriptor(head)
}

// isDescriptor reports whether a file starts with the usual first line of a descriptor, after byte order marks and
// blank lines. It accepts UTF-16 so that the error can name the encoding.
func isDescriptor(head []byte) bool {
	head = head[:min(len(head), 1024)]
	for _, bom := range []string{"\xff\xfe", "\xfe\xff"} {
		if rest, ok := bytes.CutPrefix(head, []byte(bom)); ok {
			head = bytes.ReplaceAll(rest, []byte{0}, nil)
		}
	}
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	const first = "# Disk DescriptorFile"
	return len(head) >= len(first) && strings.EqualFold(string(head[:len(first)]), first)
}

func open(s *driver.Source) (*driver.Image, error) {
	head := make([]byte, min(s.File.Size(), units.SectorSize))
	if err := ondisk.ReadFull(s.File, head, 0); err != nil {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte(magicSparse)):
		return openSparse(s)
	case bytes.HasPrefix(head, []byte(magicCOWD)):
		return nil, lone("vmfsSparse extent (COWD)")
	case isSESparse(head):
		return nil, lone("seSparse extent")
	}
	if s.File.Size() > maxText {
		return nil, fmt.Errorf("%s of %d bytes: %w of %d bytes", descriptorName, s.File.Size(), ondisk.ErrLimit,
			maxText)
	}
	text, err := ondisk.Bytes(s.File, 0, s.File.Size())
	if err != nil {
		return nil, err
	}
	d, err := parseDescriptor(text)
	if err != nil {
		return nil, err
	}
	return openDescriptor(s, d)
}

func unsupported(subformat string) error {
	return fmt.Errorf("VMDK %s: %w; convert it with qemu-img convert -O vmdk, or clone it to a flat disk",
		subformat, ondisk.ErrUnsupported)
}

// lone returns the error of an extent that was opened by itself. Other data may lie in further extents or in a parent,
// to which only the descriptor refers.
func lone(extent string) error {
	return fmt.Errorf("VMDK %s: %w; open the descriptor file that names this extent", extent, driver.ErrLone)
}

// vsanSparse is the only unsupported createType of ESXi. Its extents are vSAN objects.
const vsanSparse = "vsanSparse"

// custom is the createType of a disk with extents of several kinds.
const custom = "custom"

// flatTypes maps each type with flat extents to the subformat of its copies. Three types differ from vmfs only in the
// allocation of space on ESXi. The last ones map devices, and are flat disks if files replace the devices.
var flatTypes = map[string]string{
	monolithicFlat: monolithicFlat, splitFlat: splitFlat, vmfs: vmfs,
	"vmfsThin": vmfs, "vmfsPreallocated": vmfs, "vmfsEagerZeroedThick": vmfs,
	custom:       monolithicFlat,
	"fullDevice": monolithicFlat, "partitionedDevice": monolithicFlat,
	"vmfsRaw": vmfs, "vmfsRDM": vmfs, "vmfsRDMP": vmfs, "vmfsRawDeviceMap": vmfs,
	"vmfsPassthroughRawDeviceMap": vmfs,
}

// deviceTypes lists the flat types that map devices.
var deviceTypes = []string{
	"fullDevice", "partitionedDevice", "vmfsRaw", "vmfsRDM", "vmfsRDMP", "vmfsRawDeviceMap",
	"vmfsPassthroughRawDeviceMap",
}

// mapsDevice reports whether the disk or one of its extents maps a device.
func (d *descriptor) mapsDevice() bool {
	kind, _ := d.get("createtype")
	return slices.Contains(deviceTypes, kind) || slices.ContainsFunc(d.extents, (*extent).mapsDevice)
}

// sparseTypes maps each type with grains to the word in its extent lines.
var sparseTypes = map[string]string{splitSparse: "SPARSE", vmfsSparse: "VMFSSPARSE", seSparse: "SESPARSE"}

var sparseKinds = map[string]bool{"SPARSE": true, "VMFSSPARSE": true, "SESPARSE": true}

// openDescriptor opens the disk of a descriptor, which is a file or the text in a sparse header without data.
func openDescriptor(s *driver.Source, d *descriptor) (*driver.Image, error) {
	kind, no := d.get("createtype")
	switch {
	case no == 0:
		return nil, ondisk.Field(descriptorName, "createType", 0, "", "a line createType=…")
	case kind == monolithicSparse, kind == streamOptimized:
		return openMisplacedSparse(s, d, kind)
	case kind == vsanSparse:
		if _, err := d.parentRef(); err != nil {
			return nil, err
		}
		return nil, unsupported(kind)
	case flatTypes[kind] == "" && sparseTypes[kind] == "":
		return nil, textErr(no, ondisk.ErrFormat, "createType %.64q, want %s, %s or another that VMware writes", kind,
			monolithicFlat, vmfs)
	case len(d.extents) == 0:
		return nil, ondisk.Field(descriptorName, "extents", 0, 0, "at least one")
	}
	img, err := openExtents(s, d, kind)
	if err == nil && kind != img.Subformat {
		img.Details = append(img.Details, driver.Detail{Name: "createType", Value: kind})
	}
	return img, err
}

// openExtents opens a disk by its type. A custom disk without grains is flat.
func openExtents(s *driver.Source, d *descriptor, kind string) (*driver.Image, error) {
	sparse := func(e *extent) bool { return sparseKinds[e.kind] }
	if sparseTypes[kind] != "" || kind == custom && slices.ContainsFunc(d.extents, sparse) {
		return openSplit(s, d, kind)
	}
	return openFlat(s, d, flatTypes[kind])
}

// openMisplacedSparse returns the error of a descriptor outside of its sparse extent.
func openMisplacedSparse(s *driver.Source, d *descriptor, kind string) (*driver.Image, error) {
	if len(d.extents) > 0 {
		if _, err := openOther(s, 0, d.extents[0]); err != nil {
			return nil, err
		}
	}
	return nil, textErr(1, ondisk.ErrFormat,
		"createType %s, want the descriptor inside its extent; open the extent file itself", kind)
}

// image sets the fields common to both kinds of disk.
func image(d *descriptor, kind string, dk disk.Disk) (*driver.Image, error) {
	cid, err := d.cid("cid", 0)
	if err != nil {
		return nil, err
	}
	if err := d.checkSectorSize(dk); err != nil {
		return nil, err
	}
	img := &driver.Image{
		Disk: dk, Subformat: kind, Template: d, ContentID: contentID(cid), MapsDevice: d.mapsDevice(),
	}
	if _, no := d.get("parentcid"); no == 0 {
		img.Issues = append(img.Issues, ondisk.Issue{
			Code: "no-parent-cid", Effect: ondisk.Warn,
			Text: descriptorName + " has no parentCID line: trueup treats the disk as complete, since it names no " +
				"parent; qemu-img does not open it",
			Remedy: "make sure that it is not a snapshot, and add the line parentCID=ffffffff; a copy has it",
		})
	}
	for _, key := range []string{"ddb.adapterType", "ddb.virtualHWVersion", "ddb.toolsVersion", imageUUID} {
		if v, no := d.get(strings.ToLower(key)); no > 0 {
			img.Details = append(img.Details, driver.Detail{Name: strings.TrimPrefix(key, "ddb."), Value: v})
		}
	}
	img.Details = append(img.Details, driver.Detail{Name: "CID", Value: contentID(cid)})
	if c, h, s := d.geometry(); h > 0 && s > 0 {
		img.Details = append(img.Details, driver.Detail{Name: "geometry", Value: fmt.Sprintf("%d/%d/%d", c, h, s)})
		img.Heads, img.Sectors = int(h), int(s)
	}
	img.BIOS = d.reported(d.size())
	return img, nil
}

// geometry returns cylinders, heads and sectors of the disk data base; an absent value is 0.
func (d *descriptor) geometry() (c, h, s int64) {
	return d.ddbInt("ddb.geometry.cylinders"), d.ddbInt("ddb.geometry.heads"), d.ddbInt("ddb.geometry.sectors")
}

const sectorSizeKey = "ddb.logicalsectorsize"

// sectorSize returns the sector size of the disk in bytes. Sizes in the descriptor always count sectors of 512 bytes.
func (d *descriptor) sectorSize() int64 {
	if n := d.ddbInt(sectorSizeKey); n > 0 {
		return n
	}
	return units.SectorSize
}

// without returns the descriptor without the lines of a key.
func (d *descriptor) without(key string) *descriptor {
	out := *d
	out.lines = slices.DeleteFunc(slices.Clone(d.lines), func(l line) bool { return l.key == key })
	return &out
}

// checkSectorSize rejects a sector size other than 512 or 4096, and a disk with a partial sector.
func (d *descriptor) checkSectorSize(dk disk.Disk) error {
	const fourK = 4096
	n := d.sectorSize()
	_, no := d.get(sectorSizeKey)
	switch {
	case n != units.SectorSize && n != fourK:
		return textErr(no, ondisk.ErrUnsupported, "ddb.logicalSectorSize %d: not supported, want %d or %d", n,
			units.SectorSize, fourK)
	case dk.Size()%n != 0:
		return textErr(no, ondisk.ErrFormat,
			"ddb.logicalSectorSize %d, but the size of the disk, %d bytes, is not a multiple of it", n, dk.Size())
	}
	return nil
}
