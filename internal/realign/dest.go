package realign

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/trueup/trueup/internal/align"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/image/raw"
	"github.com/trueup/trueup/internal/image/store"
	"github.com/trueup/trueup/internal/layout"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/plan"
	"github.com/trueup/trueup/internal/sys"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// Dest is the destination of a disk's copy: a File, a View, a Device, a Replace or a By.
type Dest interface {
	write(ctx context.Context, j *Job, x planned) (Written, error)
}

// File is an image with names of its own.
type File struct {
	Path      string
	Format    string // by default the source's
	Subformat string // by default the source's or the format's default
	Force     bool   // replace an existing file
}

func (f File) write(ctx context.Context, j *Job, x planned) (Written, error) {
	return j.put(ctx, x, func() (output, target, error) {
		options := x.options(x.plan, f.Format)
		options.Subformat, options.Force, options.Offset = f.Subformat, f.Force, j.Offset
		o, err := store.Create(f.Path, x.plan.Size, x.Image, options)
		return o, o, err
	})
}

// View is a VMDK that shows the planned disk. Its extents are ranges of the files of SOURCE, and of a further file with
// all other data.
type View struct {
	Path  string
	Force bool // replace an existing file
}

func (v View) write(ctx context.Context, j *Job, x planned) (w Written, err error) {
	options := x.options(x.plan, "vmdk")
	options.Subformat, options.Force = "twoGbMaxExtentFlat", v.Force
	if options.Over, x.own, err = x.lent(x.plan, x.view); err != nil {
		return w, err
	}
	w, err = j.put(ctx, x, func() (output, target, error) {
		o, err := store.Create(v.Path, x.plan.Size, x.Image, options)
		return o, o, err
	})
	if err == nil {
		w.Notes = append(w.Notes, viewNotes(v.Path, options.Over, w.Files)...)
	}
	return w, err
}

// Device is a block device as DEST, claimed by this run.
type Device struct {
	*store.Device

	Overwrite string // content that may be lost, as returned by content
	Discard   bool   // discard ranges of zeros on the storage
}

// Loops maps files to the loop devices that they back.
type Loops map[sys.ID]string

// Looped returns the loop devices of this machine. It must run before the process confines itself.
func Looped() Loops { return store.Looped() }

// IsDevice reports whether a path leads to a block device.
func IsDevice(path string) bool {
	st, err := sys.Stat(path)
	return err == nil && st.Mode.Type() == fs.ModeDevice
}

func (d Device) write(ctx context.Context, j *Job, x planned) (Written, error) {
	return j.put(ctx, x, func() (output, target, error) {
		o, err := d.create(ctx, x.Source, disk.Range{Off: j.Offset, Len: x.plan.Size})
		return o, o, err
	})
}

// create starts a copy on the device, unless the disk must not be written there.
func (d Device) create(ctx context.Context, s *Source, at disk.Range) (*store.DeviceOutput, error) {
	if err := d.Apart(&s.Image.Opened); err != nil {
		return nil, err
	}
	if err := d.Fits(at.End(), s.sectorSize()); err != nil {
		return nil, err
	}
	found, err := d.content()
	if err != nil {
		return nil, err
	}
	if found != "" && found != d.Overwrite {
		return nil, d.holds(found)
	}
	return d.Create(store.Options{Disk: at, Discard: d.Discard, Stop: ctx.Err})
}

// holds returns the refusal to overwrite the content of the device.
func (d Device) holds(found string) error {
	said := ""
	if d.Overwrite != "" {
		said = fmt.Sprintf(" (--overwrite-content names %.256q)", d.Overwrite)
	}
	return &ondisk.Refusal{
		Code:   "output",
		Reason: fmt.Sprintf("DEST %s is not blank, and its content would be lost%s", d.Path, said),
		Remedy: "name another device, or if that may be lost, add --overwrite-content '" + found + "'",
	}
}

// maxNamed bounds the volumes in the description of a device's content.
const maxNamed = 8

// content describes the content of the device. It is empty for a blank device, or one with only an unfinished copy.
func (d Device) content() (string, error) {
	img, err := image.Open(d.Node, image.Options{SectorSize: d.Sector})
	if err != nil {
		img, err = image.Open(d.Node, image.Options{Format: raw.Format.Name, SectorSize: d.Sector})
	}
	if err != nil {
		return "", fmt.Errorf("DEST %s: %w", d.Path, err)
	}
	defer img.Close()
	found, err := d.contentOf(img)
	if err != nil {
		err = fmt.Errorf("DEST %s: %w", d.Path, err)
	}
	return found, err
}

// contentOf is content for the open device.
func (d Device) contentOf(img *image.Image) (string, error) {
	named := func(format string, args ...any) string {
		return fmt.Sprintf("%d bytes: %s", d.Size, plain(fmt.Sprintf(format, args...)))
	}
	if img.Format != raw.Format.Name {
		return named("%s image", img.Format), nil
	}
	marked, err := image.Marked(img.Handles[0])
	if err != nil {
		return "", err
	}
	from := int64(0)
	if marked {
		from = d.Sector
	}
	blank, err := blankEdges(img.Disk, from)
	if err != nil {
		return "", err
	}
	l, err := layout.Read(img.Disk, table.Geometry{})
	switch {
	case err != nil && Code(err) == "io":
		return "", err
	case marked && blank && (err != nil || l.Table == nil && !known(l.Volume) && !known(l.Outer)):
		return "", nil //nolint:nilerr // it has no disk yet
	case marked:
		return named("unfinished copy"), nil
	case err != nil:
		return named("unknown content"), nil //nolint:nilerr // the description reports it
	case blank && l.Blank:
		blank, err = blankSamples(img.Disk)
		if blank || err != nil {
			return "", err
		}
	}
	return named("%s", volumesOf(l)), nil
}

// blankEdges reports whether both edges of a disk are zero, from offset from on. They are the edges that a copy clears
// first, so a device with a partition there, but without a table, is not blank.
func blankEdges(d disk.Disk, from int64) (bool, error) {
	head := disk.Range{Off: from, Len: store.Head - from}
	return blankAt(d, head, disk.Range{Off: max(from, d.Size()-store.Tail), Len: store.Tail})
}

// samples is the number of pieces that are read besides the edges of a device, and sampleLen their size. Their offsets
// are whole fractions of the device size, where XFS and others keep copies of their superblocks.
const (
	samples   = 64
	sampleLen = units.MiB
)

// backups lists offsets where file systems keep copies of their superblocks, or their file tables, in bytes: the second
// block group of ext with blocks of 1, 2 and 4 KiB, btrfs, and the $MFT of NTFS as placed by Windows.
var backups = []int64{8 * units.MiB, 32 * units.MiB, 128 * units.MiB, 64 * units.MiB, 256 * units.GiB, 3 * units.GiB}

// blankSamples reports whether pieces all over a disk are zero. This detects data on a disk whose table and superblocks
// were lost.
func blankSamples(d disk.Disk) (bool, error) {
	at := slices.Clone(backups)
	for i := range int64(samples) {
		at = append(at, units.AlignDown(d.Size()/samples*i, units.SectorSize))
	}
	for _, off := range at {
		if off >= d.Size() {
			continue
		}
		if blank, err := blankAt(d, disk.Range{Off: off, Len: sampleLen}); !blank {
			return false, err
		}
	}
	return true, nil
}

// blankAt reports whether ranges are zero. It ignores parts beyond the disk.
func blankAt(d disk.Disk, ranges ...disk.Range) (bool, error) {
	return ondisk.AllZero(d, disk.Intersect(ranges, []disk.Range{{Len: d.Size()}})...)
}

// known reports whether a prober has recognized a volume.
func known(v *volume.Volume) bool { return v != nil && v.Kind != volume.Unknown && v.Kind != "" }

// volumesOf lists the table and the volumes of a disk.
func volumesOf(l *layout.Layout) string {
	var names []string
	add := func(v *volume.Volume) {
		switch {
		case !known(v):
		case v.Label == "":
			names = append(names, string(v.Kind))
		default:
			names = append(names, fmt.Sprintf(`%s "%.64s"`, v.Kind, v.Label))
		}
	}
	if l.Table != nil {
		names = append(names, strings.ToUpper(string(l.Table.Scheme)))
	}
	add(l.Volume)
	add(l.Outer)
	for _, p := range l.Partitions {
		add(p.Volume)
	}
	if n := len(names); n > maxNamed {
		names = append(names[:maxNamed], fmt.Sprintf("%d more", n-maxNamed))
	}
	if len(names) == 0 {
		return "unknown content"
	}
	return strings.Join(names, ", ")
}

// plain replaces characters that are special for a shell or a terminal.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 0x20 && r < 0x7f && !strings.ContainsRune("'\\!`$", r) {
			return r
		}
		return '?'
	}, s)
}

// target is DEST under construction with a single disk: a file or a device.
type target interface {
	output
	driver.Target
	Kind() (format, subformat string)
	Pack() func(unit []byte, off int64) ([]byte, error)
	Room() int64
	Free() (int64, error)
	Reopen() (*image.Image, error)
}

// maxLent bounds the ranges of a view: QEMU opens a file for each extent, and a process has 1024 files by default.
// maxShown bounds the ranges before trimming, because some are too short.
const (
	maxLent  = 256
	maxShown = 16 * maxLent
)

// flatKinds lists the VMDK subformats whose files can hold a disk byte for byte.
var flatKinds = []string{"monolithicFlat", "twoGbMaxExtentFlat", "vmfs"}

// lent returns the ranges of the files of SOURCE that the planned disk shows, and a disk with all other data and zeros
// elsewhere.
func (s *Source) lent(p *plan.Plan, view disk.Disk) ([]disk.Piece, disk.Disk, error) {
	refuse := func(reason string) error {
		return &ondisk.Refusal{
			Code: "unsupported", Reason: s.Path() + ": " + reason,
			Remedy: "make a copy of it (trueup align)",
		}
	}
	switch {
	case s.Original:
		return nil, nil, refuse("it is the kept original of a replaced disk, and a guest on the view would write to it")
	case s.Image.Packaged():
		return nil, nil, refuse("it is a disk of a package, and a view names plain files only")
	case s.Image.MapsDevice:
		return nil, nil, refuse("it maps a device, and its extent file can be that device")
	case !s.Image.Flat && slices.Contains(flatKinds, s.Image.Subformat):
		return nil, nil, refuse("its descriptor uses parts of files, as a view does, or read-only files; a view " +
			"needs whole, writable files")
	case !s.Image.Flat && s.Image.Format == "raw":
		return nil, nil, refuse("its file ends within a sector, and a view needs whole sectors")
	case !s.Image.Flat:
		return nil, nil, refuse(fmt.Sprintf("a view needs files that store the disk byte for byte (raw, or a VMDK "+
			"that is %s), and this is %s %s", strings.Join(flatKinds, " or "), s.Image.Format, s.Image.Subformat))
	case len(p.Patches) == 0 && len(p.Moves) == 0:
		return nil, nil, ondisk.In(ondisk.ErrUsage, "%s: nothing moves, and a view would equal the disk; use the "+
			"disk itself (--skip-aligned makes this no error)", s.Path())
	}
	lent, err := stretches(view)
	if err != nil {
		return nil, nil, err
	}
	many := len(lent)
	switch lent = trim(lent, view.Size()); {
	case many > maxShown || len(lent) > maxLent:
		return nil, nil, refuse(fmt.Sprintf("a view of it would have more than %d stretches of its files", maxLent))
	case len(lent) == 0:
		return nil, nil, refuse("no block of its files would be shown as it is")
	}
	return lent, only(view, disk.Gaps(disk.Range{Len: view.Size()}, lent)), nil
}

// lender is a file of SOURCE.
type lender interface {
	io.ReaderAt
	Name() string
}

// stretches returns the ranges of a disk that lie unchanged in files, in disk order, up to maxShown of them. No byte of
// a file is shown twice, because a write to one place would change the other.
func stretches(d disk.Disk) (out []disk.Piece, err error) {
	for off := int64(0); off < d.Size() && len(out) <= maxShown; {
		run, _, err := disk.Leaf(d, off)
		if err != nil {
			return nil, err
		}
		p := disk.Piece{Range: disk.Range{Off: off, Len: run.Len}, Src: run.Src, At: run.Off}
		if _, ok := run.Src.(lender); ok && !shown(out, p) {
			out = append(out, p)
		}
		off += run.Len
	}
	return out, nil
}

// shown reports whether pieces and p show the same byte of a file.
func shown(pieces []disk.Piece, p disk.Piece) bool {
	for _, x := range pieces {
		if x.Src == p.Src && (disk.Range{Off: x.At, Len: x.Len}).Overlaps(disk.Range{Off: p.At, Len: p.Len}) {
			return true
		}
	}
	return false
}

// trim aligns the ends of ranges to blocks where they meet data of the view itself, so that each cluster lies in one
// file, on a block of the storage. There it also leaves out byte 0 of a file, because a disk that begins at the start
// of its files is not recognized as a view.
func trim(lent []disk.Piece, size int64) (out []disk.Piece) {
	for i := 0; i < len(lent); {
		j := i + 1
		for j < len(lent) && lent[j].Off == lent[j-1].End() {
			j++
		}
		from, end := units.AlignUp(lent[i].Off, align.Block), lent[j-1].End()
		if end < size {
			end = units.AlignDown(end, align.Block)
		}
		for _, p := range lent[i:j] {
			if p.At == 0 && p.Off == from {
				from += align.Block
			}
			off := max(p.Off, from)
			if n := min(p.End(), end) - off; n > 0 {
				out = append(out, disk.Piece{Range: disk.Range{Off: off, Len: n}, Src: p.Src, At: p.At + off - p.Off})
			}
		}
		i = j
	}
	return out
}

// viewNotes returns warnings about the differences of a view from a copy and from a snapshot.
func viewNotes(dest string, lent []disk.Piece, files []string) []ondisk.Issue {
	names := map[string]bool{}
	for _, p := range lent {
		names[p.Src.(lender).Name()] = true
	}
	data := fmt.Sprintf("%q", lent[0].Src.(lender).Name())
	if n := len(names) - 1; n > 0 {
		data += fmt.Sprintf(" and %d more of the files of SOURCE", n)
	}
	return []ondisk.Issue{{
		Code: "view", Effect: ondisk.Warn,
		Text: fmt.Sprintf("%s is a view, not a copy: the data stay in %s, which must stay in this folder and must "+
			"not be changed otherwise. The storage sees the old offsets until a hypervisor or trueup convert has "+
			"copied the view",
			dest, data),
	}, {
		Code: "view-writes", Effect: ondisk.Warn,
		Text: "a view is not a snapshot: a guest that writes to it writes to SOURCE. Before the first write, " +
			"deleting " +
			fmt.Sprintf("%q and %q", files[0], files[1]) +
			" undoes the view. After it, keep them: SOURCE alone lacks the data written to areas stored in the view",
		Remedy: "to try the guest, start it from a snapshot or an overlay of the view; to keep it, convert the view " +
			"to a complete disk (trueup convert) and use that",
	}}
}

// Served is a planned disk whose source is held.
type Served struct {
	Disk disk.Disk

	of      planned
	began   time.Time // when the planned disk was checked
	release func()
}

// Serve checks the planned disk, and holds the source until Close.
func (s *Source) Serve(ctx context.Context, p *Plan) (*Served, error) {
	x, err := s.planned(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	began := time.Now()
	release, err := s.Image.Hold()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	if err := s.Image.CheckDigests(ctx); err != nil {
		release()
		return nil, fmt.Errorf("%s: %w", s.Path(), err)
	}
	return &Served{x.view, x, began, release}, nil
}

// Fit returns an error if the source has changed since it was opened: clients may have read a mixture of both states.
func (v *Served) Fit() error {
	if err := v.of.unchanged(); err != nil {
		return fmt.Errorf("%w; data that clients have read since then may be wrong", err)
	}
	return nil
}

// Close releases the source.
func (v *Served) Close() { v.release() }
