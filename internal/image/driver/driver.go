// Package driver defines the interface of an image format.
package driver

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// ErrLone marks an extent that was opened without the descriptor of its image.
var ErrLone = fmt.Errorf("%w without its descriptor", ondisk.ErrUnsupported)

// File is an open file of an image, read-only. Extent reports its holes.
type File interface {
	io.ReaderAt
	Size() int64
	Name() string // base name
	ID() string   // device and inode, equal for two names of one file
	Extent(off, max int64) (disk.Extent, error)
}

// Source is the main file of an image, and the only access to its other files.
type Source struct {
	File File
	// Open opens another file of the image, through the gate. name is a plain name in the same folder, or a path into
	// an allowed folder. It opens regular files only and follows no links.
	Open func(name string) (File, error)
	// Parent opens the parent of the image, through the same gate. The caller of the format's Open calls Image.Inherit.
	Parent func(ref ParentRef) (*Image, error)
	// Level is 0 for the image that the user named, 1 for its parent, …
	Level int
	// SectorSize is the sector size of the disk in bytes, for a format without such a field; 0 means unspecified.
	SectorSize int64
	// Place is the range of the file that holds the disk, for a format without such a field. A length of 0 means up to
	// the end.
	Place disk.Range
}

// parentShare divides the cache size of a parent: a chain of sixteen images needs three times the memory of one.
const parentShare = 8

// Memory returns the memory budget of the image, in bytes. alone is the budget of an image that is no parent.
func (s *Source) Memory(alone int64) int64 {
	if s.Level > 0 {
		return alone / parentShare
	}
	return alone
}

// ParentRef is the reference of a child to its parent.
type ParentRef struct {
	// Names are the stored names, in order of preference. The last component of a path is tried in the image's own
	// folder, but only if ID can identify the file.
	Names []string
	// Format is the required format of the parent; if empty, its content decides.
	Format string
	// ID is the expected ContentID of the parent; empty in a format without identifiers.
	ID string
}

// Below returns the run of the parent behind a hole of the child, at off and at most n bytes. It returns zeros without
// a parent and past the parent's end.
func Below(parent *Image, off, n int64) disk.Run {
	if parent == nil || off >= parent.Disk.Size() {
		return disk.Run{Len: n}
	}
	return disk.Run{Len: min(n, parent.Disk.Size()-off), Src: parent.Disk, Off: off}
}

// Format is one image format.
type Format struct {
	Name   string                       // "vhd", for flags and JSON
	Title  string                       // the vendor's spelling; if empty, Name
	Alias  string                       // QEMU's name; if empty, Name
	Detect func(head, tail []byte) bool // nil for raw, the fallback
	Open   func(s *Source) (*Image, error)
	// Create starts an image of size bytes in f. Before Target.Finish it writes nothing that Detect would recognise.
	// Every format has it: a copy is of the format of its source.
	Create func(f WriteFile, size int64, o Options) (Target, error)
	// Reports returns the BIOS geometry of an image of size bytes made by Create. It is nil if such images store no
	// geometry and the machine chooses one.
	Reports func(size int64, o Options) Geometry
	// Subformats lists the subformats of Create, the default first.
	Subformats []string
	// SectorSizes reports whether images store the sector size of the disk. All others mean 512 bytes.
	SectorSizes bool
	// Names reads the file names in a file of this format and validates nothing else. It is nil if images of this
	// format consist of one file.
	Names func(f File) (Names, error)
	// Rename returns the main file of an image with the stored file names replaced. It is nil if images of this format
	// consist of one file.
	Rename func(b []byte, to func(name string) string) ([]byte, error)
	// Glance is Names without a check that the data read is complete, for a file that is opened later. It is nil if
	// Names reads little.
	Glance func(f File) (Names, error)
	// Extensions lists the file extensions of the format, in lower case with the dot. They select the neighbours of an
	// image to read.
	Extensions []string
	// AnyExtension reports whether programs also use other extensions, so that only the content identifies a file.
	AnyExtension bool
}

// HoldsSectors reports whether an image of the format can hold a disk with sectors of n bytes. A raw image stores no
// sector size; the configuration of its machine does.
func (f Format) HoldsSectors(n int64) bool {
	return n == 512 || f.Detect == nil || (f.SectorSizes && n == 4096)
}

// Names lists the other files of an image, by their stored names.
type Names struct {
	Parents []string // names of the parent, as stored
	Lineage string   // ContentID of the parent, in a format without file names
	Extents []string // files with the image's data
	// Claims holds, for each of Extents, the bytes used of a file without a header, counted from its start. It is 0 for
	// a range further inside the file.
	Claims  []int64
	Members []string // other files of the package, of any content
	// Views lists the extents of which the image uses inner ranges only. Such a file is a disk of its own.
	Views  []string
	Part   bool // an extent, useless without its descriptor
	Broken bool // the file has this format and is unreadable, so its names are unknown
	// Unseen is the error of a file that this user may not open. It could have any format and refer to any file.
	Unseen error
}

// Image is an opened image.
type Image struct {
	Disk      disk.Disk
	Subformat string
	Parts     []File   // all files but the main one, in disk order
	Details   []Detail // metadata of the container, for inspect
	Issues    []ondisk.Issue
	// Check walks the allocation tables for damage that reads find only by chance. It is nil if there are no tables.
	Check func() ([]ondisk.Issue, error)
	// Bitmap returns the persistent dirty bitmap with a name. It is nil in a format without bitmaps.
	Bitmap func(name string) (Bitmap, error)
	// Template holds metadata of the source for Create of the same format, such as a VMDK descriptor.
	Template any
	// Heads and Sectors are the geometry stored in the container, or 0.
	Heads, Sectors int
	// BIOS is the geometry that a BIOS reports, derived from the container. The zero value means that the container
	// stores none and the machine chooses.
	BIOS Geometry
	// ContentID identifies the content to children of the image; empty in a format without identifiers.
	ContentID string
	// Flat reports whether the files hold the disk byte for byte and in order, and all of them may be written.
	Flat bool
	// ReadOnly reports whether hypervisors only read images of this kind; no guest writes to them.
	ReadOnly bool
	// MapsDevice reports whether the disk is a device of some machine. The file opened for it can be that device.
	MapsDevice bool
	// Around returns the metadata around the disk after a change in place, for a new disk size in bytes. It is nil for
	// an image that does not hold its disk byte for byte. bios is as in Options.
	Around func(size int64, bios Geometry) (Around, error)
	// Child reports whether the image needs the data of its parent. Disk shows the merged content.
	Child bool
}

// Bitmap lists the parts of a disk that were written while a dirty bitmap recorded them.
type Bitmap struct {
	Written    []disk.Range // in order, in units of the granularity of the bitmap
	Consistent bool         // false if the program that recorded did not end properly: Written is unknown
}

// Around holds the bytes around the disk in the files of a flat image. They contain new identifiers, so that children
// of the old disk reject the new one as their parent.
type Around struct {
	Tail []byte // footer, in the last file
	Text []byte // the whole main file, if the disk lies in other files
}

// Detail is one item of container metadata.
type Detail struct{ Name, Value string }

// WriteFile is a file opened for writing, such as *os.File.
type WriteFile interface {
	io.WriterAt
	Truncate(size int64) error
	Sync() error
}

// Options are the options of Create. The zero value gives the defaults of the format.
type Options struct {
	Subformat string
	Template  any    // from a source of the same format
	Name      string // final base name of the image
	// Seed is the seed of all identifiers, so that the same job gives the same bytes.
	Seed []byte
	// Beside creates another file of the image, for its data, and returns its final name. suffix goes between stem and
	// extension of Name, as "-flat" in disk-flat.vmdk.
	Beside func(suffix string) (WriteFile, string, error)
	// Over lists ranges of the disk that lie in other files of the same folder, each the Src of a piece. Only a format
	// with Views supports them. The rest of the disk is written.
	Over []disk.Piece
	// SectorSize is the sector size of the disk: 512 or 4096 bytes.
	SectorSize int64
	// Offset is the byte of each file at which the disk begins, for a format that holds the disk byte for byte.
	Offset int64
	// BIOS holds the heads and sectors that the BIOS must report, for a disk read by cylinder, head and sector. The
	// zero value means that nothing depends on them.
	BIOS Geometry
}

// Target receives the bytes of a new image. WriteAt is safe for concurrent use on disjoint ranges; unwritten bytes read
// as zeros.
type Target interface {
	io.WriterAt
	// Unit returns the allocation granularity in bytes. WriteAt accepts whole units, or the tail of the disk.
	Unit() int64
	// Reserve places a range before it is written. Calls are sequential and in ascending order, so that the layout of
	// the file does not depend on the speed of the workers.
	Reserve(off, n int64) error
	// Finish writes the remaining metadata and syncs the file. Before that the file is no image.
	Finish() error
}

// Packer is a Target that encodes each unit, for example by compression. Pack may run for many units at once and in any
// order; the caller owns its result. Reserve and WriteAt are called for one unit at a time with the packed bytes: n is
// their number, off the disk offset of the unit.
type Packer interface {
	Pack(unit []byte, off int64) ([]byte, error)
}

// CodeView is the issue code of a VMDK over the files of another disk.
const CodeView = "view"

// CodeSnapshots is the issue code of an image with internal snapshots, which a copy drops.
const CodeSnapshots = "qcow2-snapshots"

// Inherit makes img a child of parent. It adds the parent's issues except notes, and extends Check to the parent's
// tables: damage in either image damages the merged disk.
func (img *Image) Inherit(parent *Image) {
	img.Child = true
	img.Issues = append(img.Issues, ofParent(parent.Issues)...)
	own := img.Check
	if parent.Check == nil {
		return
	}
	img.Check = func() ([]ondisk.Issue, error) {
		var out []ondisk.Issue
		if own != nil {
			var err error
			if out, err = own(); err != nil {
				return nil, err
			}
		}
		found, err := parent.Check()
		return append(out, ofParent(found)...), err
	}
}

func ofParent(issues []ondisk.Issue) []ondisk.Issue {
	out := make([]ondisk.Issue, 0, len(issues))
	for _, i := range issues {
		if i.Effect > ondisk.Note {
			i.Text = "in the parent: " + i.Text
			out = append(out, i)
		}
	}
	return out
}

// BackingFiles returns the paths in the name of a QEMU backing file: a path, a path behind a protocol, or the "json:"
// options of a block device. broken reports options that cannot be parsed. Source: QEMU, bdrv_parse_filename of
// block/file-posix.c, block/blkdebug.c and block/blkverify.c.
func BackingFiles(name string) (paths []string, broken bool) {
	for names := []string{name}; len(names) > 0; names = names[1:] { // added names are shorter, so the loop ends
		protocol, rest, _ := strings.Cut(names[0], ":")
		switch protocol {
		case "file", "host_device", "host_cdrom":
			names = append(names, rest)
		case "blkdebug": // an optional configuration comes first
			_, rest, _ = strings.Cut(rest, ":")
			names = append(names, rest)
		case "blkverify": // two images with the same bytes
			raw, test, _ := strings.Cut(rest, ":")
			names = append(names, raw, test)
		case "json":
			var v any
			if json.Unmarshal([]byte(rest), &v) != nil {
				broken = true
				continue
			}
			names = append(names, optionNames(v)...)
		default:
			if names[0] != "" {
				paths = append(paths, names[0])
			}
		}
	}
	return paths, broken
}

// nameOptions are the last components of block device options that hold a file name.
var nameOptions = []string{"filename", "x-image", "x-raw"}

// optionNames returns the file names among the options of a block device, nested or dotted.
func optionNames(options any) (names []string) {
	for left := []any{options}; len(left) > 0; left = left[1:] {
		switch v := left[0].(type) {
		case []any:
			left = append(left, v...)
		case map[string]any:
			for key, value := range v {
				name, text := value.(string)
				if text && slices.Contains(nameOptions, key[strings.LastIndexByte(key, '.')+1:]) {
					names = append(names, name)
				}
				left = append(left, value)
			}
		}
	}
	return names
}

// Geometry is a CHS geometry. The zero value means unspecified.
type Geometry struct{ Cylinders, Heads, Sectors int64 }

// MaxCylinders is the number of addressable cylinders, by the ten bits of the cylinder field. Spec: INT 13h, AH=02h.
const MaxCylinders = 1024

// Limits of the fields of an ATA disk and of the BIOS interface. Spec: ATA-5, 6.2; INT 13h, AH=08h.
const (
	maxCylindersOfATA = 1<<16 - 1
	maxHeadsOfATA     = 16
	maxHeads          = 256
	maxSectors        = 63
)

// Addressable reports whether programs can address a disk by g.
func (g Geometry) Addressable() bool {
	return g.Cylinders >= 1 && g.Heads >= 1 && g.Heads <= maxHeads && g.Sectors >= 1 && g.Sectors <= maxSectors
}

// Bytes returns the number of bytes that g covers.
func (g Geometry) Bytes() int64 { return g.Cylinders * g.cylinder() }

func (g Geometry) cylinder() int64 { return g.Heads * g.Sectors * units.SectorSize }

// Alike reports whether sectors have the same CHS address in both geometries, as far as both extend.
func (g Geometry) Alike(other Geometry) bool {
	return g.Heads == other.Heads && g.Sectors == other.Sectors
}

// Over returns the heads and sectors of g with the whole cylinders of a disk of size bytes, at least one.
func (g Geometry) Over(size int64) Geometry {
	if g.cylinder() > 0 {
		g.Cylinders = max(1, size/g.cylinder())
	}
	return g
}

// Clipped limits the cylinders of g to MaxCylinders.
func (g Geometry) Clipped() Geometry {
	g.Cylinders = min(g.Cylinders, MaxCylinders)
	return g
}

// Reported returns the geometry that a BIOS reports for an ATA disk of size bytes with geometry g. It is g itself if
// that is addressable, otherwise 63 sectors and as many heads as the size needs. Source: QEMU 7.2
// hw/block/hd-geometry.c, hd_bios_chs_auto_trans; SeaBIOS 1.16 src/block.c, setup_translation.
func (g Geometry) Reported(size int64) Geometry {
	if !g.Addressable() || g.Cylinders > MaxCylinders || g.Heads > maxHeadsOfATA {
		tracks := size / units.SectorSize / maxSectors
		g = Geometry{Heads: maxHeadsOfATA, Sectors: maxSectors}
		for heads := tracks / MaxCylinders; g.Heads < heads; g.Heads *= 2 {
			if g.Heads == 128 {
				g.Heads = 255 // 256 heads break DOS
				break
			}
		}
		g.Cylinders = tracks / g.Heads
	}
	return g.Clipped()
}

// ForATA returns a geometry for an ATA disk of size bytes with which a BIOS reports the heads and sectors of want.
// Candidates are the favoured geometries, want itself, and 16 heads with 63 sectors, in this order. Each is tried over
// the whole disk, then with addressable cylinders only. ok reports whether a candidate fits.
func ForATA(size int64, want Geometry, favour ...Geometry) (g Geometry, ok bool) {
	for _, g := range slices.Concat(favour, []Geometry{want, {Heads: maxHeadsOfATA, Sectors: maxSectors}}) {
		whole := g.Over(size)
		whole.Cylinders = min(whole.Cylinders, maxCylindersOfATA)
		for _, g := range []Geometry{whole, whole.Clipped()} {
			if g.Addressable() && g.Heads <= maxHeadsOfATA && g.Reported(size).Alike(want) {
				return g, true
			}
		}
	}
	return Geometry{}, false
}

// tableWindow is the number of Table entries in memory.
const tableWindow = 4 << 10

// Table writes a table of 32-bit entries, which are set in ascending order. An unset entry has all bits set, the mark
// of an absent block. Only a window of the table is in memory.
type Table struct {
	f      WriteFile
	off    int64 // table offset in the file, bytes
	size   int64 // bytes
	order  binary.ByteOrder
	window int64 // index of the current window
	work   [4 * tableWindow]byte
}

// NewTable starts a table at byte offset off of the file; size is in bytes.
func NewTable(f WriteFile, off, size int64, order binary.ByteOrder) *Table {
	t := &Table{f: f, off: off, size: size, order: order}
	t.clear()
	return t
}

func (t *Table) clear() {
	for i := range t.work {
		t.work[i] = 0xff // absent, in every entry
	}
}

// Set sets the entry of block i.
func (t *Table) Set(i int64, entry uint32) error {
	if err := t.flush(i / tableWindow); err != nil {
		return err
	}
	t.order.PutUint32(t.work[4*(i%tableWindow):], entry)
	return nil
}

// flush writes the table up to window w.
func (t *Table) flush(w int64) error {
	for t.window < w {
		at := t.window * int64(len(t.work))
		if _, err := t.f.WriteAt(t.work[:min(int64(len(t.work)), t.size-at)], t.off+at); err != nil {
			return err
		}
		t.clear()
		t.window++
	}
	return nil
}

// Finish writes the rest of the table.
func (t *Table) Finish() error {
	whole := int64(len(t.work))
	return t.flush((t.size + whole - 1) / whole)
}

// Slots maps reserved disk ranges to file offsets until they are written. Workers hold a few megabytes between them, so
// the map stays small for an image of any size. The zero value is empty.
type Slots struct {
	mu   sync.Mutex
	open map[int64]slot // by disk offset
}

type slot struct{ size, place int64 }

// Add maps the disk range [off, off+n) to the file offset place.
func (s *Slots) Add(off, n, place int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[int64]slot{}
	}
	s.open[off] = slot{n, place}
}

// WriteAt writes p, which begins at disk offset off and covers whole slots, to their file offsets and frees the slots.
func (s *Slots) WriteAt(f io.WriterAt, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := off + int64(done)
		place, n, ok := s.take(at, int64(len(p)-done))
		if !ok {
			panic(fmt.Sprintf("driver: write of %d bytes at %#x, which was not reserved", len(p)-done, at))
		}
		m, err := f.WriteAt(p[done:done+int(n)], place)
		done += m
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (s *Slots) take(off, most int64) (place, n int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.open[off]
	if !ok || o.size > most {
		return 0, 0, false
	}
	delete(s.open, off)
	return o.place, o.size, true
}

// Blocks implements Reserve and WriteAt of Target for formats with allocation tables. Each block of the disk has one
// place in the file.
type Blocks struct {
	File WriteFile
	Size int64 // bytes of a block
	// Allocate assigns a block its file offset and updates the tables. It is called once for each block with data, in
	// ascending order.
	Allocate func(block int64) (place int64, err error)

	last  int64 // 1 + the last allocated block
	place int64 // its file offset
	slots Slots
}

// Reserve places the blocks of [off, off+n). Blocks adjacent in the file share one slot, so that one write covers them.
func (b *Blocks) Reserve(off, n int64) error {
	first, size, place := off, int64(0), int64(0)
	for end := off + n; off < end; {
		block, into := off/b.Size, off%b.Size
		if b.last != block+1 {
			var err error
			if b.place, err = b.Allocate(block); err != nil {
				return err
			}
			b.last = block + 1
		}
		if size > 0 && b.place+into != place+size {
			b.slots.Add(first, size, place)
			first, size = off, 0
		}
		if size == 0 {
			place = b.place + into
		}
		part := min(end-off, b.Size-into)
		off, size = off+part, size+part
	}
	b.slots.Add(first, size, place)
	return nil
}

// ReserveAt maps [off, off+n) to a file offset outside of all blocks.
func (b *Blocks) ReserveAt(off, n, place int64) { b.slots.Add(off, n, place) }

// WriteAt writes reserved ranges.
func (b *Blocks) WriteAt(p []byte, off int64) (int, error) { return b.slots.WriteAt(b.File, p, off) }

// Flat is the target for a file that holds the disk byte for byte. Unwritten ranges stay holes.
type Flat struct {
	WriteFile

	offset int64 // of the disk in the file
}

// flatUnit is the usual block size of host file systems, in bytes; a smaller hole saves nothing.
const flatUnit = 4 << 10

// NewFlat sets the size of f and returns the target of a disk at an offset of it.
func NewFlat(f WriteFile, offset, size int64) (*Flat, error) {
	if err := f.Truncate(offset + size); err != nil {
		return nil, fmt.Errorf("%w (%d bytes)", err, offset+size)
	}
	return &Flat{f, offset}, nil
}

// WriteAt writes a range of the disk.
func (t *Flat) WriteAt(p []byte, off int64) (int, error) { return t.WriteFile.WriteAt(p, t.offset+off) }

// Unit returns the size of the smallest useful hole, in bytes.
func (t *Flat) Unit() int64 { return flatUnit }

// Reserve does nothing: disk offsets are file offsets.
func (t *Flat) Reserve(int64, int64) error { return nil }

// Finish syncs the file.
func (t *Flat) Finish() error { return t.Sync() }
