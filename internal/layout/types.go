package layout

import (
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
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
