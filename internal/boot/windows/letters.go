package windows

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/hive"
	"github.com/trueup/trueup/internal/ondisk"
)

// MountedDevices finds the values by which Windows recognizes a volume of an MBR disk: disk signature and byte offset.
// After a change of the offset, NT 4 to 2003 treat even their own volume as new, and give it another letter.
var MountedDevices = hives{"mounted-devices", checkLetters, systemHives, findLetters}.finder()

// otherLetter is the cost of a stale drive letter for a partition on another disk.
const otherLetter = "Windows treats the partition as new and assigns another drive letter"

const checkLetters = "use --allow-unbootable, and assign the old drive letters after the first boot of the copy"

// systemHives returns the paths of the SYSTEM hives in a partition.
func systemHives(g *boot.Guest, p boot.Partition) (paths []string, err error) {
	folders, err := foldersOf(g, p)
	for _, folder := range folders {
		paths = append(paths, folder+"/"+systemHive)
	}
	return paths, err
}

// mountedDevice is the value of a volume of an MBR disk, 12 bytes. Values of other lengths name volumes in other ways:
// by the GUID of a GPT partition, or by the path of a device. Source: winreg-kb,
// docs/sources/system-keys/Mounted-devices.md.
const (
	mountedLength = 12
	mountedOffset = 4 // of the byte offset, after the signature

	maxMounted = 8192 // values; Windows never deletes one
)

func findMounted(h *guestHive) error {
	k, err := ifThere(h.Key("MountedDevices"))
	if k == nil {
		return err
	}
	seen := 0
	return each(k.Values(), func(v *hive.Value) error {
		if seen++; seen > maxMounted {
			return fmt.Errorf("MountedDevices: %w of %d values", ondisk.ErrLimit, maxMounted)
		}
		if v.Size != mountedLength || v.Type != regBinary {
			return nil
		}
		data, err := v.Data()
		if err != nil {
			return err
		}
		if disk := binary.LittleEndian.Uint32(data); disk != h.g.Signature {
			return h.other(mountedKind(v.Name), v, mountedOffset, disk, otherLetter)
		}
		_, err = h.ref(mountedKind(v.Name), v, mountedOffset)
		return err
	})
}

// mountedKind names a value: a drive letter, or a volume that can be mounted in a folder.
func mountedKind(name string) string {
	letter, ok := strings.CutPrefix(strings.ToLower(name), `\dosdevices\`)
	if ok && len(letter) == 2 && letter[0] >= 'a' && letter[0] <= 'z' && letter[1] == ':' {
		return "drive letter " + strings.ToUpper(letter)
	}
	return "mounted volume"
}

// Windows NT 4 keeps drive letters in one value, and treats a partition with another start as new. Windows 2000 and
// later read it if MountedDevices has no letter.
const (
	diskKey     = "DISK"
	diskValue   = "Information"
	diskVersion = 3

	diskInfo = `DISK\Information` // in errors
)

// diskConfig begins the value. Spec: Windows NT DDK, ntddft.h, DISK_CONFIG_HEADER (packed by 4).
type diskConfig struct {
	Version    uint32
	CheckSum   uint32 // 0; the algorithm is not published
	Dirty      uint8
	_          [3]byte
	DiskOffset uint32 // of diskRegistry, in the value
	DiskSize   uint32 // of diskRegistry with all disks
	FTOffset   uint32 // of the fault-tolerant sets
	FTSize     uint32 // 0 without such sets
	_          [8]byte
	NameOffset uint32 // reserved
	NameSize   uint32
}

// Offsets in diskConfig, for errors.
const (
	atDisks     = 0x0c
	atDisksSize = 0x10
	atSets      = 0x14
)

// diskRegistry begins the list of disks. Spec: ntdskreg.h, DISK_REGISTRY.
type diskRegistry struct {
	Disks uint16
	_     uint16
}

// diskDescription begins a disk; its partitions follow. Spec: ntdskreg.h, DISK_DESCRIPTION.
type diskDescription struct {
	Partitions uint16
	_          uint16
	Signature  uint32
}

// diskPartition is a partition. Spec: ntdskreg.h, DISK_PARTITION (packed by 4).
type diskPartition struct {
	FTType         uint32 // notFTMember, or the kind of a fault-tolerant set
	FTState        uint32
	StartingOffset int64 // bytes of the disk
	Length         int64
	FTLength       int64
	_              [8]byte
	DriveLetter    uint8 // ASCII, or 0 without a letter
	AssignLetter   uint8
	LogicalNumber  uint16
	FTGroup        uint16
	FTMember       uint16
	Modified       uint8
	_              [3]byte
}

const (
	notFTMember     = 4 // Spec: ntdskreg.h, FT_TYPE
	startInDiskInfo = 8 // of StartingOffset, in diskPartition
)

// knownPartition is a partition named in the value.
type knownPartition struct {
	signature uint32
	start     int64 // offset of its StartingOffset in the value
	letter    byte
}

// findLetters finds the drive letters of all Windows versions in a SYSTEM hive.
func findLetters(h *guestHive, _ *boot.Found) error {
	finds := func(yield func(func(*guestHive) error, error) bool) {
		_ = yield(findMounted, nil) && yield(findDiskInformation, nil)
	}
	return each(finds, func(find func(*guestHive) error) error { return find(h) })
}

func findDiskInformation(h *guestHive) error {
	k, err := ifThere(h.Key(diskKey))
	if k == nil {
		return err
	}
	v, err := ifThere(k.Value(diskValue))
	if v == nil || v.Size == 0 {
		return err
	}
	data, err := v.Data()
	if err != nil {
		return err
	}
	parts, err := knownPartitions(data)
	if err != nil {
		return err
	}
	for _, p := range parts {
		if err := findKnown(h, v, p); err != nil {
			return err
		}
	}
	return nil
}

func findKnown(h *guestHive, v *hive.Value, p knownPartition) error {
	kind := "partition known to Windows NT"
	if p.letter >= 'A' && p.letter <= 'Z' {
		kind = fmt.Sprintf("drive letter %c: of Windows NT", p.letter)
	}
	if p.signature != h.g.Signature {
		return h.other(kind, v, p.start, p.signature, otherLetter)
	}
	_, err := h.ref(kind, v, p.start)
	return err
}

// knownPartitions decodes the value. It rejects fault-tolerant sets, because Windows finds their members by the value
// too.
func knownPartitions(data []byte) ([]knownPartition, error) {
	r := diskReader{data: data, end: int64(len(data))}
	var c diskConfig
	r.read("header", &c)
	switch {
	case r.err != nil:
		return nil, r.err
	case c.Version != diskVersion:
		return nil, ondisk.In(ondisk.ErrUnsupported, "%s: version %d, want %d", diskInfo, c.Version, diskVersion)
	case c.CheckSum != 0:
		return nil, ondisk.In(ondisk.ErrUnsupported, "%s: checksum %#x, want 0", diskInfo, c.CheckSum)
	case int64(c.DiskOffset) < int64(binary.Size(c)):
		return nil, ondisk.Field(diskInfo, "offset of the disks", atDisks, c.DiskOffset,
			fmt.Sprintf("%d or more", binary.Size(c)))
	case int64(c.DiskOffset)+int64(c.DiskSize) > int64(len(data)):
		return nil, ondisk.Field(diskInfo, "end of the disks", atDisksSize, int64(c.DiskOffset)+int64(c.DiskSize),
			fmt.Sprintf("%d or less", len(data)))
	}
	if err := noSets(data, &c); err != nil {
		return nil, err
	}
	r.at, r.end = int64(c.DiskOffset), int64(c.DiskOffset)+int64(c.DiskSize)
	return r.disks()
}

// noSets returns an error if the registry value has fault-tolerant sets. Their list begins with their number.
func noSets(data []byte, c *diskConfig) error {
	if c.FTSize == 0 {
		return nil
	}
	at := int64(c.FTOffset)
	if at+2 > int64(len(data)) {
		return ondisk.Field(diskInfo, "offset of the fault-tolerant sets", atSets, at,
			fmt.Sprintf("%d or less", len(data)-2))
	}
	if n := binary.LittleEndian.Uint16(data[at:]); n > 0 {
		return ondisk.In(ondisk.ErrUnsupported, "%s: number of fault-tolerant sets of Windows NT %d, want 0", diskInfo,
			n)
	}
	return nil
}

// diskReader reads consecutive structures.
type diskReader struct {
	data    []byte
	at, end int64
	err     error
}

// read decodes a structure, and reports whether it is present.
func (r *diskReader) read(what string, into any) bool {
	size := int64(binary.Size(into))
	if r.err == nil && r.end-r.at < size {
		r.err = ondisk.Field(diskInfo, "bytes for the "+what, r.at, r.end-r.at, fmt.Sprintf("%d or more", size))
	}
	if r.err == nil {
		ondisk.Fill(r.data[r.at:], binary.LittleEndian, into)
		r.at += size
	}
	return r.err == nil
}

// disks reads all disks and their partitions. The size of each structure limits their number.
func (r *diskReader) disks() (out []knownPartition, err error) {
	var all diskRegistry
	r.read("list of disks", &all)
	for range all.Disks {
		var d diskDescription
		if !r.read("disk", &d) {
			break
		}
		for range d.Partitions {
			at := r.at
			var p diskPartition
			if !r.read("partition", &p) {
				break
			}
			if p.FTType != notFTMember {
				return nil, ondisk.In(ondisk.ErrUnsupported,
					"%s: the partition at byte %d is of type %d, a member of a fault-tolerant set, want %d", diskInfo,
					at, p.FTType, notFTMember)
			}
			if p.StartingOffset != 0 {
				out = append(out, knownPartition{d.Signature, at + startInDiskInfo, p.DriveLetter})
			}
		}
	}
	return out, r.err
}
