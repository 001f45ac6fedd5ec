// Package vmdkforge forges VMDK files: hosted sparse, stream-optimized, and the two sparse formats of ESX.
package vmdkforge

import (
	"cmp"
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

// SparseLayout is the shape of a sparse extent. The zero value is a monolithicSparse file of VMware.
type SparseLayout struct {
	Grain     int64 // in sectors; 0: 128
	Short     bool  // tables without a grain are missing, and the last grain may end with the disk
	Zeroed    bool  // grains of zeros have entry 1 instead of 0
	Single    bool  // there is no redundant directory
	Backwards bool  // the last grain of the disk comes first in the file
	Extent    bool  // there is no descriptor: the file is an extent of another one
}

// NewSparse stores the nonzero grains of a disk, in the order of VMware: header, descriptor, redundant directory and
// tables, primary directory and tables, grains. The disk's size is a multiple of 512 bytes.
func NewSparse(disk []byte) *Sparse { return NewSparseOf(disk, SparseLayout{}) }

// NewSparseOf is NewSparse for any layout. Spec: Virtual Disk Format 1.1, "Hosted Sparse Extents".
func NewSparseOf(disk []byte, l SparseLayout) *Sparse {
	size, grain := int64(len(disk)), cmp.Or(vmdkSector*l.Grain, Grain)
	grains := (size + grain - 1) / grain
	tables := (grains + 511) / 512
	directory := (4*tables + vmdkSector - 1) / vmdkSector * vmdkSector
	v := &Sparse{Descriptor: vmdkSector}
	v.RGD = v.Descriptor + vmdkDescriptor
	v.RGT = v.RGD + directory
	v.GD = v.RGT + tables*vmdkTable
	v.GT = v.GD + directory
	v.Grains = (v.GT + tables*vmdkTable + grain - 1) / grain * grain
	v.Bytes = make(forge.Bytes, v.Grains)
	v.header(size/vmdkSector, grain/vmdkSector, l)
	for n := range grains {
		i := n
		if l.Backwards {
			i = grains - 1 - n
		}
		data, entry := disk[i*grain:min((i+1)*grain, size)], int64(0)
		if slices.ContainsFunc(data, func(b byte) bool { return b != 0 }) {
			entry = int64(len(v.Bytes)) / vmdkSector
			v.Bytes = append(v.Bytes, data...)
			if !l.Short || n < grains-1 {
				v.Bytes = append(v.Bytes, make([]byte, int(grain)-len(data))...)
			}
		} else if l.Zeroed {
			entry = 1
		}
		if entry > 0 || !l.Short {
			v.U32(v.RGD+i/512*4, uint32((v.RGT+i/512*vmdkTable)/vmdkSector))
			v.U32(v.GD+i/512*4, uint32((v.GT+i/512*vmdkTable)/vmdkSector))
			v.SetGrain(i, uint32(entry))
		}
	}
	return v
}

// header writes the header and the descriptor of a disk. Both arguments are in sectors.
func (v *Sparse) header(capacity, grain int64, l SparseLayout) {
	v.Text(0, "KDMV")
	v.U32(Version, 1)
	flags := uint32(1) // the newline test is valid
	if l.Zeroed {
		flags |= 4
		v.U32(Version, 2)
	}
	if !l.Single {
		flags |= 2
		v.U64(RGDOffset, uint64(v.RGD/vmdkSector))
	}
	v.U32(Flags, flags)
	v.U64(Capacity, uint64(capacity))
	v.U64(GrainSize, uint64(grain))
	v.U64(DescriptorOffset, uint64(v.Descriptor/vmdkSector))
	v.U64(DescriptorSize, vmdkDescriptor/vmdkSector)
	v.U32(NumGTEs, 512)
	v.U64(GDOffset, uint64(v.GD/vmdkSector))
	v.U64(OverHead, uint64(v.Grains/vmdkSector))
	v.Text(NewLine, "\n \r\n")
	if !l.Extent {
		v.SetDescriptor(Descriptor("monolithicSparse", fmt.Sprintf(`RW %d SPARSE "disk.vmdk"`, capacity)))
	}
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
