// Package layout reads the content of a disk: partition table, volumes, boot code and references. It resolves
// conflicting claims, such as whether sector 0 is a partition table or the boot sector of a volume.
package layout

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/boot/firmware"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// Layout is the content of a disk. Offsets are bytes of the disk.
type Layout struct {
	Size       int64
	SectorSize int64 // unit for reading the table
	Sectors    Sectors
	Table      *table.Table   // nil without a table
	Volume     *volume.Volume // over the whole disk, if there is no table
	Outer      *volume.Volume // volume found over the whole disk, besides its table
	Blank      bool           // zeros in the areas of tables and superblocks
	Unnamed    bool           // unknown data in these areas, and no partition for data
	Hidden     bool           // the container has data that read as zeros
	Shift      int64          // of the whole disk in its file, like that of a partition
	Partitions []boot.Partition
	Geometry   table.Geometry // of the CHS bytes; zero without an MBR
	Boot       *boot.Result
	Gaps       []Gap // set by ReadGaps
	Issues     []ondisk.Issue
}

// Read reads the layout of a disk. hint is the geometry stated by the container. Broken content becomes an issue. An
// error means that the disk, or all of its table, is unreadable.
func Read(d disk.Disk, hint table.Geometry) (*Layout, error) {
	l, d, err := look(d, hint, false)
	if err == nil {
		err = ondisk.Legible(l.firmwareRAID(d))
	}
	if err != nil {
		return l, err
	}
	if l.Table == nil {
		whole := boot.Partition{Volume: l.Volume}
		whole.Len = l.Size
		l.Boot.Signs, err = SignsOf(d, whole)
		l.Boot.State = boot.Overall(l.Boot.Signs)
		return l, ondisk.Legible(err)
	}
	for _, check := range []func(disk.Disk) error{l.lostRecords, l.lvmOfOS2} {
		if err := ondisk.Legible(check(d)); err != nil {
			return l, err
		}
	}
	err = l.readBoot(d)
	l.checkTypes()
	l.offCylinders()
	return l, err
}

// Survey is Read for a verdict. It omits references and the boot chain, which only a move needs, and identifies the
// boot code. It reads little: the first 4 KiB of a sound partition (see identify.Glance), and no more of the whole disk
// if it has a sensible table.
func Survey(d disk.Disk, hint table.Geometry) (*Layout, error) {
	l, _, err := look(d, hint, true)
	if err == nil && l.Table != nil {
		l.checkTypes()
	}
	return l, err
}

// prober identifies a volume.
type prober func(d disk.Disk, at int64) (*volume.Volume, error)

// sensible reports whether the table certainly belongs to the disk, so that no other content changes the verdict.
func sensible(t *table.Table) bool {
	return t != nil && t.Plausible() && !t.OnlyBackup()
}

// look reads table and volumes, and returns the disk with the sector size of the table.
func look(d disk.Disk, hint table.Geometry, short bool) (*Layout, disk.Disk, error) {
	n := d.SectorSize()
	l, d, err := lookIn(d, Sectors{Shown: n, Counted: n}, hint, short)
	if err == nil && l.Sectors.By == BootRecords {
		return lookIn(disk.InSectors(d, l.Sectors.Counted), l.Sectors, hint, short)
	}
	return l, d, err
}

// lookIn is look with the known sector sizes. look reads an MBR again if it counts sectors of another size.
func lookIn(d disk.Disk, found Sectors, hint table.Geometry, short bool) (*Layout, disk.Disk, error) {
	l := &Layout{Size: d.Size(), SectorSize: d.SectorSize(), Sectors: found}
	t, d, err := l.readTable(d)
	if err != nil && !errors.Is(err, ondisk.ErrNoMatch) {
		return nil, d, err
	}
	probe, all := prober(identify.Probe), prober(identify.Probe)
	if short {
		probe, all = identify.Glance, identify.Glance
		if sensible(t) {
			all = identify.Front
		}
	}
	whole, verr := all(d, 0)
	if verr != nil {
		return nil, d, verr
	}
	l.Table = l.resolveSector0(t, whole)
	if l.Table == nil {
		l.Volume = whole
		l.Boot = &boot.Result{Code: boot.Empty}
		l.Issues = append(l.Issues, whole.Issues...)
		l.bareVolume()
		if err := l.strangeVolumes(d, probe); err != nil {
			return nil, d, err
		}
		l.onlyLabel()
		return l, d, l.checkContent(d)
	}
	l.Outer = whole
	l.Issues = append(l.Issues, t.Issues...)
	if err := l.readVolumes(d, probe); err != nil {
		return nil, d, err
	}
	for i, p := range l.Partitions {
		if l.Partitions[i].Fixed, err = firmware.FixedPlace(d, p, l.Partitions); err != nil {
			return nil, d, fmt.Errorf("partition %d: %w", p.Number, err)
		}
	}
	l.arrayOfDisks(whole)
	if err := ondisk.Legible(l.fitting(d)); err != nil {
		return nil, d, err
	}
	l.checkSectors()
	if err := l.strangeVolumes(d, probe); err != nil {
		return nil, d, err
	}
	l.checkSlices()
	if t.Scheme == table.MBR || t.IsHybrid() {
		l.Geometry = t.Geometry(l.hints(hint))
	}
	l.Boot = &boot.Result{Code: Identify(t.BootCode)}
	return l, d, ondisk.Legible(l.checkUnnamed(d))
}

// BIOSBoots reports whether sector 0 holds boot code.
func (l *Layout) BIOSBoots() bool { return l.Boot.Code != boot.Empty }

// ReadsCHS reports whether the boot code finds its partition by the CHS bytes of the table. A GPT has none.
func (l *Layout) ReadsCHS() bool {
	return l.Boot.Code.ReadsCHS && (l.Table == nil || l.Table.Scheme != table.GPT || l.Table.IsHybrid())
}

// BIOS returns the geometry that the BIOS must report for the disk to boot, or zero if any will do. It is the table's
// geometry if the boot code finds its partition by CHS, or a boot sector reads its files by CHS, as under DOS.
func (l *Layout) BIOS() table.Geometry {
	if l.ReadsCHS() || slices.ContainsFunc(l.Partitions, l.startsDOS) {
		return l.Geometry
	}
	return table.Geometry{}
}

// startsDOS reports whether the boot can continue in the boot sector of a DOS or OS/2 file system: an active one, or
// one that a loader starts by its number or from its menu.
func (l *Layout) startsDOS(p boot.Partition) bool {
	return (p.Active || slices.Contains(l.Boot.DOS, p.Number)) && l.Boot.Code != boot.Empty && p.Volume.Boot != nil &&
		(identify.Traits(p.Volume.Kind).DOS || p.Volume.Kind == volume.HPFS)
}

// resolveSector0 decides between a table and a volume in sector 0. The boot sector of a volume ends in the same
// signature as an MBR, and has text or code at the offset of the entries.
func (l *Layout) resolveSector0(t *table.Table, whole *volume.Volume) *table.Table {
	if t != nil && l.isRemnant(t, whole) {
		return nil
	}
	// A superblock at the end makes no claim to sector 0, since an array of whole disks shows the table inside it.
	if t == nil || whole.Kind == volume.Unknown || (whole.AtEnd && whole.Boot == nil) {
		return t
	}
	if t.Scheme == table.GPT {
		l.overwritten(t, whole)
		return t
	}
	// A file system over the whole disk keeps its superblock elsewhere or fills sector 0 with its own boot sector.
	if !t.Plausible() {
		return nil
	}
	if identify.Traits(whole.Kind).Foreign {
		l.Issues = append(l.Issues, ondisk.Issue{Code: "second-table", Effect: ondisk.Note, Text: fmt.Sprintf(
			"the disk has a second table beside its MBR (%s), which trueup neither judges nor changes: the MBR is "+
				"valid and is used",
			identify.Traits(whole.Kind).Slices)})
		return t
	}
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: "ambiguous-sector-0", Effect: ondisk.Warn,
		Text: fmt.Sprintf("the disk has a valid partition table and looks like a %s volume as a whole; the "+
			"table is used", whole.Kind),
		Remedy: "wipe the stale signature inside the guest",
	})
	return t
}

// isRemnant reports whether a GPT is left over from an earlier use of the disk: no system sees it, and restoring its
// primary would destroy later content.
func (l *Layout) isRemnant(t *table.Table, whole *volume.Volume) bool {
	remnant, taken := t.Remnant()
	if !remnant || (!taken && whole.Kind == volume.Unknown) {
		return false
	}
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: "gpt-remnant", Effect: ondisk.Note,
		Text: "the last sectors hold the backup of a GPT, but the disk begins with neither a protective MBR nor a " +
			"primary: no system sees it, and it stays unchanged",
	})
	return true
}

// overwritten reports a volume that may have destroyed the primary of a GPT: a new primary would destroy the volume.
func (l *Layout) overwritten(t *table.Table, whole *volume.Volume) {
	if !t.OnlyBackup() {
		return
	}
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: "gpt-overwritten", Effect: ondisk.Refuse, OnMove: true,
		Text: fmt.Sprintf("the primary GPT is invalid, and the disk as a whole looks like a %s volume: a new "+
			"primary could destroy the volume", whole.Kind),
		Remedy: "wipe the stale one in the guest: the volume's signature (wipefs), or both copies of the GPT " +
			"(sgdisk --zap-all); trueup convert copies the disk as it is",
	})
}

// bareVolume reports a volume without a partition table that was cut short, or was a partition.
func (l *Layout) bareVolume() {
	if v := l.Volume; v.End() > l.Size {
		l.Issues = slices.DeleteFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == volume.CodeSize })
		err := ondisk.In(ondisk.ErrFormat, "the image has %d of the %d bytes that the structures of its %s "+
			"require: it was cut short, or the volume is damaged", l.Size, v.Size, v.Kind)
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: "cut-short", Effect: ondisk.Broken, Text: err.Error(), Err: err,
			Remedy: "copy the whole image from its source again; if it is whole, check the volume in the guest",
		})
	}
	if l.Volume.Boot == nil || l.Volume.Boot.Hidden == 0 {
		return
	}
	l.Issues = append(l.Issues, ondisk.Issue{Code: "image-of-partition", Effect: ondisk.Note, Text: fmt.Sprintf(
		"there is no partition table, but the boot sector counts %d sectors in front of the volume: this looks "+
			"like the image of one partition, not of a disk",
		l.Volume.Boot.Hidden)})
}

// readVolumes probes every partition that lies inside the disk.
func (l *Layout) readVolumes(d disk.Disk, probe prober) error {
	l.Partitions = make([]boot.Partition, 0, len(l.Table.Partitions))
	m, full := meter(d, len(l.Table.Partitions)), false
	unknown := &volume.Volume{Kind: volume.Unknown} // shared: a table can name thousands
	for _, p := range l.Table.Partitions {
		v := unknown
		if i, now := m.exhausted(p.Number); now && !full {
			l.Issues, full = append(l.Issues, i), true
		}
		var err error
		switch {
		case p.Is(table.LDM):
			v, err = dynamicVolume(m, p)
		case !full && p.Kind != table.Extended && p.End() <= d.Size() && p.Len > 0:
			if v, err = probe(disk.Section(m, p.Range), p.Off); err == nil {
				fromDisk(v, p.Range)
				err = identify.Slices(disk.Section(m, p.Range), p.Off, v, probe)
			}
			if err == nil && v.Kind == volume.Unknown && len(v.Issues) == 0 {
				v = unknown
			}
		}
		if err != nil {
			return fmt.Errorf("partition %d: %w", p.Number, err)
		}
		m.count(v)
		for _, i := range v.Issues {
			if i.Partition = p.Number; i.DiskWide {
				i.Partition, i.Text = 0, fmt.Sprintf("partition %d: %s", p.Number, i.Text)
			}
			l.Issues = append(l.Issues, i)
		}
		l.Partitions = append(l.Partitions, boot.Partition{Partition: p, Volume: v})
	}
	return nil
}

// arrayOfDisks reports a disk that is wholly a member of an array, so that the table belongs to the array. The
// superblock of md 0.90 does not name its device: the superblock of the last partition can lie in the place of the
// disk's own.
func (l *Layout) arrayOfDisks(whole *volume.Volume) {
	if !whole.AtEnd {
		return
	}
	if slices.ContainsFunc(l.Partitions,
		func(p boot.Partition) bool { return p.Volume.Kind == whole.Kind && p.Volume.UUID == whole.UUID }) {
		l.Outer = nil
		return
	}
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: "array-of-disks", Effect: ondisk.Refuse, OnMove: true,
		Text: fmt.Sprintf("the disk as a whole is a %s with its superblock at the end, and the partition table "+
			"belongs to the array: the other disks would no longer fit", whole.Kind),
		Remedy: "realign the array inside the guest, or, if the signature is stale, wipe it there (mdadm " +
			"--zero-superblock, zpool labelclear)",
	})
}

// hints returns the geometries stated by boot sectors and the container.
func (l *Layout) hints(container table.Geometry) []table.Geometry {
	var out []table.Geometry
	for _, p := range l.Partitions {
		if b := p.Volume.Boot; b != nil {
			out = append(out, table.Geometry{Heads: b.Heads, Sectors: b.Sectors})
		}
	}
	if l.Table.Saturated() {
		// Entries of FE FF FF mean 255 heads, and QEMU reads them so; a container states the choice of its creator.
		out = append(out, table.Geometry{Heads: 255, Sectors: 63})
	}
	return append(out, container)
}

func (l *Layout) readBoot(d disk.Disk) error {
	var err error
	g := &boot.Guest{
		Disk: d, Sector0: l.Table.BootCode, Scheme: l.Table.Scheme, BesideGPT: l.Table.BesideGPT,
		Signature: l.Table.Signature, GUID: l.Table.GUID, Partitions: l.Partitions,
	}
	if l.Boot, err = ReadBoot(g); err != nil {
		return err
	}
	l.Issues = append(l.Issues, l.Boot.Issues...)
	l.Relate(&Machine{})
	return nil
}

// Damaged reports whether the table needs repair and can be repaired.
func (l *Layout) Damaged() bool { return l.Table != nil && l.Table.Damaged() }

// LBASize returns the unit of the table's LBAs in bytes: a GPT can count sectors of another size than the container's.
func (l *Layout) LBASize() int64 {
	if l.Table != nil && l.Table.SectorSize > 0 {
		return l.Table.SectorSize
	}
	return units.SectorSize
}

// Partition finds a partition by its number.
func (l *Layout) Partition(number int) (boot.Partition, bool) {
	i, ok := slices.BinarySearchFunc(l.Partitions, number,
		func(p boot.Partition, n int) int { return cmp.Compare(p.Number, n) })
	if !ok {
		return boot.Partition{Volume: &volume.Volume{Kind: volume.Unknown}}, false
	}
	return l.Partitions[i], true
}

// Head reads the partition starts of a disk with only its first bytes available; reading past them returns the error
// beyond. The table must be certain, and lie in the available bytes. The content of the partitions is unknown, and so
// is the second copy of a GPT. Layout.Size is the end of the last partition.
func Head(d disk.Disk, hint table.Geometry, beyond error) (*Layout, error) {
	h := &truncatedDisk{Disk: d, beyond: beyond}
	t, err := table.Read(h)
	switch {
	case errors.Is(err, ondisk.ErrNoMatch) || err == nil && !sensible(t):
		return nil, fmt.Errorf("its first bytes hold no partition table that is certainly that of the disk: %w",
			ondisk.ErrUnsupported)
	case err != nil:
		return nil, err
	}
	l := &Layout{
		SectorSize: d.SectorSize(), Sectors: Sectors{Shown: d.SectorSize(), Counted: t.SectorSize},
		Table: t, Boot: &boot.Result{Code: Identify(t.BootCode)},
	}
	for _, p := range t.Partitions {
		for _, at := range h.missed {
			if p.Kind == table.Extended && at >= p.Off && at < p.End() {
				return nil, fmt.Errorf("a record of extended partition %d: %w", p.Number, beyond)
			}
		}
		l.Size = max(l.Size, p.End())
		l.Partitions = append(l.Partitions, boot.Partition{Partition: p, Volume: &volume.Volume{Kind: volume.Unknown}})
	}
	t.Issues = nil // some concern missing bytes
	if t.Scheme == table.MBR || t.IsHybrid() {
		l.Geometry = t.Geometry(l.hints(hint))
	}
	return l, nil
}

// truncatedDisk returns zeros past the available bytes, and records the offsets of such reads.
type truncatedDisk struct {
	disk.Disk
	beyond error
	missed []int64
}

// ReadAt implements io.ReaderAt.
func (h *truncatedDisk) ReadAt(p []byte, off int64) (int, error) {
	n, err := h.Disk.ReadAt(p, off)
	if errors.Is(err, h.beyond) {
		clear(p)
		h.missed = append(h.missed, off)
		return len(p), nil
	}
	return n, err
}

// Limits for probing the volumes of a disk: bytes for the largest metadata, and a header for each partition. A table
// can name thousands of partitions, each with a LUKS header of 4 MiB or metadata text of LVM, and all of them can be
// holes.
const (
	volumesLimit   = 64 * units.MiB
	partitionLimit = 16 * units.KiB
	partsLimit     = 1 << 16 // slices of all volumes
	filledLimit    = 1 << 10 // partitions with data: all probers read each of them
)

// metered counts the bytes read from a disk.
type metered struct {
	disk.Disk
	left   int64 // bytes
	parts  int
	filled int
	data   bool // non-zero data were read since the last partition
}

// meter returns a disk with a read limit for the probers of n partitions.
func meter(d disk.Disk, n int) *metered {
	return &metered{Disk: d, left: volumesLimit + int64(n)*partitionLimit, parts: partsLimit, filled: filledLimit}
}

// ReadAt implements io.ReaderAt and counts the bytes.
func (m *metered) ReadAt(p []byte, off int64) (int, error) {
	m.left -= int64(len(p))
	n, err := m.Disk.ReadAt(p, off)
	m.data = m.data || !ondisk.IsZero(p[:n])
	return n, err
}

// count charges the cost of one partition against the limits.
func (m *metered) count(v *volume.Volume) {
	m.parts -= len(v.Parts)
	if m.data {
		m.filled--
	}
	m.data = false
}

// exhausted reports whether a limit is exceeded, and returns the issue of partition from and all later ones, which are
// not probed. Unknown content does not move.
func (m *metered) exhausted(from int) (ondisk.Issue, bool) {
	if m.left >= 0 && m.parts >= 0 && m.filled >= 0 {
		return ondisk.Issue{}, false
	}
	err := fmt.Errorf("the volumes in front of partition %d have too much metadata: %w", from, ondisk.ErrLimit)
	if m.filled < 0 {
		err = fmt.Errorf("more than %d partitions in front of partition %d hold data: %w", filledLimit, from,
			ondisk.ErrLimit)
	}
	return ondisk.Issue{Code: "volume", Effect: ondisk.Broken, Text: err.Error(), Err: err}, true
}
