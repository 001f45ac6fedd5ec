package boot

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// syslinux finds the boot sectors of syslinux and extlinux. Their sector lists count from the start of the partition, which the code in
// the MBR hands over; where it does not, they take the hidden sectors of the parameter block. FAT and NTFS have that block anyway (finder
// hiddenSectors); extlinux makes one for itself in front of other file systems. Spec: syslinux 6.04, extlinux/main.c, core/diskstart.inc.
var syslinux = Finder{Name: "syslinux", Find: everywhere(findSyslinux)}

// extlinuxSector is where extlinux puts its boot sector, in bytes from the start of the volume. XFS has its superblock in the first sector.
var extlinuxSector = map[volume.Kind]int64{
	volume.Ext2: 0, volume.Ext3: 0, volume.Ext4: 0, volume.Btrfs: 0, volume.UFS1: 0, volume.UFS2: 0, volume.XFS: 4 * 512,
}

func findSyslinux(g *Guest, p Partition, f *Found) error {
	at, known := extlinuxSector[p.Volume.Kind]
	own := p.Volume.Boot == nil // no parameter block but that of extlinux
	if (own && !known) || p.Len < at+512 || p.Off+at+512 > g.Disk.Size() {
		return nil
	}
	if !own {
		at = 0
	}
	if _, ok, err := g.area(p); err != nil || (!ok && at < bootArea) {
		return err
	}
	b, err := ondisk.Bytes(g.Disk, p.Off+at, 512)
	if err != nil || !isSyslinux(b) {
		return err
	}
	f.link(p.Number, "SYSLINUX in the boot sector of partition %d loads ldlinux.sys by sectors that count from the start of the partition", p.Number)
	if !own {
		return nil
	}
	r := Ref{Kind: string(p.Volume.Kind) + " hidden sectors", Partition: p.Number, Off: at + volume.AtHidden, Encode: encodeHidden(g.Disk.SectorSize())}
	r.At = []disk.Range{{Off: p.Off + r.Off, Len: 4}}
	r.Raw = b[volume.AtHidden:][:4]
	r.Points = int64(binary.LittleEndian.Uint32(r.Raw)) * g.Disk.SectorSize()
	f.ownStart(r, p, true)
	if last := f.Refs[len(f.Refs)-1]; last.Follows() && !g.Code.HandsOver && g.reverts(p.Number) {
		f.breaks(g, p, "syslinux", p.Number, fmt.Sprintf("%s: %s", last.Name(), oldSector(p.Number)), shutDownFirst)
	}
	return nil
}
