package fsforge

import (
	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// Places in the boot sector of exFAT, in bytes. Spec: Microsoft, exFAT file system specification, 3.1.
const (
	ExFATPartitionOffset = 0x40
	ExFATVolumeLength    = 0x48
	ExFATFATOffset       = 0x50
	ExFATFATLength       = 0x54
	ExFATHeapOffset      = 0x58
	ExFATClusters        = 0x5c
	ExFATRootCluster     = 0x60
	exfatSerial          = 0x64
	ExFATRevision        = 0x68
	ExFATSectorShift     = 0x6c
	ExFATClusterShift    = 0x6d
	ExFATFATs            = 0x6e
	ExFATHeap            = 64 * 512 // of PutExFAT, from the volume; clusters of 4 KiB, the first is number 2
)

// PutExFAT writes an exFAT: both boot regions, a FAT of 32 sectors at sector 32, and a root directory with a label in
// cluster 4.
func PutExFAT(f forge.Bytes, lba, sectors int64) {
	const fat, fatSectors, root = 32, 32, 4
	b := make(forge.Bytes, 512)
	b.Put(0, []byte("\xeb\x76\x90EXFAT   "))
	b.U64(ExFATPartitionOffset, uint64(lba))
	b.U64(ExFATVolumeLength, uint64(sectors))
	b.U32(ExFATFATOffset, fat)
	b.U32(ExFATFATLength, fatSectors)
	b.U32(ExFATHeapOffset, fat+fatSectors)
	b.U32(ExFATClusters, uint32((sectors-fat-fatSectors)/8))
	b.U32(ExFATRootCluster, root)
	b.U32(exfatSerial, 0xcafe1234)
	b.U16(ExFATRevision, 0x100)
	b.U8(ExFATSectorShift, 9)
	b.U8(ExFATClusterShift, 3)
	b.U8(ExFATFATs, 1)
	b.U16(tableforge.MBRMagic, 0xaa55)
	f.Put(lba*512, b)
	v := f[lba*512:]
	for i := int64(1); i <= 8; i++ {
		v.U32(i*512+508, 0xaa550000) // extended boot sectors
	}
	v.Put(12*512, v[:9*512])
	SealExFAT(v, 0)
	SealExFAT(v, 12)
	for i := int64(0); i <= root; i++ {
		v.U32(fat*512+4*i, 0xffffffff)
	}
	entries := v[ExFATHeap+(root-2)*4096:]
	entries.Put(0, []byte{0x83, 6, 'f', 0, 'o', 0, 'r', 0, 'g', 0, 'e', 0, 'd', 0})
	entries.U8(32, 0x81) // allocation bitmap, in cluster 2
	entries.U32(32+20, 2)
	entries.U64(32+24, uint64((sectors-64)/8+7)/8)
}

// SealExFAT recomputes the checksum of the boot region at a sector of the volume. Spec: 3.4.
func SealExFAT(f forge.Bytes, first int64) {
	region := f[first*512:]
	var sum uint32
	for i := range 11 * 512 {
		if i != 106 && i != 107 && i != 112 { // flags and percentage in use
			sum = sum<<31 | sum>>1
			sum += uint32(region[i])
		}
	}
	for i := int64(0); i < 512; i += 4 {
		region.U32(11*512+i, sum)
	}
}
