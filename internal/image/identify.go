package image

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/gate"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/vhd"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// Kind is the purpose of a file.
type Kind string

// Kinds of files.
const (
	Other       Kind = ""            // no image
	Disk        Kind = "disk"        // an image, complete or with other files
	Extent      Kind = "extent"      // part of an image, useless without its descriptor
	Bare        Kind = "bare"        // no known format: a disk, an extent, or any other data
	Pack        Kind = "package"     // an OVA or OVF
	Unsupported Kind = "unsupported" // a recognised format without a reader
	Medium      Kind = "medium"      // an ISO, where alignment does not matter
	Packed      Kind = "packed"      // a compressed file, which could hold an image
	Companion   Kind = "companion"   // beside a disk: named like an image, without disk data, see CompanionOf
)

// Identity describes a file by its first bytes and the file names in it. Nothing else is validated.
type Identity struct {
	Kind    Kind      `json:"kind,omitempty"`
	Format  string    `json:"format,omitempty"`  // as users write it
	Remedy  string    `json:"remedy,omitempty"`  // for a compressed file
	Extents FileNames `json:"extents,omitempty"` // distinct data files; in an OVF the files of its disks
	// Claims holds, for each of Extents, the bytes used of a file without a header, from its start on.
	Claims  []int64   `json:"claims,omitempty"`
	Views   FileNames `json:"views,omitempty"`   // extents of which only inner ranges are used
	Parents FileNames `json:"parents,omitempty"` // parents, the last component of each name
	// Lineage is the ContentID of the parent, in a format without file names.
	Lineage string `json:"lineage,omitempty"`
	Table   bool   `json:"table,omitempty"` // without a format: a partition table and the start of a partition
	Read    int64  `json:"read,omitempty"`  // bytes read for the identification; set by the caller
}

// maxNamed limits the file names kept of an image: no reader supports more extents.
const maxNamed = 4096

// plainNames returns the distinct names that are valid in the folder.
func plainNames(names []string) FileNames {
	return unique(names, func(n string) bool { return gate.CheckStored(n) == nil })
}

// unique returns the distinct names for which keep returns true, at most maxNamed.
func unique(names []string, keep func(string) bool) (out FileNames) {
	seen := map[string]bool{}
	for _, n := range names {
		if !seen[n] && keep(n) && len(out) < maxNamed {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}

// claims returns the largest claim on each extent.
func claims(extents FileNames, n driver.Names) []int64 {
	if len(n.Claims) != len(n.Extents) {
		return nil
	}
	most := map[string]int64{}
	for i, name := range n.Extents {
		most[name] = max(most[name], n.Claims[i])
	}
	var out []int64
	for _, name := range extents {
		out = append(out, most[name])
	}
	return out
}

// Claimed returns the number of bytes that the image uses of a file without a header, from its start on.
func (id Identity) Claimed(name string) int64 {
	if i := slices.Index(id.Extents, name); i >= 0 && i < len(id.Claims) {
		return id.Claims[i]
	}
	return 0
}

// parentNames returns the distinct last components of names.
func parentNames(names []string) FileNames {
	var last []string
	for _, n := range names {
		last = append(last, lastName(n))
	}
	return unique(last, func(n string) bool { return len(n) <= maxNameLength })
}

// maxNameLength is the maximum length of a file name in bytes. Spec: NAME_MAX.
const maxNameLength = 255

// Identify returns the identity of the file at path. Unlike Open, it follows no links and opens no devices.
func Identify(path string, meter *gate.Meter) (id Identity, err error) {
	dir, err := gate.OpenFolder(filepath.Dir(path))
	if err != nil {
		return id, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	dir.Count(meter)
	f, err := dir.OpenAny(filepath.Base(path), ondisk.ErrUnsupported)
	if err != nil {
		return id, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return IdentifyFile(f)
}

// IdentifyFile returns the identity of an open file.
func IdentifyFile(f driver.File) (Identity, error) {
	found, names, other, err := recognise(f)
	switch {
	case err != nil:
		return Identity{}, err
	case len(names) == 0:
		return Identity{Kind: Bare, Format: raw.Format.Name, Table: other.table}, nil
	case len(names) > 1: // an error on opening
		n, err := readNames(f)
		return Identity{Kind: Disk, Format: strings.Join(names, "+"), Parents: parentNames(n.Parents)}, err
	case other.kind == Packed:
		return Identity{Kind: Packed, Format: names[0], Remedy: other.remedy}, nil
	case other.kind != "":
		return Identity{Kind: other.kind, Format: names[0]}, nil
	case names[0] == packageOVA:
		return Identity{Kind: Pack, Format: "ova"}, nil
	case names[0] == packageOVF:
		return Identity{Kind: Pack, Format: "ovf"}, nil
	case found.Name == raw.Format.Name:
		return Identity{Kind: Unsupported, Format: names[0]}, nil
	}
	id := Identity{Kind: Disk, Format: found.Name}
	n, err := glance(found, f)
	if err != nil {
		return id, err
	}
	if n.Part {
		id.Kind = Extent
	}
	id.Extents, id.Parents = plainNames(n.Extents), parentNames(n.Parents)
	id.Claims, id.Views, id.Lineage = claims(id.Extents, n), plainNames(n.Views), n.Lineage
	return id, nil
}

// IsPacked reports whether a format is a compression format, such as gzip.
func IsPacked(format string) bool {
	return slices.ContainsFunc(packed, func(r recognised) bool { return r.name == format })
}

// glance reads the file names in a file, with the cheapest method of its format.
func glance(format driver.Format, f driver.File) (driver.Names, error) {
	switch {
	case format.Glance != nil:
		return format.Glance(f)
	case format.Names != nil:
		return format.Names(f)
	}
	return driver.Names{}, nil
}

// smallest is the minimum size of an image: one sector, in bytes.
const smallest = units.SectorSize

// Named reports whether a file of size bytes has the name of an image, regardless of its content. If its content is no
// image, such a file is damaged.
func Named(name string, size int64) bool {
	if extended(strings.ToLower(filepath.Ext(name))) != "" {
		return true
	}
	// Firmware and boot floppies have these extensions too. A disk has whole sectors.
	return rawNamed(name) && size >= SmallestBare && size%units.SectorSize == 0
}

// SmallestBare is the minimum size of a raw disk that is identified by its name alone, in bytes. Floppies are smaller.
const SmallestBare = 4 * units.MiB

// IsFlatName reports whether a file has the name of an extent without a header.
func IsFlatName(name string) bool {
	ext := strings.ToLower(filepath.Ext(name))
	return ext == ".vmdk" && rawExtent().MatchString(strings.TrimSuffix(strings.ToLower(name), ext))
}

// Finder collects the images among the files of an archive, without extents and parents. The zero value is empty.
type Finder struct {
	// Packed makes compressed files count by their names.
	Packed bool

	parts map[string]bool
	found []string
}

// Add adds a file by its name in the archive, its size in bytes, and the results of IdentifyFile.
func (f *Finder) Add(name string, size int64, id Identity, err error) {
	if f.parts == nil {
		f.parts = map[string]bool{}
	}
	for _, x := range slices.Concat(id.Extents, id.Parents) {
		if x != path.Base(name) { // some images contain their own name
			f.parts[path.Join(path.Dir(name), x)] = true
		}
	}
	odd := err != nil || id.Kind == Bare || id.Kind == Unsupported || id.Kind == Packed && f.Packed
	if id.Kind == Disk || odd && (Named(name, size) || id.Table && rawNamed(name) && size >= SmallestBare) {
		f.found = append(f.found, name)
	}
}

// Images returns the names of the images, after all files were added.
func (f *Finder) Images() []string {
	return slices.DeleteFunc(f.found, func(name string) bool { return f.parts[name] || IsFlatName(name) })
}

// MayBeDisk reports whether a file of size bytes can be a raw disk. It needs whole sectors or a partition table; zeros
// fill a partial last sector.
func (id Identity) MayBeDisk(size int64) bool {
	return id.Kind == Bare && (id.Table || size >= smallest && size%units.SectorSize == 0)
}

// NamedEmpty reports whether an empty file has the name of an image, as after a failed copy.
func NamedEmpty(name string, size int64) bool { return size == 0 && Named(name, SmallestBare) }

// recognised is a format without a reader. It must never be read as raw, where the guest's disk has other offsets.
type recognised struct {
	name   string                       // as users write it
	detect func(head, tail []byte) bool // nil if only the extension is known
	remedy string                       // if empty, qemu-img can convert it
	kind   Kind                         // if empty, Unsupported
	// extension is an extension, with the dot, that no other format uses; or empty.
	extension string
	// over is the supported format with the same magic number, which this format overrides; or empty.
	over string
	// table reports a file without a format that has a partition table and the start of a partition.
	table bool
}

// headSize and tailSize are the parts of a file for detection, in bytes. The ISO 9660 descriptor is at the highest
// offset.
const (
	headSize = 36 << 10
	tailSize = 1024
)

// isoName is the user's name of the CD image format.
const isoName = "ISO 9660"

// Parts of the head for detection, in bytes. Magic numbers are in the first block, the root of an XML text can follow a
// long comment, and the ISO 9660 descriptor has a fixed offset.
const (
	magicBlock = 4 << 10
	textBlock  = 8 << 10
	isoMark    = 0x8000
	isoLength  = 16
)

// ends holds buffers for head and tail of a file. They are reused, since a scan identifies thousands of files.
type ends struct {
	head [headSize]byte
	tail [tailSize]byte
}

var spareEnds = sync.Pool{New: func() any { return new(ends) }}

// read reads the head and the tail for detection.
func (e *ends) read(f driver.File) (head, tail []byte, err error) {
	if head, err = e.readHead(f); err != nil {
		return nil, nil, err
	}
	tail = e.tail[:min(f.Size(), tailSize)]
	if beyond(f) != nil {
		clear(tail) // formats with a header have no structures there
	} else {
		err = ondisk.ReadFull(f, tail, f.Size()-int64(len(tail)))
	}
	return head, tail, err
}

// readHead reads the parts of the head for detection; the rest is zeros.
func (e *ends) readHead(f driver.File) ([]byte, error) {
	clear(e.head[:])
	head := e.head[:min(f.Size(), headSize)]
	first := head[:min(len(head), magicBlock)]
	if err := ondisk.ReadFull(f, first, 0); err != nil {
		return nil, err
	}
	if text := bytes.TrimLeft(first, "\xef\xbb\xbf \t\r\n"); len(text) > 0 && text[0] == '<' {
		if err := ondisk.ReadFull(f, head[:min(len(head), textBlock)], 0); err != nil {
			return nil, err
		}
	}
	if len(head) < isoMark+isoLength {
		return head, nil
	}
	return head, ondisk.ReadFull(f, head[isoMark:isoMark+isoLength], isoMark)
}

// has reports whether b has magic at off, which may be out of range.
func has(b []byte, off int, magic string) bool {
	return off >= 0 && off <= len(b) && bytes.HasPrefix(b[off:], []byte(magic))
}

// detect returns the only format that matches the content. Two matches are an error: a guest can write the header of
// another format into its own disk, so that any choice would be a guess. requiredBy is the source of want: the command
// line or a child.
func detect(f driver.File, want, requiredBy string) (driver.Format, error) {
	found, names, other, err := recognise(f)
	switch {
	case err != nil:
		return found, err
	case want == raw.Format.Name && requiredBy == formatFlag: // forced by the user, for any content
		return raw.Format, nil
	case len(names) > 1:
		return found, ondisk.Field("image", "format", 0, strings.Join(names, " and "),
			"the content of one format; if the guest wrote one of the headers, remove it inside the guest")
	case want != "" && !matches(want, found.Name, names):
		content := cmp.Or(strings.Join(names, ""), "no known header") // one name at most
		return found, ondisk.Field("image", "format", 0, content, want+" (given by "+requiredBy+")")
	case len(names) == 1 && found.Name == raw.Format.Name:
		remedy := cmp.Or(other.remedy, "convert it with qemu-img convert -O vmdk (or raw), and use the result")
		return found, fmt.Errorf("%s: recognised, %w; %s", names[0], ondisk.ErrUnsupported, remedy)
	}
	return found, nil
}

// recognise returns the formats that match the content: the last supported one, the names of all, and the last
// unsupported one.
func recognise(f driver.File) (found driver.Format, names []string, other recognised, err error) {
	e, _ := spareEnds.Get().(*ends)
	defer spareEnds.Put(e)
	head, tail, err := e.read(f)
	if err != nil {
		return found, nil, other, err
	}
	found = raw.Format
	for _, c := range Formats {
		if c.Detect(head, tail) {
			found, names = c, append(names, c.Name)
		}
	}
	for _, c := range others {
		if c.detect != nil && c.detect(head, tail) && (c.kind != Packed || !raw.HasTable(head)) {
			if c.over != "" && c.over == found.Name {
				found, names = raw.Format, names[:len(names)-1]
			}
			names, other = append(names, c.name), c
		}
	}
	if len(names) > 0 {
		return found, names, other, nil
	}
	if other = byName(f.Name(), head); other.name != "" {
		return found, []string{other.name}, other, nil
	}
	other.table = raw.HoldsPartition(head, f.Size())
	return found, nil, other, nil
}

// byName returns the format or companion that the name of a file without a known header stands for, or a zero one.
func byName(name string, head []byte) recognised {
	if c := companionOf(name, head); c != nil {
		text, remedy := CompanionText(c.name, name)
		return recognised{name: c.name, kind: Companion, remedy: text + "; " + remedy}
	}
	i := slices.IndexFunc(others, func(c recognised) bool {
		return c.detect == nil && strings.EqualFold(filepath.Ext(name), c.extension)
	})
	if i < 0 {
		return recognised{}
	}
	return others[i]
}

func matches(want, found string, names []string) bool {
	if len(names) == 0 {
		return want == raw.Format.Name
	}
	return strings.EqualFold(want, names[0]) || (want == found && found != raw.Format.Name)
}

// CodeHidden is the issue code of an image with stored data that read as zeros.
const CodeHidden = vhd.CodeHidden

// CodeMisnamed is the issue code of a file that has the name of a format and is read as raw.
const CodeMisnamed = "format-missing"

// rawExtent matches the end of the stem of an extent without a header, which is raw in spite of its .vmdk extension.
var rawExtent = ondisk.LazyPattern(`-(flat|head|f[0-9]{3,4}|rdmp?)$`)

// checkExtension adds an issue for a file with the name of a format but without its structures. Only the content
// selects the format, and raw is the fallback for a damaged or missing header or footer. A copy would then hold the
// container's bytes, and look complete.
func (img *Image) checkExtension(name string, o Options) {
	if img.Format != raw.Format.Name || o.Format != "" {
		return
	}
	format := namedAs(name)
	if format == "" {
		return
	}
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: CodeMisnamed, Effect: ondisk.Refuse, Err: ondisk.ErrFormat,
		Text: fmt.Sprintf("%.256q has the file extension of %s, but neither its header nor its footer: the image "+
			"is damaged, or it is a raw disk", name, format),
		Remedy: "if it was " + format + ", restore a backup; if it is a raw disk, rename it or add --format raw",
	})
}

// namedAs returns the format for the name of a file. It returns "" for no format and for names of raw images.
func namedAs(name string) string {
	ext := strings.ToLower(filepath.Ext(name))
	if rawExtent().MatchString(strings.TrimSuffix(strings.ToLower(name), ext)) {
		return ""
	}
	return extended(ext)
}

// addNamedFormat adds the format in the file name to the error of a file that is no image.
func addNamedFormat(name string, err error) error {
	if format := namedAs(name); format != "" && errors.Is(err, raw.ErrNone) {
		return fmt.Errorf("%w; its file extension is that of %s: it may be truncated or damaged", err, format)
	}
	return err
}

// nameOwner adds the image of an extent to the error, if the folder has one.
func (img *Image) nameOwner(err error) error {
	if !errors.Is(err, driver.ErrLone) || img.known != nil {
		return err
	}
	siblings, _ := readSiblings(img.Dir, img.Base) // an unreadable folder has no names
	user := userAmong(img.Dir, siblings, img.Base, func(n driver.Names) []string { return n.Extents })
	if user == "" {
		return err
	}
	return ondisk.In(driver.ErrLone, "it is an extent of %.256q: name that file instead", user)
}

// noteOverride adds an issue if the user forces raw for a file with the header of another format.
func (img *Image) noteOverride(main driver.File) error {
	_, names, _, err := recognise(main)
	if err == nil && len(names) > 0 {
		img.Issues = append(img.Issues, ondisk.Issue{
			Code: "format-overridden", Effect: ondisk.Warn,
			Text: fmt.Sprintf("the file has the header of %s, but --format reads it as a raw disk",
				strings.Join(names, " and ")),
		})
	}
	return err
}

// packedNames matches extensions of compressed files and of their parts.
var packedNames = ondisk.LazyPattern(`\.(gz|xz|zst|zstd|bz2|lz4|lzo|zip|7z|rar|[0-9]{2,3}|a[a-z])$`)

// NamedPacked reports whether the name of a compressed file implies an image: disk.img.gz, a Vagrant box, a part of a
// Clonezilla image.
func NamedPacked(name string) bool {
	name = strings.ToLower(name)
	if strings.HasSuffix(name, ".box") || strings.Contains(name, "-ptcl-img") {
		return true
	}
	for packedNames().MatchString(name) {
		name = packedNames().ReplaceAllString(name, "")
	}
	return namedAs(name) != "" || rawNamed(name) || slices.Contains([]string{".vma", ".iso"}, filepath.Ext(name))
}

// rawNamed reports whether a name has an extension of raw disks, which other files use too.
func rawNamed(name string) bool {
	return slices.Contains([]string{".raw", ".img", ".dd"}, strings.ToLower(filepath.Ext(name)))
}

// Renamed returns the bytes of the main file of an image, and the same bytes with the file names replaced. It returns
// nil for an image in one file.
func (img *Image) Renamed(to func(name string) string) (b, renamed []byte, err error) {
	f, _ := ByName(img.Format)
	switch {
	case len(img.Parts) == 0:
		return nil, nil, nil
	case f.Rename == nil:
		return nil, nil, &ondisk.Refusal{
			Code: "unsupported", Reason: fmt.Sprintf("its data are in %q, and trueup cannot write another file "+
				"name into the %s", img.Parts[0].Name(), Title(f.Name)),
			Remedy: "write a copy: trueup align SOURCE DEST",
		}
	}
	main := img.Handles[0] // a file without data, already read completely
	if b, err = ondisk.Bytes(main, 0, main.Size()); err != nil {
		return nil, nil, err
	}
	renamed, err = f.Rename(b, to)
	return b, renamed, err
}

// companion is a kind of file that programs keep beside a disk. It has the extension of an image, but other data.
type companion struct {
	name   string // as users write it
	holds  string // follows "it holds …"
	detect detector
	// disk returns the name of the disk for a companion's name, or an empty string for other names.
	disk func(file string) string
}

var companions = []companion{
	{
		// Signature, version 1, and a header of one sector. Source: libvmdk, "VMware Virtual Disk (VMDK) format
		// specification", "Change tracking file".
		name: "VMware changed block tracking", holds: "a list of changed blocks", disk: vmdkBefore("-ctk"),
		detect: both(prefix("\xa2\x72\x19\xf6\x01\x00\x00\x00"), le16(12, 512)),
	},
	{
		name: "VMware CBRC digest", holds: "hashes for the host's read cache", disk: vmdkBefore("-digest"),
		detect: func(_, _ []byte) bool { return false }, // its format is unpublished
	},
	{
		// Magic and version 2. Spec: RFC 1740, appendix A.
		name: "AppleDouble", holds: "macOS attributes of a file", detect: prefix("\x00\x05\x16\x07\x00\x02\x00\x00"),
		disk: func(file string) string {
			if disk, ok := strings.CutPrefix(file, "._"); ok {
				return disk
			}
			return ""
		},
	},
}

// vmdkBefore returns a function that removes mark from a name: disk-ctk.vmdk becomes disk.vmdk.
func vmdkBefore(mark string) func(string) string {
	end := mark + ".vmdk"
	return func(file string) string {
		if at := len(file) - len(end); at > 0 && strings.EqualFold(file[at:], end) {
			return file[:at] + file[at+len(mark):]
		}
		return ""
	}
}

// companionOf returns the kind of a companion without a known format, or nil. It goes by the content, and otherwise by
// the name. A disk with a partition table is never a companion.
func companionOf(name string, head []byte) *companion {
	if raw.HasTable(head) {
		return nil
	}
	for i := range companions {
		if c := &companions[i]; c.detect(head, nil) || c.named(name) {
			return c
		}
	}
	return nil
}

// named reports whether a name alone identifies the kind. Names that begin with "._" are not limited to macOS.
func (c *companion) named(name string) bool { return c.name != "AppleDouble" && c.disk(name) != "" }

// CompanionOf returns the kind of a companion and the name of its disk, by the companion's name; empty strings for
// other names.
func CompanionOf(name string) (kind, disk string) {
	for _, c := range companions {
		if disk := c.disk(name); disk != "" {
			return c.name, disk
		}
	}
	return "", ""
}

// CompanionText returns the purpose of a companion, and the remedy for a user who opens it as a disk.
func CompanionText(kind, name string) (text, remedy string) {
	disk, holds := "a disk", "other data"
	remedy = "name the disk instead"
	if _, of := CompanionOf(name); of != "" {
		disk, remedy = fmt.Sprintf("%.256q", of), fmt.Sprintf("name %.256q instead", of)
	}
	for _, c := range companions {
		if c.name == kind {
			holds = c.holds
		}
	}
	return fmt.Sprintf("it belongs to %s and holds %s, not the data of a disk", disk, holds), remedy
}

// CodeCompanion is the code of the issue that an image is named and placed like a companion file of another.
const CodeCompanion = "companion"

// noteCompanion adds an issue if a valid image has the name of a companion and its disk exists. A CBRC digest is such
// an image: a descriptor with an extent.
func (img *Image) noteCompanion() {
	kind, of := CompanionOf(img.Base)
	if kind == "" || !img.Dir.Exists(of) {
		return
	}
	text, _ := CompanionText(kind, img.Base)
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: CodeCompanion, Effect: ondisk.Note, Text: fmt.Sprintf("its name is typical of %s; if so, %s", kind, text),
	})
}
