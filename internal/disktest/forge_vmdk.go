package disktest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// Places of the fields of a sparse header. Spec: VMware, Virtual Disk Format 1.1, "Hosted Sparse Extents".
const (
	VMDKVersion          = 4
	VMDKFlags            = 8
	VMDKCapacity         = 12
	VMDKGrainSize        = 20
	VMDKDescriptorOffset = 28
	VMDKDescriptorSize   = 36
	VMDKNumGTEs          = 44
	VMDKRGDOffset        = 48
	VMDKGDOffset         = 56
	VMDKOverHead         = 64
	VMDKUncleanShutdown  = 72
	VMDKNewLine          = 73
	VMDKCompress         = 77
)

// Sizes that VMware writes, in bytes.
const (
	vmdkSector     = 512
	VMDKGrain      = 128 * vmdkSector
	vmdkTable      = 4 * 512
	vmdkDescriptor = 20 * vmdkSector
)

// SparseVMDK is a valid monolithicSparse file and where its parts lie, in bytes.
type SparseVMDK struct {
	Forged
	Descriptor, RGD, RGT, GD, GT, Grains int64
}

// ForgeSparseVMDK stores the grains of a disk that are not zero, in the order of VMware: header, descriptor, redundant
// directory and tables, primary directory and tables, grains. The disk's size is a multiple of 512 bytes, at most 4
// GiB: what one sector of directory holds.
func ForgeSparseVMDK(disk []byte) *SparseVMDK {
	grains := (int64(len(disk)) + VMDKGrain - 1) / VMDKGrain
	tables := (grains + 511) / 512
	v := &SparseVMDK{Descriptor: vmdkSector}
	v.RGD = v.Descriptor + vmdkDescriptor
	v.RGT = v.RGD + vmdkSector
	v.GD = v.RGT + tables*vmdkTable
	v.GT = v.GD + vmdkSector
	v.Grains = (v.GT + tables*vmdkTable + VMDKGrain - 1) / VMDKGrain * VMDKGrain
	v.Forged = make(Forged, v.Grains)

	v.Text(0, "KDMV")
	v.U32(VMDKVersion, 1)
	v.U32(VMDKFlags, 3) // newline test and redundant tables are valid
	v.U64(VMDKCapacity, uint64(len(disk)/vmdkSector))
	v.U64(VMDKGrainSize, VMDKGrain/vmdkSector)
	v.U64(VMDKDescriptorOffset, uint64(v.Descriptor/vmdkSector))
	v.U64(VMDKDescriptorSize, vmdkDescriptor/vmdkSector)
	v.U32(VMDKNumGTEs, 512)
	v.U64(VMDKRGDOffset, uint64(v.RGD/vmdkSector))
	v.U64(VMDKGDOffset, uint64(v.GD/vmdkSector))
	v.U64(VMDKOverHead, uint64(v.Grains/vmdkSector))
	v.Text(VMDKNewLine, "\n \r\n")
	v.SetDescriptor(VMDKDescriptor("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, len(disk)/vmdkSector)))
	for i := range tables {
		v.U32(v.RGD+4*i, uint32((v.RGT+i*vmdkTable)/vmdkSector))
		v.U32(v.GD+4*i, uint32((v.GT+i*vmdkTable)/vmdkSector))
	}
	for i := range grains {
		v.addGrain(i, disk[i*VMDKGrain:min((i+1)*VMDKGrain, int64(len(disk)))])
	}
	return v
}

// addGrain stores the data of grain i behind what is there. The last grain of a disk is stored whole.
func (v *SparseVMDK) addGrain(i int64, data []byte) {
	if !slices.ContainsFunc(data, func(b byte) bool { return b != 0 }) {
		return
	}
	at := int64(len(v.Forged))
	v.Forged = append(v.Forged, make([]byte, VMDKGrain)...)
	v.Put(at, data)
	v.SetGrain(i, uint32(at/vmdkSector))
}

// Grain returns the sector of the file at which grain i lies, 0 for one that is not stored.
func (v *SparseVMDK) Grain(i int64) uint32 {
	return binary.LittleEndian.Uint32(v.Forged[v.GT+4*i:])
}

// SetDescriptor replaces the embedded text.
func (v *SparseVMDK) SetDescriptor(text string) {
	clear(v.Forged[v.Descriptor : v.Descriptor+vmdkDescriptor])
	v.Text(v.Descriptor, text)
}

// SetGrain lets grain i lie at a sector of the file, in both copies of its table.
func (v *SparseVMDK) SetGrain(i int64, sector uint32) {
	v.U32(v.RGT+4*i, sector)
	v.U32(v.GT+4*i, sector)
}

// VMDKDescriptor returns the text of a complete disk. Each extent is a whole line.
func VMDKDescriptor(createType string, extents ...string) string {
	return fmt.Sprintf(`# Disk DescriptorFile
version=1
encoding="UTF-8"
CID=4a5b6c7d
parentCID=ffffffff
createType="%s"

# Extent description
%s

# The Disk Data Base
#DDB

ddb.adapterType = "ide"
ddb.geometry.cylinders = "2"
ddb.geometry.heads = "16"
ddb.geometry.sectors = "63"
ddb.virtualHWVersion = "4"
`, createType, strings.Join(extents, "\n"))
}

// ForgeHiddenDescriptor returns a sparse header without data, whose embedded text names the parts of the disk.
func ForgeHiddenDescriptor(text string) Forged {
	f := make(Forged, vmdkSector+vmdkDescriptor)
	f.Text(0, "KDMV")
	f.U32(VMDKVersion, 1)
	f.U64(VMDKDescriptorOffset, 1)
	f.U64(VMDKDescriptorSize, vmdkDescriptor/vmdkSector)
	f.Text(vmdkSector, text)
	return f
}
