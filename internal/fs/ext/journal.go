// This part of the package reads the journal of an ext3 or ext4 volume (JBD2), and returns the blocks that its replay
// writes.
//
// It replays nothing. Spec: Linux, Documentation/filesystems/ext4/journal.rst; fs/jbd2/recovery.c and journal.c.

package ext

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/guestfile"
	"github.com/trueup/trueup/internal/ondisk"
)

// maxBlocks limits the blocks in a journal, and the blocks it revokes. mke2fs makes journals of up to 262,144 blocks of
// 4 KiB.
const maxBlocks = 1 << 19

// Log lists the writes of a replay.
type Log struct {
	First, Last uint32  // sequence numbers of the first and last transaction; meaningless if Writes is empty
	Writes      []Write // one for each block, sorted by offset in the volume
}

// Write is a block of the volume that a replay writes.
type Write struct {
	disk.Range        // bytes of the volume
	At         int64  // offset of its new bytes in the journal
	Escaped    bool   // its first four bytes are Magic, stored as zeros in the journal
	Sequence   uint32 // number of the transaction
}

// Magic begins every metadata block of the journal, big-endian.
const Magic = 0xc03b3998

// Volume describes the volume of a journal.
type Volume struct {
	Block  int64 // bytes
	Blocks int64
}

// Read reads the journal src of volume v as a mount by Linux does. It returns a FormatError if no mount can succeed,
// ErrUnsupported for unknown features, and ErrLimit for more blocks than any guest leaves.
func Read(src ondisk.Source, v Volume) (*Log, error) {
	s, err := readJournalSuper(src, v)
	if err != nil || s.Start == 0 {
		return &Log{}, err
	}
	w := walk{
		src: src, volume: v, super: s, seed: crc32c(^uint32(0), s.UUID[:]), next: int64(s.Start), sequence: s.Sequence,
		revoked: map[int64]uint32{},
	}
	for end := false; !end; {
		if end, err = w.step(); err != nil {
			return nil, err
		}
	}
	return &Log{First: s.Sequence, Last: w.sequence - 1, Writes: w.writes()}, nil
}

// writes returns the last copy of each block that is not revoked, sorted by offset.
func (w *walk) writes() []Write {
	var out []Write
	for _, x := range w.held {
		if by, ok := w.revoked[x.Off]; !ok || after(x.Sequence, by) {
			out = append(out, x)
		}
	}
	slices.SortStableFunc(out, func(a, b Write) int { return cmp.Compare(a.Off, b.Off) })
	kept := out[:0]
	for _, x := range out {
		if k := len(kept) - 1; k >= 0 && kept[k].Off == x.Off {
			kept[k] = x
			continue
		}
		kept = append(kept, x)
	}
	return kept
}

// after reports whether sequence number a follows b. Sequence numbers wrap.
func after(a, b uint32) bool { return a-b-1 < 1<<31-1 }

// Conflict returns the first write that overlaps any of the ranges at, or nil.
func (l *Log) Conflict(at []disk.Range) *Write {
	for _, r := range at {
		if hit := disk.Overlapping(l.Writes, r); len(hit) > 0 {
			return &hit[0]
		}
	}
	return nil
}

// Overlay returns the volume as it is after a replay of its journal src.
func (l *Log) Overlay(volume disk.Disk, src ondisk.Source) disk.Disk {
	pieces := make([]disk.Piece, 0, len(l.Writes))
	for _, w := range l.Writes {
		if w.Escaped {
			pieces = append(pieces, disk.Piece{Range: disk.Range{Off: w.Off, Len: magicLen}, Src: magicBytes})
			w.Off, w.Len, w.At = w.Off+magicLen, w.Len-magicLen, w.At+magicLen
		}
		pieces = append(pieces, disk.Piece{Range: w.Range, Src: src, At: w.At})
	}
	below := disk.Whole(volume, volume.Size())
	return disk.New(volume.Size(), volume.SectorSize(), disk.Pieces(volume.Size(), pieces, below))
}

func (w *Write) String() string {
	return fmt.Sprintf("transaction %d holds its block %d", w.Sequence, w.Off/w.Len)
}

// header begins a metadata block of the journal.
type header struct {
	Magic    uint32
	Type     uint32
	Sequence uint32 // of the transaction
}

// Types of blocks.
const (
	descriptor = 1
	commit     = 2
	superV1    = 3 // without features
	superV2    = 4
	revocation = 5
)

// superblock is the first block of a journal.
type superblock struct {
	header

	BlockSize    uint32
	Blocks       uint32
	First        uint32 // first block of the log, behind the superblock
	Sequence     uint32 // of the first transaction
	Start        uint32 // block of the first transaction, 0 with an empty log
	Errno        uint32
	Compat       uint32
	Incompat     uint32
	ROCompat     uint32
	UUID         [16]byte
	_            [16]byte
	ChecksumType uint8 // 4: CRC-32C
	_            [171]byte
	Checksum     uint32
	_            [768]byte // users of an external journal
}

// Features.
const (
	incompatRevoke = 0x1
	journal64Bit   = 0x2
	incompatCsum2  = 0x8
	incompatCsum3  = 0x10
	// Excluded: asynchronous and fast commits, and all of Compat, checksums that only some kernels verify.
	journalKnown = incompatRevoke | journal64Bit | incompatCsum2 | incompatCsum3

	atSuperSum       = 0xfc // offset of Checksum
	crc32cType       = 4
	journalSuperName = "ext journal superblock"
)

const magicLen = 4

var (
	magicBytes = bytes.NewReader(binary.BigEndian.AppendUint32(nil, Magic))
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// crc32c continues a checksum without the final inversion, like Linux.
func crc32c(sum uint32, b []byte) uint32 { return ^crc32.Update(^sum, castagnoli, b) }

// readJournalSuper decodes and checks the superblock of a journal.
func readJournalSuper(src ondisk.Source, v Volume) (*superblock, error) {
	s := &superblock{}
	raw, err := ondisk.Bytes(src, 0, int64(binary.Size(s)))
	if err != nil {
		return nil, err
	}
	ondisk.Fill(raw, binary.BigEndian, s)
	field := func(name string, off int64, got, want any) error {
		return ondisk.Field(journalSuperName, name, off, got, want)
	}
	if s.Type == superV1 {
		s.Compat, s.Incompat, s.ROCompat = 0, 0, 0
	}
	switch blocks := src.Size() / v.Block; {
	case s.Magic != Magic:
		return nil, field("magic", 0, fmt.Sprintf("%#x", s.Magic), fmt.Sprintf("%#x", uint32(Magic)))
	case s.Type != superV1 && s.Type != superV2:
		return nil, field("type", 4, s.Type, "3 or 4")
	case int64(s.BlockSize) != v.Block:
		return nil, field("block size", 0x0c, s.BlockSize, v.Block)
	case int64(s.Blocks) > blocks:
		return nil, field("block count", 0x10, s.Blocks, fmt.Sprintf("at most %d, the size of the journal", blocks))
	case s.First == 0 || s.First >= s.Blocks:
		return nil, field("first block", 0x14, s.First, fmt.Sprintf("1 to %d", int64(s.Blocks)-1))
	case s.Start != 0 && (s.Start < s.First || s.Start >= s.Blocks):
		return nil, field("start", 0x1c, s.Start, fmt.Sprintf("0, or %d to %d", s.First, s.Blocks-1))
	}
	if s.Compat != 0 || s.Incompat&^journalKnown != 0 || s.ROCompat != 0 {
		return nil, fmt.Errorf("ext journal: features %#x, %#x, %#x: %w", s.Compat, s.Incompat, s.ROCompat,
			ondisk.ErrUnsupported)
	}
	return s, s.checkSum(raw)
}

// checkSum verifies the checksum of the superblock.
func (s *superblock) checkSum(raw []byte) error {
	switch {
	case !s.summed():
		return nil
	case s.Incompat&incompatCsum2 != 0 && s.Incompat&incompatCsum3 != 0:
		return ondisk.Field(journalSuperName, "features", 0x28, fmt.Sprintf("%#x", s.Incompat),
			"checksums of version 2 or of version 3")
	case s.ChecksumType != crc32cType:
		return ondisk.Field(journalSuperName, "checksum type", 0x50, s.ChecksumType, crc32cType)
	}
	if got := sumWithout(^uint32(0), raw, atSuperSum); got != s.Checksum {
		return ondisk.Field(journalSuperName, "checksum", atSuperSum, fmt.Sprintf("%#x", s.Checksum),
			fmt.Sprintf("%#x", got))
	}
	return nil
}

// sumWithout returns the checksum of a block, with its own checksum, 4 bytes at off, as zeros.
func sumWithout(seed uint32, raw []byte, off int) uint32 {
	const size = 4
	seed = crc32c(seed, raw[:off])
	return crc32c(crc32c(seed, make([]byte, size)), raw[off+size:])
}

// summed reports whether the blocks of the journal have checksums.
func (s *superblock) summed() bool { return s.Incompat&(incompatCsum2|incompatCsum3) != 0 }

// tagBytes returns the length of a tag, without the optional UUID behind it. Version 2 of the checksums counts two
// bytes too many. Spec: Linux, fs/jbd2/journal.c, journal_tag_bytes.
func (s *superblock) tagBytes() int {
	if s.Incompat&incompatCsum3 != 0 {
		return 16
	}
	n := 8
	if s.Incompat&incompatCsum2 != 0 {
		n += 2
	}
	if s.Incompat&journal64Bit != 0 {
		n += 4
	}
	return n
}

// Replayed serves the files of a volume as they are after a replay of its journal. It serves them as on the disk if the
// journal cannot be read. No file can be rewritten.
type Replayed struct {
	guestfile.FS
	Before guestfile.FS // the files as they are on the disk
	Log    *Log         // nil if Unread is set
	Unread error        // reason why the writes of a replay are unknown
}

// replayed opens the volume as it is after a replay of its journal.
func (f *fileSystem) replayed(b *guestfile.Budget) (*Replayed, error) {
	src, err := f.journal()
	if err != nil {
		return nil, err
	}
	metered := &ondisk.Metered{Source: src, Budget: b.Journals}
	log, err := Read(metered, Volume{Block: f.block, Blocks: f.blocks})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", src.Path, err)
	}
	after, err := openAsIs(b, log.Overlay(f.volume, src))
	if err != nil {
		return nil, fmt.Errorf("after the replay of the journal: %w", err)
	}
	return &Replayed{FS: after, Before: f, Log: log}, nil
}

// journal opens the journal as a file.
func (f *fileSystem) journal() (*guestfile.File, error) {
	if s := f.super; s.JournalDevice != 0 || s.JournalInode == 0 {
		return nil, fmt.Errorf("the journal of the ext file system is on another device: %w", ondisk.ErrUnsupported)
	}
	n, err := f.inode(int64(f.super.JournalInode))
	if err != nil {
		return nil, err
	}
	if n.kind() != modeRegular {
		return nil, ondisk.Field(n.name(), "mode of the journal", n.at, fmt.Sprintf("%#x", n.kind()),
			"that of a regular file")
	}
	return f.file(n, n.name())
}

// walk is the state of a walk through the log.
type walk struct {
	src    ondisk.Source
	volume Volume
	super  *superblock
	seed   uint32 // of checksums

	next     int64  // next block of the log
	passed   int64  // blocks of the log passed so far
	sequence uint32 // of the transaction

	held    []Write
	revoked map[int64]uint32 // last transaction that revoked a block, by byte offset in the volume
	done    commitTime       // commit time of the last transaction

	// State of the current transaction, before its commit.
	open  []taggedBlock
	stale []int64 // byte offsets of revoked blocks
	bad   error   // error that counts only if the transaction is committed
}

// taggedBlock is a block of the volume with the checksum of its copy in the journal.
type taggedBlock struct {
	Write

	number   uint64
	tag      int64 // offset in the journal
	checksum uint32
}

// commitTime is the time of a commit.
type commitTime struct {
	Sec  uint64
	Nsec uint32
}

// commitBlock ends a transaction.
type commitBlock struct {
	header

	_        [4]byte
	Checksum [8]uint32
	Time     commitTime
}

// Offsets of checksums: in a commit block, and from the end of other blocks.
const (
	atCommitSum = 0x10
	tailLen     = 4
)

// step reads the next metadata block. It reports the end of the log at any other block, or a block of another
// transaction.
func (w *walk) step() (end bool, err error) {
	at := w.next * w.volume.Block
	raw, err := ondisk.Bytes(w.src, at, w.volume.Block)
	if err != nil {
		return false, err
	}
	var h header
	ondisk.Fill(raw[:binary.Size(h)], binary.BigEndian, &h)
	if h.Magic != Magic || h.Sequence != w.sequence {
		return true, nil
	}
	if err := w.pass(1, at); err != nil {
		return false, err
	}
	switch h.Type {
	case descriptor:
		return false, w.descriptor(raw, at)
	case revocation:
		return false, w.revocation(raw, at)
	case commit:
		return w.commit(raw, at)
	}
	return true, nil
}

// pass advances n blocks. The log is a ring and must end before it overlaps itself.
func (w *walk) pass(n, at int64) error {
	first, ring := int64(w.super.First), int64(w.super.Blocks)-int64(w.super.First)
	if w.passed += n; w.passed > ring {
		return w.broken("blocks of the log", at, w.passed, fmt.Sprintf("at most %d", ring))
	}
	w.next = first + (w.next-first+n)%ring
	return nil
}

func (w *walk) broken(field string, at int64, got, want any) error {
	return ondisk.Field(fmt.Sprintf("ext journal, transaction %d", w.sequence), field, at, got, want)
}

// checkTail verifies the checksum at the end of a block, and returns the block without it. A mismatch matters only if
// the transaction is committed: the log can end in an older block.
func (w *walk) checkTail(raw []byte, at int64) []byte {
	if !w.super.summed() {
		return raw
	}
	off := len(raw) - tailLen
	got, want := binary.BigEndian.Uint32(raw[off:]), sumWithout(w.seed, raw, off)
	if got != want && w.bad == nil {
		w.bad = w.broken("checksum", at+int64(off), fmt.Sprintf("%#x", got), fmt.Sprintf("%#x", want))
	}
	return raw[:off]
}

// Flags of a tag.
const (
	tagEscaped  = 0x1
	tagSameUUID = 0x2 // no UUID follows
	tagLast     = 0x8
	uuidLen     = 16
)

// descriptor reads the tags of a descriptor block. One block of data for each tag follows it in the log.
func (w *walk) descriptor(raw []byte, at int64) error {
	raw = w.checkTail(raw, at)
	size := w.super.tagBytes()
	for off, last := binary.Size(header{}), false; !last && off+size <= len(raw); off += size {
		t, flags := w.tag(raw[off : off+size])
		t.tag, t.At = at+int64(off), w.next*w.volume.Block
		if len(w.held)+len(w.open) == maxBlocks {
			return fmt.Errorf("ext journal: %w of %d blocks", ondisk.ErrLimit, maxBlocks)
		}
		if err := w.pass(1, at); err != nil {
			return err
		}
		w.open = append(w.open, t)
		if flags&tagSameUUID == 0 {
			off += uuidLen
		}
		last = flags&tagLast != 0
	}
	return nil
}

// tag decodes a tag.
func (w *walk) tag(raw []byte) (t taggedBlock, flags uint32) {
	be := binary.BigEndian
	t.number = uint64(be.Uint32(raw))
	if w.super.Incompat&incompatCsum3 != 0 {
		flags, t.checksum = be.Uint32(raw[4:]), be.Uint32(raw[12:])
	} else {
		t.checksum, flags = uint32(be.Uint16(raw[4:])), uint32(be.Uint16(raw[6:]))
	}
	if w.super.Incompat&journal64Bit != 0 {
		t.number |= uint64(be.Uint32(raw[8:])) << 32
	}
	t.Write = Write{Range: w.block(t.number), Escaped: flags&tagEscaped != 0, Sequence: w.sequence}
	return t, flags
}

// block returns the byte range of a block of the volume. It returns an empty range past the end of the volume.
func (w *walk) block(number uint64) disk.Range {
	if number >= ondisk.U64(w.volume.Blocks) {
		return disk.Range{}
	}
	return disk.Range{Off: ondisk.I64(number) * w.volume.Block, Len: w.volume.Block}
}

// revocation reads a revocation block. It lists freed blocks, which no transaction up to this one may write.
func (w *walk) revocation(raw []byte, at int64) error {
	const head = 16
	raw = w.checkTail(raw, at)
	used, size := int64(binary.BigEndian.Uint32(raw[head-4:])), 4
	if w.super.Incompat&journal64Bit != 0 {
		size = 8
	}
	if used > int64(len(raw)) && w.bad == nil {
		w.bad = w.broken("bytes of revoked blocks", at+head-4, used, fmt.Sprintf("at most %d", len(raw)))
	}
	for off := head; off+size <= int(min(used, int64(len(raw)))); off += size {
		number := uint64(binary.BigEndian.Uint32(raw[off:]))
		if size == 8 {
			number = binary.BigEndian.Uint64(raw[off:])
		}
		if len(w.revoked)+len(w.stale) == maxBlocks {
			return fmt.Errorf("ext journal: %w of %d revoked blocks", ondisk.ErrLimit, maxBlocks)
		}
		if r := w.block(number); r.Len > 0 {
			w.stale = append(w.stale, r.Off)
		}
	}
	return nil
}

// commit ends a transaction. A transaction with a wrong checksum and an older time belongs to an earlier journal in the
// same place: the log ends, as in Linux. If its time is later, Linux refuses the mount.
func (w *walk) commit(raw []byte, at int64) (end bool, err error) {
	var c commitBlock
	ondisk.Fill(raw[:binary.Size(c)], binary.BigEndian, &c)
	if want := sumWithout(w.seed, raw, atCommitSum); w.super.summed() && c.Checksum[0] != want {
		w.bad = w.broken("checksum of the commit", at+atCommitSum, fmt.Sprintf("%#x", c.Checksum[0]),
			fmt.Sprintf("%#x", want))
	}
	switch {
	case w.bad != nil && c.Time.before(w.done):
		return true, nil
	case w.bad != nil:
		return true, w.bad
	}
	for _, t := range w.open {
		if err := w.check(&t); err != nil {
			return true, err
		}
		w.held = append(w.held, t.Write)
	}
	for _, off := range w.stale {
		w.revoked[off] = w.sequence
	}
	w.open, w.stale, w.done = w.open[:0], w.stale[:0], c.Time
	w.sequence++
	return false, nil
}

func (t commitTime) before(o commitTime) bool {
	return t.Sec < o.Sec || t.Sec == o.Sec && t.Nsec < o.Nsec
}

// check verifies a block of a committed transaction.
func (w *walk) check(t *taggedBlock) error {
	if t.Len == 0 {
		return w.broken("block of a tag", t.tag, t.number, fmt.Sprintf("less than %d", w.volume.Blocks))
	}
	if !w.super.summed() {
		return nil
	}
	raw, err := ondisk.Bytes(w.src, t.At, t.Len)
	if err != nil {
		return err
	}
	sum := crc32c(crc32c(w.seed, binary.BigEndian.AppendUint32(nil, w.sequence)), raw)
	if w.super.Incompat&incompatCsum2 != 0 {
		sum &= 0xffff
	}
	if sum != t.checksum {
		return w.broken("checksum of a block", t.At, fmt.Sprintf("%#x", sum), fmt.Sprintf("%#x", t.checksum))
	}
	return nil
}
