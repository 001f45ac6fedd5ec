// Package driver defines what an image format provides.
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

// ErrLone marks an extent that was named instead of the descriptor of its image.
var ErrLone = fmt.Errorf("%w without its descriptor", ondisk.ErrUnsupported)

// File is an open file of an image, read-only. Extent reports its holes.
type File interface {
	io.ReaderAt
	Size() int64
	Name() string // base name
	ID() string   // device and inode: two names of one file share it
	Extent(off, max int64) (disk.Extent, error)
}

// Source is the file that the user named, and the only way to the files beside it.
type Source struct {
	File File
	// Open is the gate: a regular file in the same folder, by its plain name, or by a path into a folder that the user
	// allows; never a link.
	Open func(name string) (File, error)
	// Parent opens the image that this one completes, through the same gate. The child inherits from it by itself, see
	// Image.Inherit.
	Parent func(ref ParentRef) (*Image, error)
	// Level is 0 for the image that the user named, 1 for its parent, …
	Level int
	// SectorSize of the disk in bytes, for a format that cannot say it; 0 when it is not said.
	SectorSize int64
}

// parentShare is the part of its usual memory that a parent gets: a chain of sixteen takes three times as much as one
// image.
const parentShare = 8

// Memory returns how many bytes the image may keep of what it would keep if it stood alone.
func (s *Source) Memory(alone int64) int64 {
	if s.Level > 0 {
		return alone / parentShare
	}
	return alone
}

// ParentRef is how an image names the one it completes.
type ParentRef struct {
	// Names are what is stored, in order of preference. A name that is a path is followed only into the image's own
	// folder, by its last component, and only when ID can prove that the file of this name is the right one.
	Names []string
	// Format that the parent must have; empty to find it by content.
	Format string
	// ID is what the parent's ContentID must be; empty when the format has none.
	ID string
}

// Below returns what shows through a hole of a child: the parent at off, at most n bytes of it, and zeros where there
// is no parent or behind its end.
func Below(parent *Image, off, n int64) disk.Run {
	if parent == nil || off >= parent.Disk.Size() {
		return disk.Run{Len: n}
	}
	return disk.Run{Len: min(n, parent.Disk.Size()-off), Src: parent.Disk, Off: off}
}

// Format is one image format.
type Format struct {
	Name   string                       // "vhd", for flags and JSON
	Title  string                       // as its makers write it; empty: as Name
	Alias  string                       // as QEMU calls it; empty: as Name
	Detect func(head, tail []byte) bool // nil for raw, which is what remains
	Open   func(s *Source) (*Image, error)
	// Create starts an image of size bytes in f. It writes nothing that Detect would know before Target.Finish.
	Create func(f WriteFile, size int64, o Options) (Target, error)
	// Reports returns the geometry that a BIOS reports of an image of size bytes that Create makes. Nil when such
	// images state none, and the machine chooses.
	Reports func(size int64, o Options) Geometry
	// Subformats that Create takes; the first is the default.
	Subformats []string
	// SectorSizes reports whether an image states the sector size of its disk; others mean 512 bytes.
	SectorSizes bool
	// Names reads what a file of this format names, without judging the rest. Nil when images of this format stand
	// alone.
	Names func(f File) (Names, error)
	// Rename returns the bytes of an image's first file with other names of the files that it names. Nil when images of
	// this format stand alone.
	Rename func(b []byte, to func(name string) string) ([]byte, error)
	// Glance is Names without a proof that what it reads is whole, for a file that is opened later. Nil if Names reads
	// little.
	Glance func(f File) (Names, error)
	// Extensions are those that files of this format have, in lower case with the dot: the neighbours of an image to
	// look at.
	Extensions []string
	// AnyExtension reports whether programs give such files other extensions too, so that only the content counts.
	AnyExtension bool
}

// HoldsSectors reports whether an image of the format can show a disk with sectors of n bytes. A raw image states no
// size: its machine is told.
func (f Format) HoldsSectors(n int64) bool {
	return n == 512 || f.Detect == nil || (f.SectorSizes && n == 4096)
}

// Names are the other files that an image names.
type Names struct {
	Parents []string // of the image that it completes, as stored
	Lineage string   // ContentID of that image, of a format that names no file
	Extents []string // files that hold its data
	// Claims are for each of Extents how many bytes the image takes of a file that has no header of its own, from its
	// start on; 0 for a place behind that.
	Claims  []int64
	Members []string // files of its package, whatever they hold
	// Views are those of Extents of which it takes stretches from the inside: a disk of its own lies in these files.
	Views  []string
	Part   bool // it is an extent, and of no use without what names it
	Broken bool // it has this format and cannot be read: what it names is not known
	// Unseen is the error of a file that this user may not open: it could have any format, and name anything.
	Unseen error
}

// Image is an opened image.
type Image struct {
	Disk      disk.Disk
	Subformat string
	Parts     []File   // files beside the one that was named, in disk order
	Details   []Detail // what the container says about itself, for inspect
	Issues    []ondisk.Issue
	// Check walks the allocation tables for damage that a reader meets only when it comes by. Nil when there is nothing
	// to walk.
	Check func() ([]ondisk.Issue, error)
	// Template is what Create of the same format needs to make its like: a VMDK descriptor, …
	Template any
	// Heads and Sectors are the geometry that the container states, 0 when it states none.
	Heads, Sectors int
	// BIOS is the geometry that a BIOS reports of the disk, by what the container states; zero when it states none, and
	// the machine chooses.
	BIOS Geometry
	// ContentID is what a child names as its parent, empty when the format has none.
	ContentID string
	// Flat reports whether its files hold the disk byte for byte, in order, and all of them may be written.
	Flat bool
	// ReadOnly reports whether hypervisors only read images of this kind, so that no guest writes to them.
	ReadOnly bool
	// MapsDevice reports whether the disk is a device of some machine. What is read as its file can be that device.
	MapsDevice bool
	// Around returns what the image has beside the bytes of its disk when that changes in its place and gets a size in
	// bytes. Nil for an image that does not hold its disk byte for byte.
	// bios is as in Options.
	Around func(size int64, bios Geometry) (Around, error)
	// Child reports whether the data are complete only with those of the parent: Disk shows both.
	Child bool
}

// Around holds what stands around the bytes of a disk. It has identifiers of its own, so that children of the old disk
// do not take the new one for their parent.
type Around struct {
	Tail []byte // behind the disk, in its last file
	Text []byte // all of the file that was named, where the disk lies in others
}

// Detail is one line of what a container says about itself.
type Detail struct{ Name, Value string }

// WriteFile is a file being written. *os.File is one.
type WriteFile interface {
	io.WriterAt
	Truncate(size int64) error
	Sync() error
}

// Options of Create. The zero value makes the format's default.
type Options struct {
	Subformat string
	Template  any    // of the source when it has the same format
	Name      string // final base name of the image
	// Seed is what identifiers are derived from, so that the same job gives the same bytes.
	Seed []byte
	// Beside creates a further file of the image, for its data, and gives the name under which it will be found:
	// suffix stands in it between stem and extension of Name, as "-flat" does in disk-flat.vmdk.
	Beside func(suffix string) (WriteFile, string, error)
	// Over are stretches of the disk that lie in files of the same folder, each the Src of a piece. Only a format with
	// Views takes them; what they leave of the disk is written.
	Over []disk.Piece
	// SectorSize of the disk: 512 or 4096 bytes.
	SectorSize int64
	// BIOS has the heads and sectors that the BIOS of the machine is to report, for a disk that is read by cylinder,
	// head and sector; zero when nothing depends on them.
	BIOS Geometry
}

// Target takes the bytes of a new image. WriteAt is safe for concurrent use on disjoint ranges; bytes that are never
// written read as zero.
type Target interface {
	io.WriterAt
	// Unit is the granularity in bytes at which space is allocated. WriteAt takes whole units, or the tail of the disk.
	Unit() int64
	// Reserve places a range before it is written. Calls come in ascending order and one at a time, which makes the
	// layout of the file independent of the speed of workers.
	Reserve(off, n int64) error
	// Finish writes what makes the file an image and syncs it.
	Finish() error
}

// Packer is a Target that stores each unit in another form, such as compressed. Pack may run for many units at once
// and in any order; its result belongs to the caller. Reserve and WriteAt are called for one unit at a time, and with
// the packed bytes: n is their number, off the offset of the unit on the disk.
type Packer interface {
	Pack(unit []byte, off int64) ([]byte, error)
}

// CodeSnapshots is the code of an image with internal snapshots, which a copy lacks.
const CodeSnapshots = "qcow2-snapshots"

// Inherit makes an image the child of a parent. It gets those of the parent's issues that matter to a copy, and its
// Check walks the parent's tables too: what is wrong with either is wrong with the disk that both show.
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

// BackingFiles returns the paths that the name of a backing file can mean to QEMU: a path, a protocol in front of one,
// or "json:" and the options of the block device. broken reports options that cannot be parsed. Source: QEMU,
// bdrv_parse_filename of block/file-posix.c, block/blkdebug.c and block/blkverify.c.
func BackingFiles(name string) (paths []string, broken bool) {
	for names := []string{name}; len(names) > 0; names = names[1:] { // what is added is shorter
		protocol, rest, _ := strings.Cut(names[0], ":")
		switch protocol {
		case "file", "host_device", "host_cdrom":
			names = append(names, rest)
		case "blkdebug": // its configuration comes first, and may be empty
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

// nameOptions are the last parts of the options of a block device that hold the name of a file.
var nameOptions = []string{"filename", "x-image", "x-raw"}

// optionNames returns the file names among the options of a block device, which can be nested or dotted.
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

// Geometry divides a disk for programs that address it by cylinder, head and sector. The zero value says nothing.
type Geometry struct{ Cylinders, Heads, Sectors int64 }

// MaxCylinders are those that programs can address: a cylinder has ten bits. Spec: INT 13h, AH=02h.
const MaxCylinders = 1024

// Limits of what an ATA disk and the interface of a BIOS can state. Spec: ATA-5, 6.2; INT 13h, AH=08h.
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

// Bytes returns how many bytes g covers.
func (g Geometry) Bytes() int64 { return g.Cylinders * g.cylinder() }

func (g Geometry) cylinder() int64 { return g.Heads * g.Sectors * units.SectorSize }

// Alike reports whether a sector has one address in both, as far as both reach.
func (g Geometry) Alike(other Geometry) bool {
	return g.Heads == other.Heads && g.Sectors == other.Sectors
}

// Over returns the heads and sectors of g with the cylinders of a disk of size bytes, the last one whole.
func (g Geometry) Over(size int64) Geometry {
	if g.cylinder() > 0 {
		g.Cylinders = max(1, size/g.cylinder())
	}
	return g
}

// Clipped returns g without the cylinders that no program can address.
func (g Geometry) Clipped() Geometry {
	g.Cylinders = min(g.Cylinders, MaxCylinders)
	return g
}

// Reported returns what a BIOS makes of an ATA disk of size bytes that states g: the same if it can be addressed as it
// is, and otherwise 63 sectors and as many heads as the size wants. Source: QEMU 7.2 hw/block/hd-geometry.c,
// hd_bios_chs_auto_trans; SeaBIOS 1.16 src/block.c, setup_translation.
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

// ForATA returns what an ATA disk of size bytes states so that a BIOS reports the heads and sectors of want: the first
// that does of those in favour, each over the whole disk or as far as programs can address it, of want itself, and of
// the usual 16 heads. ok is false where there is none.
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

// tableWindow is how many entries of a Table are in memory.
const tableWindow = 4 << 10

// Table writes a table of 32-bit entries, which are set in ascending order. All bits of an entry that is not set are
// one, which marks an absent block. Only a window of the table is in memory.
type Table struct {
	f      WriteFile
	off    int64 // of the table in the file, bytes
	size   int64 // bytes
	order  binary.ByteOrder
	window int64 // number of the window in work
	work   [4 * tableWindow]byte
}

// NewTable begins a table at an offset of the file; size and off are in bytes.
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

// Finish writes what is left of the table.
func (t *Table) Finish() error {
	whole := int64(len(t.work))
	return t.flush((t.size + whole - 1) / whole)
}

// Slots remembers where reserved ranges of the disk go in the file until they are written. Workers hold a few megabytes
// between them, so the list stays short whatever the size of the image. The zero value is empty.
type Slots struct {
	mu   sync.Mutex
	open map[int64]slot // by offset on the disk
}

type slot struct{ size, place int64 }

// Add gives the range [off, off+n) of the disk the place in the file where it goes.
func (s *Slots) Add(off, n, place int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = map[int64]slot{}
	}
	s.open[off] = slot{n, place}
}

// WriteAt writes p, which begins at off of the disk and covers whole slots, to the places of these and forgets them.
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

// Blocks writes a disk in blocks, each of which has one place in the file: the part of a Target that formats with
// allocation tables share.
type Blocks struct {
	File WriteFile
	Size int64 // of a block, bytes
	// Allocate gives a block its place in the file and enters it into the tables. It is called once for each block that
	// is written, in ascending order.
	Allocate func(block int64) (place int64, err error)

	last  int64 // 1 + the block that was allocated last
	place int64 // of that
	slots Slots
}

// Reserve places the blocks of [off, off+n). Those that nothing parts in the file are written at once.
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

// ReserveAt gives [off, off+n) a place in the file that is that of no block.
func (b *Blocks) ReserveAt(off, n, place int64) { b.slots.Add(off, n, place) }

// WriteAt writes what was reserved.
func (b *Blocks) WriteAt(p []byte, off int64) (int, error) { return b.slots.WriteAt(b.File, p, off) }

// Flat is the target that several formats share: a file that holds the disk byte for byte. What is not written stays
// a hole.
type Flat struct {
	WriteFile
}

// flatUnit is the block size of the file systems that images lie on, in bytes: a smaller hole saves nothing.
const flatUnit = 4 << 10

// NewFlat sizes f.
func NewFlat(f WriteFile, size int64) (*Flat, error) {
	if err := f.Truncate(size); err != nil {
		return nil, fmt.Errorf("%w (%d bytes)", err, size)
	}
	return &Flat{f}, nil
}

// Unit returns the smallest hole worth leaving.
func (t *Flat) Unit() int64 { return flatUnit }

// Reserve has nothing to do: offsets of the disk are offsets of the file.
func (t *Flat) Reserve(int64, int64) error { return nil }

// Finish makes the bytes durable.
func (t *Flat) Finish() error { return t.Sync() }
