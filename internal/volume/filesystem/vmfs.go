package filesystem

import (
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// VMFS finds the file system of VMware ESXi.
var VMFS = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.VMFS, Title: "VMFS", NeverStale: true}},
	Probe: probeVMFS,
}

// vmfsDevice is the header of a device that VMFS lies on, 1 MiB into the partition. VMware has published nothing. Spec:
// dissect.vmfs, c_lvm.py, struct LVM_DevMetadata.
type vmfsDevice struct {
	Magic      uint32
	Major      uint32
	_          [114]byte // SCSI identity, sizes, counts
	DataOffset uint64
	DeviceID   [16]byte
}

// vmfsHeader is that of the file system, 2 MiB behind DataOffset on its first device. Spec: dissect.vmfs, c_vmfs.py,
// struct FS3_Descriptor.
type vmfsHeader struct {
	Magic     uint32
	Major     uint32
	Minor     uint8
	UUID      [16]byte
	_         uint32
	Label     [128]byte
	_         uint32
	BlockSize uint64
}

const (
	vmfsWhat        = "vmfs device header"
	atVMFSDevice    = 1 << 20
	vmfsDeviceMagic = 0xc001d00d
	vmfsOffset      = 2 << 20 // from the start of the data to the header of the file system
	vmfsMagic       = 0x2fabf15e
	vmfsMagicLast   = 0x2fabf161 // local and later variants are counted up
	vmfs5Major      = 14
	vmfs6Major      = 24
)

func probeVMFS(d disk.Disk) (*volume.Volume, error) {
	var h vmfsDevice
	if d.Size() < atVMFSDevice+units.SectorSize {
		return nil, ondisk.ErrNoMatch
	}
	if _, err := ondisk.Decode(d, atVMFSDevice, &h); err != nil {
		return nil, err
	}
	if h.Magic != vmfsDeviceMagic {
		return nil, ondisk.ErrNoMatch
	}
	switch {
	case h.Major < 3 || h.Major > 6:
		return nil, ondisk.Field(vmfsWhat, "version", atVMFSDevice+4, h.Major, "3 to 6")
	case h.DataOffset >= ondisk.U64(d.Size()):
		return nil, ondisk.Field(vmfsWhat, "data offset", atVMFSDevice+122, h.DataOffset,
			fmt.Sprintf("less than %d, the size of the device", d.Size()))
	}
	v := &volume.Volume{Kind: volume.VMFS, Size: d.Size(), DataStart: ondisk.I64(h.DataOffset)}
	v.Add("device", vmfsID(h.DeviceID))
	v.Note("vmfs", ondisk.Refuse, "VMFS: a moved VMFS is taken for a snapshot by ESXi",
		"move the virtual machines to a new datastore")
	return v, vmfsVolume(v, d)
}

// vmfsVolume reads the header of the file system. Only the first device of a large VMFS has one.
func vmfsVolume(v *volume.Volume, d disk.Disk) error {
	var h vmfsHeader
	at := v.DataStart + vmfsOffset
	if at > d.Size()-units.SectorSize {
		return nil
	}
	if _, err := ondisk.Decode(d, at, &h); err != nil {
		return err
	}
	if h.Magic < vmfsMagic || h.Magic > vmfsMagicLast {
		v.Add("file system", "begins on another device")
		return nil
	}
	v.UUID, v.Label = vmfsID(h.UUID), volume.Text(h.Label[:])
	v.Add("version", fmt.Sprintf("%s.%d", vmfsVersion(h.Major), h.Minor))
	if h.BlockSize > 0 && h.BlockSize <= 1<<30 {
		v.BlockSize = ondisk.I64(h.BlockSize)
	}
	return nil
}

// vmfsVersion returns the version of VMFS: 14 stands for VMFS 5, lower numbers for VMFS 3.
func vmfsVersion(major uint32) string {
	switch {
	case major >= vmfs6Major:
		return "6"
	case major >= vmfs5Major:
		return "5"
	}
	return "3"
}

// vmfsID formats an identifier as ESXi and libblkid do: two numbers, a half, and the address of a network card.
func vmfsID(b [16]byte) string {
	return fmt.Sprintf("%02x%02x%02x%02x-%02x%02x%02x%02x-%02x%02x-%x", b[3], b[2], b[1], b[0], b[7], b[6], b[5], b[4],
		b[9], b[8], b[10:])
}
