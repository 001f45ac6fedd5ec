package vmdk

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// sparse is an opened sparse extent of a hosted product, or of the older kind of ESX, whose header is brought into
// the same form.
type sparse struct {
	file  driver.File
	h     sparseHeader
	tabs  *ondisk.Pages
	gd    int64            // byte offset of the directory in use
	grain *driver.Unpacked // compressed grains, by number
	cowd  bool             // grain tables lie among the grains
	holed
}

// holed is an extent with holes.
type holed struct {
	below func(off, n int64) disk.Run // what a hole shows, by offset in the extent; nil: zeros
}

func (h *holed) over(below func(off, n int64) disk.Run) { h.below = below }

// hole returns what n bytes from off show that are not there.
func (h *holed) hole(off, n int64) disk.Run {
	if h.below == nil {
		return disk.Run{Len: n}
	}
	return h.below(off, n)
}

func openSparse(s *driver.Source) (*driver.Image, error) {
	x := &sparse{file: s.File}
	if n := s.File.Size(); n < units.SectorSize {
		return nil, field("file size", 0, n, "at least 512 bytes, the size of the header")
	}
	if _, err := ondisk.Decode(s.File, 0, &x.h); err != nil {
		return nil, err
	}
	if x.h.Capacity == 0 && x.h.DescriptorOffset != 0 {
		// A header without data whose text names extents: the same rules as for a descriptor file.
		d, err := x.descriptor()
		if err != nil {
			return nil, err
		}
		return openDescriptor(s, d)
	}
	if err := x.h.check(s.File.Size()); err != nil {
		return nil, err
	}
	if err := x.readFooter(); err != nil {
		return nil, err
	}
	x.grain = driver.NewUnpacked(s.Memory(unpackedCache), x.h.grainBytes(), x.unpack)
	x.tabs = ondisk.NewPages(s.File, s.Memory(tableCache))
	x.gd = ondisk.I64(x.h.GDOffset) * units.SectorSize
	d, err := x.ownDescriptor()
	if err != nil {
		return nil, err
	}
	parent, err := d.openParent(s)
	if err != nil {
		return nil, err
	}
	x.below = over(parent, 0)
	d = d.inherit(parent)
	img, err := x.h.image(d, disk.New(x.size(), d.sectorSize(), x.run))
	if err != nil {
		return nil, err
	}
	img.Check = x.checkTables
	return img, nil
}

// image returns the image that header and descriptor of a sparse file define. dk is nil for a stream.
func (h *sparseHeader) image(d *descriptor, dk disk.Disk) (*driver.Image, error) {
	img, err := image(d, h.subformat(), dk)
	if err != nil {
		return nil, err
	}
	img.Details = append(img.Details, driver.Detail{Name: "grain size", Value: units.Format(h.grainBytes())})
	img.Template, img.ReadOnly = &template{d, ondisk.I64(h.GrainSize)}, h.packed()
	if h.UncleanShutdown != 0 {
		img.Issues = append(img.Issues, unclean("the sparse VMDK", atUnclean, h.UncleanShutdown))
	}
	return img, nil
}

// unclean returns the issue of a file that its writer did not close.
func unclean(name string, at int64, mark any) ondisk.Issue {
	return ondisk.Issue{
		Code: "vmdk-unclean", Effect: ondisk.Refuse, Err: ondisk.ErrBusy,
		Text: fmt.Sprintf("%s was not closed cleanly (uncleanShutdown at %#x is %d): its tables may be stale", name,
			at, mark),
		Remedy: "close the program that has it open, or repair it with vmware-vdiskmanager -R",
	}
}

// size returns the size of the extent on the disk in bytes.
func (x *sparse) size() int64 { return ondisk.I64(x.h.Capacity) * units.SectorSize }

func (x *sparse) descriptor() (*descriptor, error) {
	if x.h.DescriptorSize > maxText/uint64(units.SectorSize) {
		return nil, fmt.Errorf("vmdk sparse header at %#x: descriptor size of %d sectors: %w of %d bytes", atDescLen,
			x.h.DescriptorSize, ondisk.ErrLimit, maxText)
	}
	if x.h.DescriptorOffset > ondisk.U64(x.file.Size()/units.SectorSize) {
		return nil, field("descriptor offset", atDesc, x.h.DescriptorOffset,
			fmt.Sprintf("a sector of the file of %d bytes", x.file.Size()))
	}
	text, err := ondisk.Bytes(x.file, ondisk.I64(x.h.DescriptorOffset)*units.SectorSize,
		ondisk.I64(x.h.DescriptorSize)*units.SectorSize)
	if err != nil {
		return nil, err
	}
	return parseDescriptor(text)
}

// ownDescriptor reads the embedded text and checks it against the header. The file name in its extent line is not
// looked at: it is this very file, which users rename.
func (x *sparse) ownDescriptor() (*descriptor, error) {
	if x.h.DescriptorOffset == 0 {
		return nil, lone("sparse extent of a split disk (no descriptor inside)")
	}
	d, err := x.descriptor()
	if err != nil {
		return nil, err
	}
	return d, x.h.checkText(d)
}

// checkText checks the embedded descriptor against the header.
func (h *sparseHeader) checkText(d *descriptor) error {
	kind, no := d.get("createtype")
	if want := h.subformat(); kind != want {
		if kind == "" && len(d.extents) == 0 {
			return lone("sparse extent of a split disk (its descriptor is empty)")
		}
		if kind == otherType {
			return unsupported(kind)
		}
		return textErr(no, ondisk.ErrFormat, "createType %.64q, want %s in the descriptor of this sparse file", kind,
			want)
	}
	if len(d.extents) != 1 || d.extents[0].kind != "SPARSE" {
		return ondisk.Field(what, "extents", 0, len(d.extents), "one SPARSE extent")
	}
	if got := d.extents[0].size; got != ondisk.I64(h.Capacity)*units.SectorSize {
		return textErr(d.extents[0].line, ondisk.ErrFormat,
			"extent of %d sectors, but the capacity in the header is %d", got/units.SectorSize, h.Capacity)
	}
	return nil
}

// maxEntries is how many entries of a table are looked at for one run.
const maxEntries = 512

// run returns the map: directory entry, table entry, grain. It gives the longest run that one piece of a table shows.
func (x *sparse) run(off int64) (disk.Run, error) {
	grain := off / x.h.grainBytes()
	into := off % x.h.grainBytes()
	table, first := grain/x.h.gtes(), grain%x.h.gtes()
	loc, zeros, err := x.table(table)
	if err != nil {
		return disk.Run{}, err
	}
	if loc == 0 {
		return x.hole(off, (zeros*x.h.gtes()-first)*x.h.grainBytes()-into), nil
	}
	entries := make([]byte, 4*min(x.h.gtes()-first, x.h.grains()-grain, maxEntries))
	if err := x.tabs.Read(entries, loc+4*first); err != nil {
		return disk.Run{}, err
	}
	if ondisk.IsZero(entries) { // as in nearly all of the two million tables that a large disk of qemu-img has
		return x.hole(off, int64(len(entries)/4)*x.h.grainBytes()-into), nil
	}
	return x.join(entries, loc+4*first, grain, into)
}

// gdScan is how many empty directory entries run looks over at once: a 64 TiB disk has two million of them, and one
// of ESX 32.
const gdScan = 8192

// table returns the byte offset of a grain table, or 0 and the number of absent tables from there on.
func (x *sparse) table(i int64) (loc, zeros int64, err error) {
	at := x.gd + 4*i
	sector, err := x.tabs.U32(at)
	if err != nil {
		return 0, 0, err
	}
	if sector != 0 {
		return x.tableAt(sector, at)
	}
	n := 4 * min(gdScan, x.h.tables()-i)
	zeros, err = x.tabs.Zeros(at, n)
	if err == nil && zeros == n {
		zeros += 4 * emptyEntries(x.file, at+n, x.gd+x.h.gdBytes(), 4)
	}
	return 0, zeros / 4, err
}

// maxEmpty is how many directory entries in a hole are passed over at once: of the largest grain tables that is 128
// PiB of disk.
const maxEmpty = 1 << 28

// emptyEntries returns how many entries of a directory lie in a hole of the file from a place on. A directory of
// terabytes costs nothing to make.
func emptyEntries(f driver.File, from, end, entry int64) int64 {
	if from >= end {
		return 0
	}
	e, err := f.Extent(from, end-from)
	if err != nil || !e.Zero {
		return 0 // reading them will find the error
	}
	return min(e.Len/entry, maxEmpty)
}

// tableAt checks the place of a grain table. at is the byte offset of the directory entry that names it.
func (x *sparse) tableAt(sector uint32, at int64) (int64, int64, error) {
	loc := int64(sector) * units.SectorSize
	gd := disk.Range{Off: x.gd, Len: x.h.gdBytes()}
	if loc > x.file.Size()-x.h.gtBytes() || gd.Overlaps(disk.Range{Off: loc, Len: x.h.gtBytes()}) {
		return 0, 0, ondisk.Field("vmdk grain directory", "entry", at, sector,
			fmt.Sprintf("0, or the sector of a grain table inside the file of %d bytes and outside the directory",
				x.file.Size()))
	}
	return loc, 0, nil
}

// join makes one run of the entries that continue the first: all zero, or grains that follow each other in the file.
// at is the byte offset of the first entry.
func (x *sparse) join(entries []byte, at, grain, into int64) (disk.Run, error) {
	first := binary.LittleEndian.Uint32(entries)
	n := int64(1)
	if x.isZero(first) {
		for int(4*n) < len(entries) && x.continues(first, binary.LittleEndian.Uint32(entries[4*n:])) {
			n++
		}
		if first == 0 {
			return x.hole(grain*x.h.grainBytes()+into, n*x.h.grainBytes()-into), nil
		}
		return disk.Run{Len: n*x.h.grainBytes() - into}, nil
	}
	if x.h.packed() {
		return disk.Run{Len: x.h.grainBytes() - into, Src: x.grain.Unit(grain), Off: into},
			x.checkGrains(first, 1, grain, at)
	}
	// A grain that the file cuts short does not spoil those in front of it.
	whole := (x.file.Size() - int64(first)*units.SectorSize) / x.h.grainBytes()
	for n < whole && int(4*n) < len(entries) &&
		uint64(binary.LittleEndian.Uint32(entries[4*n:])) == uint64(first)+uint64(n)*x.h.GrainSize {
		n++
	}
	run := disk.Run{Len: n*x.h.grainBytes() - into, Src: x.file, Off: int64(first)*units.SectorSize + into}
	return run, x.checkGrains(first, n, grain, at)
}

func (x *sparse) isZero(entry uint32) bool { return x.h.isZero(entry) }

// continues reports whether a grain without data reads from the same place as one in front of it. A marked grain of
// zeros hides what a hole shows.
func (x *sparse) continues(first, entry uint32) bool {
	return x.isZero(entry) && (x.below == nil || entry == first)
}

// checkGrains makes sure that n grains from a sector on lie in the file, behind the metadata. The last grain of the
// disk may be cut by the capacity.
func (x *sparse) checkGrains(sector uint32, n, grain, at int64) error {
	size := min(n*x.h.grainBytes(), ondisk.I64(x.h.Capacity)*units.SectorSize-grain*x.h.grainBytes())
	if x.h.packed() {
		size = grainMarker // how much follows is said there
	}
	off := int64(sector) * units.SectorSize
	if uint64(sector) < x.h.OverHead || size > x.file.Size()-off {
		want := fmt.Sprintf("0, or at least %d, behind the metadata", x.h.OverHead)
		past := size > x.file.Size()-off
		if past {
			want = fmt.Sprintf("a grain of %d bytes that ends inside the file (%d bytes)", size, x.file.Size())
		}
		return &ondisk.FormatError{
			What: "vmdk grain table", Off: at, Field: "entry", Got: sector, Past: past,
			Want: want,
		}
	}
	return nil
}
