package volume

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// xfs is the superblock of the first allocation group. Spec: XFS Algorithms & Data Structures, 3rd edition,
// "Superblocks".
var xfs = &row{
	kinds: []Traits{{Kind: XFS, Title: "XFS"}},
	what:  "xfs superblock", at: []int64{0}, size: 228, order: binary.BigEndian, magic: []Mark{{0, "XFSB"}},
	checks: func(s *super) {
		block, version := s.i64(0x04), s.u16(0x64)&0xf
		groups := uint64(s.u32(0x58)) * uint64(s.u32(0x54))
		logarithm := func(low, high, size, logAt int64) rule {
			return power(low, high).and(size == 1<<s.u8(logAt)).
				says("a power of two from %d to %d that is 2^%d, as its logarithm says", low, high, s.u8(logAt))
		}
		s.check(
			check{"block size", 0x04, 4, logarithm(512, 64<<10, block, 0x78)},
			check{"version", 0x64, 0, within(1, 5).of(uint64(version))},
			check{"sector size", 0x66, 2, logarithm(512, 32<<10, int64(s.u16(0x66)), 0x79)},
			check{"inode size", 0x68, 2, logarithm(256, 2048, int64(s.u16(0x68)), 0x7a)},
			check{"in progress", 0x7e, 1, equal(0).says("0, as a finished mkfs leaves it")},
			check{"blocks of a group", 0x54, 4, atLeast(64)},
			check{"groups", 0x58, 4, holds(s.u32(0x58) > 0 && s.u64(0x08) <= groups &&
				s.u64(0x08) > groups-uint64(s.u32(0x54)), s.u32(0x58),
				"as many groups of %d blocks as hold %d blocks", s.u32(0x54), s.u64(0x08))},
			check{"data blocks", 0x08, 8, s.blocks(block)},
		)
		if version == 5 { // the checksum is little-endian
			const at = 0xe0
			s.check(check{"checksum", at, 4, s.crc32(int64(s.u16(0x66)), at, crc32c).
				of(uint64(binary.LittleEndian.Uint32(s.b[at:])))})
		}
	},
	volume: func(s *super) *Volume {
		v := &Volume{
			Kind: XFS, Label: s.label(0x6c, 12), UUID: s.uuid(0x20), BlockSize: s.i64(0x04),
			Size: ondisk.I64(s.u64(0x08)) * s.i64(0x04), SectorSize: int64(s.u16(0x66)),
		}
		v.Addf("version", "%d", s.u16(0x64)&0xf)
		if s.u64(0x30) == 0 { // start block of the log
			v.Add("log", "on another device")
			v.Note("xfs-log", ondisk.Note, "the log of the XFS is on another device: the guest needs both", "")
		}
		if s.u64(0x10) > 0 {
			v.Add("realtime section", "on another device")
		}
		return v
	},
}

// f2fs is the first of two superblocks. Spec: Linux, include/linux/f2fs_fs.h, f2fs_super_block and f2fs_device.
var f2fs = &row{
	kinds: []Traits{{Kind: F2FS, Title: "F2FS"}},
	what:  "f2fs superblock", at: []int64{1024}, size: 3072, order: binary.LittleEndian,
	magic: []Mark{{0, "\x10\x20\xf5\xf2"}},
	checks: func(s *super) {
		const atSum, hasSum = 3068, 0x800
		block, segments := s.u32(0x10), s.u32(0x30)
		s.check(
			check{"log block size", 0x10, 4, within(12, 16).says("12 to 16 (4 to 64 KiB)")},
			check{"log sector size", 0x08, 4, within(9, uint64(block))},
			check{"log sectors per block", 0x0c, 4, equal(uint64(block - s.u32(0x08)))},
			check{"log blocks per segment", 0x14, 4, equal(9)},
			check{"segments per section", 0x18, 4, within(1, uint64(segments))},
			check{"inodes of root, node and meta", 0x60, 0, holds(
				s.u32(0x60) == 3 && s.u32(0x64) == 1 && s.u32(0x68) == 2,
				fmt.Sprint(s.u32(0x60), s.u32(0x64), s.u32(0x68)), "3 1 2")},
			check{"segments", 0x30, 4, within(0, s.u64(0x24)>>9).says("at most those of %d blocks", s.u64(0x24))},
		)
		if s.u32(0x884)&hasSum != 0 { // a CRC-32 with the magic number as seed, not inverted
			seed := s.u32(0)
			s.check(
				check{"checksum offset", 0x20, 4, equal(atSum)},
				check{"checksum", atSum, 4, sum(func() uint64 {
					return uint64(^crc32.Update(^seed, crc32.IEEETable, s.b[:atSum]))
				})},
			)
		}
		name, at := "block count", int64(0x24)
		if f2fsSeveral(s) {
			name, at = "blocks of the first device", f2fsDevices+64
		}
		if s.err == nil {
			s.check(check{name, at, 0, s.blocks(1 << block).of(f2fsBlocks(s))})
		}
	},
	volume: func(s *super) *Volume {
		block := int64(1) << s.u32(0x10)
		v := &Volume{
			Kind: F2FS, Label: ondisk.UTF16Z(s.b[0x7c:0x47c], s.order), UUID: s.uuid(0x6c), BlockSize: block,
			Size: ondisk.I64(f2fsBlocks(s)) * block,
		}
		v.Addf("version", "%d.%d", s.u16(0x04), s.u16(0x06))
		if f2fsSeveral(s) {
			v.Note("f2fs-devices", ondisk.Note,
				"this is the first of several devices of an F2FS: the guest needs all of them", "")
		}
		return v
	},
}

// f2fsDevices is the offset of the device list. An entry has a path of 64 bytes and a number of segments.
const f2fsDevices = 2201

func f2fsSeveral(s *super) bool { return s.u8(f2fsDevices+68) != 0 }

// f2fsBlocks returns the number of blocks on this device. On the first of several devices, it counts its segments and
// the blocks in front of them.
func f2fsBlocks(s *super) uint64 {
	if f2fsSeveral(s) {
		return uint64(s.u32(0x48)) + uint64(s.u32(f2fsDevices+64))<<s.u32(0x14)
	}
	return s.u64(0x24)
}

// jfs is the superblock of JFS on OS/2 and Linux. Spec: Linux, fs/jfs/jfs_superblock.h.
var jfs = &row{
	kinds: []Traits{{Kind: JFS, Title: "JFS"}},
	what:  "jfs superblock", at: []int64{32 << 10}, size: 184, order: binary.LittleEndian, magic: []Mark{{0, "JFS1"}},
	checks: func(s *super) {
		block, physical := s.i64(0x10), s.i64(0x18)
		logarithm := func(low, high, size int64, log uint16) rule {
			return power(low, high).and(log <= 12 && size == 1<<log).
				says("a power of two from %d to %d that agrees with its logarithm", low, high)
		}
		s.check(
			check{"version", 0x04, 4, within(1, 2).says("1 or 2")},
			check{"block size", 0x10, 4, logarithm(512, 4096, block, s.u16(0x14))},
			check{"physical block size", 0x18, 4, logarithm(512, block, physical, s.u16(0x1c))},
			check{"block size factor", 0x16, 2, equal(uint64(s.u16(0x14) - s.u16(0x1c)))},
			check{"group size", 0x20, 4, power(1, 1<<31).says("a power of two")},
			check{"aggregate size", 0x08, 8, s.blocks(physical)},
		)
		if s.err == nil {
			s.check(check{"log", 0x48, 0, holds(jfsEnd(s) <= s.d.Size(), jfsEnd(s)/block,
				"an end within the %d blocks of the partition", s.d.Size()/block)})
		}
	},
	volume: func(s *super) *Volume {
		v := &Volume{
			Kind: JFS, Label: s.label(0x98, 16), UUID: s.uuid(0x88), BlockSize: s.i64(0x10), Size: jfsEnd(s),
		}
		v.Addf("version", "%d", s.u32(0x04))
		if s.u32(0x24)&jfsInlineLog == 0 {
			v.Add("log", "on another device")
			v.Note("jfs-log", ondisk.Note, "the log of the JFS is on another device: the guest needs both", "")
		}
		if s.u32(0x28) != 0 { // mounted, dirty, or in log replay
			v.Note("jfs-dirty", ondisk.Note, "JFS was not unmounted cleanly", "")
		}
		return v
	},
}

const jfsInlineLog = 0x800

// jfsEnd returns the end of aggregate, fsck work space and log, in bytes. An extent has 24 bits of length and 40 bits
// of address, in blocks.
func jfsEnd(s *super) int64 {
	extent := func(off int64) int64 {
		return (int64(s.u32(off)>>24)<<32 + s.i64(off+4) + int64(s.u32(off)&0xffffff)) * s.i64(0x10)
	}
	end := max(ondisk.I64(s.u64(0x08))*s.i64(0x18), extent(0x50))
	if s.u32(0x24)&jfsInlineLog != 0 {
		end = max(end, extent(0x48))
	}
	return end
}

// Magic numbers of ReiserFS. The last one means that the journal is not in its default location.
const (
	reiser35      = "ReIsErFs\x00"
	reiser36      = "ReIsEr2Fs\x00"
	reiserJournal = "ReIsEr3Fs\x00"

	reiserDirty = 2
)

// reiserFS is the superblock of version 3, at 64 KiB, or at 8 KiB in the oldest volumes. Spec: Linux,
// fs/reiserfs/reiserfs.h, reiserfs_super_block.
var reiserFS = &row{
	kinds: []Traits{{Kind: ReiserFS, Title: "ReiserFS"}},
	what:  "reiserfs superblock", at: []int64{64 << 10, 8 << 10}, size: 116, order: binary.LittleEndian,
	magic:   []Mark{{0x34, reiser35}, {0x34, reiser36}, {0x34, reiserJournal}},
	matches: func(s *super) bool { return s.at > 8<<10 || s.text(0x34, 10)+"\x00" == reiser35 },
	checks: func(s *super) {
		blocks := uint64(s.u32(0x00))
		s.check(
			check{"block size", 0x2c, 2, power(512, 8192)},
			check{"block count", 0x00, 4, s.blocks(int64(s.u16(0x2c)))},
			check{"free blocks", 0x04, 4, below(blocks)},
			check{"root block", 0x08, 4, below(blocks).or(1<<32 - 1)}, // all ones while the tree is rebuilt
		)
		if s.err == nil && s.u32(0x10) == 0 && s.at/int64(s.u16(0x2c)) > s.i64(0x0c) {
			s.err = ondisk.ErrNoMatch // a copy of a block in the journal on this device
		}
	},
	volume: func(s *super) *Volume {
		magic := s.text(0x34, 10) + "\x00"
		v := &Volume{Kind: ReiserFS, BlockSize: int64(s.u16(0x2c)), Size: s.i64(0x00) * int64(s.u16(0x2c))}
		v.Add("format", map[string]string{reiser35: "3.5", reiser36: "3.6", reiserJournal: "JR"}[magic])
		if magic != reiser35 { // 3.5 uses these fields otherwise
			v.Label, v.UUID = s.label(0x64, 16), s.uuid(0x54)
		}
		if s.u32(0x10) != 0 {
			v.Add("journal", "on another device")
			v.Note("reiserfs-journal", ondisk.Note,
				"the journal of the ReiserFS is on another device: the guest needs both", "")
		}
		if s.u16(0x32) == reiserDirty {
			v.Note("reiserfs-dirty", ondisk.Note, "ReiserFS was not unmounted cleanly", "")
		}
		return v
	},
}

// ufs is the superblock of the BSDs and Solaris in both generations, in the byte order of its machine. The offsets are
// in the search order of boot code. Spec: FreeBSD, sys/ufs/ffs/fs.h, struct fs and SBLOCKSEARCH.
var ufs = &row{
	kinds: []Traits{
		{Kind: "ufs", Title: "UFS"},
		{Kind: UFS1, Title: "UFS1", InSlice: true},
		{Kind: UFS2, Title: "UFS2", InSlice: true},
	},
	what: "ufs superblock", at: []int64{64 << 10, 8 << 10, 0, 256 << 10}, size: 1376, order: binary.LittleEndian,
	magic: []Mark{
		{1372, "\x54\x19\x01\x00"},
		{1372, "\x19\x01\x54\x19"},
		{1372, "\x00\x01\x19\x54"},
		{1372, "\x19\x54\x01\x19"},
	},
	matches: func(s *super) bool {
		if s.u8(1372) == 0 || s.u8(1373) == 0x54 {
			s.order = binary.BigEndian
		}
		// It may be a copy, or belong to an image in a file. A UFS1 with blocks of 64 KiB has a copy at the offset of
		// UFS2.
		if isUFS2(s) {
			return s.u64(0x3e8) == ondisk.U64(s.at)
		}
		return s.at <= 8<<10
	},
	checks: func(s *super) {
		block, frag := s.i64(0x30), s.i64(0x34)
		s.check(
			check{"block size", 0x30, 4, power(4096, 64<<10)},
			check{"fragment size", 0x34, 4, power(max(512, block/8), block)},
		)
		if s.err != nil {
			return
		}
		size := check{"size", 0x24, 4, s.blocks(frag)}
		if isUFS2(s) {
			size = check{"size", 0x438, 8, s.blocks(frag)}
		}
		s.check(
			check{"fragments of a block", 0x38, 4, equal(ondisk.U64(block / frag))},
			check{"cylinder groups", 0x2c, 4, atLeast(1)},
			size,
		)
	},
	volume: func(s *super) *Volume {
		v := &Volume{Kind: UFS1, BlockSize: s.i64(0x30), Size: s.i64(0x24) * s.i64(0x34)}
		if isUFS2(s) {
			v.Kind, v.Label, v.Size = UFS2, s.label(0x2a8, 32), ondisk.I64(s.u64(0x438))*s.i64(0x34)
		}
		if s.u64(0x90) != 0 {
			v.UUID = fmt.Sprintf("%08x%08x", s.u32(0x90), s.u32(0x94))
		}
		v.Addf("fragment size", "%d", s.u32(0x34))
		if s.order == binary.BigEndian {
			v.Add("byte order", "big-endian")
		}
		return v
	},
}

func isUFS2(s *super) bool { return s.u32(1372) == 0x19540119 }

// btrfs is the superblock of btrfs. Spec: Linux, include/uapi/linux/btrfs_tree.h, btrfs_super_block with btrfs_dev_item
// at 0xc9. Spec of the space for boot loaders: btrfs(5), "superblock"; GRUB 2.06, grub_btrfs_embed.
var btrfs = &row{
	kinds: []Traits{{Kind: Btrfs, Checksummed: 1 << 20}},
	what:  "btrfs superblock", at: []int64{btrfsAt}, size: btrfsSize, order: binary.LittleEndian,
	magic: []Mark{{0x40, "_BHRfS_M"}},
	checks: func(s *super) {
		const metadataUUID = 1 << 10 // incompatible feature: the device keeps the first UUID
		var want []byte              // the standard library has two of four checksums; the others are not verified
		switch s.u16(0xc4) {
		case 0:
			want = binary.LittleEndian.AppendUint32(nil, crc32c(s.b[32:]))
		case 2:
			h := sha256.Sum256(s.b[32:])
			want = h[:]
		}
		got := s.b[:len(want)]
		sector, device := s.i64(0x90), s.uuid(0x11b)
		s.check(
			check{"checksum type", 0xc4, 2, within(0, 3).says("0 to 3 (crc32c, xxhash, sha256, blake2)")},
			check{"checksum", 0, 0, holds(bytes.Equal(got, want), got, "% x", want)},
			check{"place", 0x30, 8, equal(ondisk.U64(s.at))},
			check{"sector size", 0x90, 4, power(4096, 64<<10)},
			check{"node size", 0x94, 4, power(sector, 64<<10)},
			check{"devices", 0x88, 8, atLeast(1)},
			check{"file system of the device", 0x11b, 0, holds(
				device == s.uuid(0x20) || s.u64(0xbc)&metadataUUID != 0, device, "%s", s.uuid(0x20))},
			check{"size of the device", 0xd1, 8, within(btrfsAt+btrfsSize, ondisk.U64(s.d.Size())).
				says("%d to %d, the size of the partition", btrfsAt+btrfsSize, s.d.Size())},
		)
	},
	volume: func(s *super) *Volume {
		v := &Volume{
			Kind: Btrfs, Label: s.text(0x12b, 256), UUID: s.uuid(0x20), BlockSize: s.i64(0x90),
			Size: ondisk.I64(s.u64(0xd1)),
		}
		v.Addf("node size", "%d", s.u32(0x94))
		if n := s.u64(0x88); n > 1 {
			v.Addf("devices", "%d, this is number %d", n, s.u64(0xc9))
			v.Note("btrfs-devices", ondisk.Note,
				fmt.Sprintf("this is one of %d devices of a btrfs: the guest needs all of them", n), "")
		}
		return v
	},
}

const (
	btrfsAt   = 64 << 10
	btrfsSize = 4096 // covered by the checksum
)

// SwapArea detects a Linux swap area.
var SwapArea = Prober{
	Kinds: []Traits{{Kind: Swap, InSlice: true}},
	Probe: probeSwap,
}

// swapHeader is 1024 bytes into the first page, in the byte order of its machine. Spec: Linux, include/linux/swap.h,
// union swap_header.
type swapHeader struct {
	Version  uint32
	LastPage uint32
	_        uint32 // bad pages
	UUID     [16]byte
	Label    [16]byte
}

const (
	swapWhat      = "swap header"
	atSwapHeader  = 1024
	swapSignature = 10 // bytes at the end of the first page
	swapMaxPage   = 64 << 10

	// TuxOnIce writes this at the start, and keeps the signature. Spec: libblkid, swap.c.
	tuxOnIce = "\xed\xc3\x02\xe9\x98\x56\xe5\x0c"
)

func probeSwap(d disk.Disk) (*Volume, error) {
	for page := int64(4 << 10); page <= min(swapMaxPage, d.Size()); page *= 2 {
		b, err := ondisk.Bytes(d, page-swapSignature, swapSignature)
		if err != nil {
			return nil, err
		}
		switch s := Text(b); s {
		case "SWAPSPACE2", "SWAP-SPACE", "S1SUSPEND", "S2SUSPEND", "ULSUSPEND", "LINHIB0001":
			return readSwap(d, page, s)
		}
	}
	return nil, ondisk.ErrNoMatch
}

// readSwap reads a swap area with a known signature.
func readSwap(d disk.Disk, page int64, signature string) (*Volume, error) {
	b, err := ondisk.Bytes(d, 0, page)
	if err != nil {
		return nil, err
	}
	v := &Volume{Kind: Swap, Size: d.Size(), BlockSize: page}
	asleep := signature[0] != 'S' || signature[1] != 'W' || string(b[:len(tuxOnIce)]) == tuxOnIce
	if signature == "SWAP-SPACE" {
		v.Add("version", "0")
	} else if err := readHeader(v, b, asleep); err != nil {
		return nil, err
	}
	if page != 4<<10 {
		v.Add("page size", units.Format(page))
	}
	if asleep {
		v.Add("hibernated", signature)
		v.Issues = append(v.Issues, ondisk.Issue{
			Code: "hibernated-linux", Effect: ondisk.Refuse, OnMove: true, DiskWide: true,
			Text:   "the swap area holds a hibernated Linux with the old partition table in memory",
			Remedy: "start the guest and shut it down instead of suspending it",
		})
	}
	return v, nil
}

// readHeader reads the header of version 1. It does not check the header of a hibernated system, whose signature is
// enough.
func readHeader(v *Volume, b []byte, asleep bool) error {
	var h swapHeader
	ondisk.Fill(b[atSwapHeader:], binary.LittleEndian, &h)
	if h.Version != 1 {
		ondisk.Fill(b[atSwapHeader:], binary.BigEndian, &h)
	}
	switch {
	case h.Version != 1 && asleep:
		return nil
	case h.Version != 1:
		return ondisk.ErrNoMatch
	case h.LastPage == 0 && !asleep:
		return ondisk.Field(swapWhat, "last page", atSwapHeader+4, 0, "1 or more")
	}
	v.Add("version", "1")
	v.UUID, v.Label = UUID(h.UUID), Text(h.Label[:])
	if h.LastPage > 0 {
		v.Size = (int64(h.LastPage) + 1) * v.BlockSize
	}
	return nil
}
