package stack

import (
	"encoding/binary"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
	"github.com/trueup/trueup/internal/volume"
)

// BitLocker finds an encrypted volume of Windows.
var BitLocker = volume.Prober{
	Kinds: []volume.Traits{{Kind: volume.BitLocker, Title: "BitLocker", NeverStale: true, ShowsContent: true}},
	Marks: []volume.Mark{{Off: 3, Bytes: fveSignature}, {Off: 3, Bytes: fveToGoName}},
	Probe: probeBitLocker,
}

// fveHeader is the boot sector of Windows 7 and later. That of Vista has the place of NTFS's second MFT where the first
// metadata block is. Spec: libbde documentation, "Volume header".
type fveHeader struct {
	Jump              [3]byte
	Signature         [8]byte // "-FVE-FS-"
	BytesPerSector    uint16
	SectorsPerCluster uint8
	_                 [42]byte
	VistaCluster      uint64 // Vista: of metadata block 1
	_                 [112]byte
	Blocks            [3]uint64 // bytes from the start of the volume
	_                 [224]byte
	ToGoID            [16]byte // BitLocker To Go, in the boot sector of a FAT
	ToGoBlocks        [3]uint64
	_                 [48]byte
}

// fveBlock is the start of a metadata block: its header and that of the metadata. Spec: libbde documentation, "FVE
// metadata block".
type fveBlock struct {
	Signature [8]byte // "-FVE-FS-"
	_         uint16
	Version   uint16 // 1: Vista
	_         uint32
	Encrypted uint64 // bytes, Windows 7 and later
	_         [40]byte
	Size      uint32 // of the metadata from here
	_         uint32
	_         uint32 // size of this header
	_         uint32
	VolumeID  [16]byte
	_         uint32
	Method    uint32
	_         uint64 // time
}

// fveEntry is the head of an entry of the metadata. Spec: libbde documentation, "FVE metadata entry".
type fveEntry struct{ Size, Type, ValueType, Version uint16 }

const (
	fveSignature   = "-FVE-FS-"
	fveToGoName    = "MSWIN4.1"
	fveBlockSize   = 112
	fveMaxMetadata = 64 << 10
	fveMaxLabel    = 1 << 10 // bytes
	fveDescription = 0x0007
	fveText        = 0x0002
	// The identifier of BitLocker To Go, {4967d63b-2e29-4ad8-8399-f6a339e3d001}, as it is stored.
	fveToGo = "\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01"
)

// fveMethods names the methods of encryption. Spec: libbde documentation, "Encryption methods"; the last two came with
// Windows 10.
var fveMethods = map[uint32]string{
	0x8000: "AES-CBC 128 with diffuser", 0x8001: "AES-CBC 256 with diffuser", 0x8002: "AES-CBC 128", 0x8003: "AES-CBC 256",
	0x8004: "AES-XTS 128", 0x8005: "AES-XTS 256",
}

func probeBitLocker(d disk.Disk) (*volume.Volume, error) {
	b, err := volume.ReadBlock(d, 0, units.SectorSize)
	if err != nil {
		return nil, err
	}
	var h fveHeader
	ondisk.MustFill(b, binary.LittleEndian, &h)
	var blocks []uint64
	switch togo := string(h.ToGoID[:]) == fveToGo && string(h.Signature[:]) == fveToGoName; {
	case togo:
		blocks = h.ToGoBlocks[:]
	case string(h.Signature[:]) != fveSignature:
		return nil, ondisk.ErrNoMatch
	case h.Jump[1] == 0x52: // Vista
		cluster := uint64(h.BytesPerSector) * uint64(h.SectorsPerCluster)
		if h.VistaCluster < 1<<40 {
			blocks = []uint64{h.VistaCluster * cluster}
		}
	default:
		blocks = h.Blocks[:]
	}
	// The encrypted inner boot sector keeps the old place, and a move changes bytes that the TPM of the guest measures.
	v := &volume.Volume{Kind: volume.BitLocker, Size: d.Size()}
	v.Note("bitlocker", ondisk.Unbootable,
		"BitLocker: the encrypted boot sector keeps the old place of the volume, and the guest will ask for the recovery key",
		"decrypt the volume in the guest, or suspend BitLocker and have the recovery key at hand")
	return v, fveDetails(v, d, blocks)
}

// fveDetails reads the first good metadata block. Without one the volume keeps its defaults.
func fveDetails(v *volume.Volume, d disk.Disk, blocks []uint64) error {
	for _, at := range blocks {
		if at == 0 || d.Size() < fveBlockSize || at > ondisk.U64(d.Size()-fveBlockSize) {
			continue
		}
		var b fveBlock
		if _, err := ondisk.Decode(d, ondisk.I64(at), &b); err != nil {
			return err
		}
		if string(b.Signature[:]) != fveSignature {
			continue
		}
		v.UUID = ondisk.GUID(b.VolumeID).String()
		v.Add("version", map[uint16]string{1: "Windows Vista", 2: "Windows 7 or later"}[b.Version])
		v.Add("encryption", fveMethods[b.Method&0xffff])
		if b.Version == 2 && b.Encrypted < ondisk.U64(d.Size()) {
			v.Add("encrypted", bytesOf(ondisk.I64(b.Encrypted))+" from the start")
		}
		return fveLabel(v, d, ondisk.I64(at), int64(b.Size))
	}
	return nil
}

// fveLabel reads the description: name of the computer, drive and date. at is the place of the block, size that of its
// metadata.
func fveLabel(v *volume.Volume, d disk.Disk, at, size int64) error {
	at, size = at+fveBlockSize, min(size, fveMaxMetadata)-48
	if size = min(size, d.Size()-at); size <= 0 {
		return nil
	}
	b, err := ondisk.Bytes(d, at, size)
	if err != nil {
		return err
	}
	for len(b) >= 8 {
		var e fveEntry
		ondisk.MustFill(b, binary.LittleEndian, &e)
		if e.Size < 8 || int(e.Size) > len(b) {
			return nil
		}
		if e.Type == fveDescription && e.ValueType == fveText {
			v.Label = ondisk.UTF16Z(b[8:min(e.Size, fveMaxLabel)], binary.LittleEndian)
		}
		b = b[e.Size:]
	}
	return nil
}
