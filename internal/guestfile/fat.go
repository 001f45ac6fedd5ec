package guestfile

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// fatBPB is the start of the boot sector. Spec: Microsoft FAT specification 1.03, "Boot Sector and BPB".
type fatBPB struct {
	Jump              [3]byte
	OEM               [8]byte
	BytesPerSector    uint16
	SectorsPerCluster uint8
	Reserved          uint16
	FATs              uint8
	RootEntries       uint16
	Sectors16         uint16
	Media             uint8
	FATSize16         uint16
	_                 [8]byte // geometry, hidden sectors
	Sectors32         uint32
	// From here on only in FAT32.
	FATSize32   uint32
	Flags       uint16
	Version     uint16
	RootCluster uint32
}

const (
	fatWhat = "fat boot sector"
	fatSlot = 32 // bytes of an entry in a folder

	// fatFolder is the largest folder. Spec: 65,536 entries of 32 bytes.
	fatFolder = 65536 * fatSlot
	// Most clusters of a FAT12 and of a FAT16. Spec: "FAT Type Determination".
	fat12Most = 4084
	fat16Most = 65524
	fat32Most = 0x0ffffff5
)

// fatFS reads a FAT12, FAT16 or FAT32. All offsets are bytes of the volume.
type fatFS struct {
	volume disk.Disk
	meter  *metered

	bits     int64      // of an entry of the FAT: 12, 16 or 32
	table    int64      // the FAT in use
	root     disk.Range // FAT12 and FAT16
	rootAt   int64      // FAT32: first cluster of the root
	data     int64      // cluster 2
	cluster  int64      // bytes
	clusters int64
}

// FAT reads the FAT12, FAT16 or FAT32 of a partition.
func (b *Budget) FAT(d disk.Disk) (FS, error) {
	if d.Size() < units.SectorSize {
		return nil, ondisk.ErrNoMatch
	}
	raw, err := ondisk.Bytes(d, 0, units.SectorSize)
	if err != nil {
		return nil, err
	}
	var bpb fatBPB
	if err := ondisk.Fill(raw[:binary.Size(bpb)], binary.LittleEndian, &bpb); err != nil {
		return nil, err
	}
	if !volume.MayBeFAT(raw) {
		return nil, ondisk.ErrNoMatch
	}
	f := &fatFS{volume: d, meter: &metered{d, b}}
	if err := bpb.check(); err != nil {
		return nil, err
	}
	return f, f.place(&bpb)
}

func fatField(name string, off int64, got, want any) error {
	return &ondisk.FormatError{What: fatWhat, Off: off, Field: name, Got: got, Want: want}
}

// check refuses what would make the arithmetic fail.
func (b *fatBPB) check() error {
	size, per := int64(b.BytesPerSector), int64(b.SectorsPerCluster)
	switch {
	case size < 512 || size > 4096 || !units.IsPowerOfTwo(size):
		return fatField("bytes per sector", 0x0b, size, "512, 1024, 2048 or 4096")
	case !units.IsPowerOfTwo(per):
		return fatField("sectors per cluster", 0x0d, per, "1, 2, 4, … 128")
	case b.Reserved == 0:
		return fatField("reserved sectors", 0x0e, 0, "1 or more")
	case b.FATs == 0 || b.FATs > 4:
		return fatField("number of FATs", 0x10, b.FATs, "1 to 4")
	case b.FATSize16 == 0 && b.RootEntries != 0:
		return fatField("root entries", 0x11, b.RootEntries, "0, since it has no FAT of a FAT16")
	case b.FATSize16 == 0 && b.FATSize32 == 0:
		return fatField("FAT size", 0x16, 0, "1 or more sectors")
	case b.FATSize16 == 0 && b.Version != 0:
		return fmt.Errorf("fat32 version %#x: %w", b.Version, ondisk.ErrUnsupported)
	}
	return nil
}

// place computes where the areas lie. Only the count of clusters tells FAT12 from FAT16; a FAT32 is known by the size of its FAT, since
// tools make small ones.
func (f *fatFS) place(b *fatBPB) error {
	sector := int64(b.BytesPerSector)
	sectors, fatSize, most := int64(b.Sectors16), int64(b.FATSize16)*sector, int64(fat16Most)
	if sectors == 0 {
		sectors = int64(b.Sectors32)
	}
	if fatSize == 0 {
		f.bits, fatSize, most = 32, int64(b.FATSize32)*sector, fat32Most
	}
	f.cluster = int64(b.SectorsPerCluster) * sector
	f.table = int64(b.Reserved) * sector
	f.root = disk.Range{Off: f.table + int64(b.FATs)*fatSize, Len: int64(b.RootEntries) * fatSlot}
	f.data = units.AlignUp(f.root.End(), sector)
	f.clusters = (sectors*sector - f.data) / f.cluster
	if sectors*sector < f.data+f.cluster {
		return fatField("total sectors", 0x20, sectors, fmt.Sprintf("more than %d, where the data starts", f.data/sector))
	}
	if f.bits == 0 && f.clusters <= fat12Most {
		f.bits = 12
	} else if f.bits == 0 {
		f.bits = 16
	}
	// A FAT may be smaller than the volume would need: what it has no entry for is not used.
	f.clusters = min(f.clusters, fatSize*8/f.bits-2)
	if f.clusters < 1 || f.clusters > most {
		return fatField("clusters", 0x20, f.clusters, fmt.Sprintf("1 to %d", most))
	}
	return f.choose(b, fatSize)
}

// choose finds the FAT in use and the root folder. Spec: "BPB_ExtFlags": bit 7 set means that only the FAT of bits 0 to 3 is kept.
func (f *fatFS) choose(b *fatBPB, fatSize int64) error {
	if f.bits != 32 {
		return nil
	}
	if active := int64(b.Flags & 0xf); b.Flags&0x80 != 0 {
		if active >= int64(b.FATs) {
			return fatField("active FAT", 0x28, active, fmt.Sprintf("0 to %d", b.FATs-1))
		}
		f.table += active * fatSize
	}
	f.rootAt = int64(b.RootCluster)
	if !f.has(f.rootAt) {
		return fatField("root cluster", 0x2c, f.rootAt, f.allowed())
	}
	return nil
}

// Open finds a regular file.
func (f *fatFS) Open(path string) (*File, error) {
	e, stored, err := f.find(path)
	if err != nil {
		return nil, err
	}
	if e.dir() {
		return nil, fmt.Errorf("file %.256q: is a folder: %w", path, fs.ErrNotExist)
	}
	var runs []Run
	if e.size > 0 {
		if runs, err = f.chain(e.first, f.clusters, (e.size+f.cluster-1)/f.cluster); err != nil {
			return nil, fmt.Errorf("file %.256q: %w", path, err)
		}
	}
	return newFile(f.volume, stored, e.size, runs)
}

// List gives the names of a folder.
func (f *fatFS) List(path string) ([]Entry, error) {
	e, _, err := f.find(path)
	if err != nil {
		return nil, err
	}
	if !e.dir() {
		return nil, fmt.Errorf("folder %.256q: is a file: %w", path, fs.ErrNotExist)
	}
	var out []Entry
	err = f.each(e, func(e fatEntry) bool {
		out = append(out, Entry{Name: e.name(), Dir: e.dir()})
		return true
	})
	return out, err
}

// find follows a path from the root. stored is the path with the names as they stand in the folders.
func (f *fatFS) find(path string) (at fatEntry, stored string, err error) {
	names := elements(path)
	if len(names) > maxDepth {
		return at, "", fmt.Errorf("path %.256q: %w of %d folders", path, ondisk.ErrLimit, maxDepth)
	}
	at = fatEntry{attr: fatAttrDir, root: true}
	for i, name := range names {
		found := false
		if at.dir() {
			err = f.each(at, func(e fatEntry) bool {
				if found = e.is(name); found {
					at = e
				}
				return !found
			})
		}
		if err != nil {
			return at, "", fmt.Errorf("path %.256q: %w", path, err)
		}
		if !found {
			return at, "", fmt.Errorf("path %.256q: %w", path, fs.ErrNotExist)
		}
		names[i] = at.name()
	}
	return at, strings.Join(names, "/"), nil
}
