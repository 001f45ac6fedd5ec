// This part of the package reads the journal of an ext3 or ext4 volume (JBD2), and returns which blocks its replay
// writes.
//
// It replays nothing. Spec: Linux, Documentation/filesystems/ext4/journal.rst; fs/jbd2/recovery.c and journal.c.

package ext

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// maxBlocks bounds the blocks that a journal holds, and those that it revokes. mke2fs makes journals of up to 262,144
// blocks of 4 KiB.
const maxBlocks = 1 << 19

// Log is what a replay of a journal does.
type Log struct {
	First, Last uint32  // sequence numbers of the first and last transaction; without meaning if Writes is empty
	Writes      []Write // each block once, in the order of the volume
}

// Write is a block of the volume that a replay writes.
type Write struct {
	disk.Range        // in the volume, bytes
	At         int64  // of its new bytes in the journal
	Escaped    bool   // its first four bytes are Magic, and zeros in the journal
	Sequence   uint32 // number of the transaction
}

// Magic begins every block of the journal that describes others, big-endian.
const Magic = 0xc03b3998

// Volume is what a journal belongs to.
type Volume struct {
	Block  int64 // bytes
	Blocks int64
}

// Read reads the journal src of volume v as Linux does that mounts it. A journal with which no mount succeeds is a
// FormatError. ErrUnsupported: features that are not understood. ErrLimit: more blocks than any guest leaves.
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

// writes returns the last copy of each block that is not revoked.
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

// after reports whether one sequence number follows another. They wrap.
func after(a, b uint32) bool { return a-b-1 < 1<<31-1 }

// Conflict returns the first write over one of some ranges of the volume, or nil.
func (l *Log) Conflict(at []disk.Range) *Write {
	for _, r := range at {
		if hit := disk.Overlapping(l.Writes, r); len(hit) > 0 {
			return &hit[0]
		}
	}
	return nil
}

// Overlay returns a volume as a replay of its journal src leaves it.
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
