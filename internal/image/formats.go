package image

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/qcow2"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/vdi"
	"github.com/trueup/trueup/internal/image/vhd"
	"github.com/trueup/trueup/internal/image/vhdx"
	"github.com/trueup/trueup/internal/image/vmdk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/ovf"
)

// Formats lists all supported formats except raw, the fallback.
var Formats = []driver.Format{
	qcow2.Format,
	vdi.Format,
	vhd.Format,
	vhdx.Format,
	vmdk.Format,
}

// All yields all formats, raw last.
func All(yield func(driver.Format) bool) {
	for _, f := range Formats {
		if !yield(f) {
			return
		}
	}
	yield(raw.Format)
}

// ByName returns a format by its name in --format and --to.
func ByName(name string) (driver.Format, bool) {
	for f := range All {
		if f.Name == name {
			return f, true
		}
	}
	return driver.Format{}, false
}

// Names lists the supported formats, for help texts and completion.
func Names() []string {
	var out []string
	for f := range All {
		out = append(out, f.Name)
	}
	return out
}

// Title returns the vendor's spelling of a format, also of an unsupported one.
func Title(format string) string {
	if f, ok := ByName(format); ok {
		return cmp.Or(f.Title, f.Name)
	}
	if format != strings.ToLower(format) {
		return format
	}
	return strings.ToUpper(format)
}

// FormatName returns the name of a format from user input, which may have any case or be QEMU's name.
func FormatName(name string) string {
	name = strings.ToLower(name)
	for f := range All {
		if f.Alias != "" && f.Alias == name {
			return f.Name
		}
	}
	return name
}

// extended returns the format of an extension (".vhd"), or the title of an unsupported format.
func extended(ext string) string {
	for f := range All {
		if slices.Contains(f.Extensions, ext) {
			return f.Name
		}
	}
	for _, c := range others {
		if ext != "" && c.extension == ext {
			return c.name
		}
	}
	return ""
}

// SuffixFormat returns the format of a file extension. It returns an empty string for an ambiguous extension, such as
// .img, and for an unknown one.
func SuffixFormat(path string) string {
	ext := strings.ToLower(filepath.Ext(path))
	if ext == ".raw" {
		return raw.Format.Name
	}
	return extended(ext)
}

// Kinds of packages, as users write them: an archive, or an OVF with its files in one folder.
const (
	packageOVA = "OVA"
	packageOVF = "OVF"
)

// others are the recognised formats without a reader. A short magic number is checked together with further header
// fields, since boot code may begin with any two bytes.
var others = slices.Concat(disks, packed, []recognised{
	{
		name: isoName, kind: Medium, detect: at(0x8001, "CD001"),
		remedy: "an image of an optical disc needs no alignment",
	},
	{
		name: "WIM", kind: Medium, detect: either(prefix("MSWIM\x00\x00\x00"), prefix("WLPWM\x00\x00\x00")),
		remedy: "it holds files, not a disk: apply it to a disk first (wimapply, DISM)",
	},
	{name: packageOVA, extension: ".ova", remedy: "an OVA inside an OVA is not supported", detect: at(257, "ustar")},
	{
		name: packageOVF, extension: ".ovf", remedy: "it is the descriptor of a package, not a disk",
		detect: func(head, _ []byte) bool { return ovf.Looks(head) },
	},
})

// disks are unsupported disk image formats.
var disks = []recognised{
	// Spec: block/qcow.c of QEMU: version, big-endian.
	{name: "qcow", over: qcow2.Format.Name, detect: prefix("QFI\xfb\x00\x00\x00\x01")},
	{name: "QED", extension: ".qed", detect: isQED},
	{
		name: Parallels, extension: ".hdd", remedy: "convert it with qemu-img convert -f parallels -O vmdk (or " +
			"raw), and use the result; with snapshots it is only a part of the disk",
		detect: either(prefix("WithoutFreeSpace"), prefix("WithouFreSpacExt")),
	},
	{
		name: Parallels, detect: bundle("Compressed"),
		remedy: "convert its .hds file with qemu-img convert -f parallels -O vmdk (or raw), and use the result",
	},
	{
		name: Parallels, detect: bundle("Plain"),
		remedy: "name its .hds file, a raw disk, with --format raw",
	},
	{
		name: Parallels, detect: bundle(""),
		remedy: "it has snapshots or parts: merge them first (prl_disk_tool merge)",
	},
	// The format is unpublished, so only the name identifies it.
	{
		name: "VHD Set", extension: ".vhds",
		remedy: "name the .avhdx file in the same folder, a VHDX, while no machine uses it",
	},
	{name: "Bochs", detect: prefix("Bochs Virtual HD Image")},
	{name: "DMG", detect: func(_, tail []byte) bool { return has(tail, len(tail)-512, "koly") }},
	{
		name: "cloop", detect: prefix("#!/bin/sh\n#V"),
		remedy: "unpack it with qemu-img convert -f cloop -O raw, and use the result",
	},
	{name: "EWF (E01)", detect: prefix("EVF\x09\x0d\x0a\xff\x00"), remedy: "export it to raw with ewfexport"},
	{name: "EWF2 (Ex01)", detect: prefix("EVF2\x0d\x0a\x81\x00"), remedy: "export it to raw with ewfexport"},
	{name: "AFF", detect: prefix("AFF10\x0d\x0a\x00"), remedy: "convert it to raw with affconvert -r"},
	{
		name: "Apple sparseimage", detect: both(prefix("sprs"), be32(4, 3)),
		remedy: "convert it to raw with hdiutil convert -format UDTO",
	},
	{
		name: "ASIF", detect: both(prefix("shdw"), be32(4, 1)),
		remedy: "convert it on macOS with diskutil image create from, and use the raw result",
	},
	{
		name: "Android sparse", detect: both(prefix("\x3a\xff\x26\xed"), le16(4, 1)),
		remedy: "convert it to raw with simg2img",
	},
	{name: "Proxmox VMA", detect: both(prefix("VMA\x00"), be32(4, 1)), remedy: "extract its disks with vma extract"},
	{
		name: "partclone", detect: prefix("partclone-image"),
		remedy: "it holds one partition, not a disk: restore it with partclone.restore",
	},
	{
		name: "ntfsclone", detect: prefix("\x00ntfsclone-image"),
		remedy: "it holds one partition, not a disk: restore it with ntfsclone --restore-image",
	},
}

// packed are compression formats, with any content. A disk with a partition table is never one.
var packed = []recognised{
	{name: "gzip", kind: Packed, detect: gzip, remedy: "unpack it first: gunzip -k"},
	{name: "xz", kind: Packed, detect: prefix("\xfd7zXZ\x00\x00"), remedy: "unpack it first: unxz -k"},
	{name: "zstd", kind: Packed, detect: zstd, remedy: "unpack it first: unzstd"},
	{name: "bzip2", kind: Packed, detect: bzip2, remedy: "unpack it first: bunzip2 -k"},
	{name: "lz4", kind: Packed, detect: lz4, remedy: "unpack it first: unlz4"},
	{name: "lzop", kind: Packed, detect: prefix("\x89LZO\x00\x0d\x0a\x1a\x0a"), remedy: "unpack it first: lzop -d"},
	{name: "zip", kind: Packed, detect: zip, remedy: "unpack it first: unzip"},
	{name: "7z", kind: Packed, detect: prefix("7z\xbc\xaf\x27\x1c"), remedy: "unpack it first: 7z x"},
	{name: "RAR", kind: Packed, detect: prefix("Rar!\x1a\x07"), remedy: "unpack it first: unrar x"},
}

// Parallels is the disk format of Parallels: one file, or a folder with a descriptor and data files.
const Parallels = "Parallels HDD"

// BundleDescriptor is the name of the descriptor in such a folder.
const BundleDescriptor = "DiskDescriptor.xml"

// bundle detects the descriptor of a disk in one file of the given kind; "" stands for all others. Spec: docs/interop
// of QEMU, "Parallels Disk Format".
func bundle(kind string) detector {
	return func(head, _ []byte) bool {
		if !bytes.HasPrefix(head, []byte("<")) || !bytes.Contains(head, []byte("<Parallels_disk_image")) {
			return false
		}
		of := ""
		if bytes.Count(head, []byte("<File>")) == 1 && bytes.Contains(head, []byte("</Parallels_disk_image>")) {
			for _, k := range []string{"Compressed", "Plain"} {
				if bytes.Contains(head, []byte("<Type>"+k+"</Type>")) {
					of = k
				}
			}
		}
		return of == kind
	}
}

// InBundle reports whether a file of this name can be a data file of a Parallels folder.
func InBundle(name string) bool {
	return slices.Contains([]string{".hdd", ".hds"}, strings.ToLower(filepath.Ext(name)))
}

type detector = func(head, tail []byte) bool

func prefix(magic string) detector { return at(0, magic) }

func at(off int, magic string) detector {
	return func(head, _ []byte) bool { return has(head, off, magic) }
}

func either(a, b detector) detector {
	return func(head, tail []byte) bool { return a(head, tail) || b(head, tail) }
}

func both(a, b detector) detector {
	return func(head, tail []byte) bool { return a(head, tail) && b(head, tail) }
}

func be32(off int, want uint32) detector {
	return func(head, _ []byte) bool { return len(head) >= off+4 && binary.BigEndian.Uint32(head[off:]) == want }
}

func le16(off int, want uint16) detector {
	return func(head, _ []byte) bool { return len(head) >= off+2 && binary.LittleEndian.Uint16(head[off:]) == want }
}

// gzip detects a member header: deflate, no reserved flag, and a known operating system. Spec: RFC 1952, 2.3.
func gzip(head, _ []byte) bool {
	const header = 10
	if len(head) < header || !has(head, 0, "\x1f\x8b\x08") {
		return false
	}
	flags, level, system := head[3], head[8], head[9]
	return flags&0xe0 == 0 && slices.Contains([]byte{0, 2, 4}, level) && (system <= 13 || system == 0xff)
}

// zstd detects a frame with a clear reserved bit, or a skippable frame. Spec: RFC 8878, 3.1.
func zstd(head, _ []byte) bool {
	return has(head, 0, "\x28\xb5\x2f\xfd") && len(head) > 4 && head[4]&0x08 == 0 ||
		has(head, 1, "\x2a\x4d\x18") && head[0]&0xf0 == 0x50
}

// bzip2 detects a stream: its level, then the magic number of a block or of the end.
func bzip2(head, _ []byte) bool {
	return has(head, 0, "BZh") && len(head) > 3 && head[3] >= '1' && head[3] <= '9' &&
		(has(head, 4, "1AY&SY") || has(head, 4, "\x17\x72\x45\x38\x50\x90"))
}

// lz4 detects a frame of version 1, or a legacy one. Spec: lz4_Frame_format.
func lz4(head, _ []byte) bool {
	return has(head, 0, "\x04\x22\x4d\x18") && len(head) > 4 && head[4]>>6 == 1 || has(head, 0, "\x02\x21\x4c\x18")
}

// zip detects a local file header with a version of APPNOTE 4.4.3, or an archive without files.
func zip(head, _ []byte) bool {
	const newest = 63
	return has(head, 0, "PK\x03\x04") && len(head) > 5 && head[4] <= newest || has(head, 0, "PK\x05\x06")
}

// qedHeader is the header of a QED image, little-endian. Spec: docs/interop/qed_spec.rst of QEMU, "Header".
type qedHeader struct {
	Magic           [4]byte // "QED\0"
	ClusterSize     uint32  // bytes
	TableSize       uint32  // clusters
	HeaderSize      uint32  // clusters
	Features        uint64
	_               [16]byte // compatible and autoclear features
	L1TableOffset   uint64   // bytes
	ImageSize       uint64   // bytes
	BackingFileName uint32   // bytes from the start of the file
	BackingFileSize uint32   // bytes
}

const (
	qedBackingFile = 1 << 0  // of Features
	maxBackingName = 4 << 10 // bytes
)

// qed has no reader: its overlays are found, but not opened.
var qed = driver.Format{
	Name: "QED", Detect: isQED, Names: qedNames, AnyExtension: true,
	Extensions: []string{".qed"},
}

var isQED = prefix("QED\x00")

// qedNames returns the parents in a QED image, and none for a file of another format.
func qedNames(f driver.File) (n driver.Names, err error) {
	head := make([]byte, min(f.Size(), magicBlock))
	if err := ondisk.ReadFull(f, head, 0); err != nil || !isQED(head, nil) {
		return n, err
	}
	var h qedHeader
	if _, err := ondisk.Decode(f, 0, &h); err != nil {
		return driver.Names{Broken: true}, nil //nolint:nilerr // the file ends within its header
	}
	if h.Features&qedBackingFile == 0 {
		return n, nil
	}
	at, size := int64(h.BackingFileName), int64(h.BackingFileSize)
	if size > maxBackingName || at+size > f.Size() {
		return driver.Names{Broken: true}, nil
	}
	name, err := ondisk.Bytes(f, at, size)
	if err == nil {
		n.Parents, n.Broken = driver.BackingFiles(string(name))
	}
	return n, err
}
