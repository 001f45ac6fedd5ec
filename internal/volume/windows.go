package volume

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// refs is the boot sector of ReFS on Windows Server. Spec: Microsoft, FILE_SYSTEM_RECOGNITION_STRUCTURE, up to the
// checksum; libfsrefs, "Volume header", behind it.
var refs = &row{
	kinds: []Traits{{Kind: ReFS, Title: "ReFS", Unit: "cluster"}},
	what:  "refs boot sector", at: []int64{0}, size: 0x40, order: binary.LittleEndian,
	magic: []Mark{{3, "ReFS\x00\x00\x00\x00"}},
	checks: func(s *super) {
		length, sector, cluster := int64(s.u16(0x14)), s.i64(0x20), s.i64(0x24)
		s.check(
			check{"identifier", 0x10, 0, holds(string(s.b[0x10:0x14]) == "FSRS", string(s.b[0x10:0x14]), "FSRS")},
			check{"length", 0x14, 2, within(0x40, 4096)},
			check{"checksum", 0x16, 2, sum(func() uint64 {
				if length > s.d.Size() {
					s.err = ondisk.ErrNoMatch
				}
				return refsSum(s.read(0, length))
			})},
			check{"bytes per sector", 0x20, 4, power(512, 4096).says("512, 1024, 2048 or 4096")},
			check{"sectors per cluster", 0x24, 0, holds(PowerBetween(cluster*sector, 4096, 64<<10), cluster,
				"clusters of 4096 to 65536 bytes")},
			check{"sectors", 0x18, 8, s.blocks(sector)},
		)
	},
	volume: func(s *super) *Volume {
		v := &Volume{
			Kind: ReFS, UUID: fmt.Sprintf("%016X", s.u64(0x38)), BlockSize: s.i64(0x20) * s.i64(0x24),
			Size: ondisk.I64(s.u64(0x18)) * s.i64(0x20),
		}
		v.Addf("version", "%d.%d", s.u8(0x28), s.u8(0x29))
		return v
	},
}

// refsSum returns the checksum of a boot sector. It skips the jump and the checksum itself. Spec: Microsoft, "Computing
// a File System Recognition Checksum".
func refsSum(b []byte) uint64 {
	var sum uint16
	for i, c := range b {
		if i >= 3 && i != 0x16 && i != 0x17 {
			sum = sum>>1 | sum<<15
			sum += uint16(c)
		}
	}
	return uint64(sum)
}

// hpfs is the superblock of HPFS (OS/2) in sector 16, followed by the spare block. Spec: Linux, fs/hpfs/hpfs.h, struct
// hpfs_super_block and hpfs_spare_block.
var hpfs = &row{
	kinds: []Traits{{Kind: HPFS, Title: "HPFS"}},
	what:  "hpfs superblock", at: []int64{16 * 512}, size: 512 + 8, order: binary.LittleEndian,
	magic:   []Mark{{0, "\x49\xe8\x95\xf9"}},
	matches: func(s *super) bool { return s.u32(512) == 0xf9911849 },
	volume: func(s *super) *Volume {
		v := &Volume{Kind: HPFS, Size: s.i64(16) * units.SectorSize, BlockSize: units.SectorSize}
		if s.check(check{"sectors", 16, 4, s.blocks(units.SectorSize)}); s.err == nil {
			hpfsBoot(v, s)
		}
		return v
	},
}

// hpfsBoot reads label and BPB from the boot sector. Spec: Linux, fs/hpfs/hpfs.h, struct hpfs_boot_block.
func hpfsBoot(v *Volume, s *super) {
	b := s.read(0, units.SectorSize)
	le := binary.LittleEndian
	if b == nil || le.Uint16(b[0x1fe:]) != BootMagic || string(b[0x36:0x3a]) != "HPFS" || b[0x26] != 0x28 ||
		int64(le.Uint16(b[0x0b:])) != units.SectorSize {
		return
	}
	v.Label, v.UUID = DOSLabel(b[0x2b:0x36]), dosSerial(le.Uint32(b[0x27:]))
	v.Boot = &BPB{
		Kind: HPFS, SectorSize: units.SectorSize, Hidden: le.Uint32(b[AtHidden:]),
		Sectors: int(le.Uint16(b[0x18:])), Heads: int(le.Uint16(b[0x1a:])),
	}
}

// dosSerial formats the serial number of a volume.
func dosSerial(n uint32) string { return fmt.Sprintf("%04X-%04X", n>>16, n&0xffff) }

// Size and offsets of the exFAT boot region, which is stored twice at the start of the volume. Spec: Microsoft, exFAT
// file system specification, 3.1, 3.4.
const (
	ExFATRegion        = 12 // sectors; the last one repeats the checksum of the others
	AtExFATOffset      = 0x40
	AtExFATSectorShift = 0x6c
)

// Offsets in the exFAT boot sector.
const (
	exFATLength       = 0x48 // in sectors, like exFATOffset and exFATHeap
	exFATOffset       = 0x50
	exFATHeap         = 0x58
	exFATClusters     = 0x5c
	exFATRoot         = 0x60
	exFATClusterShift = 0x6d
)

// exFAT is the boot sector of exFAT. Spec: Microsoft, exFAT file system specification, 3.1.
var exFAT = &row{
	kinds: []Traits{{
		Kind: ExFAT, Title: "exFAT", Unit: "cluster", Letter: true, Data: "first exfat cluster",
		Realign: "to align its clusters, format it again with a tool that aligns them (mkfs.exfat --boundary-align), " +
			"and copy the files",
	}},
	what: "exfat boot sector", at: []int64{0}, size: units.SectorSize, order: binary.LittleEndian,
	magic: []Mark{{3, "EXFAT   "}},
	checks: func(s *super) {
		shift := uint64(s.u8(AtExFATSectorShift))
		s.check(
			check{"signature", 0x1fe, 2, sum(func() uint64 { return BootMagic })},
			check{"bytes per sector shift", AtExFATSectorShift, 1, within(9, 12).says("9 to 12 (512 to 4096 bytes)")},
			check{"sectors per cluster shift", exFATClusterShift, 1, within(0, 25-shift).
				says("0 to %d (clusters of at most 32 MiB)", 25-shift)},
			check{"number of FATs", 0x6e, 1, within(1, 2).says("1 or 2")},
			check{"revision", 0x68, 0, holds(s.u8(0x69) == 1, Hex(s.u16(0x68)), "1.0 to 1.99")},
			check{"volume length", exFATLength, 8, s.blocks(exFATSector(s))},
		)
		if s.err == nil {
			checkExFATAreas(s)
		}
		if s.err == nil {
			s.err = exFATSum(s, 0)
		}
	},
	volume: func(s *super) *Volume {
		const dirty = 0x2
		sector := exFATSector(s)
		v := &Volume{
			Kind: ExFAT, UUID: dosSerial(s.u32(0x64)), BlockSize: sector << s.u8(exFATClusterShift),
			Size: ondisk.I64(s.u64(exFATLength)) * sector, DataStart: s.i64(exFATHeap) * sector, SectorSize: sector,
		}
		if s.u16(0x6a)&dirty != 0 {
			v.Note("exfat-dirty", ondisk.Warn, "exFAT is marked dirty: it was not unmounted cleanly",
				"run chkdsk in the guest and shut it down cleanly")
		}
		if s.err = exFATBackup(v, s); s.err != nil {
			return nil
		}
		v.Label, s.err = exFATLabel(v, s)
		return v
	},
}

func exFATSector(s *super) int64 { return 1 << s.u8(AtExFATSectorShift) }

// checkExFATAreas verifies that the FATs lie behind the boot regions, the clusters behind the FATs, and all within the
// volume.
func checkExFATAreas(s *super) {
	const atFATLength = 0x54
	clusters, heap, length := s.i64(exFATClusters), s.i64(exFATHeap), ondisk.I64(s.u64(exFATLength))
	fatsEnd := s.i64(exFATOffset) + s.i64(atFATLength)*int64(s.u8(0x6e))
	needed := units.AlignUp((clusters+2)*4, exFATSector(s)) / exFATSector(s)
	most := ondisk.U64(max(0, min((length-heap)>>s.u8(exFATClusterShift), math.MaxUint32-10)))
	s.check(
		check{"FAT offset", exFATOffset, 4, atLeast(2 * ExFATRegion).says("24 or more sectors")},
		check{"cluster heap offset", exFATHeap, 0, holds(heap >= fatsEnd && heap < length, heap,
			"%d, the end of the FATs, to %d sectors", fatsEnd, length-1)},
		check{"cluster count", exFATClusters, 4, within(1, most)},
		check{"FAT length", atFATLength, 4, atLeast(ondisk.U64(needed)).says("%d or more sectors", needed)},
		check{"root cluster", exFATRoot, 4, within(2, ondisk.U64(clusters+1))},
	)
}

// exFATSum verifies the checksum of the boot region at off.
func exFATSum(s *super, off int64) error {
	sector := exFATSector(s)
	region, err := ondisk.Bytes(s.d, off, ExFATRegion*sector)
	if err != nil {
		return err
	}
	want := binary.LittleEndian.Uint32(ExFATChecksum(region))
	for at := (ExFATRegion - 1) * sector; at < int64(len(region)); at += 4 {
		if got := binary.LittleEndian.Uint32(region[at:]); got != want {
			return ondisk.Field("exfat boot region", "checksum", off+at, Hex(got), Hex(want))
		}
	}
	return nil
}

// ExFATChecksum returns the last sector of a boot region, which repeats the checksum of the others. The checksum skips
// the fields that change in a mounted volume: flags and percentage in use. Spec: 3.4.
func ExFATChecksum(region []byte) []byte {
	sector := len(region) / ExFATRegion
	var sum uint32
	for i, c := range region[:len(region)-sector] {
		if i != 106 && i != 107 && i != 112 {
			sum = sum>>1 | sum<<31
			sum += uint32(c)
		}
	}
	last := make([]byte, 0, sector)
	for len(last) < sector {
		last = binary.LittleEndian.AppendUint32(last, sum)
	}
	return last
}

// exFATBackup checks the second boot region, the source of repairs.
func exFATBackup(v *Volume, s *super) error {
	off := ExFATRegion * exFATSector(s)
	b, err := ReadBlock(s.d, off, s.size)
	if err != nil {
		return err
	}
	text := "describes another volume than the main boot region"
	same := func(at, n int) bool { return string(b[at:at+n]) == string(s.b[at:at+n]) }
	if same(3, 8) && same(exFATLength, 8) && same(AtExFATSectorShift, 1) && same(exFATHeap, 4) {
		err := exFATSum(s, off)
		if !errors.Is(err, ondisk.ErrFormat) {
			return err
		}
		text = "has a wrong checksum"
	}
	v.Note("exfat-backup", ondisk.Warn, "the backup boot region of the exFAT "+text+": it stays unchanged",
		"run chkdsk in the guest")
	return nil
}

// exFATLabel reads the volume label from the root directory. The limit of bytes read also ends a circular cluster
// chain.
func exFATLabel(v *Volume, s *super) (string, error) {
	const most, page = 1 << 20, 64 << 10 // bytes
	cluster, step := s.u32(exFATRoot), min(v.BlockSize, page)
	for read := int64(0); read < most && cluster >= 2 && cluster-2 < s.u32(exFATClusters); {
		at := v.DataStart + int64(cluster-2)*v.BlockSize
		for off := int64(0); off < v.BlockSize && read < most; off += step {
			buf, err := ondisk.Bytes(s.d, at+off, step)
			if err != nil {
				return "", err
			}
			read += step
			if name, done := findExFATLabel(buf); done {
				return name, nil
			}
		}
		next, err := ondisk.Bytes(s.d, s.i64(exFATOffset)*v.SectorSize+4*int64(cluster), 4)
		if err != nil {
			return "", err
		}
		cluster = binary.LittleEndian.Uint32(next)
	}
	return "", nil
}

// findExFATLabel searches entries up to the label or the end of the directory. An entry holds type, number of
// characters and name. Spec: 7.3.
func findExFATLabel(b []byte) (name string, done bool) {
	const slot, label, most = 32, 0x83, 11
	for ; len(b) >= slot; b = b[slot:] {
		switch b[0] {
		case 0:
			return "", true
		case label:
			n := min(int(b[1]), most)
			return strings.TrimRight(ondisk.UTF16Z(b[2:2+2*n], binary.LittleEndian), " "), true
		}
	}
	return "", false
}

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
