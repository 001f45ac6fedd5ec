//go:build linux || windows

package hostile

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/poolforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// Pools returns disks with a pool header that is broken, prevents a move, or is unusual but sound.
func Pools() []Row {
	return slices.Concat(brokenLVM(), brokenMD(), brokenLUKS(), brokenOtherPools(), refusedPools(), oddPools())
}

// poolImage is a disk with one partition at LBA 63, filled by put. Offsets of put are relative to the partition.
func poolImage(kind byte, size int64, put func(v forge.Bytes)) Writer {
	return func(t testing.TB, dir string) string {
		t.Helper()
		disk := tableforge.NewMBR(int(volumeStart+size/512+2048), slot(kind, volumeStart, uint32(size/512)))
		put(disk[volumeAt:][:size])
		return writeForged("disk.raw", disk)(t, dir)
	}
}

const poolSize = 4 << 20

// lvmImage, md1Image and the others are valid except for change; checksums are updated after it.
func lvmImage(change func(forge.Bytes)) Writer {
	return poolImage(0x8e, poolSize, func(v forge.Bytes) {
		poolforge.PutLVM(v, poolforge.LVMText, 512)
		change(v)
		poolforge.SealLVM(v)
	})
}

func lvmTextImage(text string) Writer {
	return lvmImage(func(v forge.Bytes) { poolforge.PutLVMText(v, text, 512) })
}

func md1Image(version string, change func(super forge.Bytes)) Writer {
	return poolImage(0xfd, poolSize, func(v forge.Bytes) {
		poolforge.PutMD1(v, version, 272)
		change(v[poolforge.MD1At(v, version):])
		poolforge.SealMD1(v, version)
	})
}

func bcacheImage(change func(forge.Bytes)) Writer {
	return poolImage(0x83, poolSize, func(v forge.Bytes) {
		poolforge.PutBcache(v, 16)
		change(v)
		poolforge.SealBcache(v)
	})
}

// luks2Image has two headers of 4 MiB, the maximum size, with the same text.
func luks2Image(text string) Writer {
	return poolImage(0x83, 16<<20, func(v forge.Bytes) { poolforge.PutLUKS2(v, text, 4<<20) })
}

func zfsImage(change func(forge.Bytes)) Writer {
	return poolImage(0x83, 64<<20, func(v forge.Bytes) {
		poolforge.PutZFS(v)
		change(v)
	})
}

func brokenLVM() []Row {
	row := func(name, what string, at int64, change func(forge.Bytes), says ...string) Row {
		return brokenVolume("T66 LVM "+name, what, at, lvmImage(change), says...)
	}
	return []Row{
		row("offset of the header", "lvm label", poolforge.LVMHeaderAt,
			func(v forge.Bytes) { v.U32(poolforge.LVMHeaderAt, math.MaxUint32) }, "offset 4294967295",
			"want 32 to 472"),
		row("header before the sector's data", "lvm label", poolforge.LVMHeaderAt,
			func(v forge.Bytes) { v.U32(poolforge.LVMHeaderAt, 0) }, "offset 0"),
		row("label of another sector", "lvm label", poolforge.LVMLabel+8,
			func(v forge.Bytes) { v.U64(poolforge.LVMLabel+8, 3) }, "sector 3", "want 1"),
		row("size of 2^64", "lvm physical volume header", poolforge.LVMDeviceSize,
			func(v forge.Bytes) { v.U64(poolforge.LVMDeviceSize, math.MaxUint64) }, "device size 18446744073709551615"),
		row("data behind the device", "lvm physical volume header", poolforge.LVMDataArea,
			func(v forge.Bytes) { v.U64(poolforge.LVMDataArea, 1<<40) }, "area", "want a place within"),
		row("area that ends at 2^64", "lvm physical volume header", poolforge.LVMMetaArea,
			func(v forge.Bytes) { v.U64(poolforge.LVMMetaArea+8, math.MaxUint64) }, "area", "want a place within"),
		row("lists without an end", "lvm physical volume header", poolforge.LVMDataArea+27*16, func(v forge.Bytes) {
			for at := int64(poolforge.LVMDataArea); at < poolforge.LVMLabel+512-8; at += 16 {
				v.U64(at, 4096)
			}
		}, "areas", "want a list that ends in its sector"),
		broken("T66 LVM checksum of the label", "format", poolImage(0x8e, poolSize, func(v forge.Bytes) {
			poolforge.PutLVM(v, poolforge.LVMText, 512)
			v.U64(poolforge.LVMDeviceSize, 1)
		}), fmt.Sprintf("lvm label at %#x: checksum", volumeAt+poolforge.LVMLabelCRC)),
		broken("T66 LVM larger than its partition", "format",
			lvmImage(func(v forge.Bytes) { v.U64(poolforge.LVMDeviceSize, 1<<62) }),
			"the lvm2_member has 4611686018427387904 bytes by its own structures", "the partition has 4194304"),
	}
}

func brokenMD() []Row {
	row := func(name string, at int64, change func(forge.Bytes), says ...string) Row {
		return brokenVolume("T66 md "+name, "md superblock", 4096+at, md1Image("1.2", change), says...)
	}
	md0 := func(order binary.ByteOrder, name string, at int64, change func(forge.Bytes), says ...string) Row {
		const super = poolSize - 64<<10
		return brokenVolume("T66 md 0.90 "+name, "md 0.90 superblock", super+at,
			poolImage(0xfd, poolSize, func(v forge.Bytes) {
				poolforge.PutMD0(v, order)
				change(v[super:])
			}), says...)
	}
	return []Row{
		row("2^32-1 roles", poolforge.MD1MaxDevices,
			func(s forge.Bytes) { s.U32(poolforge.MD1MaxDevices, math.MaxUint32) }, "devices 4294967295",
			"want up to 1920"),
		row("2^32-1 devices", poolforge.MD1Devices,
			func(s forge.Bytes) { s.U32(poolforge.MD1Devices, math.MaxUint32) }, "raid devices 4294967295"),
		row("data at 2^64", poolforge.MD1DataOffset,
			func(s forge.Bytes) { s.U64(poolforge.MD1DataOffset, math.MaxUint64) }, "data offset 18446744073709551615"),
		row("data at the end of the device", poolforge.MD1DataOffset,
			func(s forge.Bytes) { s.U64(poolforge.MD1DataOffset, poolSize/512) }, "data offset 8192",
			"want less than 8192 sectors"),
		md0(binary.LittleEndian, "checksum", poolforge.MD0Checksum,
			func(s forge.Bytes) { s.U32(poolforge.MD0Level, 5) }, "checksum"),
		md0(binary.BigEndian, "checksum, big-endian", poolforge.MD0Checksum,
			func(s forge.Bytes) { s.U32(poolforge.MD0Level, 5) }, "checksum"),
		broken("T66 md larger than its partition", "format",
			md1Image("1.1", func(s forge.Bytes) { s.U64(poolforge.MD1DataSize, math.MaxUint64) }),
			"the linux_raid_member has", "the partition has 4194304"),
	}
}

func brokenLUKS() []Row {
	text := func(name, text string, says ...string) Row {
		return brokenVolume("T66 LUKS2 "+name, "luks2 json", poolforge.LUKS2JSON, luks2Image(text), says...)
	}
	return []Row{
		brokenVolume("T66 LUKS1 payload behind the device", "luks1 header", poolforge.LUKS1Payload,
			poolImage(0x83, poolSize, func(v forge.Bytes) { poolforge.PutLUKS1(v, math.MaxUint32, 1000) }),
			"payload offset 4294967295"),
		brokenVolume("T66 LUKS of version 9", "luks header", 6,
			poolImage(0x83, poolSize, func(v forge.Bytes) { v.Text(0, "LUKS\xba\xbe\x00\x09") }), "version 9",
			"want 1 or 2"),
		brokenVolume("T66 LUKS2 header of 2^63 bytes", "luks2 header", poolforge.LUKS2Size,
			poolImage(0x83, poolSize, func(v forge.Bytes) {
				poolforge.PutLUKS2(v, poolforge.LUKS2Text("0", "1"), 16<<10)
				v.U8(poolforge.LUKS2Size, 0x80)
			}), "size", "want a power of two"),
		text("nesting of a million", strings.Repeat("[", 1e6), "text", "depth"),
		text("half a million segments", `{"segments":{`+strings.Repeat(`"":{},`, 5e5)+`"":{}}}`, "offset of a segment"),
		text("no JSON", "no JSON", "text"),
		text("no segments", "{}", "segments"),
		text("a segment at 2^64", poolforge.LUKS2Text("18446744073709551616", "1"), "offset of a segment",
			"18446744073709551616"),
		text("a segment below 0", poolforge.LUKS2Text("-1", "1"), "offset of a segment"),
		text("a segment behind the device", poolforge.LUKS2Text("16777216", "1"), "offset of a segment 16777216",
			"want less than 16777216"),
	}
}

func brokenOtherPools() []Row {
	bcache := func(name string, at int64, change func(forge.Bytes), says ...string) Row {
		return brokenVolume("T66 bcache "+name, "bcache superblock", at, bcacheImage(change), says...)
	}
	return []Row{
		bcache("65535 journal buckets", poolforge.BcacheKeys,
			func(v forge.Bytes) { v.U16(poolforge.BcacheKeys, math.MaxUint16) }, "journal buckets 65535"),
		bcache("data at 2^64", poolforge.BcacheData,
			func(v forge.Bytes) { v.U64(poolforge.BcacheData, math.MaxUint64) }, "data offset 18446744073709551615"),
		bcache("version 9", poolforge.BcacheVersion, func(v forge.Bytes) { v.U64(poolforge.BcacheVersion, 9) },
			"version 9"),
		brokenVolume("T66 ZFS without a guid", "zfs label", poolforge.ZFSList, zfsImage(func(v forge.Bytes) {
			clear(v[poolforge.ZFSList+12 : 128<<10])
		}), "list", "neither guid nor version"),
		brokenVolume("T66 VMFS of version 99", "vmfs device header", poolforge.VMFSDevice+4,
			poolImage(0xfb, 20<<20, func(v forge.Bytes) { poolforge.PutVMFS(v, 99, 14, 61) }), "version 99"),
		brokenVolume("T66 VMFS data at 2^64", "vmfs device header", poolforge.VMFSDataOffset,
			poolImage(0x83, 20<<20, func(v forge.Bytes) {
				poolforge.PutVMFS(v, 5, 14, 61)
				v.U64(poolforge.VMFSDataOffset, math.MaxUint64)
			}), "data offset 18446744073709551615"),
	}
}

// refusedPools are sound, and a move would break them.
func refusedPools() []Row {
	refused := func(name string, image Writer, says ...string) Row {
		return kept("T66 "+name, "unsupported", image, says...)
	}
	return []Row{
		refused("VMFS by its content",
			poolImage(0x83, 20<<20, func(v forge.Bytes) { poolforge.PutVMFS(v, 6, 24, 82) }),
			"VMFS: a moved VMFS is taken for a snapshot"),
		refused("BitLocker", poolImage(0x07, poolSize,
			func(v forge.Bytes) { poolforge.PutBitLocker(v, "\x1b[31m", 0x0100) }), "BitLocker", "TPM", "recovery key"),
		refused("BitLocker with metadata behind the device", poolImage(0x07, poolSize, func(v forge.Bytes) {
			poolforge.PutBitLocker(v, "")
			v.U64(poolforge.FVEBlocks, math.MaxUint64)
		}), "BitLocker", "give bytes"),
		refused("BitLocker with entries of no size", poolImage(0x07, poolSize, func(v forge.Bytes) {
			poolforge.PutBitLocker(v, "")
			v.U16(poolforge.FVEBlock+112, 0)
			poolforge.SealFVE(v[poolforge.FVEBlock:])
		}), "BitLocker", "an entry of its metadata has 0 bytes"),
		refused("BitLocker with damaged metadata", poolImage(0x07, poolSize, func(v forge.Bytes) {
			poolforge.PutBitLocker(v, "")
			for i := range int64(3) {
				v.U32(poolforge.FVEBlock+i*poolforge.FVEApart+64, math.MaxUint32)
			}
		}), "no intact metadata block"),
		refused("hibernated Linux", poolImage(0x82, poolSize, func(v forge.Bytes) { v.Text(4086, "S1SUSPEND") }),
			"holds a hibernated Linux"),
		refused("hibernated Linux with large pages",
			poolImage(0x82, poolSize, func(v forge.Bytes) { v.Text(65526, "LINHIB0001") }), "holds a hibernated Linux"),
		refused("hibernated Linux in a logical volume",
			lvmImage(func(v forge.Bytes) { v.Text(poolforge.LVMPeStart+8<<16+4086, "S1SUSPEND") }),
			"holds a hibernated Linux"),
		kept("T66 member of an array as a whole", "unsupported", writeForged("disk.raw",
			volumeDisk(0x83, func(disk forge.Bytes) { poolforge.PutMD0(disk, binary.LittleEndian) })),
			"the disk as a whole is a linux_raid_member"),
	}
}

// oddPools move as opaque bytes. No key is derived, for any number of iterations.
func oddPools() []Row {
	group := func(body string) Writer { return lvmTextImage("g { extent_size = 128 " + body + " }") }
	var volumes strings.Builder
	for i := range 900 {
		fmt.Fprintf(&volumes, "v%d { segment1 { extent_count = 9 } }\n", i)
	}
	lvm := func(name string, image Writer, says ...string) Row {
		return odd("T66 LVM "+name, "lvm2_member", image, says...)
	}
	return []Row{
		odd("T66 LUKS1 with 2^31 iterations", "luks",
			poolImage(0x83, poolSize, func(v forge.Bytes) { poolforge.PutLUKS1(v, 8, 1<<31) })),
		odd("T66 LUKS2 with 2^31 iterations", "luks", luks2Image(poolforge.LUKS2Text("8388608", "2147483648"))),
		odd("T66 LUKS2 with a text of 4 MiB", "luks",
			luks2Image(poolforge.LUKS2Text("8388608", "1")+strings.Repeat(" ", 4100000))),
		lvm("text that nests", group(strings.Repeat("a { ", 10000)), "lvm text at 0x55: token"),
		lvm("with a name of 50,000", group(strings.Repeat("n", 50000)+" { }"), "short names"),
		lvm("text without an end", group(`x = "`), "want the end of a string"),
		lvm("text of brackets", group("x = "+strings.Repeat("[", 50000)), "token"),
		lvm("with extents of no size", lvmTextImage("g { extent_size = 0 }"), "extent size 0"),
		lvm("with many volumes", group("logical_volumes { "+volumes.String()+" }")),
		lvm("whose areas are the same", lvmImage(func(v forge.Bytes) {
			v.U64(poolforge.LVMMetaArea+16, 4096)
			v.U64(poolforge.LVMMetaArea+24, 8192)
		})),
		lvm("with its area in the last bytes", lvmImage(func(v forge.Bytes) {
			v.U64(poolforge.LVMMetaArea, poolSize-8)
			v.U64(poolforge.LVMMetaArea+8, 8)
		}), "want a whole sector"),
		odd("T66 md with 2^31 levels", "linux_raid_member", md1Image("1.0", func(s forge.Bytes) {
			s.U32(poolforge.MD1Level, 1<<31)
			s.U64(poolforge.MD1DataOffset, 0)
		})),
		odd("T66 swap of 2^32 pages", "swap", poolImage(0x82, poolSize, func(v forge.Bytes) {
			v.Text(4086, "SWAPSPACE2")
			v.U32(1024, 1)
			v.U32(1028, math.MaxUint32)
		}), "the swap has 17592186044416 bytes by its own structures"),
		odd("T66 BitLocker with a protector of data", "bitlocker",
			poolImage(0x07, poolSize, func(v forge.Bytes) { poolforge.PutBitLocker(v, "\x1b[31m") }), "a data volume"),
		odd("T66 a good ZFS", "zfs_member", zfsImage(unsealed)),
	}
}
