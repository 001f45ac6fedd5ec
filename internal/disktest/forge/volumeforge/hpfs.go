package volumeforge

import (
	"hash/crc32"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// PutHPFS writes an HPFS of OS/2 over a partition: boot sector, superblock and spare block. Spec: Linux,
// fs/hpfs/hpfs.h.
func PutHPFS(f forge.Bytes, lba, sectors int64) {
	at := lba * 512
	f.Put(at, []byte{0xeb, 0x4b, 0x90})
	f.Text(at+3, "IBM 20.0")
	f.U16(at+fsforge.BootBytesPerSector, 512)
	f.U8(at+fsforge.BootMedia, 0xf8)
	f.U16(at+fsforge.BootSectorsPerTrack, 63)
	f.U16(at+fsforge.BootHeads, 255)
	f.U32(at+fsforge.BootHidden, uint32(lba))
	f.U8(at+0x26, 0x28)
	f.U32(at+0x27, 0x11223344)
	f.Text(at+0x2b, "OS2        ")
	f.Text(at+0x36, "HPFS    ")
	f.U16(at+tableforge.MBRMagic, 0xaa55)
	super := at + 16*512
	f.U32(super, 0xf995e849)
	f.U32(super+4, 0xfa53e9c5)
	f.U8(super+8, 2)
	f.U32(super+16, uint32(sectors))
	f.U32(at+17*512, 0xf9911849)
	f.U32(at+17*512+4, 0xfa5229c5)
}

// PutDLA writes the sector by which OS/2's LVM identifies the partitions of a disk. Spec: IBM, LVM engine,
// DLA_Table_Sector.
func PutDLA(f forge.Bytes, lba int64) {
	at := lba * 512
	f.U32(at, 0x424d5202)
	f.U32(at+4, 0x44464d50)
	f.U32(at+8, crc32.ChecksumIEEE(f[at:at+512]))
}
