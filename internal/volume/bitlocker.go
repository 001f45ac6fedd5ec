package volume

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// bitLocker detects an encrypted volume of Windows.
var bitLocker = Prober{
	Kinds: []Traits{{
		Kind: BitLocker, Title: "BitLocker", Letter: true, NeverStale: true, ShowsContent: true,
	}},
	Marks: []Mark{{Off: 3, Bytes: fveSignature}, {Off: 3, Bytes: fveToGoName}},
	Probe: probeBitLocker,
}

// fveHeader is the boot sector of Windows 7 and later. Vista stores the cluster of the first metadata block where NTFS
// has its MFT mirror. Spec: libbde documentation, "Volume header".
type fveHeader struct {
	Jump              [3]byte
	Signature         [8]byte // "-FVE-FS-"
	BytesPerSector    uint16
	SectorsPerCluster uint8
	_                 [42]byte
	VistaCluster      uint64 // Vista: cluster of metadata block 1
	_                 [96]byte
	ID                [16]byte
	Blocks            [3]uint64 // offsets of the metadata blocks in bytes
	_                 [224]byte
	ToGoID            [16]byte // BitLocker To Go, in the boot sector of a FAT
	ToGoBlocks        [3]uint64
	_                 [48]byte
}

// fveBlock is the start of a metadata block: the block header and the metadata header. Spec: libbde documentation, "FVE
// metadata block".
type fveBlock struct {
	Signature [8]byte // "-FVE-FS-"
	Length    uint16  // of the block, in units of fveLengthUnit
	Version   uint16  // 1: Vista
	State     uint16  // fveSettled, or the progress of a conversion
	NextState uint16
	Encrypted uint64 // bytes, Windows 7 and later
	_         [8]byte
	Blocks    [3]uint64 // offsets of all metadata blocks in bytes
	_         [8]byte
	Size      uint32 // size of the metadata, including this header
	_         uint32
	_         uint32 // size of this header
	_         uint32
	VolumeID  [16]byte
	_         uint32
	Method    uint32
	_         uint64 // time
}

// fveEntry is the header of a metadata entry. Spec: libbde documentation, "FVE metadata entry".
type fveEntry struct{ Size, Type, ValueType, Version uint16 }

// fveProtector is the start of the data of a master key entry. Spec: libbde documentation, "FVE Volume Master Key".
type fveProtector struct {
	_    [26]byte // identifier, time
	Type uint16
}

const (
	fveSignature   = "-FVE-FS-"
	fveToGoName    = "MSWIN4.1"
	fveBlockSize   = 112
	fveEntrySize   = 8
	fveMaxKeys     = 64
	fveAtMetadata  = 64      // offset in a block
	fveMaxLabel    = 1 << 10 // bytes
	fveDescription = 0x0007
	fveText        = 0x0002
	fveKey         = 0x0002 // entry type of a master key
	fveKeyValue    = 0x0008
	fveSettled     = 4
	fveLengthUnit  = 16
	// The stored identifier of a volume, {4967d63b-2e29-4ad8-8399-f6a339e3d001}. A volume that encrypts on write has
	// another identifier.
	fveID = "\x3b\xd6\x67\x49\x29\x2e\xd8\x4a\x83\x99\xf6\xa3\x39\xe3\xd0\x01"
)

// fveMethods maps encryption methods to their names. Spec: libbde documentation, "Encryption methods"; the last two
// came with Windows 10.
var fveMethods = map[uint32]string{
	0x8000: "AES-CBC 128 with diffuser", 0x8001: "AES-CBC 256 with diffuser", 0x8002: "AES-CBC 128",
	0x8003: "AES-CBC 256", 0x8004: "AES-XTS 128", 0x8005: "AES-XTS 256",
}

// fveProtectors maps key protectors to their names. Spec: libbde documentation, "Key protection types"; cryptsetup,
// lib/bitlk/bitlk.c: get_vmk_protection.
var fveProtectors = map[uint16]string{
	fveClear: "clear key", 0x0100: "TPM", 0x0200: "startup key", 0x0500: "TPM and PIN", 0x0800: "recovery password",
	0x1000: "smart card", 0x2000: "password",
}

// fveDataProtectors lists the protectors that do not measure the machine. A startup key is a file: Windows boots with
// it from a USB stick, or unlocks a data volume with it.
var fveDataProtectors = []uint16{fveClear, 0x0200, 0x0800, 0x1000, 0x2000}

const fveClear = 0x0000 // BitLocker is suspended

func probeBitLocker(d disk.Disk) (*Volume, error) {
	b, err := ReadBlock(d, 0, units.SectorSize)
	if err != nil {
		return nil, err
	}
	var h fveHeader
	ondisk.Fill(b, binary.LittleEndian, &h)
	f := fve{d: d, v: &Volume{Kind: BitLocker, Size: d.Size()}}
	var blocks []uint64
	switch togo := string(h.ToGoID[:]) == fveID && string(h.Signature[:]) == fveToGoName; {
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
		if string(h.ID[:]) != fveID {
			f.unsure("the identifier in its boot sector, %s, is not that of a fully encrypted volume",
				ondisk.GUID(h.ID))
		}
	}
	if err := f.read(blocks); err != nil {
		return nil, err
	}
	f.judge()
	return f.v, nil
}

// fve is the state of reading a volume.
type fve struct {
	d          disk.Disk
	v          *Volume
	protectors []uint16 // in the order of the metadata block
	doubt      string   // reason why the volume is not known to be a data volume, or ""
}

// unsure records a doubt, unless there is an earlier one.
func (f *fve) unsure(format string, args ...any) {
	if f.doubt == "" {
		f.doubt = fmt.Sprintf(format, args...)
	}
}

// read describes the volume from the first sound metadata block, since copies can be damaged. Without a sound block the
// volume keeps its defaults.
func (f *fve) read(blocks []uint64) error {
	for _, at := range blocks {
		if at == 0 || f.d.Size() < fveBlockSize || at > ondisk.U64(f.d.Size()-fveBlockSize) {
			continue
		}
		var b fveBlock
		if _, err := ondisk.Decode(f.d, ondisk.I64(at), &b); err != nil {
			return err
		}
		if string(b.Signature[:]) != fveSignature {
			continue
		}
		whole, err := f.sound(b, ondisk.I64(at))
		if err != nil {
			return err
		}
		if whole != nil {
			f.check(b, blocks)
			f.describe(b, whole[fveBlockSize:])
			return nil
		}
	}
	f.unsure("it has no intact metadata block")
	return nil
}

// sound returns the bytes of a metadata block up to the end of its metadata, or nil if the block is damaged. A checksum
// follows the block. Spec: cryptsetup, lib/bitlk/bitlk.c: bitlk_fve_metadata_validation.
func (f *fve) sound(b fveBlock, at int64) ([]byte, error) {
	const header, atSum, sum = 48, 4, 4
	length, end := int64(b.Length)*fveLengthUnit, fveAtMetadata+int64(b.Size)
	if int64(b.Size) < header || end > length || length+atSum+sum > f.d.Size()-at {
		return nil, nil
	}
	whole, err := ondisk.Bytes(f.d, at, length+atSum+sum)
	if err != nil || crc32.ChecksumIEEE(whole[:length]) != binary.LittleEndian.Uint32(whole[length+atSum:]) {
		return nil, err
	}
	return whole[:end], nil
}

// check records a doubt if a metadata block differs from known volumes whose data stays in place.
func (f *fve) check(b fveBlock, blocks []uint64) {
	switch {
	case b.Version != 2:
		f.unsure("its metadata has version %d, and trueup supports only version 2, of Windows 7 and later", b.Version)
	case !slices.Equal(b.Blocks[:], blocks):
		f.unsure("its metadata blocks give bytes %d as their offsets, the boot sector %d", b.Blocks, blocks)
	case b.State != fveSettled || b.NextState != fveSettled:
		f.unsure("it is being encrypted or decrypted (state %d, next %d)", b.State, b.NextState)
	}
}

// describe adds the details in a metadata block and its entries to the volume.
func (f *fve) describe(b fveBlock, entries []byte) {
	v := f.v
	v.UUID = ondisk.GUID(b.VolumeID).String()
	v.Add("version", map[uint16]string{1: "Windows Vista", 2: "Windows 7 or later"}[b.Version])
	v.Add("encryption", fveMethods[b.Method&0xffff])
	if b.Version == 2 && b.State == fveSettled && b.Encrypted < math.MaxInt64 {
		v.Size = max(v.Size, ondisk.I64(b.Encrypted))
	}
	if b.Version == 2 && b.Encrypted < ondisk.U64(f.d.Size()) {
		v.Add("encrypted", fmt.Sprintf("%d bytes from the start", b.Encrypted))
	}
	f.entries(entries)
	var names []string
	for _, p := range f.protectors {
		names = append(names, protectorName(p))
	}
	v.Add("opened by", strings.Join(names, ", "))
}

// entries reads the description (name of the computer, drive and date) and the protectors.
func (f *fve) entries(b []byte) {
	for len(b) > 0 {
		var e fveEntry
		if len(b) >= fveEntrySize {
			ondisk.Fill(b, binary.LittleEndian, &e)
		}
		if e.Size < fveEntrySize || int(e.Size) > len(b) {
			f.unsure("an entry of its metadata has %d bytes, with %d remaining", e.Size, len(b))
			return
		}
		data := b[fveEntrySize:e.Size]
		b = b[e.Size:]
		switch {
		case e.Type == fveDescription && e.ValueType == fveText:
			f.v.Label = ondisk.UTF16Z(data[:min(len(data), fveMaxLabel)], binary.LittleEndian)
		case e.Type != fveKey:
		case e.ValueType != fveKeyValue || len(data) < binary.Size(fveProtector{}) || len(f.protectors) == fveMaxKeys:
			f.unsure("an entry of its master key has value type %#04x and %d bytes", e.ValueType, e.Size)
		default:
			var p fveProtector
			ondisk.Fill(data, binary.LittleEndian, &p)
			f.protectors = append(f.protectors, p.Type)
		}
	}
}

func protectorName(p uint16) string {
	return cmp.Or(fveProtectors[p], fmt.Sprintf("an unknown protector (%#04x)", p))
}

// judge refuses a volume if the metadata marks it as a system volume, or does not prove it to be a data volume.
// Function BitLocker of package boot/windows judges the others by the disk around them.
func (f *fve) judge() {
	i := slices.IndexFunc(f.protectors, func(p uint16) bool { return !slices.Contains(fveDataProtectors, p) })
	switch {
	case i >= 0:
		f.doubt = fmt.Sprintf("it is protected like a system volume (%s)", protectorName(f.protectors[i]))
	case len(f.protectors) == 0:
		f.unsure("it has no known protector of its key")
	case strings.Contains(f.v.Label, " C: "):
		f.unsure("its description has drive C:")
	}
	if f.doubt != "" {
		text, remedy := SystemOfBitLocker(f.doubt, slices.Contains(f.protectors, fveClear))
		f.v.Note(CodeBitLocker, ondisk.Unbootable, text, remedy)
	}
}

// CodeBitLocker is the issue code of a BitLocker volume.
const CodeBitLocker = "bitlocker"

// SystemOfBitLocker returns the text and remedy for moving a volume that is, or may be, a system volume.
func SystemOfBitLocker(why string, suspended bool) (text, remedy string) {
	unless := ""
	if suspended {
		unless = " unless BitLocker is still suspended at that time"
	}
	const format = "BitLocker: %s: a guest that boots from it asks for the recovery key after a move%s, and the " +
		"encrypted boot sector keeps the old position"
	return fmt.Sprintf(format, why, unless),
		"decrypt the volume in the guest; or use --allow-unbootable, with the recovery key at hand"
}
