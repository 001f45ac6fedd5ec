package vhdx

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
)

// Offsets in the header section, the first MiB of the file. Spec: 2.2.
const (
	atHeader1  = 64 << 10
	atHeader2  = 128 << 10
	atRegions1 = 192 << 10
	atRegions2 = 256 << 10
)

// atChecksum is the offset of the checksum in headers, region tables and log entries. The field counts as zero in the
// sum.
const atChecksum = 4

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the CRC-32C of a structure.
func checksum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:atChecksum])
	sum = crc32.Update(sum, castagnoli, make([]byte, 4))
	return crc32.Update(sum, castagnoli, b[atChecksum+4:])
}

// seal sets the checksum of a structure.
func seal(b []byte) { binary.LittleEndian.PutUint32(b[atChecksum:], checksum(b)) }

// fileHeader locates the log. The file has two, so that one is always valid. Spec: 2.2.2.
type fileHeader struct {
	Signature      [4]byte // "head"
	Checksum       uint32
	SequenceNumber uint64
	FileWriteGUID  ondisk.GUID
	DataWriteGUID  ondisk.GUID // identifies the file as parent to its children
	LogGUID        ondisk.GUID // zero without entries to replay
	LogVersion     uint16
	Version        uint16
	LogLength      uint32
	LogOffset      uint64
	_              [4016]byte
}

// Byte offsets of the fields in messages.
const (
	atSequence   = 8
	atLogVersion = 64
	atVersion    = 66
	atLogLength  = 68
	atLogOffset  = 72
)

// copyOf is one of two copies of a structure.
type copyOf struct {
	at  int64
	raw []byte
	err error // the reason why it is invalid
}

// readCopy reads a structure of n bytes and checks its signature and checksum.
func readCopy(src ondisk.Source, what, sign string, at, n int64) (copyOf, error) {
	if at+n > src.Size() {
		return copyOf{
			at:  at,
			err: ondisk.Field(what, "file size", at, src.Size(), fmt.Sprintf("at least %d bytes", at+n)),
		}, nil
	}
	b, err := ondisk.Bytes(src, at, n)
	if err != nil {
		return copyOf{}, err
	}
	c := copyOf{at: at, raw: b}
	switch got := binary.LittleEndian.Uint32(b[atChecksum:]); {
	case string(b[:4]) != sign:
		c.err = ondisk.Field(what, "signature", at, string(b[:4]), sign)
	case got != checksum(b):
		c.err = ondisk.Field(what, "checksum", at+atChecksum, hex32(got), hex32(checksum(b)))
	}
	return c, nil
}

func hex32(v uint32) string { return fmt.Sprintf("0x%08x", v) }

// copies reads both copies of a structure. It adds an issue if one is damaged, and returns an error if both are.
func (x *image) copies(src ondisk.Source, what, sign string, at [2]int64, n int64) (both [2]copyOf, err error) {
	for i := range both {
		if both[i], err = readCopy(src, what, sign, at[i], n); err != nil {
			return both, err
		}
	}
	switch a, b := both[0].err, both[1].err; {
	case a != nil && b != nil:
		return both, a
	case a != nil || b != nil:
		x.issues = append(x.issues, ondisk.Issue{
			Code: "vhdx-copy-damaged", Effect: ondisk.Warn,
			Text: fmt.Sprintf("one of the two copies of the %s is damaged, and the other one is used: %v", what,
				cmp.Or(a, b)),
			Remedy: "open it once in Hyper-V, which rewrites both",
		})
	}
	return both, nil
}

// readHeaders finds the current header, the valid one with the higher sequence number. Spec: 2.2.2.1.
func (x *image) readHeaders() error {
	const what = "vhdx header"
	var heads [2]fileHeader
	both, err := x.copies(x.file, what, "head", [2]int64{atHeader1, atHeader2}, int64(binary.Size(heads[0])))
	if err != nil {
		return err
	}
	for i, c := range both {
		if c.err == nil {
			ondisk.Fill(c.raw, binary.LittleEndian, &heads[i])
		}
	}
	cur := 0
	switch {
	case both[0].err != nil:
		cur = 1
	case both[1].err != nil:
	case heads[1].SequenceNumber > heads[0].SequenceNumber:
		cur = 1
	case heads[1].SequenceNumber == heads[0].SequenceNumber && string(both[0].raw) != string(both[1].raw):
		return ondisk.Field(what, "sequence number", atHeader2+atSequence, heads[1].SequenceNumber,
			"another one than the first header has, whose content differs")
	}
	x.head = heads[cur]
	return x.head.check(both[cur].at, x.file.Size())
}

// check validates the current header. at is its file offset.
func (h *fileHeader) check(at, fileSize int64) error {
	field := func(name string, off int64, got, want any) error {
		return ondisk.Field("vhdx header", name, at+off, got, want)
	}
	switch {
	case h.SequenceNumber == math.MaxUint64:
		return field("sequence number", atSequence, h.SequenceNumber, "a number that can still grow")
	case h.Version != 1:
		return field("version", atVersion, h.Version, 1)
	case h.LogGUID != ondisk.GUID{} && h.LogVersion != 0:
		return field("log version", atLogVersion, h.LogVersion, 0)
	case h.LogLength%mib != 0 || (h.LogLength == 0 && h.LogGUID != ondisk.GUID{}):
		return field("log length", atLogLength, h.LogLength, "a multiple of 1 MiB")
	case h.LogLength > 0 && (h.LogOffset%mib != 0 || h.LogOffset < mib):
		return field("log offset", atLogOffset, h.LogOffset, "a multiple of 1 MiB, from 1 MiB on")
	case h.LogLength > 0 && (h.LogOffset > ondisk.U64(fileSize) ||
		uint64(h.LogLength) > ondisk.U64(fileSize)-h.LogOffset):
		return field("log offset", atLogOffset, h.LogOffset,
			fmt.Sprintf("a place from which %d bytes fit into the file of %d bytes", h.LogLength, fileSize))
	}
	return nil
}

// identity holds the identifiers of a disk and its file.
type identity struct {
	identifier fileIdentifier
	disk       ondisk.GUID // identifies the disk to a guest: kept from the source
	fileWrite  ondisk.GUID // both change with the contents
	dataWrite  ondisk.GUID
}

// newIdentity derives the identifiers of a copy from the source and the job, so that the same job gives the same bytes.
func newIdentity(from *template, seed []byte) identity {
	id := identity{identifier: newIdentifier()}
	var source ondisk.GUID
	if from != nil {
		id.identifier, source = from.identifier, from.dataWrite
	}
	derive := func(label string) (g ondisk.GUID) {
		h := sha256.New()
		h.Write([]byte("vhdx " + label))
		h.Write(source[:])
		h.Write(seed)
		copy(g[:], h.Sum(nil))
		g[7] = g[7]&0x0f | 0x40 // RFC 4122: version 4, in the high byte of the third group, and the variant
		g[8] = g[8]&0x3f | 0x80
		return g
	}
	id.disk, id.fileWrite, id.dataWrite = derive("disk"), derive("file write"), derive("data write")
	if from != nil {
		id.disk = from.meta.diskID
	}
	return id
}

// Regions of the specification. Spec: 2.2.3.2.
var (
	regionBAT      = ondisk.MustGUID("2dc27766-f623-4200-9d64-115e9bfd4a08")
	regionMetadata = ondisk.MustGUID("8b7ca206-4790-4b9a-b8fe-575f050f886e")
)

const (
	regionTableSize = 64 << 10
	maxRegions      = 2047
)

// regionHeader is the header of a region table. Spec: 2.2.3.1.
type regionHeader struct {
	Signature  [4]byte // "regi"
	Checksum   uint32
	EntryCount uint32
	_          uint32
}

// regionEntry is the entry of one region. Spec: 2.2.3.2.
type regionEntry struct {
	GUID       ondisk.GUID
	FileOffset uint64
	Length     uint32
	Required   uint32 // bit 0
}

// structure is a range of the file that no block may overlap.
type structure struct {
	disk.Range
	name string
}

// readRegions locates BAT and metadata. The region table has two copies, which the log keeps equal.
func (x *image) readRegions() error {
	both, err := x.copies(x.view, "vhdx region table", "regi", [2]int64{atRegions1, atRegions2}, regionTableSize)
	if err != nil {
		return err
	}
	cur := both[0]
	switch {
	case cur.err != nil:
		cur = both[1]
	case both[1].err == nil && !bytes.Equal(both[0].raw, both[1].raw):
		x.issues = append(x.issues, ondisk.Issue{
			Code: "vhdx-region-tables", Effect: ondisk.Refuse, Err: ondisk.ErrFormat,
			Text:   "the two region tables, at 0x30000 and 0x40000, are both whole and disagree",
			Remedy: "restore the image from a good copy, or take the first table with qemu-img convert",
		})
	}
	metadata, err := x.regions(cur)
	if err != nil {
		return err
	}
	if err := x.checkApart(); err != nil {
		return err
	}
	return x.meta.read(x.view, metadata)
}

// regions decodes the entries of a region table and returns the range of the metadata.
func (x *image) regions(c copyOf) (metadata disk.Range, err error) {
	x.used = []structure{{disk.Range{Len: mib}, "header section"}}
	if x.head.LogLength > 0 {
		x.used = append(x.used, structure{
			disk.Range{Off: ondisk.I64(x.head.LogOffset), Len: int64(x.head.LogLength)},
			"log",
		})
	}
	n := binary.LittleEndian.Uint32(c.raw[8:])
	if n > maxRegions {
		return metadata, ondisk.Field("vhdx region table", "entry count", c.at+8, n,
			fmt.Sprintf("at most %d", maxRegions))
	}
	seen := map[ondisk.GUID]bool{}
	for i := range int64(n) {
		at := int64(binary.Size(regionHeader{}) + int(i)*binary.Size(regionEntry{}))
		var e regionEntry
		ondisk.Fill(c.raw[at:], binary.LittleEndian, &e)
		if err := e.check(c.at+at, x.view.Size(), seen); err != nil {
			return metadata, err
		}
		r := disk.Range{Off: ondisk.I64(e.FileOffset), Len: int64(e.Length)}
		switch e.GUID {
		case regionBAT:
			x.bat = r
			x.used = append(x.used, structure{r, "BAT"})
		case regionMetadata:
			metadata = r
			x.used = append(x.used, structure{r, "metadata"})
		default:
			x.used = append(x.used, structure{r, "region " + e.GUID.String()})
		}
	}
	for _, want := range []ondisk.GUID{regionBAT, regionMetadata} {
		if !seen[want] {
			return metadata, ondisk.Field("vhdx region table", "region", c.at, "none", want.String())
		}
	}
	return metadata, nil
}

// check validates one entry. at is its file offset.
func (e *regionEntry) check(at, fileSize int64, seen map[ondisk.GUID]bool) error {
	field := func(name string, off int64, got, want any) error {
		return ondisk.Field("vhdx region table", name, at+off, got, want)
	}
	if seen[e.GUID] {
		return field("region", 0, e.GUID.String(), "each region once")
	}
	seen[e.GUID] = true
	switch {
	case e.GUID != regionBAT && e.GUID != regionMetadata && e.Required&1 != 0:
		return fmt.Errorf("vhdx region table at %#x: region %s is required: %w; it is not one of the specification's",
			at, e.GUID, ondisk.ErrUnsupported)
	case e.FileOffset%mib != 0 || e.FileOffset < mib:
		return field("file offset", 16, e.FileOffset, "a multiple of 1 MiB, from 1 MiB on")
	case e.Length%mib != 0 || e.Length == 0:
		return field("length", 24, e.Length, "a multiple of 1 MiB")
	case e.FileOffset > ondisk.U64(fileSize) || uint64(e.Length) > ondisk.U64(fileSize)-e.FileOffset:
		return field("file offset", 16, e.FileOffset,
			fmt.Sprintf("a place from which %d bytes fit into the file of %d bytes", e.Length, fileSize))
	}
	return nil
}

// checkApart sorts the structures and returns an error if two of them overlap.
func (x *image) checkApart() error {
	slices.SortFunc(x.used, func(a, b structure) int { return cmp.Compare(a.Off, b.Off) })
	for i := 1; i < len(x.used); i++ {
		a, b := x.used[i-1], x.used[i]
		if a.Overlaps(b.Range) {
			return ondisk.Field("vhdx region table", b.name, b.Off, fmt.Sprintf("%d bytes at %#x", b.Len, b.Off),
				fmt.Sprintf("a place apart from the %s, %d bytes at %#x", a.name, a.Len, a.Off))
		}
	}
	return nil
}

// touches returns the structure that overlaps r.
func (x *image) touches(r disk.Range) (structure, bool) {
	if hit := disk.Overlapping(x.used, r); len(hit) > 0 {
		return hit[0], true
	}
	return structure{}, false
}
