package qcow2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/image/driver"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// header is the start of the first cluster, big-endian. Version 2 ends before IncompatibleFeatures. Spec: QEMU
// docs/interop/qcow2, "Header".
type header struct {
	Magic                 [4]byte // "QFI\xfb"
	Version               uint32
	BackingFileOffset     uint64 // 0 without backing file
	BackingFileSize       uint32 // bytes of its name
	ClusterBits           uint32
	Size                  uint64 // of the disk, bytes
	CryptMethod           uint32
	L1Size                uint32 // entries
	L1TableOffset         uint64
	RefcountTableOffset   uint64
	RefcountTableClusters uint32
	NbSnapshots           uint32
	SnapshotsOffset       uint64
	IncompatibleFeatures  uint64
	CompatibleFeatures    uint64
	AutoclearFeatures     uint64
	RefcountOrder         uint32 // a refcount has 1 << RefcountOrder bits
	HeaderLength          uint32 // bytes, with the additional fields behind this one
}

// Incompatible features. A reader must reject an image with an unknown bit.
const (
	incompatDirty    = 1 << 0 // refcounts may be stale
	incompatCorrupt  = 1 << 1
	incompatDataFile = 1 << 2 // guest data is in another file
	incompatPacking  = 1 << 3 // clusters are not compressed with deflate
	incompatExtended = 1 << 4 // L2 entries have subclusters
	incompatKnown    = incompatDirty | incompatCorrupt | incompatDataFile | incompatPacking | incompatExtended

	compatLazy       = 1 << 0
	autoclearBitmaps = 1 << 0 // the bitmaps are up to date
	autoclearRaw     = 1 << 1 // the external data file is the disk as a raw image
)

// Byte offsets of the fields in messages.
const (
	atVersion     = 4
	atBacking     = 8
	atBackingSize = 16
	atClusterBits = 20
	atSize        = 24
	atCrypt       = 32
	atL1Size      = 36
	atL1          = 40
	atRefTable    = 48
	atRefClusters = 56
	atSnapshots   = 60
	atSnapTable   = 64
	atIncompat    = 72
	atOrder       = 96
	atLength      = 100
	atPacking     = 104
)

const (
	version2Length = 72
	version3Length = 104
	minClusterBits = 9
	maxClusterBits = 21 // QEMU's limit
	minExtended    = 14 // cluster_bits with extended L2 entries
	maxOrder       = 6
	maxSnapshots   = 65536    // QEMU's limit, like the next two
	maxL1          = 32 << 20 // bytes
	maxRefTable    = 8 << 20  // bytes
)

func field(name string, at int64, got, want any) error {
	return ondisk.Field("qcow2 header", name, at, got, want)
}

// decodeAt decodes the fixed-size struct v at off, big-endian.
func decodeAt(src ondisk.Source, off int64, v any) error {
	b, err := ondisk.Bytes(src, off, int64(binary.Size(v)))
	if err != nil {
		return err
	}
	ondisk.Fill(b, binary.BigEndian, v)
	return nil
}

// readHeader decodes the header, with the defaults of version 3 for version 2. It validates only the length.
func readHeader(src ondisk.Source) (*header, error) {
	if src.Size() < version2Length {
		return nil, field("file size", 0, src.Size(),
			fmt.Sprintf("at least %d bytes, the size of the header", version2Length))
	}
	var b [version3Length]byte
	n := min(src.Size(), version3Length)
	if err := ondisk.ReadFull(src, b[:n], 0); err != nil {
		return nil, err
	}
	if binary.BigEndian.Uint32(b[atVersion:]) == 2 {
		clear(b[version2Length:])
		binary.BigEndian.PutUint32(b[atOrder:], 4)
		binary.BigEndian.PutUint32(b[atLength:], version2Length)
	}
	h := &header{}
	ondisk.Fill(b[:], binary.BigEndian, h)
	return h, nil
}

// check validates the header. fileSize is in bytes.
func (h *header) check(fileSize int64) error {
	switch {
	case h.Version < 2 || h.Version > 3:
		return fmt.Errorf("qcow2 header at %#x: version %d: %w, want 2 or 3; convert it with qemu-img convert",
			atVersion, h.Version, ondisk.ErrUnsupported)
	case h.Version == 3 && fileSize < version3Length:
		return field("file size", 0, fileSize,
			fmt.Sprintf("at least %d bytes, the size of the header of version 3", version3Length))
	case h.ClusterBits < minClusterBits || h.ClusterBits > maxClusterBits:
		return field("cluster_bits", atClusterBits, h.ClusterBits,
			fmt.Sprintf("%d to %d", minClusterBits, maxClusterBits))
	case h.Size == 0 || h.Size > math.MaxInt64-1<<maxClusterBits || h.Size%uint64(units.SectorSize) != 0:
		return field("size", atSize, h.Size, "a multiple of 512 bytes above 0 and below 2^63")
	case h.RefcountOrder > maxOrder:
		return field("refcount_order", atOrder, h.RefcountOrder, fmt.Sprintf("0 to %d", maxOrder))
	case h.Version == 3 &&
		(h.HeaderLength < version3Length || h.HeaderLength%8 != 0 ||
			int64(h.HeaderLength) > min(h.cluster(), fileSize)):
		return field("header_length", atLength, h.HeaderLength,
			fmt.Sprintf("a multiple of 8 from %d to %d, inside the first cluster and the file", version3Length,
				min(h.cluster(), fileSize)))
	case h.extended() && h.ClusterBits < minExtended:
		return field("cluster_bits", atClusterBits, h.ClusterBits,
			fmt.Sprintf("%d to %d with extended L2 entries", minExtended, maxClusterBits))
	case h.NbSnapshots > maxSnapshots:
		return field("nb_snapshots", atSnapshots, h.NbSnapshots, fmt.Sprintf("at most %d", maxSnapshots))
	}
	if err := h.checkCrypt(); err != nil {
		return err
	}
	return h.checkPlaces(fileSize)
}

func (h *header) checkCrypt() error {
	name := map[uint32]string{1: "AES", 2: "LUKS"}[h.CryptMethod]
	switch {
	case h.CryptMethod == 0:
		return nil
	case name == "":
		name = fmt.Sprintf("method %d", h.CryptMethod)
	}
	return fmt.Errorf("qcow2 header at %#x: encryption %s: %w; decrypt it with qemu-img convert --object secret,… "+
		"first", atCrypt, name, ondisk.ErrUnsupported)
}

// checkPlaces checks that L1 and refcount table are cluster-aligned, lie inside the file, and overlap neither each
// other nor the header.
func (h *header) checkPlaces(fileSize int64) error {
	need := (h.clusters() + h.entries() - 1) / h.entries()
	if int64(h.L1Size) < need {
		return field("l1_size", atL1Size, h.L1Size, fmt.Sprintf("at least %d entries for a disk of %d bytes", need,
			h.Size))
	}
	if err := h.checkTable("l1_table_offset", atL1, h.L1TableOffset, 8*int64(h.L1Size), fileSize); err != nil {
		return err
	}
	if 8*int64(h.L1Size) > maxL1 {
		return fmt.Errorf("qcow2 header at %#x: L1 table of %d entries: %w of %d bytes", atL1Size, h.L1Size,
			ondisk.ErrLimit, maxL1)
	}
	if err := h.checkTable("refcount_table_offset", atRefTable, h.RefcountTableOffset,
		int64(h.RefcountTableClusters)*h.cluster(), fileSize); err != nil {
		return err
	}
	if h.refTable().Len > max(maxRefTable, h.cluster()) {
		return fmt.Errorf("qcow2 header at %#x: refcount table of %d clusters: %w of %d bytes", atRefClusters,
			h.RefcountTableClusters, ondisk.ErrLimit, maxRefTable)
	}
	if h.refTable().Overlaps(h.l1()) {
		return field("refcount_table_offset", atRefTable, h.RefcountTableOffset, "a place apart from the L1 table")
	}
	if h.NbSnapshots > 0 {
		return h.checkTable("snapshots_offset", atSnapTable, h.SnapshotsOffset, snapshotLength*int64(h.NbSnapshots),
			fileSize)
	}
	return nil
}

// checkTable checks that a table of n bytes lies inside the file, cluster-aligned and behind the header cluster.
func (h *header) checkTable(name string, at int64, off uint64, n, fileSize int64) error {
	if off == 0 || off%ondisk.U64(h.cluster()) != 0 || off > ondisk.U64(fileSize) || n > fileSize-ondisk.I64(off) {
		return field(name, at, off,
			fmt.Sprintf("a multiple of %d above 0 from which %d bytes fit into the file of %d bytes", h.cluster(), n,
				fileSize))
	}
	return nil
}

func (h *header) cluster() int64 { return 1 << h.ClusterBits }
func (h *header) extended() bool { return h.IncompatibleFeatures&incompatExtended != 0 }

// external reports whether the guest's data lie in an external data file.
func (h *header) external() bool { return h.IncompatibleFeatures&incompatDataFile != 0 }

// entrySize returns the size of an L2 entry in bytes.
func (h *header) entrySize() int64 {
	if h.extended() {
		return 16
	}
	return 8
}

// entries returns the number of entries of an L2 table.
func (h *header) entries() int64 { return h.cluster() / h.entrySize() }

// clusters returns the number of clusters of the disk, of which the last may be partial.
func (h *header) clusters() int64 { return (ondisk.I64(h.Size) + h.cluster() - 1) / h.cluster() }

func (h *header) l1() disk.Range {
	return disk.Range{Off: ondisk.I64(h.L1TableOffset), Len: 8 * int64(h.L1Size)}
}

func (h *header) refTable() disk.Range {
	return disk.Range{Off: ondisk.I64(h.RefcountTableOffset), Len: int64(h.RefcountTableClusters) * h.cluster()}
}

// Types of header extensions. Spec: "Header extensions".
const (
	extEnd        = 0
	extFormat     = 0xe2792aca // name of the backing file's format
	extFeatures   = 0x6803f857 // names of feature bits
	extBitmaps    = 0x23852875
	extEncryption = 0x0537be77 // offset of the LUKS header
	extDataFile   = 0x44415441 // name of the external data file
)

const (
	maxName     = 1023 // bytes of a backing file's name
	featureSize = 48   // bytes of an entry in the table of feature names
)

// extensions holds the additional header fields and the header extensions.
type extensions struct {
	format   string // of the backing file
	dataFile string
	features []byte
	bitmaps  *bitmapsExtension
	packing  byte // compression_type
}

// bitmapsExtension locates the bitmap directory. Spec: "Bitmaps extension".
type bitmapsExtension struct {
	NbBitmaps       uint32
	_               uint32
	DirectorySize   uint64
	DirectoryOffset uint64
}

// readExtensions reads the header extensions, up to the backing file name or the end of the first cluster.
func (h *header) readExtensions(src ondisk.Source) (*extensions, error) {
	end := min(h.cluster(), src.Size())
	if h.BackingFileOffset != 0 {
		if err := h.checkBacking(end); err != nil {
			return nil, err
		}
		end = ondisk.I64(h.BackingFileOffset)
	}
	x := &extensions{}
	if int64(h.HeaderLength) > atPacking {
		var b [1]byte
		if err := ondisk.ReadFull(src, b[:], atPacking); err != nil {
			return nil, err
		}
		x.packing = b[0]
	}
	for at := int64(h.HeaderLength); at+8 <= end; {
		var e struct{ Type, Len uint32 }
		if err := decodeAt(src, at, &e); err != nil {
			return nil, err
		}
		if e.Type == extEnd {
			break
		}
		if int64(e.Len) > end-at-8 {
			return nil, ondisk.Field("qcow2 header extension", "length", at+4, e.Len,
				fmt.Sprintf("at most %d bytes, what is left of the first cluster", end-at-8))
		}
		if err := x.add(src, e.Type, at+8, int64(e.Len)); err != nil {
			return nil, err
		}
		at += 8 + (int64(e.Len)+7)&^7
	}
	return x, nil
}

func (h *header) checkBacking(end int64) error {
	switch {
	case h.BackingFileOffset < uint64(h.HeaderLength) || h.BackingFileOffset > ondisk.U64(end):
		return field("backing_file_offset", atBacking, h.BackingFileOffset,
			fmt.Sprintf("0, or from %d to %d: inside the first cluster", h.HeaderLength, end))
	case h.BackingFileSize > maxName || int64(h.BackingFileSize) > end-ondisk.I64(h.BackingFileOffset):
		return field("backing_file_size", atBackingSize, h.BackingFileSize,
			fmt.Sprintf("at most %d bytes, and inside the first cluster", maxName))
	}
	return nil
}

// add decodes a known extension; unknown ones can be ignored safely.
func (x *extensions) add(src ondisk.Source, kind uint32, off, n int64) error {
	switch kind {
	case extFormat, extDataFile, extFeatures:
	case extBitmaps:
		x.bitmaps = &bitmapsExtension{}
		if n != int64(binary.Size(x.bitmaps)) {
			return ondisk.Field("qcow2 bitmaps extension", "length", off-4, n, binary.Size(x.bitmaps))
		}
		return decodeAt(src, off, x.bitmaps)
	default:
		return nil
	}
	b, err := ondisk.Bytes(src, off, n)
	if err != nil {
		return err
	}
	switch kind {
	case extFormat:
		x.format = string(b)
	case extDataFile:
		x.dataFile = string(b)
	case extFeatures:
		x.features = b
	}
	return nil
}

// feature returns the image's name of an incompatible feature, formatted for a message.
func (x *extensions) feature(bit int) string {
	for b := x.features; len(b) >= featureSize; b = b[featureSize:] {
		if b[0] == 0 && int(b[1]) == bit {
			name, _, _ := bytes.Cut(b[2:featureSize], []byte{0})
			return fmt.Sprintf(" (%.46q)", name)
		}
	}
	return ""
}

// checkFeatures returns an error for incompatible features that are unknown or contradictory.
func (h *header) checkFeatures(x *extensions) error {
	for bit := range 64 {
		if h.IncompatibleFeatures&^uint64(incompatKnown)&(1<<bit) != 0 {
			return fmt.Errorf("qcow2 header at %#x: incompatible feature bit %d%s: %w", atIncompat, bit, x.feature(bit),
				ondisk.ErrUnsupported)
		}
	}
	if h.external() != (x.dataFile != "") {
		reason, bit := fmt.Sprintf("names the external data file %.256q, but", x.dataFile), "clear"
		if h.external() {
			reason, bit = "does not name its external data file, and", "set"
		}
		return &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("the qcow2 %s incompatible feature bit 2 at %#x is %s", reason,
				atIncompat, bit),
			Remedy: "convert it to one complete image with qemu-img convert",
		}
	}
	return h.checkPacking(x.packing)
}

// openData opens the file with the guest's data: the image itself, or its external data file. The content of an
// external data file is never interpreted as a header.
func (h *header) openData(s *driver.Source, x *extensions) (driver.File, error) {
	if !h.external() {
		return s.File, nil
	}
	f, err := s.Open(x.dataFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &ondisk.Refusal{
			Code: "reference", Reason: fmt.Sprintf("the external data file %.256q of the qcow2 is missing", x.dataFile),
			Remedy: "put it into the folder of the qcow2",
		}
	case err != nil:
		return nil, fmt.Errorf("qcow2 external data file %.256q: %w", x.dataFile, err)
	case f.ID() == s.File.ID():
		return nil, ondisk.Field("qcow2 header extension", "external data file", atIncompat, x.dataFile,
			"another file than the qcow2 itself")
	}
	return f, nil
}

// Compression types.
const (
	packingDeflate = 0
	packingZstd    = 1
)

func (h *header) checkPacking(kind byte) error {
	marked := h.IncompatibleFeatures&incompatPacking != 0
	switch {
	case marked == (kind == packingDeflate):
		return field("compression_type", atPacking, kind,
			"0 while incompatible feature bit 3 is clear, and another type while it is set")
	case kind > packingZstd:
		return fmt.Errorf("qcow2 header at %#x: compression type %d: %w, known are 0 (deflate) and 1 (zstd)", atPacking,
			kind, ondisk.ErrUnsupported)
	}
	return nil
}

// backing returns the name of the backing file as stored; ok is false without one.
func (h *header) backing(src ondisk.Source) (name string, ok bool, err error) {
	if h.BackingFileOffset == 0 {
		return "", false, nil
	}
	b, err := ondisk.Bytes(src, ondisk.I64(h.BackingFileOffset), int64(h.BackingFileSize))
	return string(b), true, err
}
