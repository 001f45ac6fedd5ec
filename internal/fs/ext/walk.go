package ext

import (
	"encoding/binary"
	"fmt"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// walk is a walk through the log.
type walk struct {
	src    ondisk.Source
	volume Volume
	super  *superblock
	seed   uint32 // of checksums

	next     int64  // block of the log
	passed   int64  // blocks of the log
	sequence uint32 // of the transaction

	held    []Write
	revoked map[int64]uint32 // by byte of the volume: the last transaction that revoked it
	done    commitTime       // of the last transaction

	// Of the transaction that the walk is in, without its commit.
	open  []taggedBlock
	stale []int64 // revoked
	bad   error   // counts if the transaction is committed
}

// taggedBlock is a block of the volume with the checksum of its copy.
type taggedBlock struct {
	Write

	number   uint64
	tag      int64 // place in the journal
	checksum uint32
}

// commitTime is when a transaction ended.
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

// Places of checksums: in a commit block, and from the end of other blocks.
const (
	atCommitSum = 0x10
	tailLen     = 4
)

// step reads a block that describes others. end reports the end of the log: a block of another transaction, or none.
func (w *walk) step() (end bool, err error) {
	at := w.next * w.volume.Block
	raw, err := ondisk.Bytes(w.src, at, w.volume.Block)
	if err != nil {
		return false, err
	}
	var h header
	ondisk.MustFill(raw[:binary.Size(h)], binary.BigEndian, &h)
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

// pass goes n blocks on. The log is a ring, which ends before it meets itself.
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

// checkTail verifies the checksum at the end of a block, and returns the block without it. A wrong one matters only if
// the transaction is committed: the log can end in a block of older times.
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

// descriptor reads the tags of a descriptor block. The blocks follow it in the log, one for each tag.
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

// block returns the place of a block of the volume; empty for one behind its end.
func (w *walk) block(number uint64) disk.Range {
	if number >= ondisk.U64(w.volume.Blocks) {
		return disk.Range{}
	}
	return disk.Range{Off: ondisk.I64(number) * w.volume.Block, Len: w.volume.Block}
}

// revocation reads blocks that no transaction up to this one may write: they were freed.
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

// commit ends a transaction. One with a wrong checksum and an older time is of a journal that was here before.
// Linux ends there too, and mounts nothing if the time is later.
func (w *walk) commit(raw []byte, at int64) (end bool, err error) {
	var c commitBlock
	ondisk.MustFill(raw[:binary.Size(c)], binary.BigEndian, &c)
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

// check verifies a block of a transaction that is committed.
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
