// Package hive reads registry hives of Windows (regf), and locates the data of a value in the file. Its purpose is to
// rewrite a few bytes of a value in place: the bins have no checksum, but log entries have (see Reseal).
//
// Spec: "Windows registry file format specification", https://github.com/msuhanov/regf.
package hive

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Read limits. Beyond them every call returns ErrLimit.
const (
	maxFile  = 512 << 20 // bytes of a hive; the limit of Windows is 2 GiB
	maxDepth = 64        // keys below the root on a path to any key, including that key
	maxData  = 1 << 20   // bytes of a value for Data
	// maxSteps and maxRead are shared by all hives of a disk, from Recover to the end of their use. A step is an
	// element of a list, or stepBytes bytes of a name or of data; maxRead counts bytes read from the sources. A
	// complete read of the SYSTEM hive of Windows 10 needs 200,000 steps.
	maxSteps  = 1 << 20
	stepBytes = 256
	maxRead   = 1 << 30
	cacheSize = 4 << 20
)

// Layout of the file. All offsets in a hive count from the end of the base block.
const (
	baseSize     = 4096
	checksumAt   = 508
	typePrimary  = 0
	formatMemory = 1 // "direct memory load", the only one
)

// baseBlock begins the base block. Spec: "Base block".
type baseBlock struct {
	Signature       [4]byte // "regf"
	Sequence1       uint32  // incremented when Windows begins to write the file
	Sequence2       uint32  // set to the same number at the end of the write
	LastWritten     uint64
	Major           uint32
	Minor           uint32
	FileType        uint32
	FileFormat      uint32
	RootCell        uint32
	BinsSize        uint32 // bytes of all hive bins
	Clustering      uint32
	FileName        [64]byte
	ResourceManager ondisk.GUID // since Vista, the same in the logs
	_               [380]byte
	Checksum        uint32
}

// Budget counts the cost of all hives of a disk.
type Budget struct{ steps, read *ondisk.Budget }

// NewBudget returns the budget of a disk.
func NewBudget() *Budget {
	return &Budget{
		steps: &ondisk.Budget{What: "registry hive", Unit: "steps", Limit: maxSteps},
		read:  &ondisk.Budget{What: "registry hive", Unit: "bytes read", Limit: maxRead},
	}
}

// Hive is a part of the registry in one state. It is not safe for concurrent use.
type Hive struct {
	base  baseBlock
	end   int64 // of the existing hive bins
	state *state
	seen  *accessed // nil if reads need no record
	pages *ondisk.Pages
	bins  []int64 // offsets of the bins walked so far; they are contiguous
	known int64   // end of the last of them

	*Budget
}

// hive opens a state of the recovery.
func (r *Recovery) hive(s *state) *Hive {
	return &Hive{
		base: r.base, end: s.end(), state: s, known: baseSize, Budget: r.Budget,
		pages: ondisk.NewPages(&ondisk.Metered{Source: s, Budget: r.read}, cacheSize),
	}
}

// check returns an error if the hive is unreadable as a whole.
func (b *baseBlock) check() error {
	switch {
	case string(b.Signature[:]) != "regf":
		return ondisk.Field("registry hive", "signature", 0, b.Signature[:], "regf")
	case b.Major != 1 || b.Minor < 3 || b.Minor > 6:
		return fmt.Errorf("registry hive of version %d.%d: %w, only 1.3 to 1.6 are", b.Major, b.Minor,
			ondisk.ErrUnsupported)
	case b.FileType != typePrimary:
		return ondisk.Field("registry hive", "file type", 28, b.FileType, "0, others are logs")
	case b.FileFormat != formatMemory:
		return fmt.Errorf("registry hive of file format %d: %w, only 1 is", b.FileFormat, ondisk.ErrUnsupported)
	}
	return nil
}

// checksum returns the checksum of the first 508 bytes. Two values are reserved. Spec: "Base block", note 2.
func checksum(base []byte) uint32 {
	sum := uint32(0)
	for b := base[:checksumAt]; len(b) > 0; b = b[4:] {
		sum ^= binary.LittleEndian.Uint32(b)
	}
	switch sum {
	case 0:
		return 1
	case 1<<32 - 1:
		return 1<<32 - 2
	}
	return sum
}

// spend charges the steps for one item of the given size in bytes.
func (b *Budget) spend(bytes int64) error { return b.steps.Spend(1 + bytes/stepBytes) }

const (
	binHeaderSize = 32
	binUnit       = 4096 // of the size of a bin
	cellUnit      = 8    // of offset and size of a cell
)

// binHeader begins a hive bin. Spec: "Hive bin".
type binHeader struct {
	Signature [4]byte // "hbin"
	Offset    uint32  // of this bin
	Size      uint32  // bytes
}

// cell is an allocated cell: the bytes after its size field.
type cell struct {
	at int64 // in the file
	n  int64 // bytes
}

// cell finds the cell at an offset of the hive. what names it in an error.
func (h *Hive) cell(off uint32, what string) (cell, error) {
	at := baseSize + int64(off)
	if at+cellUnit > h.end || off%cellUnit != 0 {
		return cell{}, ondisk.Field(what, "cell offset", at, fmt.Sprintf("%#x", off),
			fmt.Sprintf("a multiple of 8 below %#x", max(h.end-baseSize, 0)))
	}
	start, end, err := h.bin(at)
	if err != nil {
		return cell{}, err
	}
	raw, err := h.u32(at)
	if err != nil {
		return cell{}, err
	}
	// The size of an allocated cell is stored as a negative number. A free cell has a positive size, which decodes to
	// more than any bin.
	n := 1<<32 - int64(raw)
	if n%cellUnit != 0 || at < start+binHeaderSize || n > end-at {
		return cell{}, ondisk.Field(what, "cell size", at, fmt.Sprintf("%#x", raw),
			fmt.Sprintf("minus a multiple of 8 within the bin from %#x to %#x", start, end))
	}
	return cell{at + 4, n - 4}, nil
}

// bin returns start and end of the bin that contains a byte before h.end. Only a walk from bin to bin can find it, so
// each bin is walked once.
func (h *Hive) bin(at int64) (start, end int64, err error) {
	for h.known <= at {
		if err := h.nextBin(); err != nil {
			return 0, 0, err
		}
	}
	i, found := slices.BinarySearch(h.bins, at)
	if !found {
		i--
	}
	if end = h.known; i+1 < len(h.bins) {
		end = h.bins[i+1]
	}
	return h.bins[i], end, nil
}

// nextBin walks one bin.
func (h *Hive) nextBin() error {
	var b binHeader
	if err := h.decode(cell{h.known, h.end - h.known}, "hive bin", &b); err != nil {
		return err
	}
	bad := func(field string, got, want any) error {
		return ondisk.Field("hive bin", field, h.known, got, want)
	}
	switch size := int64(b.Size); {
	case string(b.Signature[:]) != "hbin":
		return bad("signature", b.Signature[:], "hbin")
	case int64(b.Offset) != h.known-baseSize:
		return bad("offset", b.Offset, h.known-baseSize)
	case size == 0 || size%binUnit != 0 || size > h.end-h.known:
		return bad("size", b.Size, fmt.Sprintf("a multiple of 4096 up to %d", h.end-h.known))
	}
	h.bins = append(h.bins, h.known)
	h.known += int64(b.Size)
	return nil
}

// decode fills the struct v from the start of a cell.
func (h *Hive) decode(c cell, what string, v any) error {
	b := make([]byte, binary.Size(v))
	if c.n < int64(len(b)) {
		return ondisk.Field(what, "size", c.at, c.n, fmt.Sprintf("at least %d", len(b)))
	}
	if err := h.read(b, c.at); err != nil {
		return err
	}
	ondisk.Fill(b, binary.LittleEndian, v)
	return nil
}

// bytes reads part of a cell. The caller guarantees that it lies in the cell.
func (h *Hive) bytes(c cell, off, n int64) ([]byte, error) {
	b := make([]byte, n)
	return b, h.read(b, c.at+off)
}

// read fills b from an offset of the file.
func (h *Hive) read(b []byte, off int64) error {
	if h.seen != nil {
		h.seen.read = disk.Append(h.seen.read, disk.Range{Off: off, Len: int64(len(b))})
	}
	return h.pages.Read(b, off)
}

func (h *Hive) u32(off int64) (uint32, error) {
	if h.seen != nil {
		h.seen.read = disk.Append(h.seen.read, disk.Range{Off: off, Len: 4})
	}
	return h.pages.U32(off)
}
