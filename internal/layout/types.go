package layout

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

// refused is the reason why a type of partition does not move.
type refused struct {
	code, text, remedy string
	effect             ondisk.Effect
	wide               bool // nothing on the disk may move beside it
}

const reinstall = "install the guest on an aligned disk"

// Reasons by family of types. Sources are beside each.
var (
	// Microsoft, "Deploy Storage Spaces": the pool owns the disk and knows where its slabs are.
	isSpaces = refused{
		"storage-spaces", "Windows Storage Spaces: the pool knows the disk, and nothing is known about its positions",
		"copy the files to an aligned disk in the guest", ondisk.Refuse, true,
	}
	// VMware KB 1011387: a volume whose device or place changed is taken for a snapshot.
	isVMFS = refused{
		"vmfs", "VMFS: a moved VMFS is taken for a snapshot by ESXi",
		"move the virtual machines to a new datastore", ondisk.Refuse, false,
	}
	isVSAN = refused{
		"vsan", "VMware vSAN: the disk group knows the disk", "evacuate the disk and add it again",
		ondisk.Refuse, false,
	}
	// OpenBSD, sys/arch/amd64/stand/biosboot/biosboot.S: p_offset is patched into the code.
	isOpenBSD = refused{
		"openbsd", "OpenBSD: boot code and disklabel hold absolute positions", reinstall,
		ondisk.Refuse, false,
	}
	isNetBSD  = refused{"netbsd", "NetBSD: the disklabel holds absolute positions", reinstall, ondisk.Refuse, false}
	isSolaris = refused{"solaris", "Solaris: boot code holds absolute positions", reinstall, ondisk.Refuse, false}
	// Linux, block/partitions/msdos.c: parse_bsdi, parse_unixware, parse_minix take the entries inside as places on the
	// disk.
	isBSDOS    = refused{"bsdos", "BSD/OS: its disklabel holds absolute positions", reinstall, ondisk.Refuse, false}
	isUnixWare = refused{
		"unixware", "UnixWare, SCO or GNU Hurd: a table of slices inside holds absolute positions",
		reinstall, ondisk.Refuse, false,
	}
	isMinix = refused{
		"minix", "Minix: a table of subpartitions inside holds absolute positions", reinstall, ondisk.Refuse, false,
	}
	// Windows NT 4.0 DDK, ntddft.h: DISK_PARTITION in the registry value HKLM\SYSTEM\DISK has the starting offset of
	// each member.
	isNTSet = refused{
		"nt-volume-set", "volume set of Windows NT 4: the registry knows its members by their places",
		"break the set up, or copy the files to an aligned disk", ondisk.Refuse, false,
	}
	// Andries Brouwer, "Large Disk HOWTO", 7: the disk manager shows the guest another disk than the one in the image.
	isManager = refused{
		"disk-manager", "a disk manager: the guest sees a disk whose sectors are shifted, with another partition table",
		"remove the disk manager in the guest first", ondisk.Refuse, true,
	}
	// Andries Brouwer, "List of partition identifiers", 3c.
	isHalfDone = refused{
		"partitionmagic", "PartitionMagic: the partition was being changed when the guest stopped",
		"let PartitionMagic finish in the guest", ondisk.Refuse, false,
	}
	// Haiku, src/bin/makebootable: the boot block of the volume holds the start of its partition.
	isBeOS = refused{
		"beos", "BeOS or Haiku: boot code in the volume holds the place of its partition",
		"run makebootable in the guest after the move", ondisk.Unbootable, false,
	}
)

// refusedTypes are the types whose content stores its place in ways that cannot be rewritten, by the names that
// table.Partition returns. All others move, such as FreeBSD, whose loaders subtract the place of the slice
// (stand/i386/boot2/boot2.c).
var refusedTypes = map[string]refused{
	"0x3c": isHalfDone,
	"0x42": isLDM,
	"0x54": isManager, "0x55": isManager,
	"0x63": isUnixWare,
	"0x81": isMinix,
	"0x86": isNTSet, "0x87": isNTSet,
	"0x9f": isBSDOS, "0xb7": isBSDOS,
	"0xa6": isOpenBSD,
	"0xa9": isNetBSD,
	"0xbe": isSolaris, "0xbf": isSolaris,
	"0xeb": isBeOS,
	"0xfb": isVMFS,

	"5808c8aa-7e8f-42e0-85d2-e1e90434cfb3": isLDM, // metadata
	"af9b60a0-1431-4f62-bc68-3311714a69ad": isLDM, // data
	"e75caf8f-f680-4cee-afa3-b001e56efc2d": isSpaces,
	"aa31e02a-400f-11db-9590-000c2911d1b8": isVMFS,
	"381cfccc-7288-11e0-92ee-000c2911d0b2": isVSAN,
	"824cc7a0-36a8-11e3-890a-952519ad3f61": isOpenBSD,
	"49f48d5a-b10e-11dc-b99b-0019d1879648": isNetBSD,  // FFS; a swap area (49f48d32) holds no place
	"49f48d82-b10e-11dc-b99b-0019d1879648": isNetBSD,  // LFS
	"49f48daa-b10e-11dc-b99b-0019d1879648": isNetBSD,  // RAID
	"2db519c4-b10f-11dc-b99b-0019d1879648": isNetBSD,  // concatenated
	"2db519ec-b10f-11dc-b99b-0019d1879648": isNetBSD,  // encrypted
	"6a82cb45-1dd2-11b2-99a6-080020736631": isSolaris, // boot
	"6a85cf4d-1dd2-11b2-99a6-080020736631": isSolaris, // root
	"6a87c46f-1dd2-11b2-99a6-080020736631": isSolaris, // swap
	"6a8b642b-1dd2-11b2-99a6-080020736631": isSolaris, // backup
	"6a898cc3-1dd2-11b2-99a6-080020736631": isSolaris, // usr, and pools of ZFS, which illumos boots from
	"6a8ef2e9-1dd2-11b2-99a6-080020736631": isSolaris, // var
	"6a90ba39-1dd2-11b2-99a6-080020736631": isSolaris, // home
	"6a9283a5-1dd2-11b2-99a6-080020736631": isSolaris, // alternate sectors
	"42465331-3ba3-10f1-802a-4861696b7521": isBeOS,
}

// otherLabel is a disklabel where the type does not promise FreeBSD's.
var otherLabel = refused{
	"disklabel", "with a BSD disklabel whose offsets are absolute, or may be", reinstall,
	ondisk.Refuse, false,
}

// relativeLabels are the types in which a disklabel is FreeBSD's, so that its offsets move with it. MidnightBSD is a
// FreeBSD.
var relativeLabels = map[string]bool{
	"0xa5":                                 true,
	"516e7cb4-6ecf-11d6-8ff8-00022d09712b": true,
	"85d5e45a-237c-11e1-b4b3-e89a8f7fc3a7": true,
}

// checkTypes reports partitions that do not move for their type, or for a label that the type does not promise, unless
// the volume has reported it itself.
func (l *Layout) checkTypes() {
	for _, p := range l.Partitions {
		id := p.TypeID()
		r, ok := refusedTypes[id]
		if !ok && p.Slot > 0 {
			id = fmt.Sprintf("0x%02x", p.Type)
			r, ok = refusedTypes[id]
		}
		if !ok && p.Volume.Kind == volume.Disklabel && (p.Volume.OnDisk || !relativeLabels[p.TypeID()]) {
			r, ok = otherLabel, true
		}
		said := slices.ContainsFunc(p.Volume.Issues, func(i ondisk.Issue) bool { return i.Code == r.code })
		if ok && !said {
			l.refuse(p, id, r)
		}
	}
}

func (l *Layout) refuse(p boot.Partition, id string, r refused) {
	i := ondisk.Issue{
		Code: r.code, Effect: r.effect, OnMove: true, Partition: p.Number, DiskWide: r.wide,
		Text: fmt.Sprintf("it has type %s, %s", id, r.text), Remedy: r.remedy,
	}
	if r.wide {
		i.Partition, i.Text = 0, fmt.Sprintf("partition %d has type %s, %s", p.Number, id, r.text)
	}
	l.Issues = append(l.Issues, i)
}

// fromDisk converts the starts of parts that count from the start of the disk into starts from that of the partition.
// Those outside of the partition have no place in it.
func fromDisk(v *volume.Volume, p disk.Range) {
	if !v.OnDisk {
		return
	}
	for i := range v.Parts {
		part := &v.Parts[i]
		if part.Start < p.Off || part.Start+part.Size > p.End() {
			part.Start = -1
			continue
		}
		part.Start -= p.Off
	}
}

// block is the smallest unit of storage to align to (align.Block).
const block = 4 * units.KiB

// maxNames bounds what one issue lists.
const maxNames = 8

// CodeSlices is the code of the issue of slices off 4 KiB of their container.
const CodeSlices = "slice-misaligned"

// misalignedInside returns the slices that are off 4 KiB wherever their container, a partition or the disk, moves.
func misalignedInside(v *volume.Volume, container string) (ondisk.Issue, bool) {
	var names []string
	for _, p := range v.Parts {
		if p.Start >= 0 && p.Start%block != 0 && len(names) < maxNames {
			names = append(names, fmt.Sprintf("%s at byte %d", p.Name, p.Start))
		}
	}
	if len(names) == 0 {
		return ondisk.Issue{}, false
	}
	return ondisk.Issue{Code: CodeSlices, Effect: ondisk.Note, Text: fmt.Sprintf(
		"misaligned inside: %s of the %s, off a 4 KiB boundary of it, which no move of a partition mends for all",
		strings.Join(names, ", "), container)}, true
}

// checkSlices reports slices inside of partitions that no move of the partition aligns.
func (l *Layout) checkSlices() {
	for _, p := range l.Partitions {
		if i, ok := misalignedInside(p.Volume, "partition"); ok && identify.Sliced(p.Volume.Kind) {
			i.Partition = p.Number
			l.Issues = append(l.Issues, i)
		}
	}
}

// FixedParts returns the slices of a table over the whole disk that is not one of a PC: they are judged and never
// moved.
func (l *Layout) FixedParts() (out []volume.Part) {
	if l.Table != nil || l.Volume == nil || !identify.Sliced(l.Volume.Kind) {
		return nil
	}
	for _, p := range l.Volume.Parts {
		if p.Start >= 0 {
			out = append(out, p)
		}
	}
	return out
}

// FixedTable names such a table, "" if absent.
func (l *Layout) FixedTable() string {
	if l.Table != nil || l.Volume == nil {
		return ""
	}
	return identify.Traits(l.Volume.Kind).Slices
}

// Unlisted reports whether the partitions of such a table are not read.
func (l *Layout) Unlisted() bool {
	return l.FixedTable() != "" && identify.Traits(l.Volume.Kind).Foreign
}

// onlyLabel reports a label without a partition table.
func (l *Layout) onlyLabel() {
	v := l.Volume
	switch {
	case !identify.Sliced(v.Kind):
		return
	case l.Unlisted():
		i := unknownContent(fmt.Sprintf("the partition table of the disk is not one of a PC (%s), and its partitions "+
			"are not read: whether they are aligned is not known", l.FixedTable()))
		i.Remedy = "inspect and scan accept it with --allow-unknown; trueup convert copies the disk as it is"
		l.Issues = append(l.Issues, i)
		return
	}
	if len(v.Outside) > 0 {
		l.Issues = slices.DeleteFunc(l.Issues, func(i ondisk.Issue) bool { return i.Code == "slice-outside" })
	}
	for _, err := range v.Outside[:min(len(v.Outside), maxNames)] {
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: "slice-outside", Effect: ondisk.Broken, Text: err.Error(), Err: err,
			Remedy: "the image was cut short or its table is damaged: restore it from a good copy, or correct the " +
				"table in the guest",
		})
	}
	l.Issues = append(l.Issues, ondisk.Issue{Code: "label-only", Effect: ondisk.Note, Text: fmt.Sprintf(
		"the partition table of the disk is not one of a PC (%s): its slices are shown, and none of them is moved",
		identify.Traits(v.Kind).Slices)})
	if i, ok := misalignedInside(v, "disk"); ok {
		l.Issues = append(l.Issues, i)
	}
}

// firmwareRAID reports a disk that is a member of the array of a BIOS or controller: the partitions are those of the
// array, and other disks hold them too.
func (l *Layout) firmwareRAID(d disk.Disk) error {
	name, at, err := volume.FirmwareRAID(d)
	if name == "" {
		return err
	}
	l.Issues = append(l.Issues, ondisk.Issue{
		Code: "firmware-raid", Effect: ondisk.Refuse, OnMove: true,
		Text: fmt.Sprintf("byte %d holds the metadata of a %s: the array belongs to a BIOS or controller, "+
			"and its other disks would no longer fit", at, name),
		Remedy: fmt.Sprintf("realign the array inside the guest; where it is no array any more, "+
			"wipe what was left (wipefs --all --types %s) in a copy of the image", name),
	})
	return nil
}

// Signatures of a DLA sector. Spec: IBM, LVM engine of OS/2, DLA_Table_Sector.
const (
	dlaSignature1 = 0x424d5202
	dlaSignature2 = 0x44464d50
)

// lvmOfOS2 reports the sectors by which OS/2's LVM knows partitions. They lie at the end of the track of each boot
// record, and name absolute starts under a checksum.
func (l *Layout) lvmOfOS2(d disk.Disk) error {
	if l.Table.Scheme != table.MBR || !l.Geometry.Valid() {
		return nil
	}
	for _, track := range []int64{int64(l.Geometry.Sectors), 63} {
		at := (track - 1) * units.SectorSize
		if at+units.SectorSize > d.Size() {
			continue
		}
		b, err := ondisk.Bytes(d, at, units.SectorSize)
		if err != nil {
			return err
		}
		if binary.LittleEndian.Uint32(b) != dlaSignature1 || binary.LittleEndian.Uint32(b[4:]) != dlaSignature2 {
			continue
		}
		l.Issues = append(l.Issues, ondisk.Issue{
			Code: "os2-lvm", Effect: ondisk.Refuse, OnMove: true,
			Text: fmt.Sprintf("LBA %d holds a table of OS/2's LVM (OS/2 4.5, eComStation, ArcaOS), "+
				"which knows each partition by its absolute start", track-1),
			Remedy: "copy the files to an aligned disk in the guest",
		})
		return nil
	}
	return nil
}

// isLDM refuses a dynamic disk. The private headers of its database have the start of the space for volumes, and XP and
// 2003 pass over it on an MBR. Sources: Linux, Documentation/admin-guide/ldm.rst; libldm, src/ldm.c;
// DiskAccessLibrary, LogicalDiskManager/PrivateHeader.cs.
var isLDM = refused{
	"ldm", "Windows dynamic disk (LDM), whose volumes are not moved: the misaligned ones are of Windows 2000 " +
		"to 2003, which look for the volumes behind the first track, at LBA 63, wherever the database places them",
	"convert it to a basic disk in the guest, or copy the guest's files to a new disk; trueup convert copies the " +
		"disk as it is", ondisk.Refuse, true,
}

// Dynamic reports whether a partition belongs to a dynamic disk.
func (l *Layout) Dynamic() bool {
	return slices.ContainsFunc(l.Partitions, func(p boot.Partition) bool { return p.InDynamic() })
}

// dynamicVolume describes a partition of a dynamic disk. The database, which is not read, places the volumes: a part of
// one can lie at the start. Windows Vista and later put the first one on 1 MiB of the disk behind a partition at
// LBA 63. A boot sector there that counts the sectors in front of it shows that.
func dynamicVolume(d disk.Disk, p table.Partition) (*volume.Volume, error) {
	v := &volume.Volume{Kind: volume.LDM, Size: p.Len}
	first := units.AlignUp(p.Off, units.MiB)
	if _, database := p.Dynamic(); database || first == p.Off || first >= min(p.End(), d.Size()) {
		return v, nil
	}
	in, err := identify.Front(disk.Section(d, disk.Range{Off: first, Len: min(p.End(), d.Size()) - first}), first)
	if err == nil && in.Boot != nil && int64(in.Boot.Hidden)*in.Boot.SectorSize == first {
		v.DataStart = first - p.Off
	}
	return v, err
}
