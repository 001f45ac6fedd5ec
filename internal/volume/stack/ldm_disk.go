package stack

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// DynamicDisk describes a dynamic disk by its database. Offsets are bytes of the disk.
type DynamicDisk struct {
	Data    disk.Range // the space of the volumes; extents count from its start
	Config  disk.Range // the database
	Extents []LDMExtent

	head      ldmHead
	at        int64 // of head
	unmovable error // the first field of the database that keeps the volumes from being moved
}

// OfXP reports whether Windows 2000, XP or 2003 wrote the private headers. On an MBR these look for the volumes behind
// the first track, whatever the headers say. Source: DiskAccessLibrary, LogicalDiskManager/PrivateHeader.cs.
func (x *DynamicDisk) OfXP() bool { return x.head.Minor < 12 }

// LDMExtent is a part of a volume that lies on the disk.
type LDMExtent struct {
	disk.Range
	Name     string // of the partition record
	Whole    bool   // a whole copy of the volume: no other disk and no other place holds a part of it
	Begins   bool   // the volume begins with it, and no parity of another disk covers it
	Mirrored bool   // the volume has more than one copy
	Copy     int64  // size of the copy that it is a part of, bytes
}

// LDMHead is a private header, the sector that knows where the data begin.
type LDMHead struct {
	At  int64  // byte of the disk
	Raw []byte // the sector
}

// Place returns where a private header lies on the disk.
func (h LDMHead) Place() disk.Range { return disk.Range{Off: h.At, Len: int64(len(h.Raw))} }

// LDMPiece is the kind of a part that is not all of its volume.
const LDMPiece = "piece"

// AtLDMStart is the offset of the start of the data in a private header: 64 bits of sectors, big-endian.
const AtLDMStart = 0x11b

const (
	ldmHeadMagic = "PRIVHEAD"
	ldmHeadSize  = units.SectorSize
	atLDMSum     = 8
)

// SumLDMHead makes the sum of a private header right.
func SumLDMHead(b []byte) { binary.BigEndian.PutUint32(b[atLDMSum:], ldmSum(b)) }

func ldmSum(b []byte) (sum uint32) {
	for i, x := range b {
		if i < atLDMSum || i >= atLDMSum+4 {
			sum += uint32(x)
		}
	}
	return sum
}

// LDMHeads returns the places of the private header and its copies on a disk with an MBR, in bytes: sector 6, and two
// in the last MiB. On a disk with a GPT they are in the metadata partition, the first one in its last sector.
func LDMHeads(size, sector int64) []int64 {
	return []int64{6 * sector, size - sector, size - units.MiB + 1856*sector}
}

// ReadLDM reads where the volumes of a dynamic disk lie. heads are the places of the private header; the first that
// leads to a database counts. It returns ErrNoMatch without a private header.
func ReadLDM(d disk.Disk, heads []int64) (*DynamicDisk, error) {
	first := ondisk.ErrNoMatch
	for _, at := range heads {
		var h ldmHead
		_, err := volume.Superblock(d, at, binary.BigEndian, &h)
		switch {
		case errors.Is(err, ondisk.ErrNoMatch) || (err == nil && string(h.Magic[:]) != ldmHeadMagic):
			continue
		case err != nil:
			return nil, err
		}
		x, err := readLDMConfig(d, &h, at)
		if err == nil || !errors.Is(err, ondisk.ErrFormat) {
			return x, err
		}
		if errors.Is(first, ondisk.ErrNoMatch) {
			first = err
		}
	}
	return nil, first
}

func readLDMConfig(d disk.Disk, h *ldmHead, at int64) (*DynamicDisk, error) {
	sector := d.SectorSize()
	sectors := ondisk.U64(d.Size() / sector)
	switch {
	case h.ConfigSize == 0 || h.ConfigSize > ondisk.U64(maxLDMConfig/sector):
		return nil, ondisk.Field("ldm private header", "database size", at+307, h.ConfigSize,
			fmt.Sprintf("1 to %d sectors", maxLDMConfig/sector))
	case h.ConfigStart > sectors || h.ConfigSize > sectors-h.ConfigStart:
		return nil, ondisk.Field("ldm private header", "database start", at+299, h.ConfigStart,
			fmt.Sprintf("a database inside of the %d sectors of the disk", sectors))
	case h.DataStart > sectors:
		return nil, ondisk.Field("ldm private header", "data start", at+AtLDMStart, h.DataStart,
			fmt.Sprintf("at most %d", sectors))
	}
	x := &DynamicDisk{head: *h, at: at, Config: disk.Range{
		Off: ondisk.I64(h.ConfigStart) * sector, Len: ondisk.I64(h.ConfigSize) * sector,
	}}
	x.Data.Off = ondisk.I64(h.DataStart) * sector
	x.Data.Len = ondisk.I64(min(h.DataSize, sectors-h.DataStart)) * sector
	db := &ldmDatabase{
		disk: d, sector: sector, at: x.Config.Off, disks: map[string]uint64{}, components: map[uint64]ldmComponent{},
	}
	var err error
	if db.b, err = ondisk.Bytes(d, db.at, x.Config.Len); err != nil {
		return nil, err
	}
	if err := db.findRecords(); err != nil {
		return nil, err
	}
	if err := db.readBlocks(); err != nil {
		return nil, err
	}
	x.Extents = db.extents(h)
	x.unmovable = db.unmovable(h)
	return x, nil
}

// unmovable returns the field of a database that keeps the volumes of the disk from being moved.
func (db *ldmDatabase) unmovable(h *ldmHead) error {
	const committed = 1
	v, names := &db.vmdb, []string{"volumes", "components", "partitions", "disks"}
	switch {
	case db.revision != nil:
		return db.revision
	case v.State != committed:
		return ondisk.Field("ldm vmdb", "state", db.vmdbAt+16, v.State, "1, committed")
	case v.Pending != v.Committed:
		return ondisk.Field("ldm vmdb", "pending transaction", db.vmdbAt+0x7d, v.Pending, v.Committed)
	}
	for i, n := range db.counts {
		if n != v.Counts[i] {
			return ondisk.Field("ldm vmdb", "number of "+names[i], db.vmdbAt+0x85+int64(4*i), v.Counts[i],
				fmt.Sprintf("%d, the records that are there", n))
		}
	}
	id := volume.Text(h.DiskID[:])
	self, known := db.disks[strings.ToLower(id)]
	if !known {
		return ondisk.Field("ldm database", "disks", db.at, fmt.Sprintf("no record of %.36q", id),
			"one of the disk itself")
	}
	return db.badExtent(self, h.DataSize)
}

// badExtent returns the fault of the first extent of a disk that leaves the space of the volumes, lies over another
// one, or whose component is not known.
func (db *ldmDatabase) badExtent(self, sectors uint64) error {
	own := slices.DeleteFunc(slices.Clone(db.partitions), func(p ldmPartition) bool { return p.disk != self })
	if len(own) > maxLDMExtents {
		return ondisk.Field("ldm database", "extents on the disk", db.at, len(own),
			fmt.Sprintf("at most %d", maxLDMExtents))
	}
	slices.SortFunc(own, func(a, b ldmPartition) int { return cmp.Compare(a.start, b.start) })
	end := uint64(0)
	for _, p := range own {
		c := db.components[p.parent].kind
		switch {
		case p.start < end || p.start > sectors || p.sectors > sectors-p.start:
			return ondisk.Field("ldm extent", fmt.Sprintf("place of %.32q", p.name), db.at, fmt.Sprintf(
				"sector %d with %d", p.start, p.sectors), fmt.Sprintf("a place of its own from %d to %d", end, sectors))
		case c != ldmStriped && c != ldmSpanned && c != ldmRAID5:
			return ondisk.Field("ldm component", fmt.Sprintf("kind of that of %.32q", p.name), db.at, c,
				"1 to 3: striped, spanned or RAID-5")
		}
		end = p.start + p.sectors
	}
	return nil
}

// Heads returns all private headers of the disk when its volumes can be moved: what they and the database say is
// understood, complete and the same. A FormatError names the first field that is not. metadata is the partition of the
// database on a disk with a GPT, empty with an MBR.
func (x *DynamicDisk) Heads(d disk.Disk, metadata disk.Range) ([]LDMHead, error) {
	if d.SectorSize() != units.SectorSize {
		return nil, ondisk.Field("ldm private header", "sector size", x.at, d.SectorSize(), units.SectorSize)
	}
	if x.unmovable != nil {
		return nil, x.unmovable
	}
	area, least := metadata, 2
	limit, where := d.Size(), "in front of the end of the disk"
	if metadata.Len == 0 {
		area, least = x.Config, 3
		limit, where = x.Config.Off, "in front of the database"
	}
	switch size := ondisk.I64(min(x.head.DataSize, 1<<53)) * units.SectorSize; {
	case size == 0 || size > limit-x.Data.Off || x.Data.Overlaps(area):
		return nil, ondisk.Field("ldm private header", "data size", x.at+AtLDMStart+8, x.head.DataSize,
			"a space for volumes that ends "+where)
	case area.Len > maxLDMConfig || !area.Contains(x.Config):
		return nil, ondisk.Field("ldm private header", "database start", x.at+299, x.head.ConfigStart,
			fmt.Sprintf("a place in a metadata partition of %d bytes at most", maxLDMConfig))
	}
	heads, err := ldmHeadsIn(d, area, metadata.Len == 0)
	if err != nil {
		return nil, err
	}
	if last := area.End() - ldmHeadSize; metadata.Len > 0 && (len(heads) == 0 || heads[len(heads)-1].At != last) {
		return nil, ondisk.Field("ldm private header", "magic", last, "none", ldmHeadMagic)
	}
	if len(heads) < least {
		return nil, ondisk.Field("ldm private header", "copies", x.at, len(heads), fmt.Sprintf("%d or more", least))
	}
	for _, h := range heads {
		if err := x.agrees(h); err != nil {
			return nil, err
		}
	}
	return heads, nil
}

// ldmHeadsIn finds the private headers of an area; on a disk with an MBR those in front of it and at the end, too.
func ldmHeadsIn(d disk.Disk, area disk.Range, mbr bool) (heads []LDMHead, err error) {
	add := func(at int64, b []byte) {
		if string(b[:len(ldmHeadMagic)]) == ldmHeadMagic {
			heads = append(heads, LDMHead{At: at, Raw: b})
		}
	}
	places := []disk.Range{area}
	if mbr {
		places = []disk.Range{{Off: 6 * ldmHeadSize, Len: ldmHeadSize}, area}
		if last := (disk.Range{Off: d.Size() - ldmHeadSize, Len: ldmHeadSize}); last.Off >= area.End() {
			places = append(places, last)
		}
	}
	for _, r := range places {
		b, err := ondisk.Bytes(d, r.Off, r.Len)
		if err != nil {
			return nil, err
		}
		for at := int64(0); at+ldmHeadSize <= r.Len; at += ldmHeadSize {
			add(r.Off+at, b[at:at+ldmHeadSize])
		}
	}
	if want := places[0]; mbr && (len(heads) == 0 || heads[0].At != want.Off) {
		return nil, ondisk.Field("ldm private header", "magic", want.Off, "none", ldmHeadMagic)
	}
	return heads, nil
}

// agrees checks a copy of the private header against its own sum and the one that led to the database.
func (x *DynamicDisk) agrees(c LDMHead) error {
	var h ldmHead
	if _, err := binary.Decode(c.Raw, binary.BigEndian, &h); err != nil {
		return err
	}
	say := func(field string, at int64, got, want any) error {
		return ondisk.Field("ldm private header", field, c.At+at, got, want)
	}
	switch {
	case h.Major != 2 || (h.Minor != 11 && h.Minor != 12):
		return say("version", 12, fmt.Sprintf("%d.%d", h.Major, h.Minor), "2.11 or 2.12")
	case h.Sum != ldmSum(c.Raw):
		return say("sum", atLDMSum, h.Sum, ldmSum(c.Raw))
	case h.DataStart != x.head.DataStart || h.DataSize != x.head.DataSize:
		return say("data start and size", AtLDMStart, []uint64{h.DataStart, h.DataSize},
			[]uint64{x.head.DataStart, x.head.DataSize})
	case h.ConfigStart != x.head.ConfigStart || h.ConfigSize != x.head.ConfigSize:
		return say("database start and size", 299, []uint64{h.ConfigStart, h.ConfigSize},
			[]uint64{x.head.ConfigStart, x.head.ConfigSize})
	case h.DiskID != x.head.DiskID:
		return say("disk", 48, volume.Text(h.DiskID[:]), volume.Text(x.head.DiskID[:]))
	}
	return nil
}
