// Package poolforge forges members of arrays, pools and groups, and encrypted volumes.
package poolforge

import (
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"

	"github.com/trueup/trueup/internal/disktest/forge"
	"github.com/trueup/trueup/internal/disktest/forge/fsforge"
	"github.com/trueup/trueup/internal/disktest/forge/tableforge"
)

// Places in a superblock of Linux RAID. Spec: Linux, include/uapi/linux/raid/md_p.h.
const (
	MD1Level      = 72
	MD1Devices    = 92
	MD1DataOffset = 128
	MD1DataSize   = 136
	md1Checksum   = 216
	MD1MaxDevices = 220
	MD0Level      = 28
	md0Size       = 32
	MD0Checksum   = 38 * 4
)

// MD1At returns the place of a superblock of version 1.0, 1.1 or 1.2 on a device of f's size.
func MD1At(f forge.Bytes, version string) int64 {
	return map[string]int64{"1.0": (int64(len(f)) &^ 4095) - 8192, "1.1": 0, "1.2": 4096}[version]
}

// PutMD1 makes a member of a RAID 5 with three devices.
func PutMD1(f forge.Bytes, version string, dataSectors uint64) {
	at := MD1At(f, version)
	s := make(forge.Bytes, 4096)
	s.U32(0, 0xa92b4efc)
	s.U32(4, 1)
	s.Text(16, "0123456789abcdef")
	s.Text(32, "host:array")
	s.U32(MD1Level, 5)
	s.U32(76, 2) // left-symmetric
	s.U64(80, 2048)
	s.U32(88, 128) // sectors of a chunk
	s.U32(MD1Devices, 3)
	s.U64(MD1DataOffset, dataSectors)
	s.U64(MD1DataSize, 2048)
	s.U64(144, uint64(at/512))
	s.U32(160, 1)
	s.Text(168, "device uuid 0123")
	s.U64(192, 1500000000)
	s.U64(200, 42)
	s.U64(208, 1<<64-1)
	s.U32(MD1MaxDevices, 3)
	for i := range 3 {
		s.U16(256+2*int64(i), uint16(i))
	}
	f.Put(at, s)
	SealMD1(f, version)
}

// SealMD1 puts the checksum right.
func SealMD1(f forge.Bytes, version string) {
	s := f[MD1At(f, version):]
	s.U32(md1Checksum, 0)
	s.U32(md1Checksum, mdSum(s[:256+2*min(binary.LittleEndian.Uint32(s[MD1MaxDevices:]), 1920)], binary.LittleEndian))
}

func mdSum(b []byte, order binary.ByteOrder) uint32 {
	sum := uint64(0)
	for ; len(b) >= 4; b = b[4:] {
		sum += uint64(order.Uint32(b))
	}
	if len(b) == 2 {
		sum += uint64(order.Uint16(b))
	}
	return uint32(sum) + uint32(sum>>32)
}

// MD0At returns the place of a superblock of version 0.90 on a device of f's size.
func MD0At(f forge.Bytes) int64 { return (int64(len(f)) &^ 65535) - 65536 }

// PutMD0 makes a member of a RAID 1 with two devices, in the byte order of its machine.
func PutMD0(f forge.Bytes, order binary.ByteOrder) {
	s := f[MD0At(f):][:4096]
	for word, v := range map[int]uint32{
		0: 0xa92b4efc, 2: 90, 5: 0x11223344, 6: 1500000000, 7: 1, 8: uint32(MD0At(f) / 1024), 9: 2, 10: 2,
		13: 0x55667788, 14: 0x99aabbcc, 15: 0xddeeff00, 32: 1500000000, 33: 1, 34: 2, 35: 2, 64: 0, 65: 65536,
	} {
		order.PutUint32(s[4*word:], v)
	}
	sealMD0(f, order)
}

// sealMD0 puts the checksum right.
func sealMD0(f forge.Bytes, order binary.ByteOrder) {
	s := f[MD0At(f):][:4096]
	order.PutUint32(s[MD0Checksum:], 0)
	order.PutUint32(s[MD0Checksum:], mdSum(s, order))
}

// Places in a superblock of bcache. Spec: Linux, drivers/md/bcache/bcache_ondisk.h.
const (
	bcacheSuper   = 4096
	BcacheVersion = bcacheSuper + 16
	BcacheData    = bcacheSuper + 184
	BcacheKeys    = bcacheSuper + 206
)

// PutBcache makes a backing device whose data begin at a sector.
func PutBcache(f forge.Bytes, dataSector uint64) {
	f.U64(bcacheSuper+8, 8)
	f.U64(BcacheVersion, 4)
	f.Put(bcacheSuper+24, []byte{
		0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
	})
	f.Text(bcacheSuper+40, "0123456789abcdefset uuid of 16 b")
	f.Text(bcacheSuper+72, "a label")
	f.U64(BcacheData, dataSector)
	f.U16(bcacheSuper+192, 8)
	f.U16(bcacheSuper+194, 1024)
	SealBcache(f)
}

// SealBcache puts the checksum right: CRC-64/WE.
func SealBcache(f forge.Bytes) {
	keys := int64(min(binary.LittleEndian.Uint16(f[BcacheKeys:]), 256))
	crc := ^uint64(0)
	for _, c := range f[bcacheSuper+8 : bcacheSuper+208+8*keys] {
		for bit := 7; bit >= 0; bit-- {
			top := crc>>63 ^ uint64(c>>bit&1)
			if crc <<= 1; top == 1 {
				crc ^= 0x42f0e1eba9ea3693
			}
		}
	}
	f.U64(bcacheSuper, ^crc)
}

// ZFSList is where the packed list of a ZFS label begins. Spec: ZFS On-Disk Specification, 1.2.
const ZFSList = 16 << 10

// PutZFS makes the first label of a device of a pool "tank", and uberblocks enough for libblkid.
func PutZFS(f forge.Bytes) {
	const version, number, text, list = 5000, 8, 9, 19
	tree := xdrList(xdrPair("type", text, xdrText("disk")), xdrPair("ashift", number, xdrNumber(12)))
	packed := append([]byte{1, 1, 0, 0}, xdrList(xdrPair("version", number, xdrNumber(version)),
		xdrPair("name", text, xdrText("tank")), xdrPair("state", number, xdrNumber(0)),
		xdrPair("pool_guid", number, xdrNumber(1234567890123456789)), xdrPair("hostname", text, xdrText("filer")),
		xdrPair("guid", number, xdrNumber(987654321)), xdrPair("vdev_tree", list, tree))...)
	f.Put(ZFSList, packed)
	for i := range int64(4) {
		at := 128<<10 + i<<10
		f.U64(at, 0x00bab10c)
		f.U64(at+8, version)
		f.U64(at+16, uint64(i)+1)
	}
}

func xdrNumber(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func xdrText(s string) []byte {
	b := append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...)
	return append(b, make([]byte, -len(s)&3)...)
}

func xdrPair(name string, kind uint32, value []byte) []byte {
	b := xdrText(name)
	b = binary.BigEndian.AppendUint32(b, kind)
	b = binary.BigEndian.AppendUint32(b, 1)
	b = append(b, value...)
	head := binary.BigEndian.AppendUint32(nil, uint32(len(b)+8))
	return append(binary.BigEndian.AppendUint32(head, uint32(len(b)+8)), b...)
}

func xdrList(pairs ...[]byte) []byte {
	b := []byte{0, 0, 0, 0, 0, 0, 0, 1}
	for _, p := range pairs {
		b = append(b, p...)
	}
	return append(b, make([]byte, 8)...)
}

// Places in a device of VMFS. Spec: dissect.vmfs, c_lvm.py and c_vmfs.py.
const (
	VMFSDevice     = 1 << 20
	VMFSDataOffset = VMFSDevice + 0x7a
	VMFSData       = 17 << 20
	VMFSHeader     = VMFSData + 2<<20
)

// PutVMFS makes a VMFS of a version: 12, 14 and 24 mean VMFS 3, 5 and 6.
func PutVMFS(f forge.Bytes, device, major uint32, minor uint8) {
	f.U32(VMFSDevice, 0xc001d00d)
	f.U32(VMFSDevice+4, device)
	f.U64(VMFSDataOffset, VMFSData)
	f.Text(VMFSDevice+0x82, "0123456789abcdef")
	f.U32(VMFSHeader, 0x2fabf15e)
	f.U32(VMFSHeader+4, major)
	f.U8(VMFSHeader+8, minor)
	f.Text(VMFSHeader+9, "fedcba9876543210")
	f.Text(VMFSHeader+0x1d, "datastore1")
	f.U64(VMFSHeader+0xa1, 1<<20)
}

// Places in a BitLocker volume. Spec: libbde documentation, "Volume header" and "FVE metadata block".
const (
	FVEID     = 0xa0 // in the boot sector
	FVEBlocks = 0xb0 // three offsets in the boot sector
	FVEToGoID = 0x1a8
	FVEBlock  = 1 << 20 // the first of three
	FVEApart  = 64 << 10

	fveLength = 8
	fveSize   = 64 // of the metadata
	fveHeader = 48
)

// FVEIdentifier is {4967d63b-2e29-4ad8-8399-f6a339e3d001}.
var FVEIdentifier = []byte{
	0x3b, 0xd6, 0x67, 0x49, 0x29, 0x2e, 0xd8, 0x4a, 0x83, 0x99, 0xf6, 0xa3, 0x39, 0xe3, 0xd0, 0x01,
}

// PutBitLocker makes a volume of Windows 7 or later with a description, which protectors open: nil
// for a recovery password.
func PutBitLocker(f forge.Bytes, description string, protectors ...uint16) {
	f.Text(0, "\xeb\x58\x90-FVE-FS-")
	f.U16(fsforge.BootBytesPerSector, 512)
	f.U8(fsforge.BootSectorsPerCluster, 8)
	f.Put(FVEID, FVEIdentifier)
	f.U16(tableforge.MBRMagic, 0xaa55)
	text := make(forge.Bytes, 2*len(description)+2)
	for i, c := range []byte(description) {
		text.U8(2*int64(i), c)
	}
	entries := FVEEntry(7, 2, text)
	if protectors == nil {
		protectors = []uint16{0x0800}
	}
	for _, p := range protectors {
		key := make(forge.Bytes, 28+80)
		key.U16(26, p)
		entries = append(entries, FVEEntry(2, 8, key)...)
	}
	PutFVEBlocks(f, FVEBlocks, entries)
}

// FVEEntry returns an entry of the metadata.
func FVEEntry(kind, value uint16, data []byte) forge.Bytes {
	e := make(forge.Bytes, 8, 8+len(data))
	e.U16(0, uint16(8+len(data)))
	e.U16(2, kind)
	e.U16(4, value)
	e.U16(6, 1)
	return append(e, data...)
}

// PutFVEBlocks makes the metadata blocks, and their offsets at a place in the boot sector.
func PutFVEBlocks(f forge.Bytes, at int64, entries []byte) {
	for i := range int64(3) {
		f.U64(at+8*i, uint64(FVEBlock+i*FVEApart))
	}
	for i := range int64(3) {
		b := f[FVEBlock+i*FVEApart:]
		b.Text(0, "-FVE-FS-")
		b.U16(10, 2)
		b.U16(12, 4)
		b.U16(14, 4)
		b.U64(16, uint64(len(f)))
		copy(b[32:], f[at:at+24])
		b.U32(fveSize, uint32(fveHeader+len(entries)))
		b.U32(fveSize+4, 1)
		b.U32(fveSize+8, fveHeader)
		b.Put(fveSize+16, []byte{
			0x33, 0x22, 0x11, 0x00, 0x55, 0x44, 0x77, 0x66, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff,
		})
		b.U32(fveSize+36, 0x80048004)
		b.Put(fveSize+fveHeader, entries)
		b.U16(fveLength, uint16((fveSize+fveHeader+len(entries)+15)/16))
		SealFVE(b)
	}
}

// SealFVE updates the checksum after a metadata block.
func SealFVE(b forge.Bytes) {
	n := 16 * int64(binary.LittleEndian.Uint16(b[fveLength:]))
	b.U32(n+4, crc32.ChecksumIEEE(b[:n]))
}

// Places in the headers of LUKS, big-endian. Spec: LUKS1 On-Disk Format Specification 1.2.3, LUKS2 1.1.1.
const (
	LUKS1Payload    = 104
	luks1Iterations = 164
	luks1Slots      = 208 // 48 bytes each
	LUKS2Size       = 8
	luks2Offset     = 256
	luks2Sum        = 448
	LUKS2JSON       = 4096
)

// LUKS2Text returns a JSON area with one segment at byte offset; iterations are those of a key slot.
func LUKS2Text(offset, iterations string) string {
	return `{"keyslots":{"0":{"type":"luks2","key_size":64,"kdf":{"type":"pbkdf2","hash":"sha256","iterations":` +
		iterations + `,"salt":"AAAA"}}},` +
		`"tokens":{},"segments":{"0":{"type":"crypt","offset":"` + offset +
		`","size":"dynamic","iv_tweak":"0","encryption":"aes-xts-plain64","sector_size":512}},` +
		`"digests":{},"config":{"json_size":"12288","keyslots_size":"0"}}`
}

// PutLUKS1 makes a volume with a key slot.
func PutLUKS1(f forge.Bytes, payload, iterations uint32) {
	f.Text(0, "LUKS\xba\xbe\x00\x01aes")
	f.Text(40, "xts-plain64")
	f.Text(72, "sha256")
	f.BE32(LUKS1Payload, payload)
	f.BE32(108, 64)
	f.BE32(luks1Iterations, iterations)
	f.Text(168, "01234567-89ab-cdef-0123-456789abcdef")
	for i := range int64(8) {
		f.BE32(luks1Slots+48*i, 0xdead)
		f.BE32(luks1Slots+48*i+4, iterations)
	}
	f.BE32(luks1Slots, 0x00ac71f3)
}

// PutLUKS2 makes both headers of a volume, each size bytes with its text.
func PutLUKS2(f forge.Bytes, text string, size int64) {
	for i, magic := range []string{"LUKS\xba\xbe\x00\x02", "SKUL\xba\xbe\x00\x02"} {
		h := f[int64(i)*size:][:size]
		h.Text(0, magic)
		h.BE64(LUKS2Size, uint64(size))
		h.BE64(16, 1)
		h.Text(24, "a label")
		h.Text(72, "sha256")
		h.Text(168, "01234567-89ab-cdef-0123-456789abcdef")
		h.BE64(luks2Offset, uint64(int64(i)*size))
		h.Text(LUKS2JSON, text)
		sealLUKS2(f, int64(i)*size, size)
	}
}

// sealLUKS2 puts the checksum of a header right.
func sealLUKS2(f forge.Bytes, at, size int64) {
	h := f[at:][:size]
	clear(h[luks2Sum : luks2Sum+64])
	sum := sha256.Sum256(h)
	h.Put(luks2Sum, sum[:])
}
