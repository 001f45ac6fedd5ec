package identify

import (
	"errors"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/volume"
)

// magic is a kind that is known by its magic number alone.
type magic struct {
	volume.Traits
	marks []volume.Mark
}

// magics are tried if no prober knows the volume. Kinds and places of marks are those of libblkid. The last ones are
// the tables of machines other than PCs. Specs of these: Apple, Inside Macintosh: Devices, "Data Organization on SCSI
// Devices" (a driver map with blocks of 512 bytes); Linux, arch/s390/include/uapi/asm/vtoc.h and
// block/partitions/ibm.c (VOL1 twice, LNX1 and CMS1 in EBCDIC, where Linux looks without the device); AmigaOS,
// devices/hardblocks.h (one of the first 16 sectors); IRIX, sys/dvh.h; illumos, dklabel.h with _SUNOS_VTOC_8.
var magics = []magic{
	{volume.Traits{Kind: "bcachefs"}, mark("\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", 0x1018)},
	{volume.Traits{Kind: "befs", Title: "BeFS"}, slices.Concat(mark("1SFB", 0x20, 0x220), mark("BFS1", 0x20, 0x220))},
	{volume.Traits{Kind: "bfs", Title: "SCO BFS"}, mark("\xce\xfa\xad\x1b", 0)},
	{volume.Traits{Kind: "ceph_bluestore", Title: "Ceph BlueStore"}, mark("bluestore block device", 0)},
	{volume.Traits{Kind: "cramfs"}, slices.Concat(mark("\x45\x3d\xcd\x28", 0), mark("\x28\xcd\x3d\x45", 0))},
	{volume.Traits{Kind: "dm_integrity", Title: "dm-integrity"}, mark("integrt\x00", 0)},
	{volume.Traits{Kind: "dm_verity_hash", Title: "dm-verity"}, mark("verity\x00\x00", 0)},
	{volume.Traits{Kind: "erofs", Title: "EROFS"}, mark("\xe2\xe1\xf5\xe0", 0x400)},
	{volume.Traits{Kind: "gfs2", Title: "GFS2"}, mark("\x01\x16\x19\x70", 0x10000)},
	{volume.Traits{Kind: "nss", Title: "NetWare NSS"}, mark("SPB5", 0x1000)},
	{volume.Traits{Kind: "ocfs2", Title: "OCFS2"}, mark("OCFSV2", 0x400, 0x800, 0x1000, 0x2000)},
	{volume.Traits{Kind: "oracleasm", Title: "Oracle ASM"}, mark("ORCLDISK", 0x20)},
	{volume.Traits{Kind: "reiser4", Title: "Reiser4"}, mark("ReIsEr4", 0x10000)},
	{volume.Traits{Kind: "romfs"}, mark("-rom1fs-", 0)},
	{volume.Traits{Kind: "squashfs"}, slices.Concat(mark("hsqs", 0), mark("sqsh", 0))},
	{volume.Traits{Kind: "stratis", Title: "Stratis"}, mark("!Stra0tis\x86\xff\x02^\x41rh", 0x204, 0x1204)},
	{
		volume.Traits{Kind: "sysv", Title: "System V"},
		slices.Concat(mark("\x20\x7e\x18\xfd", 0x3f8), mark("\xfd\x18\x7e\x20", 0x3f8)),
	},
	{volume.Traits{Kind: "udf", Title: "UDF"}, mark("BEA01", 0x8001)},
	{volume.Traits{Kind: "vdo", Title: "VDO"}, mark("dmvdo001", 0)},
	{
		volume.Traits{Kind: "vxfs", Title: "VxFS"},
		slices.Concat(mark("\xf5\xfc\x01\xa5", 0x400), mark("\xa5\x01\xfc\xf5", 0x2000)),
	},

	{volume.Traits{Kind: "apm", Slices: "Apple partition map", Foreign: true}, mark("ER\x02\x00", 0)},
	{
		volume.Traits{Kind: "dasd", Slices: "IBM DASD label", Foreign: true},
		slices.Concat(
			mark("\xe5\xd6\xd3\xf1\xe5\xd6\xd3\xf1", 0x2000),
			mark("\xd3\xd5\xe7\xf1", 0x200, 0x400, 0x1000, 0x2000),
			mark("\xc3\xd4\xe2\xf1", 0x200, 0x400, 0x1000, 0x2000),
		),
	},
	{
		volume.Traits{Kind: "rdb", Slices: "Amiga rigid disk block", Foreign: true},
		mark("RDSK", 0, 0x200, 0x400, 0x600, 0x800, 0xa00, 0xc00, 0xe00, 0x1000, 0x1200, 0x1400, 0x1600, 0x1800, 0x1a00,
			0x1c00, 0x1e00),
	},
	{volume.Traits{Kind: "sgi", Slices: "SGI volume header", Foreign: true}, mark("\x0b\xe5\xa9\x41", 0)},
	{volume.Traits{Kind: "sun", Slices: "Sun (SPARC) disk label", Foreign: true}, mark("\x60\x0d\xde\xee", 188)},
}

// mark returns a magic number at some places.
func mark(number string, places ...int) (marks []volume.Mark) {
	for _, at := range places {
		marks = append(marks, volume.Mark{Off: at, Bytes: number})
	}
	return marks
}

// byMagic names a volume by its magic number. Without one it is Unknown.
func byMagic(d disk.Disk) (*volume.Volume, error) {
	for _, m := range magics {
		for _, mark := range m.marks {
			b, err := volume.ReadBlock(d, int64(mark.Off), int64(len(mark.Bytes)))
			switch {
			case errors.Is(err, ondisk.ErrNoMatch):
			case err != nil:
				return nil, err
			case string(b) == mark.Bytes:
				return &volume.Volume{Kind: m.Kind}, nil
			}
		}
	}
	return &volume.Volume{Kind: volume.Unknown}, nil
}
