package guestfile

import (
	"fmt"
	"io/fs"
	"math"
	"strings"

	"github.com/trueup/trueup/internal/disk"
	"github.com/trueup/trueup/internal/ondisk"
	"github.com/trueup/trueup/internal/units"
)

// ntfsFS reads files of an NTFS volume, of every version from that of NT 4 (1.2) to that of Windows 11 (3.1).
type ntfsFS struct {
	volume   disk.Disk
	cluster  int64 // bytes
	clusters int64 // of the volume
	record   int64 // bytes of a record of the MFT
	mft      *File // complete, save while it is being read
	upper    []uint16
	spent    int64 // bytes of structures read so far
	budget   *Budget
}

// maxStructures bounds what is read of records and indexes, in bytes: a volume made to be slow gets no more time. Opening a hundred files
// takes about 20 MiB.
const maxStructures = 128 << 20

// ntfsWeight is how much more a byte of these structures costs than one that is read only: records and indexes are taken apart.
const ntfsWeight = 4

// spend counts bytes of structures that are going to be read.
func (n *ntfsFS) spend(bytes int64) error {
	if n.spent += bytes; n.spent > maxStructures {
		return fmt.Errorf("ntfs: %w of %d bytes of records and indexes", ondisk.ErrLimit, int64(maxStructures))
	}
	return n.budget.spend(ntfsWeight * bytes)
}

// Records of the MFT that have a fixed place. Spec: Linux-NTFS documentation, "Files: overview".
const (
	mftRecord    = 0
	rootRecord   = 5
	upcaseRecord = 10
)

// ntfsBoot is the part of the boot sector that is needed. Spec: Linux-NTFS documentation, "$Boot".
type ntfsBoot struct {
	_                 [3]byte // jump
	OEM               [8]byte // "NTFS    "
	BytesPerSector    uint16
	SectorsPerCluster uint8 // above 128: 2^(256-n)
	_                 [26]byte
	TotalSectors      uint64
	MFTCluster        uint64
	_                 [8]byte // cluster of the MFT's mirror
	ClustersPerRecord int8    // negative: the record has 2^-n bytes
	_                 [445]byte
	Magic             uint16
}

const ntfsBootWhat = "ntfs boot sector"

// maxNTFSRecord is the size of a record on a disk with sectors of 4096 bytes, in bytes. Nothing makes larger ones.
const maxNTFSRecord = 4096

// NTFS reads the file system of a partition; ErrNoMatch when it is not NTFS.
func (b *Budget) NTFS(volume disk.Disk) (FS, error) {
	n := &ntfsFS{volume: volume, budget: b}
	if volume.Size() < units.SectorSize {
		return nil, ondisk.ErrNoMatch
	}
	var boot ntfsBoot
	if _, err := ondisk.Decode(volume, 0, &boot); err != nil {
		return nil, err
	}
	if string(boot.OEM[:]) != "NTFS    " {
		return nil, ondisk.ErrNoMatch
	}
	if err := n.measure(&boot); err != nil {
		return nil, err
	}
	if err := n.readMFT(ondisk.I64(boot.MFTCluster) * n.cluster); err != nil {
		return nil, err
	}
	if err := b.keep(len(n.mft.runs)); err != nil {
		return nil, err
	}
	return n, n.readUpcase()
}

// measure takes the sizes of the boot sector, held to the values that Windows and ntfs-3g accept.
func (n *ntfsFS) measure(b *ntfsBoot) error {
	field := func(off int64, name string, got, want any) error {
		return &ondisk.FormatError{What: ntfsBootWhat, Off: off, Field: name, Got: got, Want: want}
	}
	sector := int64(b.BytesPerSector)
	if sector < 512 || sector > 4096 || !units.IsPowerOfTwo(sector) {
		return field(0x0b, "bytes per sector", sector, "512, 1024, 2048 or 4096")
	}
	if n.cluster = b.cluster(); n.cluster == 0 {
		return field(0x0d, "sectors per cluster", b.SectorsPerCluster, "a power of two up to 128, or 244 to 255 (2^(256-n))")
	}
	if n.record = b.record(n.cluster); n.record == 0 {
		return field(0x40, "clusters per MFT record", b.ClustersPerRecord, "a size of 512 to 4096 bytes")
	}
	if b.Magic != 0xaa55 {
		return field(0x1fe, "signature", fmt.Sprintf("%#04x", b.Magic), "0xaa55")
	}
	sectors := n.volume.Size() / sector
	if b.TotalSectors == 0 || b.TotalSectors > ondisk.U64(sectors) {
		return field(0x28, "total sectors", b.TotalSectors, fmt.Sprintf("1 to %d, the size of the partition", sectors))
	}
	n.clusters = ondisk.I64(b.TotalSectors) * sector / n.cluster
	if b.MFTCluster == 0 || b.MFTCluster >= ondisk.U64(n.clusters) {
		return field(0x30, "MFT cluster", b.MFTCluster, fmt.Sprintf("a cluster of the %d there are, but the first", n.clusters))
	}
	return nil
}

// cluster is the size of a cluster in bytes, 0 when the field is illegal.
func (b *ntfsBoot) cluster() int64 {
	c := int64(b.SectorsPerCluster)
	if c >= 0xf4 { // clusters above 64 KiB
		c = 1 << (256 - c)
	} else if c > 0x80 || !units.IsPowerOfTwo(c) {
		return 0
	}
	return c * int64(b.BytesPerSector)
}

// record is the size of an MFT record in bytes, 0 when the field is illegal.
func (b *ntfsBoot) record(cluster int64) int64 {
	size := int64(b.ClustersPerRecord) * cluster
	if c := b.ClustersPerRecord; c < 0 && c >= -16 {
		size = 1 << -c
	}
	if size < ntfsStride || size > maxNTFSRecord || !units.IsPowerOfTwo(size) {
		return 0
	}
	return size
}

// readMFT finds the records of the MFT, which itself is a file with a record. When its map of runs is in several records, the first runs
// lead to the record with the next ones.
func (n *ntfsFS) readMFT(at int64) error {
	boot, err := newFile(n.volume, "$MFT", n.record, []Run{{Len: n.record, At: at}})
	if err != nil {
		return err
	}
	n.mft = boot
	first, err := n.node(ntfsRef{number: mftRecord}, "$MFT")
	if err != nil {
		return err
	}
	v := ntfsValue{fs: n, growing: true}
	if err := first.read(attrData, "", &v); err != nil {
		return err
	}
	if n.mft, err = v.file("$MFT"); err != nil {
		return err
	}
	if places, err := n.mft.Where(0, n.record); err != nil || len(places) != 1 || places[0].Off != at {
		return &ondisk.FormatError{What: "ntfs $MFT", Off: at, Field: "first run", Got: fmt.Sprint(places), Want: "the place that the boot sector gives"}
	}
	return nil
}

// List gives the long names of a folder.
func (n *ntfsFS) List(path string) ([]Entry, error) {
	dir, err := n.find(path)
	if err != nil {
		return nil, err
	}
	var out []Entry
	return out, dir.names(nil, func(name *ntfsName) error {
		if name.space != spaceDOS { // a second name of a file that has a long one
			out = append(out, Entry{Name: name.text(), Dir: name.dir})
		}
		return nil
	})
}

// Open finds a file by its long or its short name.
func (n *ntfsFS) Open(path string) (*File, error) {
	node, err := n.find(path)
	if err != nil {
		return nil, err
	}
	if node.rec.dir() {
		return nil, fmt.Errorf("file %.256q: %w: it is a folder", path, fs.ErrNotExist)
	}
	v := ntfsValue{fs: n}
	if err := node.read(attrData, "", &v); err != nil {
		return nil, err
	}
	if err := v.plain(node.path); err != nil {
		return nil, err
	}
	return v.file(node.path)
}

// find goes from the root along a path.
func (n *ntfsFS) find(path string) (*ntfsNode, error) {
	node, err := n.node(ntfsRef{number: rootRecord}, "")
	if err != nil || path == "" {
		return node, err
	}
	if strings.Count(path, "/") >= maxDepth {
		return nil, fmt.Errorf("file %.256q: %w of %d folders", path, ondisk.ErrLimit, maxDepth)
	}
	for name := range strings.SplitSeq(path, "/") {
		if node, err = node.child(name); err != nil {
			return nil, err
		}
		if err := node.passable(); err != nil {
			return nil, err
		}
	}
	return node, nil
}

// vcnLimit is the first cluster of a file whose bytes cannot be counted.
func (n *ntfsFS) vcnLimit() int64 { return math.MaxInt64 / n.cluster }
