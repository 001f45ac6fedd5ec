package layout

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/table"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

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
