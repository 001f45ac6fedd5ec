// Package vmdkforge forges VMDK files: hosted sparse, stream-optimized, and the two sparse formats of ESX.
package vmdkforge

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disktest/forge"
)

// Places of the fields of a sparse header. Spec: VMware, Virtual Disk Format 1.1, "Hosted Sparse Extents".
const (
	Version          = 4
	Flags            = 8
	Capacity         = 12
	GrainSize        = 20
	DescriptorOffset = 28
	DescriptorSize   = 36
	NumGTEs          = 44
	RGDOffset        = 48
	GDOffset         = 56
	OverHead         = 64
	UncleanShutdown  = 72
	NewLine          = 73
	Compress         = 77
)

// Sizes that VMware writes, in bytes.
const (
	vmdkSector     = 512
	Grain          = 128 * vmdkSector
	vmdkTable      = 4 * 512
	vmdkDescriptor = 20 * vmdkSector
)

// Sparse is a valid monolithicSparse file and where its parts lie, in bytes.
type Sparse struct {
	forge.Bytes
	Descriptor, RGD, RGT, GD, GT, Grains int64
}

// NewSparse stores the nonzero grains of a disk, in the order of VMware: header, descriptor, redundant directory and
// tables, primary directory and tables, grains. The disk's size is a multiple of 512 bytes, at most 4 GiB, for which
// one sector of directory is enough.
func NewSparse(disk []byte) *Sparse {
	grains := (int64(len(disk)) + Grain - 1) / Grain
	tables := (grains + 511) / 512
	v := &Sparse{Descriptor: vmdkSector}
	v.RGD = v.Descriptor + vmdkDescriptor
	v.RGT = v.RGD + vmdkSector
	v.GD = v.RGT + tables*vmdkTable
	v.GT = v.GD + vmdkSector
	v.Grains = (v.GT + tables*vmdkTable + Grain - 1) / Grain * Grain
	v.Bytes = make(forge.Bytes, v.Grains)

	v.Text(0, "KDMV")
	v.U32(Version, 1)
	v.U32(Flags, 3) // newline test and redundant tables are valid
	v.U64(Capacity, uint64(len(disk)/vmdkSector))
	v.U64(GrainSize, Grain/vmdkSector)
	v.U64(DescriptorOffset, uint64(v.Descriptor/vmdkSector))
	v.U64(DescriptorSize, vmdkDescriptor/vmdkSector)
	v.U32(NumGTEs, 512)
	v.U64(RGDOffset, uint64(v.RGD/vmdkSector))
	v.U64(GDOffset, uint64(v.GD/vmdkSector))
	v.U64(OverHead, uint64(v.Grains/vmdkSector))
	v.Text(NewLine, "\n \r\n")
	v.SetDescriptor(Descriptor("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, len(disk)/vmdkSector)))
	for i := range tables {
		v.U32(v.RGD+4*i, uint32((v.RGT+i*vmdkTable)/vmdkSector))
		v.U32(v.GD+4*i, uint32((v.GT+i*vmdkTable)/vmdkSector))
	}
	for i := range grains {
		v.addGrain(i, disk[i*Grain:min((i+1)*Grain, int64(len(disk)))])
	}
	return v
}

// addGrain appends the data of grain i. The last grain of a disk is stored whole.
func (v *Sparse) addGrain(i int64, data []byte) {
	if !slices.ContainsFunc(data, func(b byte) bool { return b != 0 }) {
		return
	}
	at := int64(len(v.Bytes))
	v.Bytes = append(v.Bytes, make([]byte, Grain)...)
	v.Put(at, data)
	v.SetGrain(i, uint32(at/vmdkSector))
}

// Grain returns the sector of the file at which grain i lies, 0 for one that is not stored.
func (v *Sparse) Grain(i int64) uint32 {
	return binary.LittleEndian.Uint32(v.Bytes[v.GT+4*i:])
}

// SetDescriptor replaces the embedded text.
func (v *Sparse) SetDescriptor(text string) {
	clear(v.Bytes[v.Descriptor : v.Descriptor+vmdkDescriptor])
	v.Text(v.Descriptor, text)
}

// SetGrain sets the sector of grain i in the file, in both copies of its table.
func (v *Sparse) SetGrain(i int64, sector uint32) {
	v.U32(v.RGT+4*i, sector)
	v.U32(v.GT+4*i, sector)
}

// Descriptor returns the text of a complete disk. Each extent is a whole line.
func Descriptor(createType string, extents ...string) string {
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

// NewHiddenDescriptor returns a sparse header without data, whose embedded text names the parts of the disk.
func NewHiddenDescriptor(text string) forge.Bytes {
	f := make(forge.Bytes, vmdkSector+vmdkDescriptor)
	f.Text(0, "KDMV")
	f.U32(Version, 1)
	f.U64(DescriptorOffset, 1)
	f.U64(DescriptorSize, vmdkDescriptor/vmdkSector)
	f.Text(vmdkSector, text)
	return f
}
