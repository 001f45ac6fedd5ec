package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
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
	Disk        Kind = "disk"        // an image, complete or together with the files that it names
	Extent      Kind = "extent"      // a part of an image, of no use without what names it
	Bare        Kind = "bare"        // no format: the bytes of a disk, of an extent, or of anything
	Pack        Kind = "package"     // an OVA or OVF
	Unsupported Kind = "unsupported" // a format that has a name and no reader
	Medium      Kind = "medium"      // an ISO: on what is only read, alignment does not matter
	Packed      Kind = "packed"      // a compressed file, which could hold an image
	Companion   Kind = "companion"   // a file beside a disk with the suffix of an image and no data, see CompanionOf
)

// Identity describes a file as far as its first bytes and what they name show. The rest is not judged.
type Identity struct {
	Kind    Kind      `json:"kind,omitempty"`
	Format  string    `json:"format,omitempty"`  // as users write it
	Remedy  string    `json:"remedy,omitempty"`  // for what is packed
	Extents FileNames `json:"extents,omitempty"` // files that hold its data, each once: of an OVF those of its disks
	// Claims are the bytes that it takes of each of Extents, from the start on, if that has no header.
	Claims  []int64   `json:"claims,omitempty"`
	Views   FileNames `json:"views,omitempty"`   // those of Extents of which it takes stretches from the inside
	Parents FileNames `json:"parents,omitempty"` // images that it completes: the last component of each name
	// Lineage is the ContentID of the image that it completes, of a format that names no file.
	Lineage string `json:"lineage,omitempty"`
	Table   bool   `json:"table,omitempty"` // without a format: it has a partition table and the start of a partition
	Read    int64  `json:"read,omitempty"`  // bytes read for all that; set by the caller that counts them
}

// maxNamed is how many files are kept that an image names: no reader takes a disk of more extents.
const maxNamed = 4096

// plainNames returns the names that files of the folder can have, each once.
func plainNames(names []string) FileNames {
	return once(names, func(n string) bool { return gate.CheckStored(n) == nil })
}

// once returns names that keep selects, each once, as many as are kept.
func once(names []string, keep func(string) bool) (out FileNames) {
	seen := map[string]bool{}
	for _, n := range names {
		if !seen[n] && keep(n) && len(out) < maxNamed {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}

// claims returns the claims on extents, for each file the largest.
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

// Claimed returns how many bytes the image takes of a file without a header, from its start on.
func (id Identity) Claimed(name string) int64 {
	if i := slices.Index(id.Extents, name); i >= 0 && i < len(id.Claims) {
		return id.Claims[i]
	}
	return 0
}

// parentNames returns the last components of names, each once.
func parentNames(names []string) FileNames {
	var last []string
	for _, n := range names {
		last = append(last, lastName(n))
	}
	return once(last, func(n string) bool { return len(n) <= maxNameLength })
}

// maxNameLength is how long the name of a file can be, in bytes. Spec: NAME_MAX.
const maxNameLength = 255

// Identify returns the identity of the file at path. Links are not followed and devices not opened: only Open does
// that.
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

// IdentifyFile returns what an open file is.
func IdentifyFile(f driver.File) (Identity, error) {
	found, names, other, err := recognise(f)
	switch {
	case err != nil:
		return Identity{}, err
	case len(names) == 0:
		return Identity{Kind: Bare, Format: raw.Format.Name, Table: other.table}, nil
	case len(names) > 1: // opening it finds the error
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

// IsPacked reports whether a format is that of compressed files, such as gzip.
func IsPacked(format string) bool {
	return slices.ContainsFunc(packed, func(r recognised) bool { return r.name == format })
}

// glance reads what a file names, the cheapest way that its format knows.
func glance(format driver.Format, f driver.File) (driver.Names, error) {
	switch {
	case format.Glance != nil:
		return format.Glance(f)
	case format.Names != nil:
		return format.Names(f)
	}
	return driver.Names{}, nil
}

// smallest is what an image has at least, in bytes: one sector.
const smallest = units.SectorSize

// Named reports whether a file has the name of an image, whatever its content: one that is not one is damaged. size is
// in bytes.
func Named(name string, size int64) bool {
	if extended(strings.ToLower(filepath.Ext(name))) != "" {
		return true
	}
	// These say less: firmware and boot floppies have them too. A disk has whole sectors.
	return rawNamed(name) && size >= SmallestBare && size%units.SectorSize == 0
}

// SmallestBare is the smallest file without a format that is a disk for its name alone, in bytes: the largest floppy is
// smaller.
const SmallestBare = 4 * units.MiB

// IsFlatName reports whether a file has the name of an extent without a header.
func IsFlatName(name string) bool {
	ext := strings.ToLower(filepath.Ext(name))
	return ext == ".vmdk" && rawExtent.MatchString(strings.TrimSuffix(strings.ToLower(name), ext))
}

// Among finds the images among the files of an archive. Extents and parents belong to others. The zero value has none.
type Among struct {
	// Packed says that a compressed file counts by its name.
	Packed bool

	parts map[string]bool
	found []string
}

// Add adds a file by its name in the archive, its size in bytes, and what IdentifyFile returned of it.
func (a *Among) Add(name string, size int64, id Identity, err error) {
	if a.parts == nil {
		a.parts = map[string]bool{}
	}
	for _, x := range slices.Concat(id.Extents, id.Parents) {
		if x != path.Base(name) { // some name themselves
			a.parts[path.Join(path.Dir(name), x)] = true
		}
	}
	odd := err != nil || id.Kind == Bare || id.Kind == Unsupported || id.Kind == Packed && a.Packed
	if id.Kind == Disk || odd && (Named(name, size) || id.Table && rawNamed(name) && size >= SmallestBare) {
		a.found = append(a.found, name)
	}
}

// Images returns the names of the images, when all files were added.
func (a *Among) Images() []string {
	return slices.DeleteFunc(a.found, func(name string) bool { return a.parts[name] || IsFlatName(name) })
}

// MayBeDisk reports whether a file of size bytes without a format can be a disk: it has whole sectors, or a table, and
// zeros fill its last sector.
func (id Identity) MayBeDisk(size int64) bool {
	return id.Kind == Bare && (id.Table || size >= smallest && size%units.SectorSize == 0)
}

// NamedEmpty reports whether an empty file has the name of an image: a disk that a copy has lost.
func NamedEmpty(name string, size int64) bool { return size == 0 && Named(name, SmallestBare) }

// recognised is a format that has a name and no reader. It must never be taken for raw: the guest's disk is not where
// raw would look for it.
type recognised struct {
	name   string                       // as users write it
	detect func(head, tail []byte) bool // nil: only its extension is known
	remedy string                       // empty: qemu-img reads it
	kind   Kind                         // empty: Unsupported
	// extension is that of files that are nothing else, with the dot; empty where there is none
	extension string
	// over is the name of a format that is read, has the same magic number, and is not meant; empty for none
	over string
	// table is set of a file without a format that has a partition table and the start of a partition
	table bool
}

// headSize and tailSize are how much of a file detection sees, in bytes. The ISO 9660 descriptor is the deepest.
const (
	headSize = 36 << 10
	tailSize = 1024
)

// isoName is what users call the image of a CD.
const isoName = "ISO 9660"

// What detection looks at within the head, in bytes: magic numbers stand in the first block, the root of an XML text
// may come behind a long comment, and the mark of a CD has a place of its own.
const (
	magicBlock = 4 << 10
	textBlock  = 8 << 10
	isoMark    = 0x8000
	isoLength  = 16
)

// ends are buffers for the ends of a file, for use again: a scan recognises thousands.
type ends struct {
	head [headSize]byte
	tail [tailSize]byte
}

var spareEnds = sync.Pool{New: func() any { return new(ends) }}

// readHead reads of a file's head what detection looks at; the rest of it is zero.
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

// has reports whether magic stands at off of b; off may be outside of b.
func has(b []byte, off int, magic string) bool {
	return off >= 0 && off <= len(b) && bytes.HasPrefix(b[off:], []byte(magic))
}

// detect finds the one format that the content has. Two matches are an error: whichever came first would be a guess,
// and a guest can write what looks like a header into its own disk. says names what wants the format: the command line,
// or a child.
func detect(f driver.File, want, says string) (driver.Format, error) {
	found, names, other, err := recognise(f)
	switch {
	case err != nil:
		return found, err
	case want == raw.Format.Name && says == userSays: // an order, whatever the content looks like
		return raw.Format, nil
	case len(names) > 1:
		return found, ondisk.Field("image", "format", 0, strings.Join(names, " and "),
			"the content of one format; if the guest wrote one of the headers, remove it inside the guest")
	case want != "" && !matches(want, found.Name, names):
		return found, ondisk.Field("image", "format", 0, contentName(names), want+", as "+says+" says")
	case len(names) == 1 && found.Name == raw.Format.Name:
		remedy := other.remedy
		if remedy == "" {
			remedy = "convert it with qemu-img convert -O vmdk (or raw), and take the result"
		}
		return found, fmt.Errorf("%s: recognised, %w; %s", names[0], ondisk.ErrUnsupported, remedy)
	}
	return found, nil
}

// recognise lists the formats that the content has: the last one that is read, the names of all, and the last one that
// is not read.
func recognise(f driver.File) (found driver.Format, names []string, other recognised, err error) {
	size := f.Size()
	e, _ := spareEnds.Get().(*ends)
	defer spareEnds.Put(e)
	head, err := e.readHead(f)
	if err != nil {
		return found, nil, other, err
	}
	tail := e.tail[:min(size, tailSize)]
	if beyond(f) != nil {
		clear(tail) // formats with a header have none there
	} else if err := ondisk.ReadFull(f, tail, size-int64(len(tail))); err != nil {
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
	if len(names) == 0 {
		if c := companionOf(f.Name(), head); c != nil {
			text, remedy := CompanionText(c.name, f.Name())
			return found, []string{c.name}, recognised{name: c.name, kind: Companion, remedy: text + "; " + remedy}, nil
		}
	}
	for _, c := range others {
		if c.detect == nil && len(names) == 0 && strings.EqualFold(filepath.Ext(f.Name()), c.extension) {
			names, other = append(names, c.name), c
		}
	}
	other.table = len(names) == 0 && raw.HoldsPartition(head, size)
	return found, names, other, nil
}

func matches(want, found string, names []string) bool {
	if len(names) == 0 {
		return want == raw.Format.Name
	}
	return strings.EqualFold(want, names[0]) || (want == found && found != raw.Format.Name)
}

func contentName(names []string) string {
	if len(names) == 0 {
		return "no known header"
	}
	return names[0]
}

// CodeHidden is the code of the issue of an image with data that read as zeros.
const CodeHidden = vhd.CodeHidden

// CodeMisnamed is the code of the issue of a file that is named as a format and read as raw.
const CodeMisnamed = "format-missing"

// rawExtent is the end of the stem that an extent without a header has, which is raw although its extension is that of
// a VMDK.
var rawExtent = regexp.MustCompile(`-(flat|head|f[0-9]{3,4}|rdmp?)$`)

// checkExtension reports a file that has the name of a format and nothing of its structures. The content alone decides
// what a file is read as, but raw is what remains of any format whose header or footer is damaged or cut off: a copy
// would then be one of the container's bytes, and look complete.
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
		Text: fmt.Sprintf("%.256q is named as %s, but has neither its header nor its footer: either they are lost, "+
			"and its bytes are not those of the disk, or it is a raw disk",
			name, format),
		Remedy: "take it from a backup if it was " + format + "; rename it or add --format raw if it is a raw disk",
	})
}

// namedAs returns the format that the name of a file stands for, "" for no format and for names that raw images have
// too.
func namedAs(name string) string {
	ext := strings.ToLower(filepath.Ext(name))
	if rawExtent.MatchString(strings.TrimSuffix(strings.ToLower(name), ext)) {
		return ""
	}
	return extended(ext)
}

// addNamedFormat adds the format in the name of a file to the error of one that is no image.
func addNamedFormat(name string, err error) error {
	if format := namedAs(name); format != "" && errors.Is(err, raw.ErrNone) {
		return fmt.Errorf("%w. The name says %s: it may be truncated or damaged", err, format)
	}
	return err
}

// nameOwner names the image that an extent belongs to, where a look into the folder shows that.
func (img *Image) nameOwner(err error) error {
	if !errors.Is(err, driver.ErrLone) || img.known != nil {
		return err
	}
	siblings, _ := readSiblings(img.Dir, img.Base) // a folder that cannot be read names nothing
	user := userAmong(img.Dir, siblings, img.Base, func(n driver.Names) []string { return n.Extents })
	if user == "" {
		return err
	}
	return ondisk.In(driver.ErrLone, "it is an extent of %.256q; name that one", user)
}

// noteOverride notes that the content looks like another format than raw, which the user has ordered.
func (img *Image) noteOverride(main driver.File) error {
	_, names, _, err := recognise(main)
	if err == nil && len(names) > 0 {
		img.Issues = append(img.Issues, ondisk.Issue{
			Code: "format-overridden", Effect: ondisk.Warn,
			Text: fmt.Sprintf("the file has the header of %s, and is read as a raw disk, as --format says",
				strings.Join(names, " and ")),
		})
	}
	return err
}

// packedNames are extensions of compressed files, and of pieces of them.
var packedNames = regexp.MustCompile(`\.(gz|xz|zst|zstd|bz2|lz4|lzo|zip|7z|rar|[0-9]{2,3}|a[a-z])$`)

// NamedPacked reports whether the name of a compressed file is that of an image: disk.img.gz, a box of Vagrant, a part
// of a Clonezilla image.
func NamedPacked(name string) bool {
	name = strings.ToLower(name)
	if strings.HasSuffix(name, ".box") || strings.Contains(name, "-ptcl-img") {
		return true
	}
	for packedNames.MatchString(name) {
		name = packedNames.ReplaceAllString(name, "")
	}
	return namedAs(name) != "" || rawNamed(name) || slices.Contains([]string{".vma", ".iso"}, filepath.Ext(name))
}

// rawNamed reports whether a name has an extension of raw disks, which other files have too.
func rawNamed(name string) bool {
	return slices.Contains([]string{".raw", ".img", ".dd"}, strings.ToLower(filepath.Ext(name)))
}

// Renamed returns the bytes of the first file of an image, and these with other names of the files that it names; nil
// for an image in one file.
func (img *Image) Renamed(to func(name string) string) (b, renamed []byte, err error) {
	f, _ := byName(img.Format)
	switch {
	case len(img.Parts) == 0:
		return nil, nil, nil
	case f.Rename == nil:
		return nil, nil, &ondisk.Refusal{
			Code: "unsupported", Reason: fmt.Sprintf("its data lie in %q, and no other name can be written into the %s",
				img.Parts[0].Name(), Title(f.Name)),
			Remedy: "write a copy: trueup align SOURCE DEST",
		}
	}
	main := img.Handles[0] // a file without data, which was read as a whole
	if b, err = ondisk.Bytes(main, 0, main.Size()); err != nil {
		return nil, nil, err
	}
	renamed, err = f.Rename(b, to)
	return b, renamed, err
}

// companion is a kind of file that programs keep beside a disk, with an image's suffix and none of the disk's data.
type companion struct {
	name   string // as users write it
	holds  string // completes "it holds …"
	detect detector
	// disk returns the name of the disk that a file belongs to; empty if the name of the file is not of this kind.
	disk func(file string) string
}

var companions = []companion{
	{
		name: "VMware changed block tracking", holds: "a list of changed blocks", detect: changeTracking,
		disk: vmdkBefore("-ctk"),
	},
	{
		name: "VMware CBRC digest", holds: "hashes for the host's read cache", disk: vmdkBefore("-digest"),
		detect: func(_, _ []byte) bool { return false }, // its format is not published
	},
	{
		name: "AppleDouble", holds: "attributes that macOS stores beside a file", detect: appleDouble,
		disk: func(file string) string {
			if disk, ok := strings.CutPrefix(file, "._"); ok {
				return disk
			}
			return ""
		},
	},
}

// vmdkBefore returns a function that takes the mark off a name: disk-ctk.vmdk belongs to disk.vmdk.
func vmdkBefore(mark string) func(string) string {
	end := mark + ".vmdk"
	return func(file string) string {
		if at := len(file) - len(end); at > 0 && strings.EqualFold(file[at:], end) {
			return file[:at] + file[at+len(mark):]
		}
		return ""
	}
}

// changeTracking reports the header of a -ctk.vmdk file: signature, version 1, and a header of one sector. Source:
// libvmdk, "VMware Virtual Disk (VMDK) format specification", "Change tracking file".
func changeTracking(head, _ []byte) bool {
	return has(head, 0, "\xa2\x72\x19\xf6\x01\x00\x00\x00") && le16(12, 512)(head, nil)
}

// appleDouble reports the header of an AppleDouble file: magic and version 2. Spec: RFC 1740, appendix A.
func appleDouble(head, _ []byte) bool {
	return len(head) >= 8 && binary.BigEndian.Uint64(head) == 0x00051607_00020000
}

// companionOf returns the kind of a file whose content has no format, nil for any other. A disk with a partition table
// is never one. The name of an image and of its companion's kind count where the content shows nothing.
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

// named reports whether a name alone tells the kind. Other files than those of macOS begin with "._".
func (c *companion) named(name string) bool { return c.name != "AppleDouble" && c.disk(name) != "" }

// CompanionOf returns the kind of a companion and the name of its disk, by its own name; empty if that does not say it.
func CompanionOf(name string) (kind, disk string) {
	for _, c := range companions {
		if disk := c.disk(name); disk != "" {
			return c.name, disk
		}
	}
	return "", ""
}

// CompanionText returns the purpose of a companion of a kind, and what to do instead.
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

// CodeCompanion is the code of the issue of an image that is named and placed like a companion of another.
const CodeCompanion = "companion"

// noteCompanion notes that an image of a known format has the name of a companion, and the disk stands beside it. A
// digest of CBRC is such an image: a descriptor with an extent.
func (img *Image) noteCompanion() {
	kind, of := CompanionOf(img.Base)
	if kind == "" || !img.Dir.Exists(of) {
		return
	}
	text, _ := CompanionText(kind, img.Base)
	img.Issues = append(img.Issues, ondisk.Issue{
		Code: CodeCompanion, Effect: ondisk.Note, Text: fmt.Sprintf("its name is typical of %s: then %s", kind, text),
	})
}
