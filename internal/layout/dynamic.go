package layout

import (
	"slices"

	"github.com/trueup/trueup/internal/boot"
	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
	"github.com/trueup/trueup/internal/volume/identify"
)

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
